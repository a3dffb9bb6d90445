"""Under torch.compile attention is one operator, whose captured tensors are inputs of the graph."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import flex_mods as mods
import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, noop_mask

from flashgen.flex import flex_attention, kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
slopes, weight = torch.rand(mods.HEADS, device=DEVICE), 2


def by_globals(score, b, h, q, k):
    return score + slopes[h] * weight


def by_closure(bias: torch.Tensor) -> Callable[..., torch.Tensor]:
    return lambda score, b, h, q, k: score + bias[h]


def beside(bias: Any, score: Any, b: Any, h: Any, q: Any, k: Any, more: Any = None) -> Any:
    return score + bias[h] + (0 if more is None else more["keys"][k])


def of_a_list(tables: Any, score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + tables[0][h] * tables[1]


by_keys = torch.rand(17, device=DEVICE)
CASES = {
    "partial of a tensor": functools.partial(beside, slopes),
    "partial of a tensor by its name": functools.partial(functools.partial(beside, slopes), more={"keys": by_keys}),
    "partial of a list": functools.partial(of_a_list, [slopes, 0.5]),
    "globals": by_globals,
    "closure": by_closure(torch.rand(mods.HEADS, device=DEVICE)),
    "partial": functools.partial(mods.scaled_by, 0.5),
    "module": mods.Learned().to(DEVICE),
    "object": mods.Callable_(2),
}


def compiled(mod: Any, blocks: Any = None) -> tuple[Callable[..., torch.Tensor], list[torch.fx.GraphModule]]:
    """Attention within a compiled function, and the graphs that are made of it."""
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    return torch.compile(lambda *qkv: flex_attention(*qkv, mod, blocks) * 2, backend=backend, fullgraph=True), graphs


def inputs(length: int = 17) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(mods.BATCH, mods.HEADS, length, 16, generator=generator).to(DEVICE) for _ in range(3)]


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_operator(name: str) -> None:
    qkv, mod = inputs(), CASES[name]
    blocks = create_block_mask(mods.causal, mods.BATCH, mods.HEADS, 17, 17, device=DEVICE, BLOCK_SIZE=16)
    attention, graphs = compiled(mod, blocks)
    assert torch.equal(attention(*qkv), flex_attention(*qkv, mod, blocks) * 2)
    (graph,) = graphs
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert sum(isinstance(target, torch._ops.OpOverload) for target in called) == 1


def test_other_lengths_are_served_by_one_graph() -> None:
    attention, graphs = compiled(by_globals)
    for length in (17, 24, 30, 12):
        qkv = inputs(length)
        assert torch.equal(attention(*qkv), flex_attention(*qkv, by_globals) * 2)
    # The first is for its length alone.
    assert len(graphs) == 2


def test_what_is_made_of_captured_tensors_is_made_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    table = torch.rand(mods.HEADS, 17, device=DEVICE, requires_grad=True)

    def mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return score + table.softmax(-1)[h, k] + table[h].cumsum(0)[q] + torch.tensor([0.5, 1.0, 2.0, 3.0])[h]

    qkv = inputs()
    attention, graphs = compiled(mod)
    for _ in range(2):
        found, wanted = attention(*qkv), flex_attention(*qkv, mod) * 2
        assert torch.equal(found, wanted)
        gradients = [torch.autograd.grad(out.sum(), table)[0] for out in (found, wanted)]
        torch.testing.assert_close(*gradients)
        with torch.no_grad():
            table.mul_(3)
    assert len(graphs) == 1


def test_blocks_are_read_in_the_graph() -> None:
    qkv, made = inputs(48), create_block_mask(mods.causal, 1, 1, 48, 48, device=DEVICE, BLOCK_SIZE=16)
    blocks = BlockMask.from_kv_blocks(
        made.kv_num_blocks.clone(), made.kv_indices.clone(), BLOCK_SIZE=16, seq_lengths=(48, 48)
    )
    attention, graphs = compiled(None, blocks)
    first = attention(*qkv)
    assert torch.equal(first, flex_attention(*qkv, None, blocks) * 2)
    blocks.kv_indices.zero_()
    second = attention(*qkv)
    assert not torch.equal(first, second)
    assert torch.equal(second, flex_attention(*qkv, None, blocks) * 2)
    assert len(graphs) == 1


def scaled_by_heads() -> Callable[..., torch.Tensor]:
    def score_mod(score, b, h, q, k):
        return score * slopes[h]

    return score_mod


def scaled_and_moved(factor: float, shift: float) -> Callable[..., torch.Tensor]:
    def score_mod(score, b, h, q, k):
        return score * factor + shift * k

    return score_mod


def test_mods_of_one_name_are_told_apart() -> None:
    """Also those whose kernels are there for a second time, as after other code of the same text."""
    torch._dynamo.reset()
    layers = [scaled_by_heads(), scaled_and_moved(2.0, 0.5), scaled_by_heads(), scaled_and_moved(3.0, 0.1)]

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        for mod in layers:
            q = flex_attention(q, k, v, mod)
        return q

    for _ in range(2):
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(*inputs()), model(*inputs()))
        kernels.forget()
        torch._dynamo.reset()


def test_what_is_captured_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    qkv = inputs()
    attention, graphs = compiled(by_globals)
    first = attention(*qkv)
    monkeypatch.setitem(globals(), "slopes", 3 * slopes)
    assert not torch.equal(attention(*qkv), first)
    assert torch.equal(attention(*qkv), flex_attention(*qkv, by_globals) * 2)
    assert len(graphs) == 1
    monkeypatch.setitem(globals(), "weight", 5)
    assert torch.equal(attention(*qkv), flex_attention(*qkv, by_globals) * 2)


doubled, kind = True, "far"


class Window:
    """A mask whose form is said by its class, by itself, and by what it has been given."""

    is_wide = True

    def __init__(self, config: SimpleNamespace, names: dict[str, str | None]) -> None:
        self.ahead, self.config, self.names = False, config, names

    def __call__(self, b, h, q, k):
        inside = (q - k).abs() < (8 if self.is_wide else 3)
        inside = inside if self.ahead else inside & (k <= q)
        inside = inside | (k == 0) if self.config.sees_first else inside
        return inside if self.names["last"] is None else inside | (k == 16)


def by_flags(score, b, h, q, k):
    score = score * 2 if doubled else score * 0.5
    return score - q if kind == "far" else score + k


def by_default(score, b, h, q, k, above=True):
    return score + k if above else score - k


def chosen_by(is_added: bool) -> tuple[Callable[..., torch.Tensor], Callable[[bool], None]]:
    """A mod that reads a variable, and what assigns to it."""

    def mod(score, b, h, q, k):
        return score + k if is_added else score - k

    def assign(other: bool) -> None:
        nonlocal is_added
        is_added = other

    return mod, assign


class Side(enum.Enum):
    left = "left"
    right = "right"


sided = SimpleNamespace(side=Side.left)


def by_side(score, b, h, q, k):
    return score + q if sided.side is Side.right else score - k


def of_mask(mask: Any) -> Any:
    return create_block_mask(mask, 1, 1, 17, 17, device=DEVICE, BLOCK_SIZE=16)


def test_what_decides_is_looked_at_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is no number and no tensor: variables, attributes, what stands in a class or a mapping."""
    qkv = inputs()
    window = Window(SimpleNamespace(sees_first=False), {"last": None})
    by_variable, assign = chosen_by(True)
    changes: list[tuple[Any, Any, Callable[[], object]]] = [
        (by_flags, None, lambda: monkeypatch.setitem(globals(), "doubled", False)),
        (by_flags, None, lambda: monkeypatch.setitem(globals(), "kind", "near")),
        (by_variable, None, lambda: assign(False)),
        (None, window, lambda: monkeypatch.setattr(Window, "is_wide", False)),
        (None, window, lambda: setattr(window, "ahead", True)),
        (None, window, lambda: setattr(window.config, "sees_first", True)),
        (None, window, lambda: window.names.update(last="seen")),
        (by_side, None, lambda: setattr(sided, "side", Side.right)),
        (by_default, None, lambda: setattr(by_default, "__defaults__", (False,))),
    ]
    for number, (mod, mask, change) in enumerate(changes):
        blocks = None if mask is None else of_mask(mask)
        attention, _ = compiled(mod, blocks)
        first = attention(*qkv)
        assert torch.equal(first, flex_attention(*qkv, mod, blocks) * 2), number
        change()
        second = attention(*qkv)
        assert not torch.equal(first, second), number
        assert torch.equal(second, flex_attention(*qkv, mod, blocks) * 2), number


table = torch.rand(3, device=DEVICE)


def by_size(score, b, h, q, k):
    return score + table[k % table.shape[0]] * len(table)


@pytest.mark.parametrize("dynamic", [None, True])
def test_the_size_of_a_captured_tensor_is_looked_at_at_each_call(
    monkeypatch: pytest.MonkeyPatch, dynamic: bool | None
) -> None:
    """Where a mod reads it, also where torch.compile takes tensors of any size for alike."""
    qkv = inputs()
    torch._dynamo.reset()
    attention = torch.compile(
        lambda *qkv: flex_attention(*qkv, by_size) * 2, backend="eager", fullgraph=True, dynamic=dynamic
    )
    for length in (3, 4, 5, 4):
        monkeypatch.setitem(globals(), "table", torch.rand(length, device=DEVICE))
        assert torch.equal(attention(*qkv), flex_attention(*qkv, by_size) * 2), length


class Layer(torch.nn.Module):
    """A module whose mod is a method of its own, or of another object."""

    def __init__(self, other: Scaled | None) -> None:
        super().__init__()
        self.slopes, self.steep, self.other = torch.nn.Parameter(torch.rand(mods.HEADS)), 0.5, other

    def biased(self, score, b, h, q, k):
        return score - self.slopes[h] * (q - k) * self.steep

    def forward(self, *qkv: torch.Tensor) -> torch.Tensor:
        return flex_attention(*qkv, self.biased if self.other is None else self.other.scaled) * 2


class Scaled:
    def __init__(self) -> None:
        self.factor = 2.0

    def scaled(self, score, b, h, q, k):
        return score * self.factor


@pytest.mark.parametrize("other", [None, Scaled()], ids=["of the module", "of an object"])
def test_a_mod_may_be_a_bound_method(other: Scaled | None) -> None:
    torch._dynamo.reset()
    qkv, layer = inputs(), Layer(other).to(DEVICE)
    attention = torch.compile(layer, backend="eager", fullgraph=True)
    for number in (0.5, 3.0):
        layer.steep = number
        if other is not None:
            other.factor = number
        assert torch.equal(attention(*qkv), layer(*qkv))


def test_a_mod_that_is_made_inside_and_captures_breaks_the_graph() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Any) -> Any:
        return flex_attention(q, k, v, lambda score, b, h, q, k: score + given) * 2

    for given in (0.5, torch.tensor(0.5, device=DEVICE)):
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="flashgen: a mod that is made inside the compiled"):
            torch.compile(attend, backend="eager", fullgraph=True)(*inputs(), given)
        torch._dynamo.reset()
        assert torch.equal(torch.compile(attend, backend="eager")(*inputs(), given), attend(*inputs(), given))


@pytest.mark.parametrize("name", ["partial", "partial of a list", "blocks"])
def test_numbers_of_partials_and_blocks_are_those_of_the_call_with_dynamic_shapes(name: str) -> None:
    torch._dynamo.reset()
    attention = torch.compile(flex_attention, backend="eager", fullgraph=True, dynamic=True)
    for length in (17, 24):
        blocks = None
        if name == "blocks":
            blocks = create_block_mask(noop_mask, None, None, length, length, device=DEVICE, BLOCK_SIZE=16)
        given = (*inputs(length), CASES.get(name), blocks)
        assert torch.equal(attention(*given), flex_attention(*given))


@pytest.mark.parametrize("mask", [noop_mask, mods.causal])
def test_listed_blocks_of_other_lengths_compile_nothing_anew(mask: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    attention = torch.compile(flex_attention, backend="eager", fullgraph=True, dynamic=True)
    for length in (40, 56, 72):
        rows = -(-length // 16)
        listed = (torch.arange(rows, dtype=torch.int32, device=DEVICE)[:, None] + torch.arange(2, device=DEVICE)) % rows
        counts = torch.full((1, 1, rows), 2, dtype=torch.int32, device=DEVICE)
        blocks = BlockMask.from_kv_blocks(
            counts, listed[None, None], BLOCK_SIZE=16, mask_mod=mask, seq_lengths=(length, length),
            compute_q_blocks=False,
        )  # fmt: skip
        given = (*inputs(length), None, blocks)
        with torch._dynamo.config.patch(error_on_recompile=length > 40):
            assert torch.equal(attention(*given), flex_attention(*given))


def test_other_tensors_in_a_mod_that_is_handed_in_compile_nothing_anew() -> None:
    torch._dynamo.reset()
    attention = torch.compile(lambda mod, *qkv: flex_attention(*qkv, mod), backend="eager", fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            mod = by_closure(torch.rand(mods.HEADS, device=DEVICE))
            assert torch.equal(attention(mod, *inputs()), flex_attention(*inputs(), mod))
