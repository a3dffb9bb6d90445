"""Small calls of the gallery for the tests of this folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from gallery import VARIANTS

from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime.launching import replaced

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIG = "BM=16 BN=16 num_warps=4 num_stages=1"
BACKWARD = {"backward_kv": f"{CONFIG} fuse_dq=0", "backward_q": CONFIG}


def drawn(name: str, q_len: int = 20, kv_len: int = 27, dtype: str = "float32") -> Call:
    """A call of a variant: batch 2, 4 heads over 2, head_dim 16, v_head_dim 24."""
    return make_inputs(VARIANTS[name], Problem(2, 4, 2, q_len, kv_len, 16, 24, dtype), DEVICE)


def trainable(name: str, call: Call) -> tuple[Call, list[torch.Tensor]]:
    """The same call, and the arguments of it that ask for gradients: q, k, v and the learned inputs."""
    inputs = {t.name: call.inputs[t.name].detach().clone() for t in VARIANTS[name].inputs}
    q, k, v = (tensor.detach().clone() for tensor in (call.q, call.k, call.v))
    leaves = [q, k, v, *(inputs[t.name] for t in VARIANTS[name].inputs if t.grad)]
    for leaf in leaves:
        leaf.requires_grad_()
    return replace(call, q=q, k=k, v=v, inputs=inputs), leaves


def attend(module: ModuleType, call: Call, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, with small tiles."""
    given = {"config": CONFIG, "backward_config": BACKWARD} | call.keywords | more
    return module.attention(call.q, call.k, call.v, return_lse=True, **given)


@contextmanager
def launches() -> Iterator[Counter[str]]:
    """How often each kernel is launched."""
    counts: Counter[str] = Counter()

    def counting(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        counts[kernel.__name__] += 1
        kernel[(programs,)](*arguments, **constants)

    with replaced(counting):
        yield counts
