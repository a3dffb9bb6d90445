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
    Mutation("a sequence's first query off by one", "full", "forward_varlen", "first_query.to(tl.int64) * stride_qm",
             "(first_query + 1).to(tl.int64) * stride_qm"),
    Mutation("a sequence's first key off by one", "full", "forward_varlen", "first_key.to(tl.int64) * stride_kn",
             "(first_key + 1).to(tl.int64) * stride_kn"),
    Mutation("a key of the next sequence seen", "full", "forward_varlen", "    row0 = tile * BM",
             "    row0 = tile * BM\n    kv_len += 1"),
    Mutation("the last key not seen", "causal", "forward_varlen", "    row0 = tile * BM",
             "    row0 = tile * BM\n    kv_len = tl.maximum(kv_len - 1, 0)"),
    Mutation("the result in the rows of another sequence", "full", "forward_varlen", "out_rows = (first_query + rows)",
             "out_rows = (first_query * 0 + rows)"),
    Mutation("the log-sum-exps of another sequence", "causal", "backward_q_varlen", "num_rows + first_query + rows",
             "num_rows + rows"),
    Mutation("the rows of another sequence", "causal", "backward_kv_varlen", "num_rows + first_query", "num_rows"),
    Mutation("one length for all", "document", "schedule_varlen", "cu_seqlens_k_ptr, b, batch",
             "cu_seqlens_k_ptr, 0 * b, batch"),
    Mutation("an input read from its beginning", "document", "forward_varlen", "doc_ptr + first_key", "doc_ptr"),
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
