"""From a spec to its meaning: a file or mapping in, a checked Variant out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flashgen.errors import ExpressionError, Location, SpecError, UnreadError
from flashgen.lang.check import meaning
from flashgen.lang.doubts import doubts as doubts_of_expression
from flashgen.lang.fold import fold
from flashgen.lang.interval import LARGEST_FLOAT32
from flashgen.lang.nodes import TRUE, Const, Expr, Gather, Type, op
from flashgen.lang.parse import parse as parse_expression
from flashgen.lang.reductions import MAX_TERMS
from flashgen.lang.scope import Scope
from flashgen.lang.softcaps import with_softcaps
from flashgen.lang.syntax import Name, names, pieces
from flashgen.lang.traversal import indices, inputs, substitute, variables, walk
from flashgen.lang.variables import BATCH, SCORE, B
from flashgen.spec import doubts, sugar
from flashgen.spec.declare import Declarations
from flashgen.spec.model import SpecForm, beyond
from flashgen.spec.modes import tune_shape, usual_shapes
from flashgen.spec.parse import parse
from flashgen.spec.source import Document, KeyPath, read
from flashgen.spec.variant import DTYPES, Input, Sample, TuneShape, Variant

# Runtime params that the shapes of inputs may read.
MAX_SIZING = 12


def load(source: str | os.PathLike[str] | Mapping[str, Any]) -> Variant:
    """Read and check a spec: the path of a YAML file, or the same as a mapping.

    Raises UsageError where there is no such file, SpecError where the spec is malformed, and of its kinds
    ExpressionError where one of its expressions is, UnreadError where nothing is left of an input or a runtime param.
    """
    document = read(source)
    spec = parse(document)
    declared = Declarations(document, spec)
    reading = _Reading(document, spec, declared)
    lets = reading.lets()
    score, mask = reading.score(), reading.mask()
    learned = [tensor.name for tensor in declared.inputs if tensor.grad]
    _refuse_learned_by_turn(document, score, learned)
    score, *meanings = with_softcaps(score, learned, *(node for _, node in lets))
    lets = tuple((name, node) for (name, _), node in zip(lets, meanings, strict=True))
    variant = Variant(
        name=spec.name,
        description=spec.description.strip(),
        source=document.file,
        dtypes=tuple(spec.dtype),
        head_dims=tuple(spec.head_dim),
        align=spec.align,
        params=declared.params,
        inputs=_with_reads(declared.inputs, score, mask),
        lets=lets,
        score=score,
        mask=mask,
        sink=spec.sink is not None,
        texts=(
            ("score", sugar.score_text(reading.scores)),
            ("mask", sugar.mask_text(reading.masks)),
            *((name, sugar.score_text([*reading.steps, piece])) for name, piece in reading.let_pieces.items()),
        ),
        tune_shapes=_tune_shapes(spec),
        samples=_samples(document, spec, declared),
        warnings=tuple(_doubts(document, reading, declared.inputs, score, mask)),
        allow_tf32=spec.allow_tf32,
        approximate=spec.approximate,
        dropout=spec.dropout,
    )
    _refuse_unused(variant, reading)
    _refuse_many_sizes(document, variant)
    return variant


def _doubts(document: Document, reading: _Reading, inputs: Sequence[Input], score: Expr, mask: Expr) -> Iterator[str]:
    """What may not be meant, in sentences with their places."""
    for piece in reading.pieces:
        yield from doubts_of_expression(piece.syntax)
    if reading.scores:
        yield from doubts.of_score(score, reading.scores[-1].at)
    yield from doubts.of_dimensions(document, inputs, score, mask)


class _Reading:
    """The expressions of one spec, read in order. A let or a later step reads `score` as the sugar left it."""

    def __init__(self, document: Document, spec: SpecForm, declared: Declarations) -> None:
        self._document, self._spec, self._declared = document, spec, declared
        self._lets: dict[str, Expr] = {}
        self._sugared: Expr = SCORE
        self._check_amounts()
        self.let_pieces = {name: self._read(("let", name), text) for name, text in spec.let.items()}
        self.scores, self.masks = sugar.scores(spec, self._read), sugar.masks(spec, self._read)
        for piece in self.steps:
            step = self._expression(piece, declared.scope({}, score=True), Type.FLOAT)
            self._sugared = substitute(step, {SCORE: self._sugared})

    @property
    def pieces(self) -> tuple[sugar.Piece, ...]:
        """All expressions, sugar's too."""
        return (*self.let_pieces.values(), *self.scores, *self.masks)

    @property
    def steps(self) -> tuple[sugar.Piece, ...]:
        """What sugar makes of the score."""
        return tuple(piece for piece in self.scores if piece.path != ("score",))

    def lets(self) -> tuple[tuple[str, Expr], ...]:
        for name, piece in self.let_pieces.items():
            self._refuse_later(name, piece)
            self._lets[name] = self._expression(piece, self._scope(), None)
        return tuple((name, self._with_sugar(node)) for name, node in self._lets.items())

    def score(self) -> Expr:
        if self._spec.score is None:
            return fold(self._sugared)
        return self._with_sugar(self._expression(self.scores[-1], self._scope(), Type.FLOAT))

    def mask(self) -> Expr:
        mask: Expr = TRUE
        seen = {mask}
        scope = self._scope()
        scope = replace(scope, refused=frozenset(n for n, node in scope.names.items() if "score" in variables(node)))
        for piece in self.masks:
            node = self._expression(piece, scope, Type.BOOL)
            if "score" in variables(node):
                expected = (
                    "positions, sizes, params, inputs and lets: what is visible is decided before the scores; "
                    "what a test of the score hides is 'score: where(test, score, -inf)'"
                )
                raise ExpressionError(self._document.at(piece.path), "a mask that reads 'score'", expected)
            if node not in seen:
                mask = node if mask is TRUE else op("and", mask, node)
            seen.add(node)
        return fold(mask)

    def _scope(self) -> Scope:
        return self._declared.scope(self._lets, score=True)

    def _with_sugar(self, node: Expr) -> Expr:
        return fold(substitute(node, {SCORE: self._sugared}))

    def _expression(self, piece: sugar.Piece, scope: Scope, want: Type | None) -> Expr:
        return meaning(piece.syntax, scope, piece.at, want=want, what=" ".join(map(str, piece.path)))

    def _read(self, path: KeyPath, text: str) -> sugar.Piece:
        raw, where = self._document.expression(path, text)
        return sugar.Piece(parse_expression(raw, where), where(0), path)

    def _check_amounts(self) -> None:
        """The amounts of sugar are read on their own first, so that an error points at what the user wrote."""
        window = self._spec.window
        if window is not None:
            self._amount(("window", "left"), window.left, Type.INT, 0)
            self._amount(("window", "right"), window.right, Type.INT, 0)
        self._amount(("softcap",), self._spec.softcap, Type.FLOAT, None)

    def _amount(self, path: KeyPath, text: str | None, want: Type, least: int | None) -> None:
        if text is None:
            return
        node = self._expression(self._read(path, text), self._declared.param_scope, want)
        if not isinstance(node, Const):
            return
        if not (0 < node.value <= LARGEST_FLOAT32 if least is None else node.value >= least):
            what = " ".join(map(str, path))
            cap = "a number > 0 that float32 holds" if node.value > 0 else "a number > 0"
            expected = cap if least is None else f"an integer >= {least}"
            if path[0] == "window":
                expected += f"; {beyond(str(path[1]), int(node.value))}"
            raise SpecError(self._document.at(path), f"{what} of {node.value}", expected)

    def idle(self, name: str, what: str, uses: str) -> UnreadError:
        """The error for an argument of which nothing is left, that `uses` would have something of."""
        path: KeyPath = (f"{what}s", name)
        unread = "which nothing reads" if what == "param" else "which neither score nor mask reads"
        expected = f"an expression with {uses}, or no such {what}"
        if name in self._named():
            unread = "which changes nothing: the expressions with it come to the same without it"
            expected = f"an expression that depends on {uses}, or no such {what}"
        elif any(name in names(piece.syntax) for piece in self.let_pieces.values()):
            unread = "which only lets read that neither score nor mask does"
        found = f"the {'runtime ' if what == 'param' else ''}{what} {name!r}, {unread}"
        return UnreadError(self._document.key(path), found, expected, name)

    def _named(self) -> set[str]:
        """What is named in score, mask and shapes as they are written, and in the lets that these name."""
        shapes = [parse_expression(dim.text, Location("")) for tensor in self._declared.inputs for dim in tensor.dims]
        unseen = [*shapes, *(piece.syntax for piece in (*self.scores, *self.masks))]
        found: set[str] = set()
        while unseen:
            new = names(unseen.pop()) - found
            unseen += [self.let_pieces[name].syntax for name in new if name in self.let_pieces]
            found |= new
        return found

    def _refuse_later(self, name: str, piece: sugar.Piece) -> None:
        for part in pieces(piece.syntax):
            if isinstance(part, Name) and part.id in self._spec.let and part.id not in self._lets:
                found = f"the let {name!r} reading itself" if part.id == name else f"{part.id!r} before its own let"
                raise ExpressionError(part.at, found, "lets that come earlier: each let may read those before it")


def _with_reads(inputs: Sequence[Input], *roots: Expr) -> tuple[Input, ...]:
    """The inputs, with what the expressions do with them."""
    places: dict[str, list[Sequence[Expr]]] = {}
    for node in walk(*roots):
        if isinstance(node, Gather):
            places.setdefault(node.input, []).append(node.indices)

    def reads_across(tensor: Input) -> bool:
        axes = [axis for axis, dim in enumerate(tensor.dims) if dim.size is BATCH]
        return any(place[axis] is not B for place in places.get(tensor.name, ()) for axis in axes)

    return tuple(replace(tensor, across=reads_across(tensor)) for tensor in inputs)


def _refuse_unused(variant: Variant, reading: _Reading) -> None:
    """An argument of attention() that changes nothing is a mistake in the spec."""
    sizes = [dim.size for tensor in variant.inputs for dim in tensor.dims]
    read = inputs(variant.score, variant.mask)
    for tensor in variant.inputs:
        if tensor.name not in read and not (variant.sink and tensor.name == "sinks"):
            raise reading.idle(tensor.name, "input", f"{tensor.name}[...]" if tensor.dims else tensor.name)
    named = variables(variant.score, variant.mask, *sizes)
    for param in variant.runtime_params:
        if param.name not in named:
            raise reading.idle(param.name, "param", "it")


def _refuse_learned_by_turn(document: Document, score: Expr, learned: list[str]) -> None:
    """Kernels add up the gradients of what a pair reads at one place, or at places that are written out."""
    for node in walk(score):
        if isinstance(node, Gather) and node.input in learned and indices(node):
            word = min(index.word for index in indices(node))
            found = f"a gradient of {node.input!r}, read at an index {word!r} whose length a call decides"
            expected = f"no gradient, or a length of integers and baked params, of at most {MAX_TERMS}"
            raise SpecError(document.at(("inputs", node.input, "grad")), found, expected)


def _refuse_many_sizes(document: Document, variant: Variant) -> None:
    """An operator of torch takes 64 arguments, of which those that shapes read cannot travel in lists."""
    read = variables(*(dim.size for tensor in variant.inputs for dim in tensor.dims))
    sizing = [param.name for param in variant.runtime_params if param.name in read]
    if len(sizing) > MAX_SIZING:
        found = f"{len(sizing)} runtime params in the shapes of inputs"
        raise SpecError(document.key(("params", sizing[MAX_SIZING])), found, f"at most {MAX_SIZING}")


def _tune_shapes(spec: SpecForm) -> tuple[TuneShape, ...]:
    if spec.tune is None or spec.tune.shapes is None:
        return usual_shapes("dense", spec.head_dim)
    return tuple(
        tune_shape(shape.mode, shape.model_dump(exclude={"mode"}, exclude_none=True)) for shape in spec.tune.shapes
    )


# What fits an input that is not bool: where it is whole, and where it is of a floating dtype.
_OTHER_HINT = {False: "segments, or a range of the input", True: "a range of the input"}


def _samples(document: Document, spec: SpecForm, declared: Declarations) -> tuple[tuple[str, Sample], ...]:
    dtypes = {tensor.name: tensor.dtype for tensor in declared.inputs}
    ranged = {tensor.name for tensor in declared.inputs if tensor.range is not None}
    found = []
    for name, form in (spec.tune.inputs if spec.tune else {}).items():
        path: KeyPath = ("tune", "inputs", name)
        if name not in dtypes:
            known = f"one of the inputs {', '.join(dtypes)}" if dtypes else "an input of the spec; it has none"
            raise SpecError(document.key(path), f"the unknown input {name!r}", known)
        if (form.density is not None) != (dtypes[name] == "bool"):
            hint = "density" if dtypes[name] == "bool" else _OTHER_HINT[dtypes[name] in DTYPES]
            raise SpecError(document.at(path), f"a hint that does not fit dtype {dtypes[name]}", hint)
        if form.segments is not None and "int" not in dtypes[name]:
            raise SpecError(document.at(path), f"segments for dtype {dtypes[name]}", _OTHER_HINT[True])
        if name in ranged:
            raise SpecError(document.key(path), f"a hint for {name!r}, which has a range", "the one or the other")
        found.append((name, Sample(form.segments, form.density)))
    return tuple(found)
