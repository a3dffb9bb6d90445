"""Scripts of examples/flex, with their attention exchanged as a user would."""

from __future__ import annotations

import math
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention
from torch import Tensor

FOLDER = Path(__file__).parents[1] / "examples" / "flex"
SCRIPTS = ("neighbourhood", "documents", "prefix_softcap", "decode", "train")


def run(name: str, attention: Any) -> Tensor:
    """What a script's main() returns where torch's flex_attention is this function."""
    spec = spec_from_file_location(f"flex_script_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.attention.flex_attention, "flex_attention", attention)
        patch.setitem(sys.modules, spec.name, script)  # where torch's compiler looks for it
        spec.loader.exec_module(script)
        return script.main()


def by_formula(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any = None, block_mask: Any = None, enable_gqa: bool = False
) -> Tensor:
    """flex_attention as its documentation has it, all pairs at once: torch's own has no gradients on the CPU."""
    key, value = (tensor.repeat_interleave(query.shape[1] // tensor.shape[1], 1) for tensor in (key, value))
    score = query @ key.mT / math.sqrt(query.shape[-1])
    places = [torch.arange(size, device=query.device) for size in score.shape]
    grid = [place.view([-1 if axis == at else 1 for at in range(4)]) for axis, place in enumerate(places)]
    if score_mod is not None:
        score = score_mod(score, *grid)
    return torch.softmax(score.masked_fill(~block_mask.mask_mod(*grid), -math.inf), -1) @ value
