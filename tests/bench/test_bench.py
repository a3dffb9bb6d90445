"""The parts of the benchmark that need no GPU: timing order, rows, resuming, agreement, rivals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gallery import NAMES, VARIANTS
from torch.nn.attention.flex_attention import create_mask

from flashgen.bench import Bench, Session
from flashgen.bench.agreement import disagreement, disagreements, gradient_disagreement
from flashgen.bench.candidates import CANDIDATES, sdpa_causal
from flashgen.bench.flex import OPTIONS, compile_apart, flex_attention
from flashgen.bench.installed import Unavailable
from flashgen.bench.passes import BACKWARD, BOTH, FORWARD, digests, flops, leaves, run_of, trainable
from flashgen.bench.picture import draw
from flashgen.bench.rows import Case, Row, read, write
from flashgen.bench.run import CEILING, CEILING_SIZE, ready_candidates, rows
from flashgen.bench.timing import Run, interleave
from flashgen.codegen.pairwise import SIZES, make
from flashgen.errors import UsageError
from flashgen.problems.calls import Call, make_inputs
from flashgen.problems.problem import Problem
from flashgen.problems.work import density, useful_flops
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.tuning.timing import Timing

PROBLEM = Problem(2, 4, 2, 48, 64, 16, 16, "float32")
CASE = Case("alibi", "0" * 12, "1" * 12, PROBLEM, "a GPU", "2.0", "3.6")


def test_every_round_times_every_candidate_once_and_in_changing_order() -> None:
    calls: list[str] = []
    candidates: dict[str, Run] = {name: (lambda name=name: calls.append(name)) for name in "abcd"}
    ticks = iter(range(1, 1000))

    def timer(run: Run) -> float:
        run()
        return float(next(ticks))

    timings = interleave(candidates, timer, rounds=20)
    orders = [tuple(calls[i : i + 4]) for i in range(0, 80, 4)]
    assert all(sorted(order) == list("abcd") for order in orders)
    assert len(set(orders)) > 5
    assert all(timing.repetitions == 20 for timing in timings.values())
    # A drift over the run moves all medians alike.
    assert max(t.median_us for t in timings.values()) - min(t.median_us for t in timings.values()) < 20


def test_rows_count_visible_work_alone_and_share_the_ceiling() -> None:
    problem = Problem(2, 16, 16, 1000, 1000, 64, 128, "bfloat16")
    assert useful_flops(problem, 0.5) == 2 * 2 * 16 * 1000 * 1000 * 0.5 * (64 + 128)
    timings = {"flashgen": Timing(100.0, 0.02, 5), CEILING: Timing(2 * CEILING_SIZE**3 / 800e6, 0.0, 5)}
    case = Case("full", "", "", problem, "a GPU", "", "")
    ours, theirs = rows(case, ("flashgen", "eager"), 0.5, timings, {"flashgen": 3 << 20}, {"eager": "too large"})
    assert ours.tflops == pytest.approx(useful_flops(problem, 0.5) / 100e-6 / 1e12)
    assert (ours.ceiling, ours.median_ms, ours.peak_mib) == (pytest.approx(800), pytest.approx(0.1), 3)
    assert ours.share == pytest.approx(ours.tflops / 800)
    assert (theirs.tflops, theirs.note) == (None, "too large")


def test_rows_survive_the_file_and_a_cut_last_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    first, second = Row(CASE, "flashgen", 0.5, 1.0, 0.1, 2.0, 3.0, 0.7, 4.0), Row(CASE, "eager", 0.5, note="no")
    write(path, [first])
    write(path, [second])
    path.write_text(path.read_text() + json.dumps({"case": {}}) + "\n" + path.read_text()[:40])
    assert read(path) == [first, second]
    assert read(tmp_path / "none.jsonl") == []


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def session(folder: Path, resume: bool, clock: Clock, measured: Counter[str], seconds: float | None = None) -> Session:
    def measure(variant: Variant, module: ModuleType, case: Case, bench: Bench) -> list[Row]:
        measured[str(case.problem) + case.step.replace(FORWARD, "", 1)] += 1
        clock.now += 10
        return [Row(case, name, 1.0) for name in bench.candidates]

    bench = Bench(("flashgen", "eager"), seconds=seconds)
    machine = ("a GPU", "2.0", "3.6")
    return Session(bench, folder, folder / "rows.jsonl", resume, measure, lambda: machine, clock)


def test_a_resumed_session_measures_only_what_the_time_limit_left(tmp_path: Path) -> None:
    variant, measured = load({"name": "plain"}), Counter[str]()
    problems = [Problem(1, 1, 1, n, n, 16, 16, "float32") for n in (16, 32, 48, 64)]
    first = session(tmp_path, False, Clock(), measured, seconds=15)
    assert len(list(first.run(variant, problems))) == 2
    assert first.left == 2
    second = session(tmp_path, True, Clock(), measured)
    assert len(list(second.run(variant, problems))) == 4
    assert second.left == 0
    assert set(measured.values()) == {1}
    assert second.rows == read(tmp_path / "rows.jsonl")


def test_a_case_without_every_candidate_is_measured_again(tmp_path: Path) -> None:
    variant, measured, problem = load({"name": "plain"}), Counter[str](), Problem(1, 1, 1, 16, 16, 16, 16, "float32")
    first = session(tmp_path, False, Clock(), measured)
    first.bench = Bench(("flashgen",))
    list(first.run(variant, [problem]))
    list(session(tmp_path, True, Clock(), measured).run(variant, [problem]))
    assert measured[str(problem)] == 2


def test_each_pass_is_a_case_of_its_own(tmp_path: Path) -> None:
    variant, measured, problem = load({"name": "plain"}), Counter[str](), Problem(1, 1, 1, 16, 16, 16, 16, "float32")
    list(session(tmp_path, False, Clock(), measured).run(variant, [problem]))
    again = session(tmp_path, True, Clock(), measured)
    again.bench = Bench(("flashgen", "eager"), (FORWARD, BACKWARD))
    assert [rows[0].case.step for rows in again.run(variant, [problem])] == [FORWARD, BACKWARD]
    assert measured == {str(problem): 1, f"{problem}backward": 1}


def test_a_changed_variant_is_not_resumed(tmp_path: Path) -> None:
    measured, problem = Counter[str](), Problem(1, 1, 1, 16, 16, 16, 16, "float32")
    list(session(tmp_path, True, Clock(), measured).run(load({"name": "plain"}), [problem]))
    list(session(tmp_path, True, Clock(), measured).run(load({"name": "plain", "softcap": 3.0}), [problem]))
    assert measured[str(problem)] == 2


def test_candidates_are_chosen_by_name_and_always_with_the_kernel_itself() -> None:
    assert Bench.choose(None, None, 3, None) == Bench(CANDIDATES, ("forward",), 3)
    assert Bench.choose(["eager"], None, 3, None).candidates == ("flashgen", "eager")
    with pytest.raises(UsageError, match="no candidate 'flash'; expected one of 'flashgen', 'flashgen, no plan', "):
        Bench.choose(["flash"], None, 3, None)
    assert Bench.choose(None, ["backward", "forward"], 3, None).passes == ("backward", "forward")
    both = Bench.choose(["flashgen, deterministic"], ["forward", "backward"], 3, None)
    assert both.candidates_of(FORWARD) == ("flashgen",) and len(both.candidates_of(BACKWARD)) == 2
    with pytest.raises(UsageError, match=r"no pass 'back'; expected one of 'forward', 'backward', 'forward\+backward'"):
        Bench.choose(None, ["back"], 3, None)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v


def test_outputs_agree_within_rounding_and_not_with_another_mask_or_nan() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 256, 32) for _ in range(3))
    causal = torch.ones(256, 256, dtype=torch.bool).tril()
    exact = attention(q, k, v, causal)
    rounded = attention(*(x.bfloat16() for x in (q, k, v)), causal)
    again = attention(*(x.bfloat16().float() for x in (q, k, v)), causal).bfloat16()
    assert disagreement(rounded, again, v.bfloat16()) is None
    off_by_one = attention(q, k, v, causal.roll(1, 1) | causal)
    assert disagreement(off_by_one, exact, v) is not None
    poisoned = exact.clone()
    poisoned[0, 1, 7, 3] = torch.nan
    assert "nan" in str(disagreement(poisoned, exact, v))


def test_a_candidate_that_disagrees_is_named_and_not_timed() -> None:
    v = torch.ones(1, 1, 4, 4)

    others = {"flashgen": v, "good": v + 1e-8, "bad": v + 1, "nan": torch.full_like(v, torch.nan)}
    ready = {name: (lambda out=out: (out,)) for name, out in others.items()}
    assert set(disagreements(ready, "flashgen", FORWARD, v, ("q", "k", "v"))) == {"bad", "nan"}
    assert set(ready) == {"flashgen", "good"}


def test_gradients_agree_within_rounding_and_not_with_another_mask_or_nan() -> None:
    torch.manual_seed(0)
    causal = torch.ones(256, 256, dtype=torch.bool).tril()
    q, k, v, d_out = (torch.randn(1, 2, 256, 32).bfloat16() for _ in range(4))

    def gradients(dtype: torch.dtype, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = [tensor.detach().to(dtype).requires_grad_() for tensor in (q, k, v)]
        found = torch.autograd.grad(attention(*given, mask), given, d_out.to(dtype))
        return tuple(gradient.bfloat16() for gradient in found)

    exact, rounded = gradients(torch.float32, causal), gradients(torch.bfloat16, causal)
    # One more key in a single row.
    other = causal.clone()
    other[3, 4] = True
    wrong = gradients(torch.float32, other)
    for right, close, far in zip(exact, rounded, wrong, strict=True):
        assert gradient_disagreement("q", close, right, v) is None
        assert "its gradient of q differs" in str(gradient_disagreement("q", far, right, v))
    ready = {"flashgen": lambda: exact, "good": lambda: rounded, "bad": lambda: wrong}
    ready["nan"] = lambda: (*exact[:2], exact[2] * torch.nan)
    notes = disagreements(ready, "flashgen", BACKWARD, v, ("q", "k", "v"))
    assert set(notes) == {"bad", "nan"} and "gradient of v differs" in notes["nan"]


def test_the_backward_pass_counts_two_and_a_half_times_the_work() -> None:
    square = Problem(2, 16, 16, 1000, 1000, 64, 64, "bfloat16")
    assert flops(FORWARD, square, 0.5) == useful_flops(square, 0.5)
    assert flops(BACKWARD, square, 0.5) == 2.5 * useful_flops(square, 0.5)
    assert flops(BOTH, square, 0.5) == 3.5 * useful_flops(square, 0.5)
    uneven = Problem(1, 1, 1, 100, 100, 64, 128, "bfloat16")
    assert flops(BACKWARD, uneven, 1.0) == 2 * 100 * 100 * (3 * 64 + 2 * 128)


def test_a_pass_runs_what_its_name_says_on_what_is_learned() -> None:
    variant = VARIANTS["relative_bias"]
    call = trainable(variant, make_inputs(variant, PROBLEM))
    assert leaves(variant, call) == ("q", "k", "v", "rel")
    forwards = 0

    def forward() -> torch.Tensor:
        nonlocal forwards
        forwards += 1
        group = PROBLEM.heads // PROBLEM.kv_heads
        k, v = (tensor.repeat_interleave(group, 1) for tensor in (call.k, call.v))
        return (call.q @ k.mT + call.inputs["rel"][:, :1, None]).softmax(-1) @ v

    shapes = [tensor.shape for tensor in (call.q, call.k, call.v, call.inputs["rel"])]
    for step, each in ((BACKWARD, 0), (BOTH, 1)):
        run = run_of(step, forward, variant, call)
        before = forwards
        first, second = run(), run()
        assert forwards - before == 2 * each
        assert [gradient.shape for gradient in first] == shapes
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert run_of(FORWARD, forward, variant, call)()[0].shape == call.q.shape


def test_a_compiled_backward_pass_runs_many_times_even_if_it_was_compiled_for_one() -> None:
    variant = VARIANTS["full"]
    problem = replace(PROBLEM, kv_heads=PROBLEM.heads)
    call = trainable(variant, make_inputs(variant, problem))

    @partial(torch.compile, backend="aot_eager")
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.tanh(q @ k.mT).softmax(-1) @ v

    with torch._functorch.config.patch(donated_buffer=False):
        attend(call.q, call.k, call.v).sum().backward()
    run = run_of(BACKWARD, lambda: attend(call.q, call.k, call.v), variant, call)
    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_slopes_with_a_default_are_not_learned_in_a_benchmark() -> None:
    variant = VARIANTS["alibi"]
    call = trainable(variant, make_inputs(variant, PROBLEM))
    assert leaves(variant, call) == ("q", "k", "v")
    assert call.q.requires_grad and not call.inputs["slopes"].requires_grad


def test_a_case_names_the_kernels_of_its_pass() -> None:
    templates = {"forward": "a", "backward_kv": "b", "backward_q": "c"}
    assert [digests(step, templates) for step in (FORWARD, BACKWARD, BOTH)] == ["a", "b+c", "a+b+c"]


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


def test_the_picture_is_a_png_with_or_without_results(tmp_path: Path) -> None:
    draw([Row(CASE, "flashgen", 0.5, tflops=10.0), Row(CASE, "eager", 0.5, note="no")], tmp_path / "a.png")
    draw([Row(replace(CASE, step=BACKWARD), "eager", 0.5, note="no")], tmp_path / "b.png")
    for name in ("a.png", "b.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
