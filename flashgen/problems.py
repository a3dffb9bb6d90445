"""Problems and random but realistic inputs for any variant, the same for proof, tuning and benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from flashgen.capacity import refuse_too_large
from flashgen.errors import UsageError
from flashgen.lang.evaluate import evaluate
from flashgen.lang.nodes import COMPARISONS, Expr, Gather, Op, Var, variables, walk
from flashgen.lengths import spread
from flashgen.positive import LEAST, drawn_positive
from flashgen.spec.variant import Input, Sample, Variant

LAYOUTS = ("bhsd", "bshd")


@dataclass(frozen=True)
class Problem:
    """The sizes of one call. `dtype` is that of q, k and v.

    `mode` is the form of call: "dense", "decode" (few queries), "paged" or "varlen" (packed sequences). A paged cache
    has `block_size` keys a page, and `cache` is its dtype, "" for that of q. Packed sequences have from `min_len` to
    `q_len` queries, and as many keys.
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int
    dtype: str
    mode: str = "dense"
    block_size: int = 0
    cache: str = ""
    min_len: int = 0

    @property
    def packed(self) -> bool:
        """Whether sequences are packed."""
        return self.mode == "varlen"

    @property
    def lengths(self) -> tuple[tuple[int, int], ...]:
        """The numbers of queries and keys of each packed sequence."""
        return tuple((length, length) for length in spread(self.batch, self.q_len, self.min_len))

    @property
    def tokens(self) -> tuple[int, int]:
        """The queries and the keys of all sequences."""
        if not self.packed:
            return self.batch * self.q_len, self.batch * self.kv_len
        queries, keys = zip(*self.lengths, strict=True)
        return sum(queries), sum(keys)

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.kv_heads}" if self.heads != self.kv_heads else f"{self.heads}"
        dims = f"{self.head_dim}" if self.head_dim == self.v_head_dim else f"{self.head_dim}/{self.v_head_dim}"
        pages = f", pages of {self.block_size}" if self.block_size else ""
        cache = f" in {self.cache}" if self.cache else ""
        lengths = f"packed S{self.min_len}-{self.q_len}" if self.packed else f"S{self.q_len}x{self.kv_len}"
        return f"B{self.batch} H{heads} {lengths} D{dims} {self.dtype}{pages}{cache}"


@dataclass(frozen=True)
class Own:
    """What a variant takes beside q, k and v: input tensors and runtime params, by name."""

    inputs: dict[str, torch.Tensor]
    params: dict[str, bool | int | float]

    @property
    def keywords(self) -> dict[str, Any]:
        return {**self.inputs, **self.params}


@dataclass(frozen=True)
class Call:
    """The arguments of one call of attention(): q, k, v, and by name the input tensors and runtime params."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    params: dict[str, bool | int | float] = field(default_factory=dict)

    @property
    def keywords(self) -> dict[str, Any]:
        """What follows q, k, v."""
        return {**self.inputs, **self.params}


def make_inputs(
    variant: Variant, problem: Problem, device: str | torch.device = "cpu", seed: int = 0, layout: str = "bhsd",
    params: dict[str, bool | int | float] | None = None,
) -> Call:  # fmt: skip
    """Draw the arguments of one call; the same seed on the same device gives the same values.

    q, k and v are standard normal, so that scores are too. With layout "bshd" they are views
    [batch, heads, length, dim] of storage laid out [batch, length, heads, dim]. `params` replaces values of
    runtime params. Inputs are drawn from the range that the spec gives them, else by what the expressions use them for
    and the spec's samples: floats are normal with deviation 0.5 (slopes fall about geometrically over the heads), or
    positive where the formula asks for it; bools are true by half; ints that index a dimension stay in its range, ints
    compared with a position lie in [0, kv_len], others in [0, 8). Ints laid out along positions, or along a named
    dimension, ascend: packed documents, offsets.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"layout is {layout!r}; expected one of {', '.join(LAYOUTS)}")
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, problem.dtype)

    def normal(heads: int, length: int, dim: int) -> torch.Tensor:
        shape = (problem.batch, heads, length, dim) if layout == "bhsd" else (problem.batch, length, heads, dim)
        values = torch.randn(shape, generator=generator, device=device).to(dtype)
        return values if layout == "bhsd" else values.transpose(1, 2)

    q = normal(problem.heads, problem.q_len, problem.head_dim)
    k = normal(problem.kv_heads, problem.kv_len, problem.head_dim)
    v = normal(problem.kv_heads, problem.kv_len, problem.v_head_dim)
    own = draw_own(variant, problem, generator, seed, params)
    return Call(q, k, v, own.inputs, own.params)


def draw_own(
    variant: Variant, problem: Problem, generator: torch.Generator, seed: int = 0,
    params: dict[str, bool | int | float] | None = None,
) -> Own:  # fmt: skip
    """The inputs and params alone, as `make_inputs` draws them."""
    values = {p.name: p.value for p in variant.runtime_params} | (params or {})
    sizes = input_sizes(variant, problem, seed, values)
    roles = _Roles(variant)
    positive = drawn_positive(variant)
    inputs = {i.name: _sample(i, roles, sizes, generator, i.name in positive) for i in variant.inputs}
    return Own(inputs, values)


def input_sizes(
    variant: Variant, problem: Problem, seed: int = 0, params: dict[str, bool | int | float] | None = None
) -> dict[str, Any]:
    """Every size that a dimension may be written in: the problem's, runtime params, named dimensions.

    A named dimension is as long as the values that index it ask for (`segments`), otherwise 5 to 16 by the seed.
    """
    sizes: dict[str, Any] = {
        "batch": problem.batch, "heads": problem.heads, "kv_heads": problem.kv_heads, "q_len": problem.q_len,
        "kv_len": problem.kv_len, "head_dim": problem.head_dim, "v_head_dim": problem.v_head_dim,
    }  # fmt: skip
    sizes |= {p.name: p.value for p in variant.runtime_params} | (params or {})
    roles = _Roles(variant)
    for place, name in enumerate(variant.dim_names):
        sizes[name] = roles.named_size(name, otherwise=5 + (7 * seed + 5 * place) % 12)
    return sizes


def shape_of(tensor: Input, sizes: dict[str, Any]) -> tuple[int, ...]:
    """The shape of an input under the sizes that `input_sizes` gives."""
    shape = tuple(int(evaluate(dim.size, sizes, {})) for dim in tensor.dims)
    for dim, length in zip(tensor.dims, shape, strict=True):
        if length < 0:
            raise UsageError(f"input {tensor.name}: dimension {dim.text} is {length} at {sizes}; expected 0 or more")
    return shape


def drawn(call: Call) -> str:
    """What the inputs of a call are, in words: each with its least and its greatest value."""
    spans = ((name, tensor.min().item(), tensor.max().item()) for name, tensor in call.inputs.items() if tensor.numel())
    return ", ".join(f"{name} from {low:g} to {high:g}" for name, low, high in spans)


def _sample(
    tensor: Input, roles: _Roles, sizes: dict[str, Any], generator: torch.Generator, positive: bool
) -> torch.Tensor:
    """Random values of an input, by what its values are used for."""
    shape = shape_of(tensor, sizes)
    refuse_too_large(tensor.name, [dim.text for dim in tensor.dims], shape, generator.device)
    hint = roles.samples.get(tensor.name, Sample())
    dtype = getattr(torch, tensor.dtype)
    if dtype == torch.bool:
        return _uniform(shape, generator) < (0.5 if hint.density is None else hint.density)
    if dtype.is_floating_point:
        return _floats(tensor, shape, positive, generator).to(dtype)
    if hint.density is not None:
        return (_uniform(shape, generator) < hint.density).to(dtype)
    low, high = roles.int_range(tensor, sizes, hint)
    high = min(high, torch.iinfo(dtype).max)
    ascending = roles.ascending_axis(tensor)
    if ascending is None or tensor.range is not None:
        return _integers(low, high, shape, generator).to(dtype)
    if roles.is_position(tensor.name) and hint.segments is None:
        return _integers(low, high, shape, generator).sort(dim=ascending).values.to(dtype)
    return (low + _segments(shape, ascending, high - low + 1, generator)).to(dtype)


class _Roles:
    """What a variant's expressions use the values of each int input for."""

    def __init__(self, variant: Variant) -> None:
        self.samples = dict(variant.samples)
        self._inputs = {i.name: i for i in variant.inputs}
        self._indexes: dict[str, list[tuple[str, int]]] = {}
        self._positions: set[str] = set()
        for node in walk(variant.score, variant.mask):
            if isinstance(node, Gather):
                for axis, index in enumerate(node.indices):
                    for name in _gathered(index):
                        self._indexes.setdefault(name, []).append((node.input, axis))
            elif isinstance(node, Op) and node.name in COMPARISONS:
                surface = list(_surface(node))
                if any(isinstance(n, Var) and n.name in ("q", "k") for n in surface):
                    self._positions |= {n.input for n in surface if isinstance(n, Gather)}

    def is_position(self, name: str) -> bool:
        """Whether values are compared with q or k, and index nothing."""
        return name in self._positions and name not in self._indexes

    def int_range(self, tensor: Input, sizes: dict[str, Any], hint: Sample) -> tuple[int, int]:
        """The lowest and highest value to draw, both included."""
        if tensor.range is not None:
            return int(tensor.range[0]), int(tensor.range[1])
        name = tensor.name
        limits = [shape_of(self._inputs[other], sizes)[axis] for other, axis in self._indexes.get(name, ())]
        if hint.segments is not None:
            limits.append(hint.segments)
        if limits:
            return 0, max(min(limits) - 1, 0)
        return (0, sizes["kv_len"]) if self.is_position(name) else (0, 7)

    def ascending_axis(self, tensor: Input) -> int | None:
        """The last axis that runs over positions or a named dimension."""
        named = {dim.binds for i in self._inputs.values() for dim in i.dims if dim.binds}
        ordered = named | {"q_len", "kv_len"}
        axes = [axis for axis, dim in enumerate(tensor.dims) if variables(dim.size) & ordered]
        return axes[-1] if axes else None

    def named_size(self, dim: str, otherwise: int) -> int:
        """How long a named dimension is: the segments of the inputs that index it decide."""
        asked = [
            hint.segments
            for name, places in self._indexes.items()
            for other, axis in places
            if self._inputs[other].dims[axis].binds == dim
            and (hint := self.samples.get(name, Sample())).segments is not None
        ]
        return max((n for n in asked if n is not None), default=otherwise)


def _surface(expr: Expr) -> Iterator[Expr]:
    """The nodes below an expression, without those inside an index."""
    stack = [expr]
    seen = set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            if not isinstance(node, Gather):
                stack.extend(node.children)


def _gathered(expr: Expr) -> set[str]:
    return {node.input for node in _surface(expr) if isinstance(node, Gather)}


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _integers(low: int, high: int, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    # What is drawn is below the end, which 64 bits must hold.
    end = min(max(high, low) + 1, 2**63 - 1)
    return torch.randint(min(low, end - 1), end, shape, generator=generator, device=generator.device)


def _floats(tensor: Input, shape: tuple[int, ...], positive: bool, generator: torch.Generator) -> torch.Tensor:
    if tensor.range is not None:
        low, high = tensor.range
        share = _uniform(shape, generator)
        # Their difference may be beyond float32.
        return (low * (1 - share) + high * share).clamp(low, high)
    if tensor.default == "alibi_slopes":
        heads = torch.arange(1, shape[0] + 1, device=generator.device)
        return torch.exp2(-8.0 * heads / shape[0]) * (0.5 + _uniform(shape, generator))
    values = 0.5 * torch.randn(shape, generator=generator, device=generator.device)
    return LEAST + values.abs() if positive else values


def _segments(shape: tuple[int, ...], axis: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Ids 0 to count - 1 that ascend along an axis, changing at random places."""
    length = shape[axis]
    rows = shape[:axis] + shape[axis + 1 :]
    cuts = _integers(0, max(length - 1, 0), (*rows, count - 1), generator).sort(dim=-1).values
    places = torch.arange(length, device=generator.device).expand(*rows, length).contiguous()
    return torch.searchsorted(cuts.contiguous(), places, right=True).movedim(-1, axis)
