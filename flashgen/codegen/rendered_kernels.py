"""A variant's kernels as texts, imports and docstrings left out, with the views that they were rendered from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flashgen.analysis.facts import facts_of
from flashgen.codegen.imports import free_names
from flashgen.codegen.kernel_text import Views
from flashgen.codegen.pairs import Function
from flashgen.codegen.registry import TEXTS, as_read
from flashgen.codegen.templates import environment
from flashgen.spec.variant import Variant

# The file of what several kernels of a variant share.
PAIR = "pair"


@dataclass(frozen=True)
class RenderedKernels:
    """`views` are by the names of files, None for a kernel that a variant does not have; `texts` has that of each file.

    `launched` has what the runtime launches: by the name that it knows the name of the function.
    """

    views: Views
    texts: Mapping[str, str]
    launched: Mapping[str, str]


def render_kernels(variant: Variant) -> RenderedKernels:
    """Work out the views and render a text for each kernel, and one for what several of them share."""
    views = Views(facts_of(variant))
    for kernel in TEXTS:
        views.add(kernel)
    present = [kernel for kernel in as_read() if views[kernel.name] is not None]
    texts = {kernel.name: _macro(kernel.source, "text", views[kernel.name]) for kernel in present}
    launched = {name: function for kernel in present for name, function in kernel.functions}
    return RenderedKernels(views, placed(texts, tuple(map(_function, views.functions))), launched)


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
    return Piece((function.name,), _macro("forward.py.jinja", "function", function))


def _macro(template: str, name: str, *arguments: object) -> str:
    """What a macro of a template writes."""
    return str(getattr(environment().get_template(template).module, name)(*arguments)).strip()
