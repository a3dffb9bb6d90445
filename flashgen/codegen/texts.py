"""The texts of a variant's files, imports and docstrings left out, and the views that they were rendered from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashgen.analysis.facts import facts_of
from flashgen.codegen.imports import free_names
from flashgen.codegen.kernels.backward_kv import BackwardKvView, backward_kv_view
from flashgen.codegen.kernels.backward_kv_sm90 import BackwardKvSm90View, backward_kv_sm90_view
from flashgen.codegen.kernels.backward_q import BackwardQView, backward_q_view
from flashgen.codegen.kernels.backward_q_sm90 import BackwardQSm90View, backward_q_sm90_view
from flashgen.codegen.kernels.decode import DecodeView, decode_view
from flashgen.codegen.kernels.delta import DeltaView, delta_view
from flashgen.codegen.kernels.forward import ForwardView, forward_view
from flashgen.codegen.kernels.forward_sm90 import ForwardSm90View, forward_sm90_view
from flashgen.codegen.kernels.learned import backward_inputs_view
from flashgen.codegen.kernels.schedule import ScheduleView, schedule_view
from flashgen.codegen.pairs import Function
from flashgen.codegen.templates import environment
from flashgen.spec.variant import Variant

# The file of what several kernels of a variant share.
PAIR = "pair"


@dataclass(frozen=True)
class Kernels:
    """The views, None for a kernel that a variant does not have; `texts` has that of each file by its name."""

    forward: ForwardView
    forward_sm90: ForwardSm90View
    schedule: ScheduleView | None
    delta: DeltaView
    backward_q: BackwardQView
    backward_q_sm90: BackwardQSm90View
    backward_kv: BackwardKvView
    backward_kv_sm90: BackwardKvSm90View
    backward_inputs: BackwardQView | None
    decode: DecodeView
    texts: Mapping[str, str]


def render_kernels(variant: Variant) -> Kernels:
    """Work out the views and render a text for each kernel, and one for what several of them share."""
    facts = facts_of(variant)
    forward = forward_view(facts)
    sm90 = forward_sm90_view(facts, forward)
    known = _Known([*forward.functions, *sm90.functions])
    schedule = schedule_view(facts, known.functions) if facts.uses_schedule or facts.rows_scheduled else None
    known.add(schedule)
    for_q = known.add(backward_q_view(facts, forward))
    for_q_sm90 = known.add(backward_q_sm90_view(facts, sm90, known.functions))
    for_kv = known.add(backward_kv_view(facts, forward, known.functions))
    for_kv_sm90 = known.add(backward_kv_sm90_view(facts, known.functions))
    for_inputs = known.add(backward_inputs_view(facts, forward, known.functions))
    delta = delta_view(facts)
    decode, decode_paged = (known.add(decode_view(variant, known.functions, paged)) for paged in (False, True))
    # A kernel stands after those whose functions it calls.
    views = {
        "forward": ("forward", forward),
        "forward_sm90": ("forward_sm90", sm90),
        "decode": ("decode", decode),
        "decode_paged": ("decode", decode_paged),
        "schedule": ("schedule", schedule),
        "delta": ("delta", delta),
        "backward_q": ("backward_q", for_q),
        "backward_q_sm90": ("backward_q_sm90", for_q_sm90),
        "backward_kv": ("backward_kv", for_kv),
        "backward_kv_sm90": ("backward_kv_sm90", for_kv_sm90),
        "backward_kv_wide_sm90": ("backward_kv_wide_sm90", for_kv_sm90.wide),
        "backward_inputs": ("backward_q", for_inputs),
    }
    present = {name: (template, view) for name, (template, view) in views.items() if view is not None}
    pieces = tuple(map(_function, known.functions))
    texts = {name: _macro(template, "text", view) for name, (template, view) in present.items()}
    return Kernels(
        forward, sm90, schedule, delta, for_q, for_q_sm90, for_kv, for_kv_sm90, for_inputs, decode,
        placed(texts, pieces),
    )  # fmt: skip


class _Known:
    """The functions of the views so far, by whose names no others go."""

    def __init__(self, functions: Iterable[Function]) -> None:
        self._functions = {function.name: function for function in functions}

    @property
    def functions(self) -> tuple[Function, ...]:
        return tuple(self._functions.values())

    def add(self, view: Any) -> Any:
        """Know a view's functions too; returns the view."""
        for function in view.functions if view is not None else ():
            self._functions.setdefault(function.name, function)
        return view


@dataclass(frozen=True)
class Piece:
    """A function, or several, that kernels call: what it defines, and its text."""

    names: tuple[str, ...]
    text: str


def placed(kernels: Mapping[str, str], pieces: Sequence[Piece]) -> dict[str, str]:
    """Each kernel's text with the pieces that it alone calls in front, and a text of those that several call."""
    called = {name: _called(text, pieces) for name, text in kernels.items()}
    callers: dict[Piece, list[str]] = {piece: [] for piece in pieces}
    for name, found in called.items():
        for piece in found:
            callers[piece].append(name)
    homes = {piece: PAIR if len(names) > 1 else names[0] for piece, names in callers.items() if names}
    texts = {PAIR: [piece.text for piece in pieces if homes.get(piece) == PAIR]}
    for name, text in kernels.items():
        texts[name] = [*(piece.text for piece in pieces if homes.get(piece) == name), text]
    return {name: "\n\n\n".join(parts) for name, parts in texts.items() if parts}


def _called(text: str, pieces: Iterable[Piece]) -> set[Piece]:
    """The pieces that a text calls, and that these call."""
    found: set[Piece] = set()
    waiting = [text]
    while waiting:
        names = free_names(waiting.pop())
        new = {piece for piece in pieces if names & {*piece.names}} - found
        waiting += [piece.text for piece in new]
        found |= new
    return found


def _function(function: Function) -> Piece:
    return Piece((function.name,), _macro("forward", "function", function))


def _macro(template: str, name: str, *arguments: object) -> str:
    """What a macro of a template writes."""
    return str(getattr(environment().get_template(f"{template}.py.jinja").module, name)(*arguments)).strip()
