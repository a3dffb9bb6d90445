"""The passes that are timed: their work, what they run, and on what."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from gallery import VARIANTS

from flashgen.bench.passes import BACKWARD, BOTH, FORWARD, digests, flops, leaves, run_of, trainable
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.problems.work import useful_flops

PROBLEM = Problem(2, 4, 2, 48, 64, 16, 16, "float32")


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
