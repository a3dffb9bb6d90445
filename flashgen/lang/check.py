"""The checker: from text to typed nodes. Names are resolved, types checked, operands promoted, constants folded."""

from __future__ import annotations

from dataclasses import replace
from keyword import iskeyword

from flashgen.errors import ExpressionError, Location
from flashgen.lang.fold import fold, nothing, simplify
from flashgen.lang.functions import RANK, apply_function, common, compare, promote
from flashgen.lang.nodes import Const, Expr, Op, Type, const, gather, op
from flashgen.lang.parse import parse
from flashgen.lang.reductions import MAX_TERMS, TooLong, joined, over, provisional, reads_of_length
from flashgen.lang.scope import Scope
from flashgen.lang.syntax import Call, Chain, Conditional, Index, Literal, Name, Operation, Syntax, leftmost
from flashgen.lang.tokens import LEAST_WITHOUT_SIGN, too_large
from flashgen.lang.vocabulary import (
    FUNCTIONS,
    REDUCTIONS,
    expected_function,
    expected_name,
    listed,
    near,
    python_keyword,
)

_ARITY = dict.fromkeys(FUNCTIONS, (1, 1)) | {"min": (2, None), "max": (2, None), "clamp": (3, 3), "where": (3, 3)}
_ARITY |= dict.fromkeys(REDUCTIONS, (3, 3))
_EXAMPLES = {
    "any": "any(i, n, test)", "all": "all(i, n, test)", "sum": "sum(i, n, term)",
    "clamp": "clamp(x, low, high)", "where": "where(test, a, b)",
}  # fmt: skip
_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}
_BITWISE = {"&": "and", "|": "or", "^": "xor"}
_SHIFTS = {"<<": "shl", ">>": "shr"}
_A = {Type.BOOL: "a bool", Type.INT: "an int", Type.FLOAT: "a float"}
# A larger exponent of an integer other than -1, 0 and 1 passes 64 bits.
_MAX_EXPONENT = 63


def expression(text: str, scope: Scope, at: Location, want: Type | None = None, what: str = "expression") -> Expr:
    """The folded graph of an expression.

    `at` is where the text starts in its file. `want` is the type it must have: an int becomes a float, but a bool
    and a number never stand for each other, since a test in the place of a score is a mistake. `what` names the
    expression in errors ("mask", "let 'd'"). Raises ExpressionError.
    """
    return meaning(parse(text, at), scope, at, want, what)


def meaning(syntax: Syntax, scope: Scope, at: Location, want: Type | None = None, what: str = "expression") -> Expr:
    """The folded graph of an expression that was parsed before; `at` is where it starts."""
    node = _Checker(scope).check(syntax)
    if want is not None:
        if RANK[node.type] > RANK[want] or (want is Type.BOOL) != (node.type is Type.BOOL):
            raise ExpressionError(at, f"{what} is {_A[node.type]}", _wanted(want))
        node = promote(node, want)
    return fold(node)


def _wanted(want: Type) -> str:
    example = {
        Type.BOOL: ", such as the comparison 'k <= q'",
        Type.INT: "; use floor(...) to round down",
        Type.FLOAT: ", such as where(test, 1.0, 0.0) for a test",
    }
    return _A[want] + example[want]


class _Checker:
    """`terms`: how often what is checked is written out, inside reductions."""

    def __init__(self, scope: Scope, terms: int = 1) -> None:
        self._scope, self._terms = scope, terms

    def check(self, syntax: Syntax) -> Expr:
        match syntax:
            case Literal(value=value):
                if value == LEAST_WITHOUT_SIGN and isinstance(value, int):
                    raise too_large(str(value), syntax.at)
                return const(value)
            case Name():
                return self._name(syntax)
            case Index():
                return self._index(syntax)
            case Call():
                return self._call(syntax)
            case Chain():
                return self._chain(syntax)
            case Conditional(test=test, then=then, otherwise=otherwise):
                branches = common([self.check(then), self.check(otherwise)])
                return simplify(op("where", self._typed(test, "the test of a conditional", Type.BOOL), *branches))
            case Operation(operands=(_,)):
                return self._unary(syntax)
            case Operation():
                return self._operations(syntax)
        raise AssertionError(f"the parser has no {type(syntax).__name__}")

    def _operations(self, syntax: Operation) -> Expr:
        """Binary operations from the left: a long sum is no deep recursion."""
        first, operations = leftmost(syntax)
        node = self.check(first)
        for operation in operations:
            node = self._binary(operation, node, self.check(operation.operands[1]))
        return node

    def _typed(self, syntax: Syntax, what: str, *allowed: Type) -> Expr:
        """A part that must have one of the types as it stands."""
        return self._as_it_stands(syntax, self.check(syntax), what, *allowed)

    def _as_it_stands(self, syntax: Syntax, node: Expr, what: str, *allowed: Type) -> Expr:
        if node.type not in allowed:
            expected = _wanted(allowed[0]) if len(allowed) == 1 else " or ".join(_A[kind] for kind in allowed)
            raise ExpressionError(syntax.at, f"{what} is {_A[node.type]}", expected)
        return node

    def _name(self, syntax: Name) -> Expr:
        name = syntax.id
        if name in self._scope.names:
            return self._scope.names[name]
        if name in self._scope.tensors:
            rank = self._scope.tensors[name].rank
            if not rank:
                return gather(name, (), self._scope.tensors[name].type)
            raise ExpressionError(
                syntax.at, f"the input '{name}' without an index", f"'{name}[...]' with {_indices(rank)}"
            )
        if name in FUNCTIONS:
            raise ExpressionError(syntax.at, f"the function '{name}' without arguments", f"'{name}(...)'")
        if iskeyword(name):
            raise ExpressionError(syntax.at, *python_keyword(name))
        known = sorted({*self._scope.names, *self._scope.tensors} - self._scope.refused)
        raise ExpressionError(syntax.at, f"the unknown name '{name}'", expected_name(name, known, sorted(FUNCTIONS)))

    def _index(self, syntax: Index) -> Expr:
        name, tensor = syntax.input, self._scope.tensors.get(syntax.input)
        if tensor is None:
            kind = "the scalar" if name in self._scope.names else "the unknown input"
            raise ExpressionError(syntax.at, f"{kind} '{name}' with an index", f"an input: {self._input_names(name)}")
        if not tensor.rank:
            raise ExpressionError(syntax.at, f"the scalar '{name}' with an index", f"'{name}' alone")
        if len(syntax.indices) != tensor.rank:
            found = f"'{name}' with {_indices(len(syntax.indices))}"
            raise ExpressionError(syntax.at, found, f"{_indices(tensor.rank)}, one for each dimension")
        indices = [self._typed(index, f"an index of '{name}'", Type.INT, Type.BOOL) for index in syntax.indices]
        return gather(name, tuple(promote(index, Type.INT) for index in indices), tensor.type)

    def _input_names(self, name: str) -> str:
        known = sorted(name for name, tensor in self._scope.tensors.items() if tensor.rank)
        return listed(near(name, known) or known) or "there is none here"

    def _call(self, syntax: Call) -> Expr:
        name = syntax.function
        if name in self._scope.tensors:
            rank = self._scope.tensors[name].rank
            expected = f"'{name}[...]' with {_indices(rank)}" if rank else f"'{name}' alone"
            raise ExpressionError(syntax.at, f"the input '{name}' called as a function", expected)
        if name not in FUNCTIONS:
            raise ExpressionError(syntax.at, f"the unknown function '{name}'", expected_function(name, FUNCTIONS))
        least, most = _ARITY[name]
        count = len(syntax.arguments)
        if count < least or (most is not None and count > most):
            wanted = f"{least}, as in '{_EXAMPLES[name]}'" if name in _EXAMPLES else f"{least}"
            wanted += "" if least == most else " or more"
            raise ExpressionError(syntax.at, f"'{name}' with {_plural(count, 'argument')}", wanted)
        if name in REDUCTIONS:
            return self._reduction(syntax)
        if name == "where":
            test = self._typed(syntax.arguments[0], "the first argument of 'where'", Type.BOOL)
            return simplify(op("where", test, *common(map(self.check, syntax.arguments[1:]))))
        return apply_function(name, [self.check(argument) for argument in syntax.arguments])

    def _reduction(self, syntax: Call) -> Expr:
        """any, all and sum: written out where they are short, else with an index."""
        index, length, _ = syntax.arguments
        taken = {*self._scope.names, *self._scope.tensors, *FUNCTIONS}
        if not isinstance(index, Name) or index.id in taken:
            found = f"'{index.id}', which has a meaning," if isinstance(index, Name) else "an expression"
            expected = f"a new name, as in '{syntax.function}(i, 4, ...)'"
            raise ExpressionError(index.at, f"{found} as the index of '{syntax.function}'", expected)
        count = self._length(length, syntax.function)
        if isinstance(count, Const):
            try:
                return self._written_out(syntax, index.id, max(int(count.value), 0))
            except TooLong:
                if self._terms > 1:
                    raise
        counter = provisional(index.id, count)
        (term,) = self._terms_of(syntax, [self._with_index(index.id, counter).check(syntax.arguments[2])])
        return over(syntax.function, counter, term, taken)

    def _written_out(self, syntax: Call, index: str, count: int) -> Expr:
        """Term after term, from the left."""
        if count * self._terms > MAX_TERMS:
            raise TooLong
        # Where there is none, the type is that of the first one all the same.
        checkers = [self._with_index(index, const(i), max(count, 1)) for i in range(max(count, 1))]
        terms = self._terms_of(syntax, [checker.check(syntax.arguments[2]) for checker in checkers])
        return joined(syntax.function, terms) if count else nothing(syntax.function, terms[0].type)

    def _with_index(self, name: str, value: Expr, count: int = 1) -> _Checker:
        """What checks terms of a reduction, `count` of them, at a value of its index."""
        return _Checker(replace(self._scope, names={**self._scope.names, name: value}), self._terms * count)

    def _terms_of(self, syntax: Call, terms: list[Expr]) -> list[Expr]:
        """The terms in the one type that they have."""
        if syntax.function == "sum":
            return common(terms, Type.INT)
        what = f"the test of '{syntax.function}'"
        return [self._as_it_stands(syntax.arguments[2], term, what, Type.BOOL) for term in terms]

    def _length(self, length: Syntax, function: str) -> Expr:
        """How many terms a reduction has."""
        node = self._typed(length, f"the length of '{function}'", Type.INT)
        read = reads_of_length(node)
        if read:
            found = f"the length of '{function}' with {read} in it"
            allowed = "params, heads, kv_heads, batch, head_dim and named dimensions of inputs"
            expected = f"an integer expression of {allowed}"
            raise ExpressionError(length.at, found, expected)
        return node

    def _chain(self, syntax: Chain) -> Expr:
        operands = [self.check(operand) for operand in syntax.operands]
        links = [compare(s, x, y) for s, x, y in zip(syntax.symbols, operands, operands[1:], strict=False)]
        whole = links[0]
        for link in links[1:]:
            whole = simplify(op("and", whole, link))
        return whole

    def _unary(self, syntax: Operation) -> Expr:
        symbol, operand = syntax.symbol, syntax.operands[0]
        if symbol == "not":
            return simplify(op("not", self._typed(operand, "the operand of 'not'", Type.BOOL)))
        if symbol == "~":
            return simplify(op("not", self._typed(operand, "the operand of '~'", Type.BOOL, Type.INT)))
        if symbol == "-" and isinstance(operand, Literal) and isinstance(operand.value, int):
            return const(-operand.value)
        node = promote(self.check(operand), Type.INT)
        return self._result(syntax, "neg", node) if symbol == "-" else node

    def _binary(self, syntax: Operation, left: Expr, right: Expr) -> Expr:
        symbol, what = syntax.symbol, f"an operand of '{syntax.symbol}'"
        pairs = list(zip(syntax.operands, (left, right), strict=True))
        if symbol in ("and", "or"):
            sides = [self._as_it_stands(side, node, what, Type.BOOL) for side, node in pairs]
            return simplify(op(symbol, *sides))
        if symbol in _BITWISE or symbol in _SHIFTS:
            if symbol == "^" and Type.FLOAT in (left.type, right.type):
                raise ExpressionError(syntax.at, "'^' of a float", "'**' for a power; '^' is exclusive or")
            bits = [self._as_it_stands(side, node, what, Type.BOOL, Type.INT) for side, node in pairs]
            if symbol in _BITWISE:
                return self._result(syntax, _BITWISE[symbol], *common(bits))
            return self._result(syntax, _SHIFTS[symbol], *common(bits, Type.INT))
        if symbol == "/":
            return self._result(syntax, "truediv", promote(left, Type.FLOAT), promote(right, Type.FLOAT))
        if symbol == "**":
            return self._power(syntax, left, right)
        return self._result(syntax, _ARITHMETIC[symbol], *common([left, right], Type.INT))

    def _power(self, syntax: Operation, base: Expr, exponent: Expr) -> Expr:
        if base.type is not Type.FLOAT and isinstance(exponent, Const) and isinstance(exponent.value, int):
            base, exponent = promote(base, Type.INT), promote(exponent, Type.INT)
            assert isinstance(exponent, Const)
            if exponent.value > _MAX_EXPONENT:
                found = f"the exponent {exponent.value} of an int"
                raise ExpressionError(syntax.at, found, f"at most {_MAX_EXPONENT}, or a float base")
            if exponent.value >= 0:
                return self._result(syntax, "pow", base, exponent)
        return self._result(syntax, "pow", promote(base, Type.FLOAT), promote(exponent, Type.FLOAT))

    def _result(self, syntax: Operation, name: str, *operands: Expr) -> Expr:
        """The operation, simplified; integer constants must stay within 64 bits."""
        node = simplify(op(name, *operands))
        if isinstance(node, Op) and node.type is Type.INT and all(isinstance(x, Const) for x in node.args):
            raise ExpressionError(syntax.at, f"a constant beyond 64 bits, by '{syntax.symbol}'", "a smaller integer")
        return node


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _indices(count: int) -> str:
    return f"{count} {'index' if count == 1 else 'indices'}"
