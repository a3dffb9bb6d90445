"""Others that compute a variant, as functions of q, k and v that a model can train with."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from flashgen.bench.candidates import CUDNN, FLEX, sdpa_function
from flashgen.bench.flex import Attend, flex_function
from flashgen.bench.installed import Unavailable
from flashgen.codegen.pairwise import SIZES, make
from flashgen.errors import UsageError
from flashgen.problems.problem import Problem
from flashgen.runtime.alibi import alibi_slopes
from flashgen.spec.variant import Variant


def peers(variant: Variant, problem: Problem, device: str) -> dict[str, Attend]:
    """Compiled FlexAttention and, where it has the variant, torch's cuDNN attention, by name.

    For q, k, v of the problem's sizes on `device`. Runtime params and inputs have their defaults; UsageError where an
    input has none.
    """
    import torch

    given: dict[str, Any] = {param.name: param.value for param in variant.runtime_params}
    for tensor in variant.inputs:
        if tensor.default != "alibi_slopes":
            raise UsageError(f"{variant.name} has the input {tensor.name!r}; expected inputs with defaults alone")
        given[tensor.name] = alibi_slopes(problem.heads, torch.device(device))
    sizes = {name: getattr(problem, name) for name in SIZES}
    found = {FLEX: flex_function(variant, problem, make(variant, sizes, given), None, device)}
    with suppress(Unavailable):
        found[CUDNN] = sdpa_function(CUDNN, variant, problem)
    return found
