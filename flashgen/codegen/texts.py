"""The texts of a variant's files, imports and docstrings left out, and the views that they were rendered from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashgen.analysis.facts import facts_of
from flashgen.analysis.packed import PackedFacts
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
from flashgen.codegen.packed import with_packed_sequences
from flashgen.codegen.pairs import Function
from flashgen.codegen.templates import environment
from flashgen.spec.variant import Variant

# The file of what several kernels of a variant share.
PAIR = "pair"
# What the names of the files end with that have the kernels over packed sequences.
VARLEN = "_varlen"


@dataclass(frozen=True)
class Packed:
    """The views of the kernels over packed sequences, None for one that a variant does not have."""

    forward: ForwardView
    schedule: ScheduleView | None
    backward_q: BackwardQView
    backward_kv: BackwardKvView
    backward_inputs: BackwardQView | None


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
    varlen: Packed
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
    varlen = _packed(variant, known)
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
        f"forward{VARLEN}": ("forward", varlen.forward),
        f"schedule{VARLEN}": ("schedule", varlen.schedule),
        f"backward_q{VARLEN}": ("backward_q", varlen.backward_q),
        f"backward_kv{VARLEN}": ("backward_kv", varlen.backward_kv),
        f"backward_inputs{VARLEN}": ("backward_q", varlen.backward_inputs),
    }
    present = {name: (template, view) for name, (template, view) in views.items() if view is not None}
    pieces = tuple(map(_function, known.functions))
    texts = {name: _macro(template, "text", view) for name, (template, view) in present.items()}
    return Kernels(
        forward, sm90, schedule, delta, for_q, for_q_sm90, for_kv, for_kv_sm90, for_inputs, decode, varlen,
        placed(texts, pieces),
    )  # fmt: skip


def _packed(variant: Variant, known: _Known) -> Packed:
    """The same kernels for packed sequences, by the same functions wherever these say the same."""
    facts = PackedFacts(with_packed_sequences(variant))
    scheduled = facts.uses_schedule or facts.rows_scheduled
    forward = known.add(forward_view(facts, known.functions, packed=True))
    schedule = known.add(schedule_view(facts, known.functions, packed=True)) if scheduled else None
    return Packed(
        forward,
        schedule,
        known.add(backward_q_view(facts, forward, known.functions)),
        known.add(backward_kv_view(facts, forward, known.functions)),
        known.add(backward_inputs_view(facts, forward, known.functions)),
    )


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
    """Each kernel's text with the pieces that it alone calls in front, and a text of those that several call.

    The kernels over packed sequences import what they share with others from where it is without them.
    """
    called = {name: _called(text, pieces) for name, text in kernels.items()}
    callers: dict[Piece, list[str]] = {piece: [] for piece in pieces}
    for name, found in called.items():
        for piece in found:
            callers[piece].append(name)
    homes = {piece: _home(names) for piece, names in callers.items() if names}
    texts = {PAIR: [piece.text for piece in pieces if homes.get(piece) == PAIR]}
    for name, text in kernels.items():
        texts[name] = [*(piece.text for piece in pieces if homes.get(piece) == name), text]
    return {name: "\n\n\n".join(parts) for name, parts in texts.items() if parts}


def _home(callers: Sequence[str]) -> str:
    dense = [name for name in callers if not name.endswith(VARLEN)]
    return PAIR if len(dense) > 1 else [*dense, *callers][0]


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
