"""The proof of packed sequences can fail: a kernel with one mistake about their bounds is caught."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from flashgen.codegen import load_module, render, write_package
from flashgen.spec import load
from flashgen.verify.cases import cases_for, gradient_cases_for
from flashgen.verify.run import run_case

VARIANTS = Path(__file__).parents[2] / "variants"


@dataclass(frozen=True)
class Mutation:
    """A mistake: in a file of a variant a text is replaced by another."""

    name: str
    variant: str
    file: str
    old: str
    new: str


MUTATIONS = [
    Mutation("a sequence's first query off by one", "full", "forward", "begin_q.to(tl.int64) * stride_qb",
             "(begin_q + 1).to(tl.int64) * stride_qb"),
    Mutation("a sequence's first key off by one", "full", "forward", "begin_k.to(tl.int64) * stride_kb",
             "(begin_k + 1).to(tl.int64) * stride_kb"),
    Mutation("a key of the next sequence seen", "full", "forward", "    row0 = tile * BM",
             "    row0 = tile * BM\n    kv_len += 1"),
    Mutation("the last key not seen", "causal", "forward", "    row0 = tile * BM",
             "    row0 = tile * BM\n    kv_len = tl.maximum(kv_len - 1, 0)"),
    Mutation("the result in the rows of another sequence", "full", "forward", "rows, head, begin_q, q_len, heads)",
             "rows, head, begin_q * 0, q_len, heads)"),
    Mutation("the log-sum-exps of another sequence", "causal", "backward_q", "head, b, begin_q, num_rows",
             "head, b * 0, begin_q, num_rows"),
    Mutation("the rows of another sequence", "causal", "backward_kv", "head, b, begin_q, num_rows",
             "head, b * 0, begin_q, num_rows"),
    Mutation("a fused dq in the rows of another sequence", "causal", "backward_kv", "head, begin_q, q_len, total_q",
             "head, begin_q * 0, q_len, total_q"),
    Mutation("one length for all", "document", "schedule", "cu_seqlens_k_ptr, b, num_seqs",
             "cu_seqlens_k_ptr, 0 * b, num_seqs"),
    Mutation("an input read from its beginning", "document", "forward", "doc_ptr + begin_k", "doc_ptr + 0 * begin_k"),
]  # fmt: skip


@cache
def rendered(name: str) -> dict[str, str]:
    return render(load(VARIANTS / f"{name}.yaml"))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_mistake_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    variant, files = load(VARIANTS / f"{mutation.variant}.yaml"), rendered(mutation.variant)
    name = f"{mutation.file}.py"
    assert mutation.old in files[name], f"there is no {mutation.old!r} to mutate"
    write_package(tmp_path / mutation.variant, {**files, name: files[name].replace(mutation.old, mutation.new)})
    module = load_module(tmp_path / mutation.variant)
    cases = cases_for if mutation.file.startswith(("forward", "schedule")) else gradient_cases_for
    packed = [case for case in cases(variant, "quick", False, False) if getattr(case, "lengths", ())]
    assert packed
    assert not all(run_case(module, variant, case, "cpu").ok for case in packed)
