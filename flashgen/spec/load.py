"""From a spec to its meaning: a file or mapping in, a checked Variant out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from flashgen.errors import ExpressionError, Location, SpecError
from flashgen.lang.check import Scope, expression
from flashgen.lang.fold import fold
from flashgen.lang.nodes import TRUE, Const, Expr, Type, inputs, op, substitute, variables
from flashgen.lang.softcaps import with_softcaps
from flashgen.spec import sugar
from flashgen.spec.declare import SCORE, Declarations
from flashgen.spec.model import SpecForm, parse
from flashgen.spec.source import Document, KeyPath, read
from flashgen.spec.variant import Sample, TuneShape, Variant


def load(source: str | os.PathLike[str] | Mapping[str, Any]) -> Variant:
    """Read and check a spec: the path of a YAML file, or the same as a mapping.

    Raises UsageError where there is no such file, SpecError where the spec is malformed, and ExpressionError, a
    SpecError, where one of its expressions is.
    """
    document = read(source)
    spec = parse(document)
    declared = Declarations(document, spec)
    reading = _Reading(document, spec, declared)
    lets = reading.lets()
    score, mask = reading.score(), reading.mask()
    pieces = sugar.scores(spec)
    sugared = sugar.score_text(pieces[:-1] if spec.score is not None else pieces)
    learned = [tensor.name for tensor in declared.inputs if tensor.grad]
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
        inputs=declared.inputs,
        lets=lets,
        score=score,
        mask=mask,
        sink=spec.sink is not None,
        texts=(
            ("score", sugar.score_text(pieces)),
            ("mask", sugar.mask_text(sugar.masks(spec))),
            *((name, sugar.with_score(text, sugared)) for name, text in spec.let.items()),
        ),
        tune_shapes=_tune_shapes(spec),
        samples=_samples(document, spec, declared),
        allow_tf32=spec.allow_tf32,
        approximate=spec.approximate,
    )
    _refuse_unused(document, variant)
    return variant


class _Reading:
    """The expressions of one spec, read in order. A let or a later step reads `score` as the sugar left it."""

    def __init__(self, document: Document, spec: SpecForm, declared: Declarations) -> None:
        self._document, self._spec, self._declared = document, spec, declared
        self._lets: dict[str, Expr] = {}
        self._sugared: Expr = SCORE
        self._check_amounts()
        for piece in sugar.scores(spec):
            if piece.path != ("score",):
                step = self._expression(piece, declared.scope({}, score=True), Type.FLOAT)
                self._sugared = substitute(step, {SCORE: self._sugared})

    def lets(self) -> tuple[tuple[str, Expr], ...]:
        for name, text in self._spec.let.items():
            self._refuse_later(name, text)
            self._lets[name] = self._expression(sugar.Piece(text, ("let", name)), self._scope(), None)
        return tuple((name, self._sugar(node)) for name, node in self._lets.items())

    def score(self) -> Expr:
        if self._spec.score is None:
            return fold(self._sugared)
        return self._sugar(self._expression(sugar.Piece(self._spec.score, ("score",)), self._scope(), Type.FLOAT))

    def mask(self) -> Expr:
        mask: Expr = TRUE
        seen = {mask}
        for piece in sugar.masks(self._spec):
            node = self._expression(piece, self._scope(), Type.BOOL)
            if "score" in variables(node):
                expected = "positions, sizes, params, inputs and lets: what is visible is decided before the scores"
                raise ExpressionError(self._document.at(piece.path), "a mask that reads 'score'", expected)
            if node not in seen:
                mask = node if mask is TRUE else op("and", mask, node)
            seen.add(node)
        return fold(mask)

    def _scope(self) -> Scope:
        return self._declared.scope(self._lets, score=True)

    def _sugar(self, node: Expr) -> Expr:
        return fold(substitute(node, {SCORE: self._sugared}))

    def _expression(self, piece: sugar.Piece, scope: Scope, want: Type | None) -> Expr:
        text, at = self._document.expression(piece.path, piece.text)
        return expression(text, scope, at, want=want, what=" ".join(map(str, piece.path)))

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
        node = self._expression(sugar.Piece(text, path), self._declared.param_scope, want)
        if isinstance(node, Const) and (node.value <= 0 if least is None else node.value < least):
            what = " ".join(map(str, path))
            expected = "a number > 0" if least is None else f"an integer >= {least}"
            raise SpecError(self._document.at(path), f"{what} of {node.value}", expected)

    def _refuse_later(self, name: str, text: str) -> None:
        raw, at = self._document.expression(("let", name), text)
        for match in re.finditer(r"\b[A-Za-z_]\w*", raw):
            used = match.group()
            if used in self._spec.let and used not in self._lets:
                found = f"the let {name!r} reading itself" if used == name else f"{used!r} before its own let"
                here = _advance(at, raw[: match.start()])
                raise ExpressionError(here, found, "lets that come earlier: each let may read those before it")


def _advance(at: Location, passed: str) -> Location:
    """The location after some text; text that comes from no file starts at its own line 1, column 1."""
    lines = passed.split("\n")
    column = (at.column or 1) + len(passed) if len(lines) == 1 else len(lines[-1]) + 1
    return Location(at.file, (at.line or 1) + len(lines) - 1, column)


def _refuse_unused(document: Document, variant: Variant) -> None:
    """An argument of attention() that changes nothing is a mistake in the spec."""
    sizes = [dim.size for tensor in variant.inputs for dim in tensor.dims]
    read = inputs(variant.score, variant.mask)
    for tensor in variant.inputs:
        if tensor.name not in read and not (variant.sink and tensor.name == "sinks"):
            path: KeyPath = ("inputs", tensor.name)
            found = f"the input {tensor.name!r}, which neither score nor mask reads"
            raise SpecError(document.key(path), found, f"an expression with {tensor.name}[...], or no such input")
    named = variables(variant.score, variant.mask, *sizes)
    for param in variant.runtime_params:
        if param.name not in named:
            found = f"the runtime param {param.name!r}, which nothing reads"
            raise SpecError(document.key(("params", param.name)), found, "an expression with it, or no such param")


def _tune_shapes(spec: SpecForm) -> tuple[TuneShape, ...]:
    if spec.tune is None or spec.tune.shapes is None:
        return tuple(
            TuneShape(batch, heads, heads, length, length, head_dim)
            for head_dim in spec.head_dim
            for heads in (32 if head_dim <= 64 else 16,)
            for batch, length in ((2, 8192), (8, 2048))
        )
    return tuple(
        TuneShape(s.batch, s.heads, s.kv_heads or s.heads, s.q_len, s.kv_len or s.q_len, s.head_dim, s.v_head_dim)
        for s in spec.tune.shapes
    )


def _samples(document: Document, spec: SpecForm, declared: Declarations) -> tuple[tuple[str, Sample], ...]:
    dtypes = {tensor.name: tensor.dtype for tensor in declared.inputs}
    found = []
    for name, form in (spec.tune.inputs if spec.tune else {}).items():
        path: KeyPath = ("tune", "inputs", name)
        if name not in dtypes:
            known = f"one of the inputs {', '.join(dtypes)}" if dtypes else "an input of the spec; it has none"
            raise SpecError(document.key(path), f"the unknown input {name!r}", known)
        if (form.density is not None) != (dtypes[name] == "bool"):
            hint = "density" if dtypes[name] == "bool" else "segments or range"
            raise SpecError(document.at(path), f"a hint that does not fit dtype {dtypes[name]}", hint)
        if form.segments is not None and "int" not in dtypes[name]:
            raise SpecError(document.at(path), f"segments for dtype {dtypes[name]}", "range")
        bounds = (form.range[0], form.range[1]) if form.range else None
        found.append((name, Sample(form.segments, form.density, bounds)))
    return tuple(found)
