"""Packed sequences as one call of a batch of one, so that they are proven, tuned and timed as every other call is.

The truth is the dense formula sequence by sequence: gradients of what sequences share come out as their sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any, Protocol

import torch

from flashgen.analysis.packed import is_packed, length_along
from flashgen.lang.variables import BATCH, KV_LEN
from flashgen.problems.calls import Call, Own, draw_own
from flashgen.problems.elements import cut_down
from flashgen.problems.problem import Problem
from flashgen.problems.sequence import of_sequence, reads_batch
from flashgen.problems.sizes import input_sizes
from flashgen.spec.keywords import keywords_of
from flashgen.spec.variant import Input, Variant

# The numbers of queries and of keys of each sequence.
Lengths = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class PackedCall:
    """The arguments of one call over packed sequences, `call`, and the variant's own as they are before packing."""

    problem: Problem
    call: Call
    own: Own

    @property
    def keywords(self) -> dict[str, Any]:
        """Inputs and params for the whole batch, none of it packed."""
        return self.own.keywords


def make_packed(variant: Variant, problem: Problem, device: str | torch.device = "cpu", seed: int = 0) -> PackedCall:
    """Draw the arguments of a call for a problem of packed sequences."""
    generator = torch.Generator(device).manual_seed(seed)
    (total_q, total_k), p = problem.tokens, problem

    def normal(total: int, heads: int, dim: int) -> torch.Tensor:
        values = torch.randn((total, heads, dim), generator=generator, device=device)
        return values.to(getattr(torch, p.dtype)).transpose(0, 1)[None]

    q = normal(total_q, p.heads, p.head_dim)
    k, v = (normal(total_k, p.kv_heads, dim) for dim in (p.head_dim, p.v_head_dim))
    own = draw_own(variant, problem, generator, seed)
    return PackedCall(problem, Call(q, k, v, _packed_inputs(variant, own.inputs, p.lengths), own.params), own)


def ends_of(lengths: Sequence[int], device: str | torch.device) -> torch.Tensor:
    """Where sequences of these lengths begin, and where the last ends, as attention_varlen() takes it."""
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def packed_call(variant: Variant, call: Call, lengths: Lengths, rest: tuple[int, int] = (0, 0)) -> Call:
    """A call with a sequence in each batch element, cut down to these lengths and packed: [1, heads, total, dim].

    Behind the last sequence lie as many queries and keys as `rest` says that belong to none. They are ones, and what
    inputs have for them is NaN.
    """

    def packed(tensor: torch.Tensor, side: int) -> torch.Tensor:
        parts = [tensor[b, :, : own[side]] for b, own in enumerate(lengths)]
        # Token by token in memory.
        whole = torch.cat([*parts, tensor.new_ones(len(parts[0]), rest[side], tensor.shape[3])], 1)
        return whole.transpose(0, 1).contiguous().transpose(0, 1)[None]

    inputs = _packed_inputs(variant, call.inputs, lengths, rest)
    return replace(call, q=packed(call.q, 0), k=packed(call.k, 1), v=packed(call.v, 1), inputs=inputs)


def _packed_inputs(
    variant: Variant, inputs: Mapping[str, torch.Tensor], lengths: Lengths, rest: tuple[int, int] = (0, 0)
) -> dict[str, torch.Tensor]:  # fmt: skip
    """The inputs of the whole batch as attention_varlen() takes them."""
    found = dict(inputs)
    for tensor in variant.inputs:
        if tensor.name in inputs and is_packed(tensor):
            found[tensor.name] = _packed_input(tensor, inputs[tensor.name], lengths, rest)
    return found


def _packed_input(tensor: Input, whole: torch.Tensor, lengths: Lengths, rest: tuple[int, int]) -> torch.Tensor:
    batch, along, side = _axes(tensor)
    parts = [whole.narrow(along, 0, own[side]).select(batch, b) for b, own in enumerate(lengths)]
    along -= batch < along
    shape = [rest[side] if axis == along else size for axis, size in enumerate(parts[0].shape)]
    none = math.nan if whole.is_floating_point() else 1 if whole.dtype == torch.bool else torch.iinfo(whole.dtype).max
    return torch.cat([*parts, whole.new_full(shape, none)], along)


def _axes(tensor: Input) -> tuple[int, int, int]:
    """The axis of the batch, that of the length, and whether that is one of queries, 0, or of keys, 1."""
    sizes, length = [dim.size for dim in tensor.dims], length_along(tensor)
    assert length is not None
    return sizes.index(BATCH), sizes.index(length), int(length is KV_LEN)


class Module(Protocol):
    """What is proven: a generated module, or what takes calls as one does."""

    @property
    def attention(self) -> Callable[..., Any]: ...

    @property
    def plan(self) -> Callable[..., Any]: ...

    @property
    def reference(self) -> Callable[..., Any]: ...


@dataclass(frozen=True)
class PackedModule:
    """A generated module whose attention is that of packed sequences of these lengths; `problem` has the longest.

    Behind the last sequence are as many queries and keys as `rest` says, which belong to none and see nothing. Where
    sequences end is copied to the GPU once: a graph may capture its calls.
    """

    module: ModuleType
    variant: Variant
    problem: Problem
    lengths: tuple[tuple[int, int], ...]
    rest: tuple[int, int] = (0, 0)

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        """out, lse and what else is asked for of a packed call, by the kernels."""
        own = keywords_of(self.variant, "attention_varlen", keywords)
        found = self.module.attention_varlen(*self._arguments(q, k, v), **own)
        if isinstance(found, torch.Tensor):
            return found.transpose(0, 1)[None]
        out, *rows = found
        return out.transpose(0, 1)[None], *(each[None] for each in rows)

    def plan(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, **keywords: Any) -> Any:
        """The schedule of a packed call."""
        own = keywords_of(self.variant, "attention_varlen", keywords)
        return self.module.plan_varlen(*self._arguments(q, k, v), **own)

    def reference(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, /, *, scale: float | None = None,
        return_lse: bool = False, return_max: bool = False, **given: Any,
    ) -> Any:  # fmt: skip
        """out, lse and the largest logits of a packed call, by the formula."""
        found = []
        # Without dropout this name is free for an input.
        seed = None if self.variant.dropout is None else given.pop("dropout_seed", None)
        kept = None if seed is None else self._kept(q, k, given["dropout_p"], seed)
        batch = len(self.lengths) if reads_batch(self.variant) else 1
        for b, (queries, keys) in enumerate(zip(*self._slices, strict=True)):
            own_q, own_k, own_v = q[:, :, queries], k[:, :, keys], v[:, :, keys]
            if own_q.shape[2] and own_k.shape[2]:
                own = {name: self._own(name, value, b, given) for name, value in given.items()}
                if kept is not None:
                    of_one = kept[b : b + 1, :, : own_q.shape[2], : own_k.shape[2]]
                    own["dropout_mask"] = of_one.expand(batch, -1, -1, -1)
                formula = of_sequence(self.module.reference, min(b, batch - 1), batch)
                found.append(formula(own_q, own_k, own_v, **own, scale=scale, return_lse=True, return_max=True))
        rows = iter(found)
        parts = [next(rows) if all(own) else _nothing_seen(q, v, own[0]) for own in self.lengths]
        parts.append(_nothing_seen(q, v, self.rest[0]))
        dtype = found[0][1].dtype if found else q.dtype
        out, lse, largest = (torch.cat([each.to(kind) for each in part], 2) for part, kind in zip(
            zip(*parts, strict=True), (q.dtype, dtype, dtype), strict=True
        ))  # fmt: skip
        asked = (out, *([lse] if return_lse else []), *([largest] if return_max else []))
        return asked if len(asked) > 1 else out

    def _kept(self, q: torch.Tensor, k: torch.Tensor, dropout_p: float, dropout_seed: torch.Tensor) -> torch.Tensor:
        """Which weights of each sequence a call keeps."""
        found: torch.Tensor = self.module.dropout_mask(
            q[0].transpose(0, 1), k[0].transpose(0, 1), cu_seqlens_q=self._ends_on(q.device)[0],
            max_seqlen_q=self.problem.q_len, max_seqlen_k=self.problem.kv_len, dropout_p=dropout_p,
            dropout_seed=dropout_seed,
        )  # fmt: skip
        return found

    @property
    def _ends(self) -> tuple[list[int], list[int]]:
        q_ends, k_ends = ([0, *accumulate(own[side] for own in self.lengths)] for side in (0, 1))
        return q_ends, k_ends

    @property
    def _slices(self) -> tuple[list[slice], list[slice]]:
        q_slices, k_slices = ([slice(*ends) for ends in pairwise(each)] for each in self._ends)
        return q_slices, k_slices

    def told(self, call: Call) -> Call:
        """The call with what kernels are told of packed sequences among its inputs and params."""
        q_ends, k_ends = self._ends_on(call.q.device)
        longest = {"max_seqlen_q": self.problem.q_len, "max_seqlen_k": self.problem.kv_len}
        ends = {"cu_seqlens_q": q_ends, "cu_seqlens_k": k_ends}
        return replace(call, inputs={**call.inputs, **ends}, params={**call.params, **longest})

    def _arguments(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[Any, ...]:
        tensors = (each[0].transpose(0, 1) for each in (q, k, v))
        return (*tensors, *self._ends_on(q.device), self.problem.q_len, self.problem.kv_len)

    def _ends_on(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        if device not in self._known_ends:
            self._known_ends[device] = tuple(ends_of([own[side] for own in self.lengths], device) for side in (0, 1))
        return self._known_ends[device]

    @cached_property
    def _known_ends(self) -> dict[torch.device, tuple[torch.Tensor, ...]]:
        return {}

    def _own(self, name: str, value: Any, b: int, given: Mapping[str, Any]) -> Any:
        """An argument for one sequence, of all that are given: an input is that of the whole batch, as long as this
        one, all else as it is."""
        tensor = next((each for each in self.variant.inputs if each.name == name), None)
        if tensor is None:
            return value
        if is_packed(tensor):
            batch, along, side = _axes(tensor)
            own = self._slices[side][b]
            value = value.narrow(along - (batch < along), own.start, own.stop - own.start).unsqueeze(batch)
            value = value.expand(*(len(self.lengths) if axis == batch else -1 for axis in range(value.ndim)))
        q_len, kv_len = self.lengths[b]
        params = {param.name: given[param.name] for param in self.variant.runtime_params if param.name in given}
        problem = replace(self.problem, q_len=q_len, kv_len=kv_len)
        return cut_down(tensor, value, input_sizes(self.variant, problem, params=params))


def _nothing_seen(q: torch.Tensor, v: torch.Tensor, q_len: int) -> tuple[torch.Tensor, ...]:
    """out, lse and the largest logits of a sequence without keys, or without queries."""
    rows = q.new_full((1, q.shape[1], q_len), -torch.inf)
    return rows.new_zeros((*rows.shape, v.shape[3])), rows, rows
