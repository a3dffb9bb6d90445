"""Candidates: each computes the variant, or says why it takes no part."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from gallery import NAMES, VARIANTS
from torch.nn.attention.flex_attention import create_mask

from flashgen.bench.agreement import disagreements
from flashgen.bench.candidates import sdpa_causal
from flashgen.bench.flex import OPTIONS, compile_apart, flex_attention
from flashgen.bench.installed import Unavailable
from flashgen.bench.passes import BACKWARD, FORWARD, trainable
from flashgen.bench.run import ready_candidates
from flashgen.codegen.pairwise import SIZES, make
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem
from flashgen.problems.work import density
from flashgen.spec import load

PROBLEM = Problem(2, 4, 2, 48, 64, 16, 16, "float32")

SHAPES = {"equal": PROBLEM, "uneven": Problem(1, 2, 2, 64, 48, 16, 16, "float32")}


@pytest.mark.parametrize(
    ("spec", "problem", "expected"),
    [
        ({}, "uneven", False),
        ({"causal": True}, Problem(1, 1, 1, 8, 8, 8, 8, "float32"), True),
        ({"mask": "q >= k", "align": "top_left"}, "uneven", True),
        ({"causal": True}, "uneven", "aligns its causal mask to the top left"),
        ({"causal": True, "softcap": 3.0}, "equal", "does not modify scores"),
        ({"sink": "learned"}, "equal", "does not modify scores"),
        ({"mask": "k < q"}, "equal", "has no such mask"),
    ],
)
def test_torch_attention_takes_part_only_where_it_computes_the_variant(
    spec: dict[str, object], problem: Problem | str, expected: bool | str
) -> None:
    variant = load({"name": "plain", **spec})
    chosen = SHAPES[problem] if isinstance(problem, str) else problem
    if isinstance(expected, bool):
        assert sdpa_causal(variant, chosen) is expected
    else:
        with pytest.raises(Unavailable, match=expected):
            sdpa_causal(variant, chosen)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("name", NAMES)
def test_flex_attention_gets_the_variant_itself(name: str, gallery_module: Callable[[str], ModuleType]) -> None:
    """The rendered score and mask in FlexAttention give what the reference gives; density is that of the mask."""
    variant = VARIANTS[name]
    call = make_inputs(variant, PROBLEM)
    pairwise = make(variant, {name: getattr(PROBLEM, name) for name in SIZES}, call.keywords)
    mask = create_mask(pairwise.mask, PROBLEM.batch, PROBLEM.heads, PROBLEM.q_len, PROBLEM.kv_len, device="cpu")
    assert density(pairwise, PROBLEM, "cpu") == pytest.approx(mask.double().mean().item(), rel=1e-12)
    out = flex_attention(variant, PROBLEM, call, pairwise, compiled=False)()
    reference = gallery_module(name).reference(call.q, call.k, call.v, **call.keywords)
    torch.testing.assert_close(out, reference, rtol=1e-4, atol=1e-5)


def test_candidates_that_cannot_do_the_variant_say_why(gallery_module: Callable[[str], ModuleType]) -> None:
    names = ("flashgen", "flashgen, no plan", "torch flash")
    for spec, expected in (
        ("causal", {"flashgen, no plan": "this variant needs no plan"}),
        ("document", {"torch flash": "has no such mask"}),
    ):
        variant, problem = VARIANTS[spec], Problem(1, 2, 2, 40, 40, 16, 16, "float32")
        call = make_inputs(variant, problem)
        pairwise = make(variant, {name: getattr(problem, name) for name in SIZES}, call.keywords)
        ready, notes = ready_candidates(names, variant, gallery_module(spec), problem, call, pairwise, FORWARD)
        assert notes == expected
        assert set(ready) == set(names) - set(expected)
        assert disagreements(ready, "flashgen", FORWARD, call.v, ()) == {}
        assert len(ready) == 2


@pytest.mark.parametrize(
    ("fits", "noted"), [({}, ""), ({"fwd_num_stages": 2}, "with fwd_num_stages=2"), (None, "out of resource")]
)
def test_flex_attention_gets_smaller_kernels_where_its_own_do_not_fit(
    fits: dict[str, int] | None,
    noted: str,
    gallery_module: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As torch fails on a GPU with little shared memory; `fits` are the first options that do not."""
    variant, problem = VARIANTS["full"], Problem(1, 2, 2, 8, 8, 16, 16, "float32")
    call = trainable(variant, make_inputs(variant, problem))
    tried: list[dict[str, int]] = []

    class TooLarge(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, q: torch.Tensor, options: dict[str, int]) -> torch.Tensor:
            context.options = options
            return q.clone()

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> Any:
            tried.append(context.options)
            if context.options != fits:
                raise RuntimeError("No valid triton configs. OutOfMemoryError: out of resource: shared memory")
            return gradients[0], None

    def flex(*arguments: Any, options: dict[str, int]) -> Callable[[], torch.Tensor]:
        return lambda: TooLarge.apply(call.q, options) + call.k + call.v

    monkeypatch.setattr("flashgen.bench.candidates.flex_attention", flex)
    pairwise = make(variant, dict.fromkeys(SIZES, 1), {})
    ready, notes = ready_candidates(
        ("FlexAttention",), variant, gallery_module("full"), problem, call, pairwise, BACKWARD
    )
    assert tried == list(OPTIONS[: OPTIONS.index(fits) + 1 if fits is not None else None])
    assert set(ready) == (set() if fits is None else {"FlexAttention"})
    assert noted in notes.get("FlexAttention", "")
    assert bool(notes) == bool(noted)


def test_functions_of_one_code_are_compiled_apart() -> None:
    """More of them than torch keeps for a function."""
    torch.compiler.reset()

    def times(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def product(tensor: torch.Tensor, *, more: float = 1.0) -> torch.Tensor:
            return tensor * factor + more

        return compile_apart(product, fullgraph=True, dynamic=False, backend="eager")

    count = torch._dynamo.config.recompile_limit + 2
    compiled = [times(float(factor)) for factor in range(count)]
    assert [function(torch.ones(1)).item() for function in compiled] == [factor + 1 for factor in range(count)]


def test_a_failure_of_our_own_kernel_is_not_a_note(gallery_module: Callable[[str], ModuleType]) -> None:
    variant, problem = load({"name": "causal", "causal": True}), Problem(1, 2, 2, 40, 40, 16, 16, "float32")
    call = make_inputs(variant, problem)
    wrong = Call(call.q, call.k[:, :, :7], call.v)
    with pytest.raises(ValueError, match="v has shape"):
        pairwise = make(variant, dict.fromkeys(SIZES, 1), {})
        ready_candidates(("flashgen",), variant, gallery_module("causal"), problem, wrong, pairwise, FORWARD)
