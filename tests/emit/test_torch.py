"""The emitted PyTorch agrees with the evaluation of each pair, in either precision, and reads well."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import RUNTIME, SCOPE, SIZES, TENSORS, compile, pairs

from flashgen.emit.fragments import Fragment
from flashgen.emit.torch import emit
from flashgen.lang.evaluate import evaluate
from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Expr, Gather, Type

SHAPE = tuple(SIZES[name] for name in ("batch", "heads", "q_len", "kv_len"))
SHIFT = SIZES["kv_len"] - SIZES["q_len"]


def environment(dtype: torch.dtype) -> dict[str, Any]:
    """What a reference defines before the emitted lines."""
    score = (torch.arange(math.prod(SHAPE)).reshape(SHAPE) * 37 % 129 - 64).to(dtype) / 16
    h = torch.arange(SIZES["heads"]).view(1, -1, 1, 1)
    return {
        **SIZES,
        **RUNTIME,
        "torch": torch,
        "score": score,
        "b": torch.arange(SIZES["batch"]).view(-1, 1, 1, 1),
        "h": h,
        "kv_h": h // 2,
        "q": (torch.arange(SIZES["q_len"]) + SHIFT).view(-1, 1),
        "k": torch.arange(SIZES["kv_len"]).view(1, -1),
        "doc": torch.tensor(TENSORS["doc"], dtype=torch.int32),
        "off": torch.tensor(TENSORS["off"], dtype=torch.int8),
        "rel": torch.tensor(TENSORS["rel"], dtype=torch.bfloat16),
        "keep": torch.tensor(TENSORS["keep"]),
        "gain": torch.tensor(TENSORS["gain"], dtype=torch.float16),
        "shift": torch.tensor(TENSORS["shift"], dtype=torch.int16),
    }


def run(emission: Fragment, names: dict[str, Any]) -> list[Any]:
    if "math" in emission.reads:
        names["math"] = math
    program = "\n".join([*emission.lines, f"results = [{', '.join(emission.results)}]"])
    exec(program, names)  # noqa: S102
    return names["results"]


def at(tensor: Any, pair: dict[str, Any]) -> Any:
    dtype = torch.float64 if isinstance(tensor, float) else None
    full = torch.as_tensor(tensor, dtype=dtype).broadcast_to(SHAPE)
    return full[pair["b"], pair["h"], pair["q"] - SHIFT, pair["k"]].item()


@pytest.mark.parametrize("kind", list(Type))
@given(data=st.data())
def test_agrees_with_evaluation_pair_by_pair(kind: Type, data: st.DataObject) -> None:
    node = compile(data.draw(expressions(kind, SCOPE)))
    names = environment(torch.float64)
    (result,) = run(emit([node]), names)
    for pair in data.draw(st.lists(pairs(), min_size=4, max_size=4)):
        pair["score"] = at(names["score"], pair)
        expected = evaluate(node, pair, TENSORS)
        if node.type is Type.FLOAT:
            # Functions may differ by some units in the last place, and differences of values up to 2**20 magnify that.
            assert at(result, pair) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        else:
            assert at(result, pair) == expected


_DTYPES = {Type.BOOL: torch.bool, Type.INT: torch.int64}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", list(Type))
@given(data=st.data())
def test_tensors_keep_the_dtype_of_the_scores(dtype: torch.dtype, kind: Type, data: st.DataObject) -> None:
    node = compile(data.draw(expressions(kind, SCOPE)))
    (result,) = run(emit([node]), environment(dtype))
    if isinstance(result, torch.Tensor):
        assert result.dtype is _DTYPES.get(node.type, dtype)
    else:
        assert type(result) is {Type.BOOL: bool, Type.INT: int, Type.FLOAT: float}[node.type]


def emitted(text: str, guard: Any = lambda gather, axis: (False, False)) -> str:
    emission = emit([compile(text)], guard=guard)
    return "; ".join([*emission.lines, *emission.results])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k <= q and q - k < 1024", "(k <= q) & (q - k < 1024)"),
        ("doc[b, q] == doc[b, k]", "doc[b, q] == doc[b, k]"),
        ("cap * tanh(score / cap)", "cap * torch.tanh(score / cap)"),
        ("score - rel[h, 0] * abs(q - k)", "score - rel[h, 0].to(score.dtype) * abs(q - k)"),
        ("score + 0.1 * (q - k)", "score + 0.1 * (q - k).to(score.dtype)"),
        ("score / log2(heads)", "score / math.log2(heads)"),
        ("clamp(q - k, -W, W)", "(q - k).clamp(-3, 3)"),
        ("max(k, doc[b, q])", "torch.maximum(k, doc[b, q].long())"),
        ("q // 128 == k // 128", "q // 128 == k // 128"),
        ("q % (kv_len - q_len)", "t0 = kv_len - q_len; q % t0 if t0 else q.new_tensor(0)"),
        ("k // h", "torch.where(h != 0, k // torch.where(h != 0, h, 1), 0)"),
        ("q // max(k, 1)", "q // k.clamp(min=1)"),
        ("score // half", 'torch.div(score, 0.5, rounding_mode="floor")'),
        ("score % half", "score % 0.5"),
        ("half % score", "score.new_tensor(0.5) % score"),
        ("q // max(q_len, 0)", "t0 = max(q_len, 0); q // t0 if t0 else q.new_tensor(0)"),
        ("score * (1.0 * (q - k)) + 1.0 * (q - k)", "t0 = (q - k).to(score.dtype); score * t0 + t0"),
        ("where(q < k, 0.1, 0.2)", "torch.where(q < k, score.new_tensor(0.1), 0.2)"),
        ("score if heads > 2 else 0", "score if heads > 2 else score.new_tensor(0.0)"),
        ("not flag or q_len < 3", "not flag or q_len < 3"),
        ("abs(q - k) * abs(q - k)", "t0 = abs(q - k); t0 * t0"),
        ("floor(score)", "score.floor().long()"),
        (
            "floor(rel[h, 0])",
            "t0 = rel[h, 0].to(score.dtype); torch.where(t0 >= 2.0 ** 63, 9223372036854775807, t0.floor().long())",
        ),
        ("1 << (q & 3)", "1 << (q & 3).clamp(0, 63)"),
    ],
)
def test_text(text: str, expected: str) -> None:
    assert emitted(text) == expected


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ((False, False), "off[q]"),
        ((True, False), "off[q.clamp(min=0)]"),
        ((False, True), "off[q.clamp(max=off.shape[0] - 1)]"),
        ((True, True), "off[q.clamp(0, off.shape[0] - 1)]"),
    ],
)
def test_indices_are_clamped_where_the_guard_says_so(sides: tuple[bool, bool], expected: str) -> None:
    seen: list[tuple[Expr, int]] = []

    def guard(gather: Gather, axis: int) -> tuple[bool, bool]:
        seen.append((gather, axis))
        return sides

    assert emitted("off[q]", guard) == f"{expected}.long()"
    assert seen == [(compile("off[q]"), 0)]


def test_lets_are_assigned_in_order_under_their_names() -> None:
    lets = (("d", compile("q - k")), ("far", compile("abs(q - k) > 3")), ("unused", compile("q + k")))
    emission = emit([compile("score + (q - k)"), compile("abs(q - k) > 3")], lets)
    assert emission.lines == ("d = q - k", "far = abs(d) > 3")
    assert emission.results == ("score + d", "far")


def test_names_give_way_to_those_that_are_taken() -> None:
    lets = (("out", compile("q - k")), ("torch", compile("q + k")))
    emission = emit([compile("(q - k) * (q + k) + (q * k + 1) * (q * k + 1)")], lets, taken={"out", "t0"})
    assert emission.lines == ("out_ = q - k", "torch_ = q + k", "t1 = q * k + 1")
    assert emission.results == ("out_ * torch_ + t1 * t1",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sigmoid(-cap)", 1 / (1 + math.exp(1.5))),
        ("kv_len - q_len if flag else 0", 2),
        ("n // (kv_len - 7)", 0),
        ("sqrt(head_dim) ** 2", 8.0),
        ("max(cap, n)", 3.0),
        ("1 << n", 8),
    ],
)
def test_scalars_stay_python_scalars(text: str, expected: float) -> None:
    (result,) = run(emit([compile(text)]), environment(torch.float32))
    assert type(result) is type(expected)
    assert result == pytest.approx(expected)


@pytest.mark.parametrize("text", ["exp2(cap)", "floor(cap * 2.5)", "1 / (kv_len - 7)", "log(q_len - kv_len)"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scalars_on_which_python_may_raise_follow_ieee_754(text: str, dtype: torch.dtype) -> None:
    node = compile(text)
    names = environment(dtype)
    (result,) = run(emit([node]), names)
    values = {name: value for name, value in names.items() if isinstance(value, int | float)}
    assert result.dtype == (torch.int64 if node.type is Type.INT else dtype)
    assert result.item() == pytest.approx(evaluate(node, values), nan_ok=True)


@pytest.mark.parametrize("text", ["max(0.5, cap)", "min(cap, 0.5)", "max(cap, cap * 2)", "min(cap * 2, cap + 1)"])
@pytest.mark.parametrize("cap", [math.nan, -math.inf, math.inf, 0.25])
def test_extrema_of_scalars_are_nan_where_one_is(text: str, cap: float) -> None:
    node = compile(text)
    (result,) = run(emit([node]), environment(torch.float32) | {"cap": cap})
    assert type(result) is float
    assert result == pytest.approx(evaluate(node, {"cap": cap}), nan_ok=True)


def test_extrema_in_each_other_have_a_text_of_bounded_length() -> None:
    nested = "cap"
    for step in range(30):
        nested = f"max(cap * {step}.5, {nested})"
    emission = emit([compile(nested)])
    assert max(map(len, [*emission.lines, *emission.results])) < 2000


@pytest.mark.parametrize("text", ["floor(cap)", "ceil(cap)", "floor(gain)", "ceil(gain * q)", "floor(cap) - 1 < q"])
@pytest.mark.parametrize("value", [math.inf, -math.inf, 2.0**63, 1e25, -1e25, 2.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_no_integer_holds_is_the_nearest(text: str, value: float, dtype: torch.dtype) -> None:
    node = compile(text)
    (result,) = run(emit([node]), environment(dtype) | {"cap": value, "gain": torch.tensor(value, dtype=dtype)})
    assert torch.as_tensor(result).flatten()[0] == evaluate(node, {"cap": value, "q": SHIFT}, {"gain": value})


def test_an_integer_wraps_where_it_may_pass_64_bits() -> None:
    node = compile("kv_len ** 40 - 1")
    (result,) = run(emit([node], wraps=Ranges().may_wrap), environment(torch.float32))
    assert result == evaluate(node, {"kv_len": environment(torch.float32)["kv_len"]})


def test_gradients_flow_to_float_inputs() -> None:
    names = environment(torch.float64)
    names["rel"] = names["rel"].to(torch.float64).requires_grad_()
    (result,) = run(emit([compile("score + rel[h, clamp(q - k, 0, 2)] * 0.5")]), names)
    result.sum().backward()
    assert names["rel"].grad is not None
    assert names["rel"].grad.sum().item() == pytest.approx(0.5 * math.prod(SHAPE))


@pytest.mark.parametrize("bound", ["cap", "cap % 2.0", "sqrt(cap * cap)", "sum(i, n, cap / n)", "4.5 / (cap + cap)"])
@pytest.mark.parametrize("text", ["max(rel[h, 0], {})", "min(rel[h, 0], {})", "clamp(rel[h, 0], 0, {})"])
def test_a_bound_that_is_the_same_for_all_pairs_passes_the_gradient_whole(text: str, bound: str) -> None:
    names = environment(torch.float64) | {"cap": 1.5, "n": 3}
    names["rel"] = torch.full((4, 7), 1.5, dtype=torch.float64, requires_grad=True)
    (result,) = run(emit([compile(text.format(bound))]), names)
    result.sum().backward()
    assert names["rel"].grad[:, 0].tolist() == [1.0] * 4
