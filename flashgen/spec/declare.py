"""What the expressions of a spec may name: sizes, positions, params, inputs and the dimensions that inputs bind."""

from __future__ import annotations

from collections.abc import Sequence

from flashgen.errors import SpecError
from flashgen.lang.check import expression, meaning
from flashgen.lang.nodes import Const, Expr, Op, Reduction, Type, const, var
from flashgen.lang.parse import parse
from flashgen.lang.scope import Scope, TensorType
from flashgen.lang.syntax import Name
from flashgen.lang.traversal import walk
from flashgen.lang.variables import SCORE
from flashgen.lang.written import written
from flashgen.spec import names, sugar
from flashgen.spec.model import SpecForm
from flashgen.spec.source import Document, KeyPath
from flashgen.spec.variant import Dim, Input, Param

_ELEMENTS = {"bool": Type.BOOL, "float16": Type.FLOAT, "bfloat16": Type.FLOAT, "float32": Type.FLOAT}


class Declarations:
    """The names of one spec. Raises SpecError where a name is taken or cannot be one, or a shape makes no sense."""

    def __init__(self, document: Document, spec: SpecForm) -> None:
        self._document = document
        self._taken: dict[str, str] = {}
        self._dropout = spec.dropout is not None
        for name, form in spec.params.items():
            self._take(name, "param", ("params", name), form.runtime)
        for name in spec.inputs:
            self._take(name, "input", ("inputs", name), is_argument=True)
        for name in spec.let:
            self._take(name, "let", ("let", name))
        self.params = tuple(_param(name, form.value, form.runtime) for name, form in spec.params.items())
        self._scalars: dict[str, Expr] = {p.name: _value(p) for p in self.params}
        self._dims: dict[str, Expr] = {}
        self.inputs = (*self._own_inputs(spec), *self._sugar_inputs(spec))
        self._tensors = {i.name: TensorType(_ELEMENTS.get(i.dtype, Type.INT), len(i.dims)) for i in self.inputs}

    @property
    def param_scope(self) -> Scope:
        """Params alone, for the amounts of sugar."""
        return Scope(dict(self._scalars))

    def scope(self, lets: dict[str, Expr], score: bool) -> Scope:
        """Everything, for score, mask and lets."""
        builtin = [*names.POSITIONS, *names.SIZES]
        known = {name: var(name, Type.INT) for name in builtin} | ({"score": SCORE} if score else {})
        return Scope(known | self._scalars | self._dims | lets, self._tensors)

    def _dim_scope(self) -> Scope:
        return Scope({size: var(size, Type.INT) for size in names.SIZES} | self._scalars | self._dims)

    def _take(self, name: str, what: str, path: KeyPath, is_argument: bool = False) -> None:
        expected = names.name_problem(name, is_argument, self._dropout)
        if expected is None and name in self._taken:
            expected = f"a name that is not already {self._taken[name]}"
        if expected:
            raise SpecError(self._document.key(path), f"the {what} name {name!r}", expected)
        self._taken[name] = f"{'an' if what[0] in 'aeiou' else 'a'} {what}"

    def _own_inputs(self, spec: SpecForm) -> tuple[Input, ...]:
        return tuple(
            Input(
                name,
                self._shape(form.shape, ("inputs", name, "shape")),
                form.dtype,
                form.grad,
                range=None if form.range is None else (form.range[0], form.range[1]),
            )
            for name, form in spec.inputs.items()
        )

    def _sugar_inputs(self, spec: SpecForm) -> tuple[Input, ...]:
        found = []
        for added in sugar.inputs(spec):
            if added.name in self._taken:
                what = f"{added.key}, which adds the input {added.name!r}"
                expected = f"no name of the spec's own like it ({added.name!r} is already {self._taken[added.name]})"
                raise SpecError(self._document.key((added.key,)), what, expected)
            scope = self._dim_scope()
            dims = []
            for index, text in enumerate(added.shape):
                size = expression(text, scope, self._document.at((added.key,)), want=Type.INT)
                dims.append(Dim(text, size, may_be_one=added.may_be_one[index % len(added.may_be_one)]))
            found.append(Input(added.name, tuple(dims), added.dtype, added.grad, added.default))
        return tuple(found)

    def _shape(self, texts: Sequence[str], path: KeyPath) -> tuple[Dim, ...]:
        return tuple(self._dim(text, (*path, index)) for index, text in enumerate(texts))

    def _dim(self, text: str, path: KeyPath) -> Dim:
        scope = self._dim_scope()
        raw, where = self._document.expression(path, text)
        syntax, at = parse(raw, where), where(0)
        if isinstance(syntax, Name) and syntax.id not in scope.names:
            name = syntax.id
            self._take(name, "dimension", path)
            self._dims[name] = var(name, Type.INT)
            return Dim(name, self._dims[name], binds=name)
        size = meaning(syntax, scope, at, want=Type.INT, what="a dimension")
        if any(isinstance(node, Reduction) for node in walk(size)):
            raise SpecError(at, "a dimension that a reduction over an index comes to", "a sum of integers and sizes")
        if isinstance(size, Const) and size.value < 1:
            raise SpecError(at, f"a dimension of size {size.value}", "at least 1")
        if isinstance(size, Op) and size.name == "or":
            # What block_mask may be is written so; of numbers it would be a bitwise or.
            raise SpecError(at, f"a dimension {written(syntax)}", "one size, such as batch, or 1")
        return Dim(written(syntax), size)


def _param(name: str, value: bool | int | float, runtime: bool) -> Param:
    return Param(name, const(value).type, value, runtime)


def _value(param: Param) -> Expr:
    return var(param.name, param.type) if param.runtime else const(param.value)
