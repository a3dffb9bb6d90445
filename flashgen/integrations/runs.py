"""The run of keys that each query sees by a mask function of transformers, without a matrix of queries by keys.

Its causal, sliding and chunked masks say where a run begins and ends. Of other masks whose keys stand side by side, as
of packed sequences, the ends are searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

MaskFunction = Callable[..., Any]
# The first and the last key that a query sees, [batch|1, q_length], by positions in the sequence; None without limit.
_Ends = tuple[torch.Tensor | None, torch.Tensor | None]

# How many distances one step of the search for a row's first and last key tells apart.
_DIGIT = 64
# While torch.compile traces, the number of keys may be a symbol: the search is as deep as for any.
_MOST_KEYS = _DIGIT**5


def _ends_of_window(q: torch.Tensor, sliding_window: int) -> _Ends:
    return q - sliding_window + 1, None


def _ends_on_both_sides(q: torch.Tensor, sliding_window: int) -> _Ends:
    return q - sliding_window, q + sliding_window


def _ends_of_chunk(q: torch.Tensor, chunk_size: int, left_padding: torch.Tensor) -> _Ends:
    start = left_padding[:, None]
    first = (q - start) // chunk_size * chunk_size + start
    return first, first + chunk_size - 1


_JOINED = masking_utils.and_masks().__code__
_CAUSAL = masking_utils.causal_mask_function.__code__
_WINDOW = masking_utils.sliding_window_overlay(1).__code__
# By the code of a mask function of transformers and the names of what it reads beside its arguments. No dict:
# torch.compile can not name an entry whose key is a code.
_ENDS: tuple[tuple[Any, tuple[str, ...], Callable[..., _Ends]], ...] = (
    (_CAUSAL, (), lambda q: (None, q)),
    (masking_utils.bidirectional_mask_function.__code__, (), lambda q: (None, None)),
    (_WINDOW, ("sliding_window",), _ends_of_window),
    (masking_utils.sliding_window_bidirectional_overlay(1).__code__, ("sliding_window",), _ends_on_both_sides),
    (masking_utils.chunked_overlay(1, torch.zeros(1)).__code__, ("chunk_size", "left_padding"), _ends_of_chunk),
)


def sees_a_run(mask_function: MaskFunction, device: torch.device | str = "cpu") -> bool:
    """Whether the keys that a query sees stand side by side, its own among them.

    So it is with the causal, sliding, chunked and packed masks of transformers; unions with other masks are of any
    kind, within documents too. `device` is where the tensors are that the function reads.
    """
    if mask_function in (masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function):
        return True
    if _code(mask_function) is not _JOINED:
        return False
    is_known = _is_open(mask_function) and None not in map(_ends_of, _parts(mask_function))
    return is_known or not _has_a_union(mask_function, device)


def is_causal_window(mask_function: MaskFunction) -> bool:
    """Whether a query sees its own key and those right before it, as many as there are in a window."""
    return _is_open(mask_function) and {_code(part) for part in _parts(mask_function)} == {_WINDOW, _CAUSAL}


def _has_a_union(mask_function: MaskFunction, device: torch.device | str) -> bool:
    """Whether a mask function has a union in it, however deep: the first pair of the first sequence is asked for."""
    # While torch.compile traces, no function may be looked into.
    noted: list[bool] = []
    first = torch.zeros((1, 1, 1), dtype=torch.int64, device=device)
    with _Unions(noted):
        mask_function(first, first, first, first)
    return bool(noted)


class _Unions(TorchFunctionMode):
    """Notes each `|` of tensors."""

    def __init__(self, noted: list[bool]) -> None:
        super().__init__()
        # A list, since torch.compile forgets what the mode itself has.
        self.noted = noted

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__or__:
            self.noted.append(True)
        return func(*args, **(kwargs or {}))


def runs(
    mask_function: MaskFunction,
    batch: int,
    q_length: int,
    kv_length: int,
    q_offset: Any,
    kv_offset: Any,
    device: torch.device | str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first and the last key of each query, [batch, q_length], counted from the first of the cache.

    The mask function is one that `sees_a_run`. Where a query sees no key, its last is before its first.
    """
    q = torch.arange(q_length, device=device) + q_offset
    ends = _ends(mask_function, q[None]) if _is_open(mask_function) else None
    if ends is None:
        return _searched(mask_function, (q - kv_offset).expand(batch, -1), kv_length, kv_offset)
    first, last = ends
    low = torch.zeros_like(q) if first is None else (first - kv_offset).clamp(min=0)
    high = torch.full_like(q, kv_length - 1) if last is None else (last - kv_offset).clamp(max=kv_length - 1)
    return low.expand(batch, -1), high.expand(batch, -1)


def _ends(mask_function: MaskFunction, q: torch.Tensor) -> _Ends | None:
    """By what transformers' own functions say; None where another one has a say."""
    found = []
    for part in _parts(mask_function):
        ends_of = _ends_of(part)
        if ends_of is None:
            return None
        found.append(ends_of(q, **_variables(part)))
    first, last = zip(*found, strict=True)
    return _nearest(torch.maximum, first), _nearest(torch.minimum, last)


def _ends_of(part: MaskFunction) -> Callable[..., _Ends] | None:
    """What says the ends by a mask function of transformers; None for another."""
    code = _code(part)
    known = [ends for own, names, ends in _ENDS if own is code and own.co_freevars == names]
    return known[0] if known else None


def _nearest(by: Callable[..., torch.Tensor], ends: tuple[torch.Tensor | None, ...]) -> torch.Tensor | None:
    known = [end for end in ends if end is not None]
    return reduce(by, known) if known else None


def _is_open(mask_function: MaskFunction) -> bool:
    """Whether one may look into it: torch.compile can not call what was looked into while it traces."""
    return _code(mask_function) is not _JOINED or not is_tracing()


def _parts(mask_function: MaskFunction) -> Iterator[MaskFunction]:
    """The mask functions of which a pair has to pass each."""
    if _code(mask_function) is not _JOINED:
        yield mask_function
        return
    for joined in _variables(mask_function).values():
        for part in joined:
            yield from _parts(part)


def _code(function: MaskFunction) -> Any:
    return getattr(function, "__code__", None)


def _variables(function: Any) -> dict[str, Any]:
    """What a function reads of the one that it was made in."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


def _searched(
    mask_function: MaskFunction, q: torch.Tensor, kv_length: int, kv_offset: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends of the run around each query's own key, q [batch, q_length] counted from the first key of the cache."""
    sequence = torch.arange(q.shape[0], device=q.device)[:, None, None]
    head = torch.zeros((), device=q.device, dtype=torch.int64)
    own = q.clamp(0, kv_length - 1)

    def sees(k: torch.Tensor) -> torch.Tensor:
        seen: torch.Tensor = mask_function(sequence, head, (q + kv_offset)[:, :, None], k + kv_offset)
        return seen

    reach = _MOST_KEYS if is_tracing(q) else kv_length
    first = own - _farthest(lambda d: sees(own[:, :, None] - d), own, reach)
    last = own + _farthest(lambda d: sees(own[:, :, None] + d), kv_length - 1 - own, reach)
    # A query that does not see its own place sees none.
    return first, torch.where(sees(own[:, :, None])[:, :, 0], last, first - 1)


def _farthest(sees: MaskFunction, most: torch.Tensor, reach: int) -> torch.Tensor:
    """The greatest distance up to `most` [batch, q_length] at which a key is seen, digit by digit: nearer ones are too.

    `sees` takes distances [batch, q_length, n]; no distance is as great as `reach`.
    """
    digits = torch.arange(1, _DIGIT, device=most.device)
    step = 1
    while step * _DIGIT < reach:
        step *= _DIGIT
    found = torch.zeros_like(most)
    while step:
        tried = found[:, :, None] + digits * step
        seen = sees(tried.minimum(most[:, :, None])) & (tried <= most[:, :, None])
        found = found + step * seen.sum(-1)
        step //= _DIGIT
    return found
