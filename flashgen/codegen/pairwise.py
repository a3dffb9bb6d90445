"""A variant's score and mask as two plain Python functions of broadcasting tensors, rendered from the checked graph.

They are what FlexAttention takes as `score_mod` and `mask_mod`, and what counts and draws visible pairs. As in the
generated `reference`, positions and heads are integer tensors that broadcast, scalars included.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flashgen.analysis.facts import facts_of
from flashgen.codegen.loading import load_module
from flashgen.codegen.naming import mangled, mangled_names
from flashgen.codegen.reference import expanded_shape
from flashgen.emit.eager_nodes import Guard
from flashgen.emit.torch import emit
from flashgen.lang.nodes import Expr, Gather
from flashgen.lang.traversal import inputs, variables
from flashgen.spec.names import SIZES
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pairwise:
    """`score(score, b, h, q_idx, kv_idx)` and `mask(b, h, q_idx, kv_idx)`; indices count from 0, before alignment."""

    score: Callable[..., Tensor]
    mask: Callable[..., Tensor]


def render(variant: Variant) -> str:
    """The source of a module whose `make(<sizes>, **inputs_and_params)` returns the two functions."""
    variant = mangled(variant)
    names = [i.name for i in variant.inputs] + [p.name for p in variant.runtime_params]
    lines = [
        "import math",
        "",
        "import torch",
        "",
        "",
        f"def make({', '.join([*SIZES, *names])}):",
        *_indent(1, _preamble(variant)),
        "",
        "    def score_mod(score, b, h, q_idx, kv_idx):",
        *_indent(2, _body(variant, variant.score)),
        "",
        "    def mask_mod(b, h, q_idx, kv_idx):",
        *_indent(2, _body(variant, variant.mask)),
        "",
        "    return score_mod, mask_mod",
    ]
    return "\n".join(lines) + "\n"


def make(variant: Variant, sizes: Mapping[str, int], arguments: Mapping[str, Any]) -> Pairwise:
    """The two functions for one problem: `sizes` has every name of SIZES, `arguments` the inputs and runtime params."""
    names = mangled_names(variant)
    wanted = {i.name for i in variant.inputs} | {p.name for p in variant.runtime_params}
    module = _load(render(variant), f"flashgen_pairwise_{variant.name}")
    chosen = {names[name]: value for name, value in arguments.items() if name in wanted}
    score, mask = module.make(**{name: sizes[name] for name in SIZES}, **chosen)
    return Pairwise(score, mask)


def _preamble(variant: Variant) -> list[str]:
    """Name the sizes that inputs bind, and let a size 1 that stands for all be indexed."""
    lines = []
    for tensor in variant.inputs:
        for axis, dim in enumerate(tensor.dims):
            if dim.binds is not None:
                lines.append(f"{dim.binds} = {tensor.name}.shape[{axis}]")
        if any(dim.may_be_one for dim in tensor.dims):
            # Only batch and heads may be 1.
            lines.append(f"{tensor.name} = {tensor.name}.expand({expanded_shape(tensor)})")
    return lines


def _body(variant: Variant, root: Expr) -> list[str]:
    wraps = facts_of(variant).ranges.may_wrap
    emission = emit((root,), variant.lets, _guard(variant), taken={"q_idx", "kv_idx", *SIZES}, wraps=wraps)
    used = {*variables(root), *emission.reads}
    lines = []
    if "kv_h" in used:
        lines.append("kv_h = h // (heads // kv_heads)")
    shift = " + (kv_len - q_len)" if variant.align == "bottom_right" else ""
    if "q" in used:
        lines.append(f"q = q_idx{shift}")
    if "k" in used:
        lines.append("k = kv_idx")
    if root is variant.mask and "score" in emission.reads:
        # Floats of a mask take the dtype of the scores, which a mask does not see.
        lines.append("score = torch.zeros((), dtype=torch.float32, device=q_idx.device)")
    result = emission.results[0]
    if not used and not inputs(root):
        # A constant still has to be a tensor.
        result = f"torch.full_like(q_idx, {result}, dtype=torch.{'bool' if root is variant.mask else 'float32'})"
    return [*lines, *emission.lines, f"return {result}"]


def _guard(variant: Variant) -> Guard:
    """Clamp an index only where it may leave its tensor, so that FlexAttention is not slowed by needless code."""
    ranges = facts_of(variant).ranges
    sizes = {i.name: [dim.size for dim in i.dims] for i in variant.inputs}

    def guard(node: Gather, axis: int) -> tuple[bool, bool]:
        low, high = ranges.guard(node, axis, sizes[node.input][axis])
        # Counted from the first key, queries beyond the last key run past every tensor over the keys.
        beyond = variant.align == "top_left" and "q" in variables(node.indices[axis])
        return low, high or beyond

    return guard


def _indent(level: int, lines: list[str]) -> list[str]:
    return ["    " * level + line for line in lines]


def _load(source: str, name: str) -> ModuleType:
    # A file, not a string: torch.compile and tracebacks show the source of what they run.
    folder = tempfile.mkdtemp(prefix="flashgen-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, f"{name}.py")
    path.write_text(source, encoding="utf-8")
    return load_module(path)
