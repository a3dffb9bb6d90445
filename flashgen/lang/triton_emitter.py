"""From the expression graph to Triton.

Inside a kernel `q` is a [BM, 1] and `k` a [1, BN] tile of int32 positions, so that broadcasting does the rest and an
expression reads as in the spec. Values are computed at the lowest level that they need: one number per program, one
per row, one per column, one per pair; what is free of k is hoisted in front of the loop by the `Prologue`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from flashgen.lang.intervals import Ranges
from flashgen.lang.nodes import Const, Expr, Gather, Op, Type, Var, const, op, transform, variables, walk

# Names that a kernel uses itself; a user's name that equals one gets a trailing underscore.
KERNEL_NAMES = frozenset(
    "acc alpha b bh chunk col counts every first full_end full_start h head_dim heads i in_range k k_desc k_first "
    "k_last k_tile kv_h kv_heads kv_len keys l last lse m m_new n num_chunks num_full num_k_tiles num_mixed num_q_tiles num_tiles out p pair q q_desc q_first q_last q_len q_tile "
    "qk qk_scale row row_shift row0 rows scale schedule_heads shown sink some start state stop tile tiles v v_desc v_head_dim v_tile x".split()
)

# The variables of the language and of its rewriting passes.
VARIABLES = frozenset(
    "b batch h head_dim heads k k_first k_last kv_h kv_heads kv_len q q_first q_last q_len qk scale score".split()
)

_ROW, _COL = frozenset({"row"}), frozenset({"col"})
_LEVELS = {"q": _ROW, "k": _COL, "k_first": _COL, "k_last": _COL, "qk": _ROW | _COL}

_ATOM, _POWER, _UNARY, _MUL, _ADD, _SHIFT, _AND, _XOR, _OR, _COMPARE, _LOOSEST = range(11)
_INFIX = {
    "add": ("+", _ADD), "sub": ("-", _ADD), "mul": ("*", _MUL), "truediv": ("/", _MUL), "and": ("&", _AND),
    "or": ("|", _OR), "xor": ("^", _XOR), "lt": ("<", _COMPARE), "le": ("<=", _COMPARE), "gt": (">", _COMPARE),
    "ge": (">=", _COMPARE), "eq": ("==", _COMPARE), "ne": ("!=", _COMPARE),
}  # fmt: skip
_CALLS = {
    "abs": "tl.abs", "min": "tl.minimum", "max": "tl.maximum", "where": "tl.where", "exp": "tl.exp", "exp2": "tl.exp2",
    "log": "tl.log", "log2": "tl.log2", "sqrt": "tl.sqrt", "sigmoid": "tl.sigmoid", "tanh": "_tanh",
}  # fmt: skip
_WRAPS_INTEGERS = frozenset({"add", "sub", "mul", "neg", "pow", "shl", "abs", "floordiv", "not"})


@dataclass(frozen=True)
class Tensor:
    """How a kernel reads an input: the size of each dimension, and its dtype."""

    sizes: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True)
class Body:
    """Statements and the value they lead to; `free` are the names that they take from outside, `q k` included."""

    lines: tuple[str, ...]
    results: tuple[str, ...]
    free: tuple[str, ...]


@dataclass
class Prologue:
    """What is computed once a program, in front of the loop, and shared by all bodies emitted after it.

    `tensors` describes the inputs, `lets` the names that the spec gave to subexpressions. `helpers` collects the
    names of the helper functions that the text calls.
    """

    ranges: Ranges
    tensors: Mapping[str, Tensor]
    lets: Sequence[tuple[str, Expr]] = ()
    lines: list[str] = field(default_factory=list)
    helpers: set[str] = field(default_factory=set)
    free: set[str] = field(default_factory=set)
    _names: dict[object, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def name(self, expr: Expr, preferred: str | None = None) -> str:
        """The name under which an expression without k is at hand; computes it first if need be."""
        if isinstance(expr, Var):
            self.free.add(kernel_name(expr.name))
            return kernel_name(expr.name)
        if expr not in self._names:
            text = _Writer(self, outside=None).text(expr)
            self._names[expr] = self._assign(preferred or _suggest(expr, self.lets), text)
        return self._names[expr]

    def value(self, expr: Expr) -> str:
        """An expression without k as text that may stand anywhere: a name or a literal."""
        return _literal(expr) if isinstance(expr, Const) else self.name(expr)

    def inline(self, expr: Expr) -> str:
        """An expression without k as text of its own, what it loads or reduces computed in front of it."""
        return _Writer(self, outside=None).text(expr)

    def pointer(self, text: str, preferred: str) -> str:
        """The name of a pointer computed once."""
        if text not in self._names:
            self._names[text] = self._assign(preferred, text)
        return self._names[text]

    def body(self, *roots: Expr) -> Body:
        """Statements that compute the roots from q, k, qk and what the prologue holds."""
        roots = tuple(_floats_at_leaves(root, self.ranges) for root in roots)
        scope = _Scope(self, set(), [])
        writer = _Writer(self, outside=scope)
        for node in _shared(roots, self.lets):
            scope.names[node] = scope.assign(_suggest(node, self.lets), writer.text(node))
        results = tuple(writer.text(root) for root in roots)
        return Body(tuple(scope.lines), results, tuple(sorted(scope.free)))

    def fork(self) -> Prologue:
        """A further place for statements, the epilogue, where everything computed here is at hand."""
        return Prologue(
            self.ranges, self.tensors, self.lets, [], self.helpers, self.free, dict(self._names), set(self._taken)
        )

    def _assign(self, preferred: str, text: str) -> str:
        name = self.fresh(preferred)
        self.lines.append(f"{name} = {text}")
        return name

    def fresh(self, preferred: str) -> str:
        name, number = preferred, 2
        while name in self._taken or name in self.free:
            name, number = f"{preferred}_{number}", number + 1
        self._taken.add(name)
        return name


def kernel_name(name: str) -> str:
    """The kernel's name for a variable of the language: its own keep theirs, a user's gives way."""
    return name if name in VARIABLES else user_name(name)


def user_name(name: str) -> str:
    """The kernel's name for an input, runtime param, named dimension or let of the spec."""
    return f"{name}_" if name in KERNEL_NAMES else name


@dataclass
class _Scope:
    """The names of one body: what it takes from outside, and what it has computed."""

    prologue: Prologue
    free: set[str]
    lines: list[str]
    names: dict[Expr, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def assign(self, preferred: str, text: str) -> str:
        name, number = preferred, 2
        while name in self.taken or name in self.free or name in KERNEL_NAMES:
            name, number = f"{preferred}_{number}", number + 1
        self.taken.add(name)
        self.lines.append(f"{name} = {text}")
        return name


@dataclass
class _Writer:
    """Writes one expression. With `outside` a scope, what is free of k goes to the prologue by name."""

    prologue: Prologue
    outside: _Scope | None

    def text(self, expr: Expr) -> str:
        return self.render(expr, top=True)[0]

    def render(self, expr: Expr, top: bool = False) -> tuple[str, int]:
        """The text of an expression and its precedence."""
        if isinstance(expr, Const):
            text = _literal(expr)
            return text, _UNARY if text.startswith("-") else _ATOM
        if self.outside is not None:
            if expr in self.outside.names:
                return self.outside.names[expr], _ATOM
            if not level(expr) & _COL:
                name = self.prologue.name(expr)
                self.outside.free.add(name)
                return name, _ATOM
        elif expr in self.prologue._names and not top:
            return self.prologue._names[expr], _ATOM
        if isinstance(expr, Var):
            return self.free(kernel_name(expr.name)), _ATOM
        if self.outside is None and not top and _worth_naming(expr):
            return self.prologue.name(expr), _ATOM
        if isinstance(expr, Gather):
            return self.gather(expr), _ATOM
        assert isinstance(expr, Op)
        return self.operation(expr)

    def free(self, name: str) -> str:
        (self.prologue if self.outside is None else self.outside).free.add(name)
        return name

    def wrapped(self, expr: Expr, limit: int) -> str:
        text, precedence = self.render(expr)
        return text if precedence <= limit else f"({text})"

    def operation(self, expr: Op) -> tuple[str, int]:
        name, args = expr.name, self.widened(expr)
        if name in _INFIX:
            sign, precedence = _INFIX[name]
            tight = precedence - 1
            left = args[0](tight if name in ("lt", "le", "gt", "ge", "eq", "ne") else precedence)
            return f"{left} {sign} {args[1](tight)}", precedence
        if name in _CALLS:
            self.need(_CALLS[name])
            return f"{_CALLS[name]}({', '.join(arg(_LOOSEST) for arg in args)})", _ATOM
        if name in ("neg", "not"):
            return ("-" if name == "neg" else "~") + args[0](_UNARY), _UNARY
        return _SPECIAL[name](self, expr, args)

    def need(self, call: str) -> None:
        if call.startswith("_"):
            self.prologue.helpers.add(call)

    def widened(self, expr: Op) -> list[Callable[[int], str]]:
        """The operands' texts by precedence limit; as 64-bit integers where 32 bits might overflow."""
        wide = expr.type is Type.INT and expr.name in _WRAPS_INTEGERS and not self.prologue.ranges.fits_int32(expr)

        def operand(arg: Expr) -> Callable[[int], str]:
            if wide and not isinstance(arg, Const) and self.prologue.ranges.fits_int32(arg):
                return lambda limit: f"{self.wrapped(arg, _ATOM)}.to(tl.int64)"
            return lambda limit: self.wrapped(arg, limit)

        return [operand(arg) for arg in expr.args]

    def gather(self, expr: Gather) -> str:
        """A load: the part of the address that is the same for the whole program is one pointer, computed once."""
        tensor, name = self.prologue.tensors[expr.input], user_name(expr.input)
        last = len(expr.indices) - 1
        base, varying = [f"{name}_ptr"], []
        self.prologue.free.add(f"{name}_ptr")
        for axis, index in enumerate(expr.indices):
            stride = None if axis == last else f"stride_{name}_{axis}"
            fixed = not level(index)
            hoisted = self.outside is not None and not level(index) & _COL
            writer = _Writer(self.prologue, None) if hoisted else self
            term = writer.offset(expr, axis, tensor.sizes[axis], stride)
            if term is None:
                continue
            if fixed:
                base.append(term)
            else:
                varying.append(self.prologue.pointer(term, f"{name}_row") if hoisted else term)
                if hoisted and self.outside is not None:
                    self.outside.free.add(varying[-1])
        pointer = " + ".join(base)
        if varying and len(base) > 1:
            pointer = self.prologue.pointer(pointer, f"{name}_base")
        if varying and self.outside is not None:
            self.outside.free.add(pointer)
        return f"tl.load({' + '.join([pointer, *varying])})" + _LOADED_AS.get(tensor.dtype, "")

    def offset(self, expr: Gather, axis: int, size: Expr, stride: str | None) -> str | None:
        """One index times its stride, kept inside the tensor; None where it is zero."""
        index = expr.indices[axis]
        if isinstance(index, Const) and index.value == 0:
            return None
        below, beyond = self.prologue.ranges.guard(expr, axis, size)
        if beyond:
            index = op("min", index, op("sub", size, const(1)) if not isinstance(size, Const) else const(size.value - 1))
        if below:
            index = op("max", index, const(0))
        if stride is None:
            return self.wrapped(index, _ADD)
        self.free(stride)
        if isinstance(index, Const):
            return f"{index.value} * {stride}"
        return f"{self.wrapped(index, _ATOM)}.to(tl.int64) * {stride}"


def level(expr: Expr) -> frozenset[str]:
    """Which axes of the tile a value varies along; a reduction over rows or columns is one number."""
    found = _levels.get(expr)
    if found is None:
        if isinstance(expr, Var):
            found = _LEVELS.get(expr.name, frozenset())
        else:
            found = frozenset().union(*(level(child) for child in expr.children))
        if isinstance(expr, Op) and expr.name in ("tile_min", "tile_max"):
            found = found - _ROW
        _levels[expr] = found
    return found


_levels: dict[Expr, frozenset[str]] = {}

_LOADED_AS = {
    "int8": ".to(tl.int32)", "uint8": ".to(tl.int32)", "int16": ".to(tl.int32)",
    "float16": ".to(tl.float32)", "bfloat16": ".to(tl.float32)",
}  # fmt: skip


def _worth_naming(expr: Expr) -> bool:
    """Whether a part of a hoisted expression deserves a line of its own: loads and reductions do."""
    return isinstance(expr, Gather) or (isinstance(expr, Op) and expr.name in ("tile_min", "tile_max"))


def _literal(node: Const) -> str:
    if node.type is Type.FLOAT and math.isinf(node.value):
        return 'float("inf")' if node.value > 0 else '-float("inf")'
    return repr(node.value)


def _suggest(expr: Expr, lets: Sequence[tuple[str, Expr]]) -> str:
    """A telling name for a value."""
    for name, meaning in lets:
        if meaning is expr:
            return user_name(name)
    if isinstance(expr, Gather):
        return f"{expr.input}_{'_'.join(i.name for i in expr.indices if isinstance(i, Var)) or 'at'}"
    if isinstance(expr, Op):
        if expr.name in ("tile_min", "tile_max"):
            return f"{_suggest(expr.args[0], lets)}_{expr.name[-3:]}"
        if expr.name == "to_float":
            return f"{_suggest(expr.args[0], lets)}_f"
        if expr.name == "mul" and "scale" in variables(expr.args[0]) and isinstance(expr.args[1], Const):
            return "qk_scale"
        if expr.name in ("mul", "truediv") and isinstance(expr.args[0], Gather | Var):
            return f"{_suggest(expr.args[0], lets)}_scaled"
    if isinstance(expr, Var):
        return expr.name
    return {frozenset(): "c", _ROW: "r"}.get(level(expr), "t")


def _shared(roots: Collection[Expr], lets: Sequence[tuple[str, Expr]]) -> list[Expr]:
    """The nodes along k that deserve a name: used more than once, or named by the spec. Operands come first."""
    uses: dict[Expr, int] = {}
    nodes = list(walk(*roots))
    for node in nodes:
        for child in node.children:
            uses[child] = uses.get(child, 0) + 1
    named = {expr for _, expr in lets}
    return [
        node
        for node in nodes
        if level(node) & _COL
        and not isinstance(node, Const | Var)
        and node not in roots
        and (uses.get(node, 0) > 1 or node in named)
    ]


def _floats_at_leaves(root: Expr, ranges: Ranges) -> Expr:
    """Turn integers into floats before pair-by-pair arithmetic where float32 holds every step exactly.

    Converting q and k costs one conversion a row and a column; converting q - k costs one a pair.
    """

    def exact(node: Expr) -> bool:
        return ranges.exact_in_float32(node) and (
            not isinstance(node, Op)
            or (node.name in ("add", "sub", "neg", "abs", "min", "max") and all(exact(arg) for arg in node.args))
            or level(node) != _ROW | _COL
        )

    def pushed(node: Expr) -> Expr:
        if level(node) != _ROW | _COL or not isinstance(node, Op):
            return const(float(node.value)) if isinstance(node, Const) else op("to_float", node)
        return op(node.name, *(pushed(arg) for arg in node.args))

    def rule(node: Expr) -> Expr:
        if isinstance(node, Op) and node.name == "to_float" and node.args[0].type is Type.INT and exact(node.args[0]):
            return pushed(node.args[0])
        return node

    return transform(root, rule)


Operands = Sequence[Callable[[int], str]]


def _to_float(w: _Writer, expr: Op, args: Operands) -> tuple[str, int]:
    return f"{args[0](_ATOM)}.to(tl.float32)", _ATOM


def _to_int(w: _Writer, expr: Op, args: Operands) -> tuple[str, int]:
    return f"{args[0](_ATOM)}.to(tl.int32)", _ATOM


def _floor(w: _Writer, expr: Op, args: Operands) -> tuple[str, int]:
    return f"tl.floor({args[0](_LOOSEST)}).to(tl.int64)", _ATOM


def _nonzero_constant(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value != 0


def _power_of_two(expr: Expr) -> int | None:
    if isinstance(expr, Const) and expr.type is Type.INT and expr.value > 0 and not expr.value & (expr.value - 1):
        return int(expr.value).bit_length() - 1
    return None


def _division(w: _Writer, expr: Op, args: Operands) -> tuple[str, int]:
    """floordiv and mod. Triton's own truncate, so they serve only where both operands are natural numbers."""
    quotient = expr.name == "floordiv"
    left, right = expr.args
    if expr.type is Type.FLOAT:
        w.need("_floor_divide" if quotient else "_floor_remainder")
        return f"{'_floor_divide' if quotient else '_floor_remainder'}({args[0](_LOOSEST)}, {args[1](_LOOSEST)})", _ATOM
    power = _power_of_two(right)
    if w.prologue.ranges.of(left).low >= 0 and _nonzero_constant(right) and right.value > 0:  # type: ignore[attr-defined]
        return f"{args[0](_MUL)} {'//' if quotient else '%'} {args[1](_UNARY)}", _MUL
    if power is not None:
        if quotient:
            return f"{args[0](_SHIFT)} >> {power}", _SHIFT
        return f"{args[0](_AND)} & {(1 << power) - 1}", _AND
    call = ("_floor_div" if quotient else "_floor_mod") + ("" if _nonzero_constant(right) else "_or_zero")
    w.need(call)
    return f"{call}({args[0](_LOOSEST)}, {args[1](_LOOSEST)})", _ATOM


def _shift(w: _Writer, expr: Op, args: Operands) -> tuple[str, int]:
    sign = "<<" if expr.name == "shl" else ">>"
    count = expr.args[1]
    if w.prologue.ranges.of(count).within(0, 31):
        return f"{args[0](_SHIFT)} {sign} {args[1](_ADD)}", _SHIFT
    call = "_shift_left" if expr.name == "shl" else "_shift_right"
    w.need(call)
    return f"{call}({args[0](_LOOSEST)}, {args[1](_LOOSEST)})", _ATOM


def _pow(w: _Writer, expr: Op, args: Operands) -> tuple[str, int]:
    base, exponent = expr.args
    if isinstance(exponent, Const) and float(exponent.value).is_integer() and 0 < exponent.value <= 8:
        factor = args[0](_UNARY)
        return " * ".join([factor] * int(exponent.value)), _MUL
    if isinstance(base, Const) and base.value == 2:
        return f"tl.exp2({args[1](_LOOSEST)})", _ATOM
    call = "_power" if expr.type is Type.FLOAT else "_integer_power"
    w.need(call)
    return f"{call}({args[0](_LOOSEST)}, {args[1](_LOOSEST)})", _ATOM


def _reduce(w: _Writer, expr: Op, args: Operands) -> tuple[str, int]:
    function = "tl.min" if expr.name == "tile_min" else "tl.max"
    # Rows give one number; keys, several tiles of them at once, one number a tile.
    axis = ", 1" if level(expr) & _COL else ""
    if expr.type is Type.BOOL:
        return f"{function}({args[0](_ATOM)}.to(tl.int32){axis}) != 0", _COMPARE
    return f"{function}({args[0](_LOOSEST)}{axis})", _ATOM


_SPECIAL: dict[str, Callable[[_Writer, Op, Operands], tuple[str, int]]] = {
    "to_float": _to_float,
    "to_int": _to_int,
    "floor": _floor,
    "floordiv": _division,
    "mod": _division,
    "shl": _shift,
    "shr": _shift,
    "pow": _pow,
    "tile_min": _reduce,
    "tile_max": _reduce,
}
