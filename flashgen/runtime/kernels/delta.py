"""The kernel that comes before those of the backward pass: what they need of each row."""

from __future__ import annotations

import torch

from flashgen.runtime.backward import Incoming
from flashgen.runtime.call import Call

# Of a tile.
_ELEMENTS = 8192


def delta_programs(call: Call, incoming: Incoming) -> int:
    """One program for each tile of rows of `_delta`."""
    return -(-incoming.num_rows // _delta_rows(call)) * call.sizes.batch * call.sizes.heads


def delta_blocks(call: Call, dq_sums: torch.Tensor | None) -> dict[str, int]:
    """The constants that `_delta` is compiled for, WIDTH for the columns of sums that it clears."""
    width = 0 if dq_sums is None else dq_sums.shape[1]
    return {"BM": _delta_rows(call), "V_HEAD_DIM": call.layout.V_HEAD_DIM, "WIDTH": width}


def _delta_rows(call: Call) -> int:
    return max(16, _ELEMENTS // call.layout.V_HEAD_DIM)
