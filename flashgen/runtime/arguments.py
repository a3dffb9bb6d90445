"""Checks of what a caller passes to attention(), with messages that name the argument, what came and what fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from keyword import kwlist
from typing import Any

import torch

from flashgen.runtime.sizes import Sizes
from flashgen.runtime.strides import contiguous_last

MAX_LENGTH = 2**24 - 1
MAX_HEAD_DIM = 512
DTYPES = (torch.float16, torch.bfloat16, torch.float32)

# Tensors that calls over a paged cache may do without.
_MAY_BE_NONE = frozenset({"cu_seqlens_q", "k_scale", "v_scale", "out"})
_TRACED = (torch.SymBool, torch.SymInt, torch.SymFloat)
# What is taken for a number of a type: one that torch traces is none of Python's.
_NUMBERS: dict[type, Any] = {
    bool: (bool, torch.SymBool),
    int: (int, torch.SymInt),
    float: (int, float, torch.SymInt, torch.SymFloat),
}
# Of Python.
_KEYWORDS = frozenset(kwlist)
# The default of an argument that has none.
REQUIRED = object()


def keywords(given: Mapping[str, object], defaults: Mapping[str, object]) -> tuple[object, ...]:
    """The values of keyword arguments whose names the generated code needs for itself, in the order of `defaults`.

    A call cannot spell a keyword of Python: it has an underscore behind it there, as PEP 8 says.
    Raises TypeError as a call does: for an argument that is not known, and for one that is missing.
    """
    spelled = {f"{name}_": name for name in defaults if name in _KEYWORDS and f"{name}_" not in defaults}
    for name, meant in spelled.items():
        if name in given and meant in given:
            raise TypeError(f"got both {meant!r} and {name!r}; expected one of them")
    given = {spelled.get(name, name): value for name, value in given.items()}
    for name in given:
        if name not in defaults:
            raise TypeError(f"got an unexpected keyword argument {name!r}; expected {', '.join(map(repr, defaults))}")
    for name, default in defaults.items():
        if default is REQUIRED and name not in given:
            raise TypeError(f"missing the keyword argument {name!r}; expected a value for it, which has no default")
    return tuple(given.get(name, default) for name, default in defaults.items())


def check_types(
    q: object, k: object, v: object, scale: object = None, deterministic: object = None, names: Sequence[str] = (),
    inputs: Sequence[object] = (),
) -> None:  # fmt: skip
    """Refuse what a torch operator would not take, before it says so less clearly. An input of None is judged later."""
    if not (isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        refuse_all_but_tensors(q=q, k=k, v=v)
    elif q.is_nested or k.is_nested or v.is_nested:
        refuse_unstrided(q=q, k=k, v=v)
    for place, tensor in enumerate(inputs):
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            refuse_all_but_tensors(**{names[place]: tensor})
        elif tensor is not None and tensor.is_nested:
            refuse_unstrided(**{names[place]: tensor})
    check_scale(scale)
    if deterministic is not None and not isinstance(deterministic, bool):
        raise TypeError(f"deterministic is {type(deterministic).__name__}; expected a bool")


def check_paged_types(
    max_seqlen_q: object, max_seqlen_k: object, batch_invariant: object, scale: object = None, **tensors: object
) -> None:
    """Refuse what the operator of a call over a paged cache, which converts nothing, would not take."""
    check_tensors(**tensors)
    check_scalar("max_seqlen_q", max_seqlen_q, int)
    if max_seqlen_k is not None:
        check_scalar("max_seqlen_k", max_seqlen_k, int)
    check_scalar("batch_invariant", batch_invariant, bool)
    check_scale(scale)


def check_tensors(**tensors: object) -> None:
    """Refuse what is no tensor of those that have to do with a paged cache; some may be None."""
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            if tensor.is_nested:
                refuse_unstrided(**{name: tensor})
        elif tensor is not None or name not in _MAY_BE_NONE:
            refuse_all_but_tensors(**{name: tensor})


def check_scale(scale: object) -> None:
    """Refuse a scale that is neither a number nor None."""
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, _NUMBERS[float])):
        raise TypeError(f"scale is {type(scale).__name__}; expected a float")


def scale_of(scale: float | None, head_dim: int) -> float:
    """The factor of the dot products, 1/sqrt(head_dim) by default; ValueError for one that float32 does not hold."""
    if scale is None:
        return 1 / math.sqrt(head_dim)
    if not abs(scale) <= torch.finfo(torch.float32).max:
        raise ValueError(f"scale is {shown(scale)}; expected a finite number")
    return scale


def refuse_all_but_tensors(**tensors: object) -> None:
    """Refuse what is no tensor, by its name."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is {type(tensor).__name__}; expected a torch.Tensor")


def refuse_unstrided(**tensors: torch.Tensor) -> None:
    """Refuse what has no strides, as sparse and nested tensors."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
            packed = ", as values() of a jagged one is, which attention_varlen takes beside its offsets().int()"
            raise TypeError(f"{name} is a {kind} tensor; expected a strided one{packed * tensor.is_nested}")


def sizes_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Sizes:
    """The sizes of a call of attention(), its tensors checked against each other and against what kernels serve."""
    sizes = agreeing_sizes(q, k, v, DTYPES)
    for name, size in (("q", sizes.head_dim), ("v", sizes.v_head_dim)):
        if not 1 <= size <= MAX_HEAD_DIM:
            raise ValueError(f"{name} has head_dim {size}; expected 1 to {MAX_HEAD_DIM}")
    for name, size in (("q", sizes.q_len), ("k", sizes.kv_len)):
        if is_known(size > MAX_LENGTH):
            raise ValueError(f"{name} has length {size}; expected at most {MAX_LENGTH}")
    return sizes


def agreeing_sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtypes: Sequence[torch.dtype]) -> Sizes:
    """The sizes of a call, its shapes, dtypes and devices checked against each other."""
    refuse_unstrided(q=q, k=k, v=v)
    _check_kinds(q, k, v, dtypes)
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len, v_head_dim = k.shape[1], k.shape[2], v.shape[3]
    if tuple(k.shape) != (batch, kv_heads, kv_len, head_dim):
        raise ValueError(
            f"k has shape {tuple(k.shape)}; expected [batch, kv_heads, kv_len, head_dim] with q's batch {batch} and "
            f"head_dim {head_dim}"
        )
    if tuple(v.shape) != (batch, kv_heads, kv_len, v_head_dim):
        raise ValueError(
            f"v has shape {tuple(v.shape)}; expected [batch, kv_heads, kv_len, v_head_dim] with k's batch {batch}, "
            f"kv_heads {kv_heads} and kv_len {kv_len}"
        )
    if kv_heads == 0 or heads % kv_heads:
        raise ValueError(f"q has {heads} heads and k has {kv_heads}; expected a multiple of k's")
    return Sizes(batch, heads, kv_heads, q_len, kv_len, head_dim, v_head_dim)


def _check_kinds(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """Refuse other numbers of dimensions, dtypes and devices."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}; expected 4 dimensions, [batch, heads, length, head_dim]"
            )
        if tensor.dtype not in dtypes:
            *some, last = (str(each).removeprefix("torch.") for each in dtypes)
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected {', '.join(some)} or {last}")
        if tensor.dtype != q.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected q's, {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}; expected q's device, {q.device}")


def check_longest(**lengths: int) -> None:
    """Refuse what cannot be the most queries or keys of a sequence."""
    for name, length in lengths.items():
        if is_known(length < 1) or is_known(length > MAX_LENGTH):
            raise ValueError(f"{name} is {length}; expected 1 to {MAX_LENGTH}")


def is_known(fact: bool | torch.SymBool) -> bool:
    """Whether something is known to be so of sizes that torch may be tracing.

    Not asked is what would narrow the lengths that a traced program is for: the launch asks again.
    """
    if isinstance(fact, bool) and not torch.compiler.is_compiling():
        return fact
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(fact)


def check_input(
    name: str, tensor: object, dims: str, shape: Sequence[int | None], dtype: torch.dtype, q: torch.Tensor,
    may_be_one: Sequence[int] = (), may_be_empty: Sequence[int] = (),
) -> torch.Tensor:  # fmt: skip
    """An input tensor as a kernel reads it: of this dtype, on q's device, its last dimension contiguous.

    `dims` is the shape as the spec writes it; `shape` has None for a dimension that this input defines, which has an
    element at least unless it is one of `may_be_empty`. A dimension of `may_be_one` may have size 1, which then stands
    for all.
    """
    if isinstance(tensor, torch.Tensor) and _is_ready(tensor, shape, dtype, q):
        return tensor
    return contiguous_last(name, fitting_input(name, tensor, dims, shape, dtype, q, may_be_one, may_be_empty))


def _is_ready(tensor: torch.Tensor, shape: Sequence[int | None], dtype: torch.dtype, q: torch.Tensor) -> bool:
    alike = tensor.shape == shape and tensor.dtype == dtype and tensor.device == q.device
    return alike and 1 in tensor.stride()[-1:]


def fitting_input(
    name: str, tensor: object, dims: str, shape: Sequence[int | None], dtype: torch.dtype, q: torch.Tensor,
    may_be_one: Sequence[int] = (), may_be_empty: Sequence[int] = (),
) -> torch.Tensor:  # fmt: skip
    """The same, its last dimension as it is."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is {type(tensor).__name__}; expected a torch.Tensor of shape {dims} and dtype {dtype}")
    refuse_unstrided(**{name: tensor})
    if tensor.dtype != dtype:
        raise TypeError(f"{name} has dtype {tensor.dtype}; expected {dtype}")
    if tensor.device != q.device:
        raise ValueError(f"{name} is on {tensor.device}; expected q's device, {q.device}")
    fits = tensor.ndim == len(shape) and all(
        _may_be_size(size, axis in may_be_empty) if want is None else size == want or (size == 1 and axis in may_be_one)
        for axis, (size, want) in enumerate(zip(tensor.shape, shape, strict=True))
    )
    if not fits:
        wanted = ", ".join(_wanted(size, axis in may_be_empty) for axis, size in enumerate(shape))
        here = f"({wanted},)" if len(shape) == 1 else f"({wanted})"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {dims}, here {here}")
    if may_be_one:
        tensor = tensor.expand(*(-1 if want is None else want for want in shape))
    return tensor


def _may_be_size(size: int, may_be_empty: bool) -> bool:
    return not (is_known(size < (0 if may_be_empty else 1)) or is_known(size >= 2**31))


def _wanted(size: int | None, may_be_empty: bool) -> str:
    return ("any" if may_be_empty else "1 or more") if size is None else str(size)


def check_scalar(name: str, value: Any, kind: type) -> Any:
    """A runtime param, as `kind`: an int where an int is wanted, an int or float where a float is."""
    exact = type(value) is kind
    if exact and (kind is not int or _has_32_bits(value)):
        return value
    if (isinstance(value, bool) and kind is not bool) or not isinstance(value, _NUMBERS[kind]):
        raise TypeError(f"{name} is {shown(value)}; expected {'an int' if kind is int else f'a {kind.__name__}'}")
    if kind is int and not _has_32_bits(value):
        raise ValueError(f"{name} is {shown(value)}; expected an int of 32 bits")
    if isinstance(value, _TRACED):
        return torch.sym_float(value) if kind is float else value
    try:
        return kind(value)
    except OverflowError:
        raise ValueError(f"{name} is {shown(value)}; expected a number within a float's range") from None


def _has_32_bits(value: int) -> bool:
    return _may_lie(value, -(2**31), 2**31 - 1)


def _may_lie(value: int, least: int, most: int) -> bool:
    """Whether an int lies between these. Of one that a tensor holds nothing is known before compiled code runs."""
    if isinstance(value, int) and not torch.compiler.is_compiling():
        return least <= value <= most
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    return guard_or_true(value >= least) and guard_or_true(value <= most)


def kind_beside(wanted: type, value: object) -> str:
    """The type of a value, with its module where it has the name of what is wanted: that of an exported file, say."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__name__}" if kind.__name__ == wanted.__name__ else kind.__name__


def shown(value: Any) -> str:
    """A scalar as it is, unless it is long, and the type of anything else."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an int of {value.bit_length()} bits"
    return repr(value) if isinstance(value, (int, float)) else type(value).__name__
