"""The proof of one config of a kernel, on a problem like the one that it was tuned for."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from flashgen.codegen.rehearsal import Wanted
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec.variant import Variant
from flashgen.verify.budget import judge
from flashgen.verify.case import Backward, Case
from flashgen.verify.paged_cases import PagedCase
from flashgen.verify.report import CaseResult
from flashgen.verify.run import as_given, dense_call, rehearse, run_case

# What a tuned config is proven on: the tuned problem, as far as a float64 score matrix of it is cheap.
CONFIG_LENGTH, CONFIG_GROUPS = 1024 + 77, 2


def verify_config(
    module: ModuleType, variant: Variant, problem: Problem, config: Config, device: str = "cuda",
    kernel: str = "forward",
) -> CaseResult:  # fmt: skip
    """Prove one config of a kernel on a problem like the one it was tuned for, cut down to what a float64 reference
    can hold."""
    return run_case(module, variant, _case_of(problem, config, kernel), device)


def rehearse_config(
    module: ModuleType, variant: Variant, problem: Problem, config: Config, device: str, kernel: str
) -> tuple[Wanted, ...]:
    """What `verify_config` would have to compile."""
    (wanted,) = rehearse(module, variant, [_case_of(problem, config, kernel)], device)
    return wanted


def _case_of(problem: Problem, config: Config, kernel: str) -> Case | PagedCase:
    """The proof of one config of a kernel."""
    small = _cut_down(problem)
    name = f"{config} on {small}"
    case = Case(name, small, lengths=_lengths(small) if small.packed else ())
    # Only the deterministic backward is sure to have dQ from a kernel of its own.
    cases: dict[str, Case | PagedCase] = {
        "forward": replace(case, config=config),
        "backward_q": replace(case, backward=Backward(q=config, deterministic=True)),
        "backward_kv": replace(case, backward=Backward(kv=config)),
        "decode": Case(name, small, config, decoded=True, drops=False),
        "decode_paged": _paged_case(name, small, config),
    }
    return cases[kernel]


def _paged_case(name: str, problem: Problem, config: Config) -> PagedCase:
    lengths, queries = _several(problem.kv_len), problem.q_len
    return PagedCase(
        name, lengths, (queries,) * 3, problem.heads, problem.kv_heads, problem.head_dim, problem.v_head_dim,
        problem.block_size or 16, problem.dtype, problem.cache, "head" if problem.cache else "none", planned=True,
        config=config,
    )  # fmt: skip


def _several(length: int) -> tuple[int, int, int]:
    """A length, a part of it and one more than half of it."""
    return length, max(1, length // 7), length // 2 + 1


def _lengths(problem: Problem) -> tuple[tuple[int, int], ...]:
    """The numbers of queries and keys of each packed sequence of a proof."""
    return tuple(zip(_several(problem.q_len), _several(problem.kv_len), strict=True))


def rehearse_proof(module: ModuleType, variant: Variant, problem: Problem, device: str) -> None:
    """What `verify_config` does apart from the kernel, so that the first proof does not wait for libraries to load."""
    case = Case("rehearsal", _cut_down(problem))
    call = dense_call(variant, case, device)
    given = as_given(module, variant, case, call)[0]
    out, lse = given.reference(call.q, call.k, call.v, **call.keywords, return_lse=True)
    judge(out, lse, call, given.reference)


def _cut_down(problem: Problem) -> Problem:
    kv_heads = min(problem.kv_heads, CONFIG_GROUPS)
    return replace(
        problem,
        batch=len(_several(1)) if problem.packed else 1,
        heads=problem.heads // problem.kv_heads * kv_heads,
        kv_heads=kv_heads,
        q_len=min(problem.q_len, CONFIG_LENGTH),
        kv_len=min(problem.kv_len, CONFIG_LENGTH),
        min_len=min(problem.min_len, CONFIG_LENGTH),
    )
