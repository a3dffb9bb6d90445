"""Gradients are proven on every kind of case, in poisoned memory, and twice where they must be deterministic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.codegen import generate, load_module, uses_schedule
from flashgen.problems.packed import PackedModule
from flashgen.problems.problem import Problem
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.verify import Case, cases_for, gradient_cases_for, run_case, run_cases

Edit = Callable[[str, torch.Tensor], torch.Tensor]


def eager_module(variant: Variant, reference: Callable[..., Any], edit: Edit = lambda name, gradient: gradient) -> Any:
    """A module whose attention, dense and packed, is the eager formula in float32, as a kernel computes in any dtype.

    `edit` changes each gradient that comes out of it, by name.
    """

    class Edited(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, name: str, tensor: torch.Tensor) -> torch.Tensor:
            ctx.name = name
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return None, edit(ctx.name, gradient)

    def attention(
        q: Any, k: Any, v: Any, *, config: Any, backward_config: Any, deterministic: Any, **keywords: Any
    ) -> Any:
        def edited(name: str, value: Any) -> Any:
            learns = isinstance(value, torch.Tensor) and value.requires_grad
            return Edited.apply(name, value) if learns else value

        keywords.pop("plan", None)
        given = {name: edited(name, value) for name, value in {"q": q, "k": k, "v": v, **keywords}.items()}
        operands = [given.pop(name).float() for name in "qkv"]
        out, lse = reference(*operands, **given)
        return out.to(q.dtype), lse

    def attention_varlen(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, longest_q: int, longest_k: int, **keywords: Any
    ) -> Any:
        lengths = tuple(zip(cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist(), strict=True))
        rest = len(q) - int(cu_seqlens_q[-1]), len(k) - int(cu_seqlens_k[-1])
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        problem = Problem(len(lengths), q.shape[1], k.shape[1], longest_q, longest_k, q.shape[3], v.shape[3], "float32")
        each = PackedModule(cast(ModuleType, SimpleNamespace(reference=reference)), variant, problem, lengths, rest)
        out, lse = eager_module(variant, each.reference, edit).attention(q, k, v, **keywords)
        return out[0].transpose(0, 1), lse[0]

    return SimpleNamespace(
        attention=attention, attention_varlen=attention_varlen, reference=reference,
        plan=lambda *_, **__: None, plan_varlen=lambda *_, **__: None,
    )  # fmt: skip


def results(name: str, reference: Callable[..., Any], edit: Edit = lambda name, gradient: gradient) -> dict[str, Any]:
    variant = VARIANTS[name]
    module = eager_module(variant, reference, edit)
    cases = gradient_cases_for(variant, "quick", gpu=False, scheduled=uses_schedule(variant))
    return {case.name: run_case(module, variant, case, "cpu") for case in cases}


@pytest.mark.parametrize("name", ["relative_bias", "sink", "gemma2", "document", "prefix_lm"])
def test_the_formula_itself_passes(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    found = results(name, gallery_module(name).reference)
    assert len(found) >= 8 and all(result.ok for result in found.values()), found


def test_a_score_that_depends_on_positions_alone_is_proven(tmp_path: Path) -> None:
    variant = load({"name": "by_distance", "score": "-0.1 * abs(q - k)"})
    module = load_module(generate(variant, tmp_path))
    (case, *_) = gradient_cases_for(variant, "quick", gpu=False, scheduled=False)
    assert case.backward is not None and case.backward.lse
    result = run_case(module, variant, case, "cpu")
    assert result.ok, result


@pytest.mark.parametrize(
    ("variant", "name", "factor"),
    [
        ("full", "q", 1.01),
        ("full", "k", 0.98),
        ("full", "v", -1.0),
        ("relative_bias", "rel", 2.0),
        ("sink", "sinks", 0),
    ],
)
def test_a_wrong_gradient_is_named(
    gallery_module: Callable[[str], ModuleType], variant: str, name: str, factor: float
) -> None:
    def edit(which: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * factor if which == name else gradient

    found = results(variant, gallery_module(variant).reference, edit)
    assert not found["gradients"].ok and found["gradients"].detail.startswith(f"d_{name} ")


def test_memory_that_a_kernel_leaves_unwritten_is_found(gallery_module: Callable[[str], ModuleType]) -> None:
    def edit(name: str, gradient: torch.Tensor) -> torch.Tensor:
        if name != "k":
            return gradient
        partly = torch.empty_like(gradient)
        partly[:, :, 1:] = gradient[:, :, 1:]
        return partly

    found = results("full", gallery_module("full").reference, edit)
    assert not any(result.ok for result in found.values())
    assert found["gradients"].detail == "d_k at [batch, head, row] [0, 0, 0]" and found["gradients"].error == math.inf


def test_runs_that_differ_are_not_deterministic(gallery_module: Callable[[str], ModuleType]) -> None:
    calls = count()

    def edit(name: str, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (1 + 1e-7 * next(calls))

    found = results("full", gallery_module("full").reference, edit)
    failed = {name: result.detail for name, result in found.items() if not result.ok}
    assert failed == {"gradients, more queries": "d_q differs between two deterministic runs"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gpu", [False, True])
def test_the_cases_cover_what_they_claim_to(name: str, gpu: bool) -> None:
    variant = VARIANTS[name]
    quick, full = (gradient_cases_for(variant, level, gpu, True) for level in ("quick", "full"))
    names = [case.name for case in full]
    assert len(set(names)) == len(names) and {case.name for case in quick} < set(names)
    assert set(names).isdisjoint(case.name for case in cases_for(variant, "full", gpu, True))
    assert all(case.backward is not None for case in full)

    def some(test: Callable[[Case], bool]) -> bool:
        return any(test(case) for case in quick)

    assert some(lambda c: c.problem.q_len > c.problem.kv_len) and some(lambda c: c.problem.q_len < c.problem.kv_len)
    assert some(lambda c: c.problem.q_len == c.problem.kv_len == 1) and some(lambda c: c.planned)
    assert some(lambda c: c.problem.heads != c.problem.kv_heads) and some(lambda c: c.layout == "bshd")
    assert some(lambda c: c.problem.head_dim > c.problem.v_head_dim)
    assert some(lambda c: c.problem.head_dim < c.problem.v_head_dim)
    assert {case.backward.d_out for case in quick if case.backward} == {"dense", "transposed", "expanded"}
    assert {case.backward.lse for case in quick if case.backward} == {False, True}
    assert some(lambda c: c.backward is not None and c.backward.deterministic) and some(lambda c: c.gain >= 100)
    assert {case.problem.dtype for case in quick} == {"float32", "bfloat16", "float16"}
    chosen = {c.backward.kv.fuse_dq for c in quick if c.backward and c.backward.kv and not c.lengths}
    assert chosen == (set() if gpu else {0, 1})


def test_every_loss_is_the_cases_own(gallery_module: Callable[[str], ModuleType]) -> None:
    from flashgen.problems.calls import make_inputs
    from flashgen.verify.gradients import draw_loss

    variant = VARIANTS["relative_bias"]
    case = gradient_cases_for(variant, "quick", False, False)[0]
    call = make_inputs(variant, case.problem)
    assert case.backward is not None
    first = draw_loss(variant, case, case.backward, call)
    assert first.learned == ("rel",) and first.names == ("q", "k", "v", "rel")
    again, other = (draw_loss(variant, replace(case, seed=seed), case.backward, call) for seed in (case.seed, 99))
    assert torch.equal(first.d_out, again.d_out) and not torch.equal(first.d_out, other.d_out)
    expanded = draw_loss(variant, case, replace(case.backward, d_out="expanded", lse=False), call)
    assert set(expanded.d_out.stride()) == {0} and expanded.d_lse is None
    assert draw_loss(variant, case, replace(case.backward, d_out="transposed"), call).d_out.stride(-1) != 1


def test_a_gradient_in_float16_may_vanish_whatever_q_is(tmp_path: Path) -> None:
    """Beside a sink weights of scores near -20 are 1e-9, and so is what comes down to the input."""
    inputs = {"rel": {"shape": ["heads"], "dtype": "float16", "grad": True}}
    variant = load({"name": "small", "sink": "learned", "inputs": inputs, "score": "score + rel[h] - 20.0"})
    module = load_module(generate(variant, tmp_path))
    report = run_cases(module, variant, gradient_cases_for(variant, "quick", False, False), level="quick", device="cpu")
    assert report.passed, str(report)
