"""One try of a case: right kernels pass, each mistake is found, errors are failures, what proves nothing is void."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packages import whole
from triton import knobs
from triton.runtime.errors import PTXASError

from flashgen.codegen import load_module, render, write_package
from flashgen.errors import SpecError
from flashgen.spec import load
from flashgen.verify.soak import trial
from flashgen.verify.soak.case import Case, Recipe
from flashgen.verify.soak.shrink import shrunk

CAUSAL = Case({"name": "causal", "causal": True}, 1, 2, 1, 40, 70, 16, 16, "float32")
DOCUMENT = Case(
    {
        "name": "document",
        "softcap": 5.0,
        "inputs": {
            "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
            "rel": {"shape": ["heads", 9], "dtype": "float32", "grad": True},
        },
        "let": {"d": "clamp(q - k, -4, 4)"},
        "score": "score + rel[h, d + 4]",
        "mask": "(doc[b, q] == doc[b, k]) & (k % 40 < 35)",
    },
    2, 2, 1, 50, 60, 16, 16, "float32", planned=True,
    recipes={"doc": Recipe("segments", 0, 3)},
)  # fmt: skip


def build_with(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """From here on every module is built with a mistake where its text has `old`."""

    def build(spec: Any, out: str, **_: object) -> ModuleType:
        path = Path(out, "mutated")
        write_package(path, {name: text.replace(old, new) for name, text in render(load(spec)).items()})
        return load_module(path)

    monkeypatch.setattr(trial.flashgen, "build", build)


LENGTHS = ((50, 60), (0, 20), (33, 41))
PACKED = replace(DOCUMENT, batch=3, lengths=LENGTHS, rest=(70, 65), d_out="transposed")
# The table has room for a page more than the longest sequence needs.
PAGED = replace(CAUSAL, batch=3, kv_len=80, lengths=((4, 60), (0, 20), (33, 41)), paged=True, d_out="none")
# Logarithms that hidden pairs do not have.
LOGARITHMS = Case(
    {
        "name": "logarithms",
        "causal": True,
        "inputs": {"r": {"shape": ["heads"], "dtype": "float32", "grad": True}},
        "score": "score + r[h] * log(q - k + 1)",
    },
    1, 2, 1, 40, 40, 16, 16, "float32",
    recipes={"r": Recipe("normal", 0, 1)},
)  # fmt: skip
SHARED = Case(CAUSAL.with_spec(bias="alibi").spec, 3, 4, 2, 40, 70, 16, 24, "bfloat16", shared=True)


@pytest.mark.parametrize(
    "case",
    [CAUSAL, DOCUMENT, SHARED, PACKED, PAGED, LOGARITHMS],
    ids=["causal", "document", "shared", "packed", "paged", "logarithms"],
)
def test_right_kernels_pass(case: Case) -> None:
    found = trial.attempt(case, "cpu").finding
    assert found.kind == "passed", found
    assert 0 < found.share < 1


@pytest.mark.parametrize(
    ("case", "old", "new", "kinds"),
    [
        (CAUSAL, "tl.where(empty, 1.0, l)[:, None]", "tl.where(empty, 1.0, l + 1)[:, None]", {"out"}),
        (CAUSAL, "return k <= q", "return k <= q + 1", {"out", "lse"}),
        (CAUSAL, "(m + tl.log2(l)) * 0.6931471805599453", "(m + tl.log2(l)) * 0.6932", {"lse"}),
        (DOCUMENT, "state.to(tl.int8)", "(state * 0 + 2).to(tl.int8)", {"schedule"}),
        (DOCUMENT, "state.to(tl.int8)", "tl.where(state == 2, 1, state).to(tl.int8)", {"schedule"}),
        (DOCUMENT, "+ 4].to(score.dtype)", "+ 3].to(score.dtype)", {"reference"}),
        (DOCUMENT, "+ 4].to(score.dtype)", "+ 4].to(score.dtype).detach()", {"reference"}),
        (DOCUMENT, "tanh(qk * qk_scale, PRECISE) *", "tanh(qk * qk_scale * 1.001, PRECISE) *", {"out", "lse"}),
        (PAGED, "page_of(pages_ptr, tl", "page_of(pages_ptr + 1, tl", {"out", "lse"}),
        (PACKED, "doc_ptr + begin_k", "doc_ptr + 0 * begin_k", {"out", "lse", "d_q", "d_k", "d_v"}),
    ],
)
def test_a_mistake_is_found(case: Case, old: str, new: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert old in whole(render(load(dict(case.spec))))
    build_with(monkeypatch, old, new)
    assert trial.attempt(case, "cpu").finding.kind in kinds


def test_a_mistake_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    build_with(monkeypatch, "tl.minimum(tl.maximum(q - k, -4), 4)", "tl.minimum(tl.maximum(q - k, -3), 4)")
    kind = trial.attempt(DOCUMENT, "cpu").finding.kind
    assert kind != "passed"
    small = shrunk(DOCUMENT, kind, lambda case: trial.attempt(case, "cpu", lenient=True).finding.kind, steps=30)
    assert trial.attempt(small, "cpu", lenient=True).finding.kind == kind
    assert {"mask", "softcap"}.isdisjoint(small.spec)
    assert "clamp" in json.dumps(small.spec)


def test_gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    source = whole(render(load(dict(DOCUMENT.spec))))
    old = next(line.strip() for line in source.splitlines() if line.strip().startswith("ds = "))
    build_with(monkeypatch, old, f"{old} * 1.01")
    assert trial.attempt(DOCUMENT, "cpu").finding.kind.startswith("d_")


def test_what_is_refused_or_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SpecError(type("L", (), {"__str__": lambda _: "x:1:1"})(), "a mask", "another")

    monkeypatch.setattr(trial.flashgen, "build", refuse)
    found = trial.attempt(CAUSAL, "cpu").finding
    assert (found.kind, found.failed) == ("refused", True)
    build_with(monkeypatch, "def attention(", "def attention(missing, ")
    assert trial.attempt(CAUSAL, "cpu").finding.kind == "error"


@pytest.mark.parametrize(
    ("said", "kind"),
    [("ptxas fatal : (C7600) Register allocation failed with register count of '255'", "passed"),
     ("ptxas fatal : Unresolved extern function", "error")],
)  # fmt: skip
def test_a_config_without_registers_is_no_failure(said: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case is then tried with the config that the module chooses; what else the assembler says is a failure."""
    right = trial._compared

    def compared(case: Case, *given: Any) -> Any:
        if case.configs:
            raise PTXASError(said)
        return right(case, *given)

    monkeypatch.setattr(trial, "_compared", compared)
    given = replace(CAUSAL, configs={"forward": "BM=64 BN=64 num_warps=4 num_stages=1"})
    assert trial.attempt(given, "cpu").finding.kind == kind


def test_kernels_that_would_lose_a_negation_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton tells of each kernel that it compiles, or has, with the files of all stages."""
    ptx = tmp_path / "attention.ptx"
    ptx.write_text("neg.s32 %r3, %r2;\nmax.s32 %r4, %r1, %r3;\nmax.s32 %r5, %r4, %r1;\n")
    right = trial._compared

    def compared(*given: Any) -> Any:
        files = {ptx.name: str(ptx), "attention.json": str(tmp_path / "attention.json")}
        knobs.compilation.listener(src=None, metadata={}, metadata_group=files, times=None, cache_hit=False)
        return right(*given)

    monkeypatch.setattr(trial, "_compared", compared)
    found = trial.attempt(CAUSAL, "cpu").finding
    assert (found.kind, found.detail) == ("lost negation", "attention: %r5")
    ptx.write_text("max.s32 %r4, %r1, %r3;\nmax.s32 %r5, %r4, %r1;\n")
    assert trial.attempt(CAUSAL, "cpu").finding.kind == "passed"
    assert knobs.compilation.listener is None


def test_a_draw_of_which_nothing_can_be_said_is_void() -> None:
    hidden = CAUSAL.with_spec(mask="k < 0")
    assert trial.attempt(hidden, "cpu").finding.kind == "void"
    assert trial.attempt(hidden, "cpu", lenient=True).finding.kind == "passed"


@pytest.mark.parametrize("mask", ["k <= q", "(k <= q) | (R - R > k)"])
def test_a_draw_with_an_argument_of_which_nothing_is_left_is_void(mask: str) -> None:
    idle = CAUSAL.with_spec(params={"R": {"value": 2, "runtime": True}}, mask=mask)
    assert trial.attempt(idle, "cpu").finding.kind == "void"


def test_infinity_times_what_float32_does_not_hold_is_void() -> None:
    """In float64 such a row sees nothing, in float32 it is NaN: also that of eager PyTorch."""
    score = "(score + where((q + k) % 3 == 0, 0.0, low)) * sigmoid(5.0 * (k - q))"
    lost = CAUSAL.with_spec(params={"low": float("-inf")}, score=score, mask="(q + k) % 3 > 0")
    found = trial.attempt(lost, "cpu").finding
    assert (found.kind, found.detail) == ("void", "the formula is not finite in float32")


def test_a_finite_score_that_float32_does_not_hold_is_void() -> None:
    beyond = CAUSAL.with_spec(score="(score - 3e38) * 2.0")
    assert trial.attempt(beyond, "cpu").finding.kind == "void"
