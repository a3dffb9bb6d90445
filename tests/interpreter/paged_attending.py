"""Calls over a paged cache, each sequence proven."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from flashgen.problems.paged import Batch, dense_inputs, packed_keywords
from flashgen.spec.variant import Variant
from flashgen.verify.paged import judge_sequences

RAGGED = (0, 1, 15, 16, 17, 100)
SEVERAL = (1, 1, 3, 0, 2, 5)

Gallery = Callable[[str], ModuleType]


def attend(module: ModuleType, variant: Variant, batch: Batch, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse, each sequence proven."""
    own = dense_inputs(variant, batch)
    keywords = packed_keywords(variant, batch, own)
    out, lse = module.attention_paged(*batch.arguments, **batch.options, **keywords, return_lse=True, **options)
    for verdict in judge_sequences(module, variant, batch, own, out, lse):
        assert verdict.ok, verdict
    return out, lse
