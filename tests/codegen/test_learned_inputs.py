"""Gradients of learned inputs, added up by a kernel that does nothing else, agree with autograd of the formula."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.analysis.facts import facts_of
from flashgen.codegen.arguments import extra_arguments, new_prologue, q_offset
from flashgen.codegen.imports import import_block
from flashgen.codegen.learned import learned_view
from flashgen.codegen.loading import load_module
from flashgen.codegen.pairwise import SIZES, make
from flashgen.codegen.templates import environment
from flashgen.lang.evaluate import evaluate
from flashgen.runtime import exact_sums
from flashgen.spec import load
from flashgen.spec.variant import Variant

BATCH, HEADS, KV_HEADS, BM, BN = 2, 4, 2, 16, 32

KERNEL = """
{% import "learned.py.jinja" as learned %}
{% import "forward.py.jinja" as forward_parts %}
{% for function in v.functions %}
{{ forward_parts.function(function) }}


{% endfor %}
@triton.jit
def _add_up(
    ds_ptr, qk_ptr,{{ v.pointers | map("suffix", ", ") | join }}{{ arguments | map("suffix", ", ") | join }}
    scale, first_head, heads, kv_heads, q_len, kv_len, head_dim,
    {{ v.ways | map("suffix", ": tl.constexpr, ") | join }}
    BM: tl.constexpr, BN: tl.constexpr, SKIP_UNIFORM: tl.constexpr = False,
):
    PRECISE: tl.constexpr = True
    num_tiles = tl.cdiv(q_len, BM)
    head = first_head + tl.program_id(0) // num_tiles
    b = head // heads
    h = head % heads
    kv_h = h // (heads // kv_heads)
    begin_q, begin_k = b, b
    row0 = tl.program_id(0) % num_tiles * BM
    rows = row0 + tl.arange(0, BM)
    q = (tl.minimum(rows, q_len - 1){{ q_offset }})[:, None]
    q_first = row0{{ q_offset }}
    q_last = tl.minimum(row0 + BM, q_len) - 1{{ q_offset }}
{% for line in prologue %}
    {{ line }}
{% endfor %}
    first, stop = 0, {{ stop }}
{% if v.rest %}
{{ learned.narrow(v, stop != "kv_len") | indent(4, first=True) }}
{% endif %}
{{ learned.declare(v) | indent(4, first=True) }}
    for start in range(first, stop, BN):
        col = start + tl.arange(0, BN)[None, :]
        k = tl.minimum(col, kv_len - 1)
        inside = (rows < q_len)[:, None] & (col < kv_len)
        pair = (head * q_len + rows)[:, None] * kv_len + col
        ds_out = tl.load(ds_ptr + pair, mask=inside, other=0.0)
        qk = tl.load(qk_ptr + pair, mask=inside, other=0.0)
{{ learned.tile(v) | indent(8, first=True) }}
{{ learned.finish(v) | indent(4, first=True) }}
"""


def variant(shape: list[str | int], score: str, **more: Any) -> Variant:
    inputs = {"t": {"shape": shape, "dtype": "float32", "grad": True}, **more.pop("inputs", {})}
    return load({"name": "learned", "params": {"W": 3}, "inputs": inputs, "score": score, **more})


class Problem:
    """A variant's kernel on one problem: random scores, a random gradient of the modified scores, random inputs."""

    def __init__(self, variant: Variant, q_len: int, kv_len: int, folder: Path, stop: str = "kv_len") -> None:
        """`stop` is where the kernel's loop over the keys ends."""
        self.variant, self.q_len, self.kv_len = variant, q_len, kv_len
        shape = (BATCH, HEADS, q_len, kv_len)
        generator = torch.Generator().manual_seed(q_len * 1000 + kv_len)
        self.score, self.ds_out = (torch.randn(shape, generator=generator) for _ in range(2))
        self.ds_out *= torch.rand(shape, generator=generator) < 0.8  # some pairs are hidden
        self.sizes = dict(zip(SIZES, (BATCH, HEADS, KV_HEADS, q_len, kv_len, 8), strict=True))
        self.inputs: dict[str, torch.Tensor] = {}
        for tensor in variant.inputs:
            extents = [self._extent(dim) for dim in tensor.dims]
            floats = torch.rand(extents, generator=generator) + 0.5
            ids = torch.randint(-1, 4, extents, generator=generator, dtype=torch.int32)
            self.inputs[tensor.name] = floats if tensor.dtype == "float32" else ids
        self._prologue = new_prologue(facts_of(variant))
        self.view = learned_view(facts_of(variant), self._prologue)
        self.arguments = extra_arguments(variant, set(self.view.reads))
        text = environment().from_string(KERNEL).render(
            v=self.view,
            arguments=self.arguments,
            prologue=self._prologue.lines,
            q_offset=q_offset(facts_of(variant)),
            stop=stop,
        )  # fmt: skip
        path = folder / "add_up.py"
        path.write_text(f"{import_block(text, {})}\n{text}")
        self.module = load_module(path)

    def _extent(self, dim: Any) -> int:
        if dim.binds:
            self.sizes.setdefault(dim.binds, 11)
        return int(evaluate(dim.size, self.sizes))

    def expected(self) -> torch.Tensor:
        """By autograd of the formula in float64."""
        inputs = {name: x.double() if x.is_floating_point() else x for name, x in self.inputs.items()}
        leaf = inputs["t"].requires_grad_()
        score = make(self.variant, self.sizes, inputs).score
        b, h, q, k = (torch.arange(n) for n in self.ds_out.shape)
        scores = score(self.score.double(), b[:, None, None, None], h[None, :, None, None], q[:, None], k[None, :])
        if scores.requires_grad:
            scores.expand(self.ds_out.shape).backward(self.ds_out.double())
        return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def computed(self, deterministic: bool, rest: bool = False) -> torch.Tensor:
        values: dict[str, Any] = dict(self.sizes)
        for name, tensor in self.inputs.items():
            values[f"{name}_ptr"] = tensor
            for axis, stride in enumerate(tensor.stride()):
                values |= {f"stride_{name}_{axis}": stride, f"stride_{name}_{axis}_sums": stride}
        buffers, ways, turns = [], [], {""}
        for site in self.view.sites:
            apart = bool(site.writes) and all(eval(text, {}, self.sizes) for text in site.apart.results)  # noqa: S307
            apart = apart and (deterministic or not site.shared_by)
            if apart:
                turns.add(site.shared_by)
            if site.way:
                ways.append(apart)
            buffers.append(exact_sums.input_sums(self.inputs["t"], exact=deterministic and not apart))
        group = 1 if "heads" in turns else HEADS if "batch" in turns else BATCH * HEADS
        for first in range(0, BATCH * HEADS, group):
            self.module._add_up[(math.ceil(self.q_len / BM) * group,)](
                self.ds_out, self.score * 2, *buffers, *(values[name] for name in self.arguments),
                0.5, first, HEADS, KV_HEADS, self.q_len, self.kv_len, 8, *ways, BM=BM, BN=BN, SKIP_UNIFORM=rest,
            )  # fmt: skip
        return exact_sums.input_gradient(self.inputs["t"], *buffers)


KINDS = {"ty": {"shape": ["batch", "kv_len"], "dtype": "int32"}}
EDGES = {"edge": {"shape": ["batch", "q_len", "kv_len"], "dtype": "int32"}}
VARIANTS = {
    "one number": variant([1], "score * t[0]"),
    "slopes": variant(["heads"], "score - t[h] * abs(q - k)"),
    "by batch and group": variant(["batch", "kv_heads"], "score + t[b, kv_h] / (1 + abs(score))"),
    "by query": variant(["heads", "kv_len"], "score * t[h, q]"),
    "by kind of query": variant(["heads", 3], "score + t[h, ty[b, q]]", inputs=KINDS),
    "by key": variant(["batch", "kv_len"], "score + t[b, k] * 2"),
    "by query and by key": variant(["kv_len"], "score + t[q] * t[k]"),
    "distances": variant(["heads", "2*W + 1"], "score + t[h, clamp(q - k, -W, W) + W]"),
    "distances backwards": variant(["2*W + 1", "kv_heads"], "tanh(score * t[clamp(k - q, -W, W) + W, kv_h])"),
    "all distances": variant(["heads", "n"], "score + t[h, q - k + n // 2]"),
    "buckets": variant(
        ["heads", 12],
        "score + t[h, where(k > q, 6, 0) + where(d < 3, d, min(3 + floor(log(max(d, 1) / 3) * 2), 5))]",
        let={"d": "abs(q - k)"},
    ),
    "blocks": variant(["heads", "m", "m"], "score + t[h, q // 16, k // 32]"),
    "kinds of both": variant(["heads", 4, 4], "score + log(1 + t[h, ty[b, q], ty[b, k]])", inputs=KINDS),
    "edges": variant(["heads", 4], "score + t[h, edge[b, q - (kv_len - q_len), k]]", inputs=EDGES),
    "pairs": variant(["batch", "heads", "q_len", "kv_len"], "score + t[b, h, q, k]"),
    "pairs by row": variant(["batch", "heads", "q_len", "kv_len"], "score * t[b, h, q - (kv_len - q_len), k]"),
    "pairs, top left": variant(["batch", "heads", "q_len", "kv_len"], "score + t[b, h, q, k]", align="top_left"),
    "pairs for all of the batch": variant(["heads", "kv_len", "q_len"], "score + t[h, k, q - (kv_len - q_len)]"),
    "pairs for all heads": variant(["batch", "q_len", "kv_len"], "score + t[b, q - (kv_len - q_len), k] * 0.5"),
    "pairs for each group": variant(["kv_heads", "kv_len", "kv_len"], "score + t[kv_h, q, k]"),
    "the same pairs twice": variant(["heads", "kv_len", "kv_len"], "score + t[h, q, k] + t[h, k, q]"),
    "chosen": variant(["heads", 2], "where(score > 0, log(abs(score) + 1) * t[h, 0], score * t[h, 1])"),
    "by the score itself": variant(["heads", 9], "score + t[h, floor(score * 2) + 4]"),
    "by the score and the distance": variant([9, "W"], "score * t[where(score > 0.5, 1, 0), abs(q - k) % W]"),
    "no smooth dependence": variant(["heads"], "score + floor(t[h])"),
}


@pytest.mark.parametrize(("q_len", "kv_len"), [(20, 70), (20, 13), (17, 17)])
@pytest.mark.parametrize("name", VARIANTS)
def test_agrees_with_autograd(name: str, q_len: int, kv_len: int, tmp_path: Path) -> None:
    problem = Problem(VARIANTS[name], q_len, kv_len, tmp_path)
    expected = problem.expected()
    # Digits that are summed exactly: where there are many.
    for deterministic in (False, True) if kv_len > q_len else (False,):
        found = problem.computed(deterministic).double()
        # Float32 sums of up to 10,000 terms.
        tolerance = 2e-6 * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=tolerance)


@pytest.mark.parametrize(("q_len", "kv_len"), [(37, 150), (130, 97)])
@pytest.mark.parametrize("name", ["distances", "blocks"])
def test_the_rest_is_what_tiles_of_one_element_leave(name: str, q_len: int, kv_len: int, tmp_path: Path) -> None:
    problem = Problem(VARIANTS[name], q_len, kv_len, tmp_path)
    assert problem.view.rest
    found = problem.computed(False, rest=True).double()
    pairs, problem.ds_out = problem.ds_out, torch.zeros_like(problem.ds_out)
    shared = 0
    for q, k in itertools.product(range(0, q_len, BM), range(0, kv_len, BN)):
        tile = (0, 0, slice(q, q + BM), slice(k, k + BN))
        problem.ds_out[tile] = 1.0
        elements = problem.expected().count_nonzero()
        problem.ds_out[tile] = 0.0
        if elements == 1:
            pairs[(..., *tile[2:])] = 0.0
            shared += 1
    assert shared
    problem.ds_out = pairs
    torch.testing.assert_close(found, problem.expected(), rtol=2e-5, atol=2e-5)


def test_rows_that_see_no_key_leave_nothing_to_walk(tmp_path: Path) -> None:
    """The last key that a causal tile of queries sees lies before the first one here."""
    q_len, kv_len = 150, 40
    problem = Problem(VARIANTS["distances"], q_len, kv_len, tmp_path, stop="tl.minimum(q_last + 1, kv_len)")
    blind = (q_len - kv_len) // BM * BM  # rows of tiles that see nothing
    problem.ds_out[:, :, :blind] = torch.nan
    assert problem.computed(False, rest=True).isfinite().all()


def test_a_kernel_without_smooth_dependence_has_no_code() -> None:
    chosen = VARIANTS["no smooth dependence"]
    view = learned_view(facts_of(chosen), new_prologue(facts_of(chosen)))
    assert not (view.sites or view.functions)


@pytest.fixture(scope="module")
def add(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("add") / "add_all.py"
    text = """
import triton
import triton.language as tl

from flashgen.runtime.device.learned import accumulate


@triton.jit
def _add_all(sums_ptr, at_ptr, values_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    accumulate(sums_ptr, tl.load(at_ptr + i), tl.load(values_ptr + i))
"""
    path.write_text(text)
    return load_module(path)._add_all


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=50)
@given(values=st.lists(FLOATS, min_size=16, max_size=16), order=st.permutations(range(16)))
def test_digits_sum_exactly_in_any_order(add: Any, values: list[float], order: list[int]) -> None:
    numbers, at = torch.tensor(values), torch.arange(16) % 2
    found = []
    for places in (list(range(16)), order):
        sums = exact_sums.input_sums(torch.empty(2), exact=True)
        add[(1,)](sums, at[places], numbers[places], N=16)
        found.append(sums)
    assert torch.equal(*found)
    expected = torch.tensor([math.fsum(values[0::2]), math.fsum(values[1::2])], dtype=torch.float64).to(torch.float32)
    torch.testing.assert_close(exact_sums.rounded(found[0]), expected, rtol=2e-7, atol=0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_not_lost(add: Any, value: float) -> None:
    sums = exact_sums.input_sums(torch.empty(3), exact=True)
    add[(1,)](sums, torch.tensor([0, 1]), torch.tensor([value, 2.5]), N=2)
    found = exact_sums.rounded(sums)
    assert found[0].isnan()
    assert found[1:].tolist() == [2.5, 0.0]
