"""The proof of packed sequences can fail: a kernel with one mistake about their bounds is caught."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from gallery import VARIANTS
from mutants import assert_caught, first_failure, rendered
from packages import changed

from flashgen.codegen import generate, write_package
from flashgen.spec import load
from flashgen.verify.cases import cases_for, gradient_cases_for


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


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_mistake_is_caught(mutation: Mutation, tmp_path: Path) -> None:
    variant, package = VARIANTS[mutation.variant], tmp_path / mutation.variant
    right, file = rendered(variant), f"{mutation.file}.py"
    write_package(package, {**right, **changed({file: right[file]}, (mutation.old, mutation.new))})
    cases = cases_for if mutation.file.startswith(("forward", "schedule")) else gradient_cases_for
    packed = [case for case in cases(variant, "quick", False, False) if getattr(case, "lengths", ())]
    assert packed
    assert first_failure(package, variant, packed) is not None


@pytest.mark.parametrize("file", ["forward", "backward_q", "backward_kv"])
def test_a_param_of_the_spec_in_place_of_the_one_that_is_passed_is_caught(file: str, tmp_path: Path) -> None:
    params = {"cap": {"value": 3.0, "runtime": True}}
    variant = load({"name": "capped", "params": params, "score": "cap * tanh(score / cap)"})
    right, package = rendered(variant), tmp_path / "capped"
    begin = "    row0 = tile * BM\n" if file != "backward_kv" else "    col0 = tile * BN\n"
    baked = f"{begin}    if cu_seqlens_q_ptr is not None:\n        cap = 3.0\n"
    write_package(package, {**right, **changed({f"{file}.py": right[f"{file}.py"]}, (begin, baked))})
    cases = cases_for if file == "forward" else gradient_cases_for
    found = cases(variant, "quick", False, False)
    assert_caught(package, variant, [case for case in found if case.lengths])
    assert first_failure(package, variant, [case for case in found if not case.lengths][:4]) is None


def test_a_sequence_has_as_much_of_an_input_as_its_params_say(tmp_path: Path) -> None:
    """Not as much as those in the spec."""
    spec = {
        "name": "strided",
        "params": {"P": {"value": 4, "runtime": True}},
        "inputs": {"t": {"shape": ["kv_len // P + 1"], "dtype": "float32"}},
        "score": "score + t[k // P]",
    }
    variant = load(spec)
    packed = [case for case in cases_for(variant, "quick", False, False) if case.lengths and case.params]
    assert packed and first_failure(generate(variant, tmp_path), variant, packed) is None
