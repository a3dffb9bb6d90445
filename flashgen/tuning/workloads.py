"""What is tuned: the problems of a variant, each with the key under which its config is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from flashgen.problems.problem import Problem
from flashgen.runtime.decoding import few_queries
from flashgen.runtime.identity import Identity
from flashgen.runtime.records import Bucket, Device, Key
from flashgen.runtime.registry import MODES, TUNED
from flashgen.spec.modes import shapes_of
from flashgen.spec.variant import TuneShape, Variant


@dataclass(frozen=True)
class Workload:
    problem: Problem
    key: Key

    def __str__(self) -> str:
        return f"{self.key.kernel}, {self.problem}"


def problems(
    variant: Variant, shapes: Sequence[TuneShape] | None = None, dtypes: Sequence[str] | None = None,
    modes: Sequence[str] | None = None,
) -> list[Problem]:  # fmt: skip
    """Each shape in each dtype, the spec's own where None; a shape without a head_dim in each of the spec's.

    With `modes` the shapes for these forms of call alone, usual ones where the spec has none.
    """
    return [
        Problem(
            shape.batch, shape.heads, shape.kv_heads, shape.q_len, shape.kv_len, head_dim,
            shape.v_head_dim or head_dim, dtype, shape.mode, shape.block_size, shape.cache, shape.min_len,
        )
        for dtype in dtypes or variant.dtypes
        for shape in shapes or shapes_of(variant, modes)
        for head_dim in ([shape.head_dim] if shape.head_dim else variant.head_dims)
    ]  # fmt: skip


def bucket_of(problem: Problem) -> Bucket:
    """The bucket in which a call of this size looks its config up."""
    return Bucket.of(
        problem.batch * problem.heads, problem.heads // problem.kv_heads, problem.q_len, problem.kv_len,
        problem.block_size, problem.cache, problem.tokens[0] if problem.packed else 0,
    )  # fmt: skip


def served(problem: Problem, kernel: str, forwards: bool = False) -> tuple[Problem, str] | None:
    """The form of call and the kernel that has what `kernel` does of calls of this size; None where it has no part.

    The forward pass of few queries over many keys is the decode kernel's, unless it `forwards` all, as where the
    variant drops weights.
    """
    if kernel not in MODES[problem.mode]:
        return None
    if kernel == "forward" and problem.mode == "dense" and few_queries(problem.q_len, problem.kv_len) and not forwards:
        return replace(problem, mode="decode"), "decode"
    return problem, kernel


def workloads(
    problems: Iterable[Problem], identity: Identity, device: Device, kernels: Sequence[str] = ("forward",),
    drops: bool = False,
) -> list[Workload]:  # fmt: skip
    """One workload for each key; of problems in the same bucket the first stands for all.

    `identity` is a generated module's IDENTITY, `kernels` are those to tune, as far as the module has them; `drops`:
    it is one with dropout. All of the forward come first, then for each problem those of the backward; those with the
    same compiled kernels stand together.
    """
    found: dict[Key, Workload] = {}
    named = [kernel for kernel in TUNED if kernel in kernels and kernel in identity.templates]
    forwards = drops or "decode" not in identity.templates
    for problem, kernel in filter(None, (served(*each, forwards) for each in product(problems, named))):
        key = Key(
            device.gpu, device.capability, device.triton, identity.variant, kernel, problem.dtype,
            problem.head_dim, problem.v_head_dim, bucket_of(problem), identity.spec, identity.templates[kernel],
        )  # fmt: skip
        found.setdefault(key, Workload(problem, key))
    return sorted(
        found.values(), key=lambda w: (w.key.kernel != "forward", w.key.dtype, w.key.head_dim, w.key.v_head_dim)
    )
