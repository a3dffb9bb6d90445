"""Expressions as eager PyTorch statements, for the reference that each generated module carries.

A node is either a Python scalar (made of sizes and runtime params alone) or a tensor that broadcasts to
[batch, heads, q_len, kv_len]: bool, int64, or float in the dtype of `score`. What Python would raise on, such as a
division by zero, is a tensor, which follows IEEE 754; an integer that may pass 64 bits wraps as a tensor's does.
"""

from __future__ import annotations

import keyword as keyword_of_python
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count

from flashgen.emit.eager import EagerStatements
from flashgen.emit.fragments import Fragment
from flashgen.lang.fold import nothing
from flashgen.lang.infix import Text, binary, call, conditional, element, keyword, method, number, prefix, read
from flashgen.lang.long import long_parts
from flashgen.lang.nodes import (
    COMPARISONS,
    FLOAT_FUNCTIONS,
    Const,
    Expr,
    Gather,
    Index,
    Op,
    Reduction,
    Type,
    Var,
    walk,
)
from flashgen.lang.show import BITWISE, SYMBOLS
from flashgen.lang.vocabulary import VARYING

# Whether an index along an axis may fall below 0, and whether it may pass the last element.
Guard = Callable[[Gather, int], tuple[bool, bool]]
# Whether an integer may pass 64 bits.
Wraps = Callable[[Expr], bool]

_POSITIVE_SIZES = frozenset({"batch", "heads", "kv_heads", "head_dim"})
_OWN_NAMES = frozenset({"torch", "math", "min", "max", "abs", "int", "float", "range"})
_LARGEST = (2 - 2.0**-23) * 2.0**127  # of float32
# A text that would name more values than this is taken apart.
_LONGEST = 40
_SCORE_DTYPE = read("score.dtype")
# Functions of floats on which Python's own may raise, for some argument.
_MAY_RAISE = FLOAT_FUNCTIONS - {"tanh", "sigmoid"} | {"truediv", "floordiv", "mod", "pow", "floor"}


def emit(
    roots: Sequence[Expr],
    lets: Sequence[tuple[str, Expr]] = (),
    guard: Guard | None = None,
    taken: Collection[str] = (),
    inlined: bool = False,
    wraps: Wraps = lambda node: False,
) -> Fragment:
    """PyTorch statements that compute `roots`.

    They read `b`, `h`, `kv_h` (int64 [batch, 1, 1, 1], [1, heads, 1, 1] twice), `q` (int64 [q_len, 1]), `k` (int64
    [1, kv_len]), `score` (float [batch, heads, q_len, kv_len]), each input under its name, and sizes and runtime
    params as Python scalars. A let that the roots use is assigned under its own name, with an underscore after it
    if that is among the names in `taken`; what else is used repeatedly gets a short name of its own, unless
    `inlined`: then they read scalars alone, as sizes do, and one that divides by zero or leaves the domain of a
    function raises. Indices are clamped where `guard` says that they may leave the tensor, on both sides without it;
    `wraps` says which integers may pass 64 bits.
    """
    writer = _Writer(guard or (lambda node, axis: (True, True)), wraps, raises=inlined)
    statements = EagerStatements(writer, {} if inlined else _names(roots, lets, taken))
    used = set(walk(*roots))
    lines = statements.write(walk(*(node for _, node in lets if node in used), *roots), frozenset())
    results = [writer.texts[root] for root in roots]
    for text in results:
        statements.read(text)
    defines = tuple(dict.fromkeys(statements.defines))
    return Fragment(tuple(lines), tuple(map(str, results)), tuple(sorted(statements.reads)), defines)


def literal(value: bool | int | float) -> Text:
    """A number in Python, which has no literals for infinities and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        name = read("math.nan" if math.isnan(value) else "math.inf")
        return prefix("-", name) if value < 0 else name
    return number(value)


def _names(roots: Sequence[Expr], lets: Sequence[tuple[str, Expr]], taken: Collection[str]) -> dict[Expr, str]:
    """Names for the nodes that are assigned: lets, shared work, and divisors that a zero test reads again."""
    nodes = list(walk(*roots))
    present = set(nodes)
    occupied = _OWN_NAMES | {*taken} | {n.name for n in nodes if isinstance(n, Var)}
    occupied |= {n.input for n in nodes if isinstance(n, Gather)}
    named = [(name, node) for name, node in lets if node in present and isinstance(node, Op | Gather | Reduction)]
    counters = [node for node in nodes if isinstance(node, Index)]
    names: dict[Expr, str] = {}
    for name, let in named:
        if let not in names:
            names[let] = _unlike(occupied, name)
            occupied = occupied | {names[let]}
    # Loops in each other have indices of different words.
    of_words = {word: _unlike(occupied, word) for word in dict.fromkeys(node.word for node in counters)}
    names |= {node: of_words[node.word] for node in counters}
    occupied = occupied | {*of_words.values()}
    fresh = (name for name in map("t{}".format, count()) if name not in occupied)
    uses = Counter(child for node in nodes for child in node.children)
    uses.update(child for node in nodes for child in _read_again(node))
    uses.update(roots)
    for node in nodes:
        if node not in names and (uses[node] > 1 or isinstance(node, Reduction)) and not _is_trivial(node):
            names[node] = next(fresh)
    for node in long_parts(nodes, names, _LONGEST):
        if node not in names:
            names[node] = next(fresh)
    return names


def _unlike(occupied: Collection[str], name: str) -> str:
    """The name, with underscores after it while it is taken, or a word of Python's."""
    while name in occupied or keyword_of_python.iskeyword(name):
        name += "_"
    return name


def _read_again(node: Expr) -> Iterator[Expr]:
    if (
        isinstance(node, Op)
        and node.name in ("floordiv", "mod")
        and node.type is Type.INT
        and not _nonzero(node.args[1])
    ):
        yield node.args[1]


def _is_trivial(node: Expr) -> bool:
    """Shorter to write again than to name: leaves, and a sign or cast on one."""
    return not node.children or (isinstance(node, Op) and len(node.args) == 1 and not node.args[0].children)


def _nonzero(node: Expr) -> bool:
    if isinstance(node, Const):
        return node.value != 0
    if isinstance(node, Op) and node.name == "max":
        return any(isinstance(x, Const) and x.value > 0 for x in node.args)
    return isinstance(node, Var) and node.name in _POSITIVE_SIZES


def _positive(node: Expr) -> bool:
    """Whether a scalar is surely above 0."""
    if isinstance(node, Const):
        return node.value > 0
    if isinstance(node, Op) and node.name in ("to_float", "sqrt"):
        return _positive(node.args[0])
    return isinstance(node, Var) and node.name in _POSITIVE_SIZES


class _Writer:
    """Writes one node after another, operands first."""

    def __init__(self, guard: Guard, wraps: Wraps, raises: bool) -> None:
        self._guard, self._wraps, self._raises = guard, wraps, raises
        self._tensors: set[Expr] = set()
        # Operands as they are before a cast that PyTorch would make by itself.
        self._uncast: dict[Expr, Text] = {}
        # The x and low of max(x, low), for the min around it that makes a clamp of it.
        self._raised: dict[Expr, tuple[Text, Text]] = {}
        self.texts: dict[Expr, Text] = {}

    def name(self, node: Expr, name: str) -> None:
        """From here on the node is read under a name."""
        self.texts[node] = read(name)
        self._uncast.pop(node, None)
        self._raised.pop(node, None)

    def start(self, node: Reduction) -> Text:
        """A reduction of no terms; it is a tensor."""
        self._tensors.add(node)
        value, kind = literal(nothing(node.name, node.type).value), keyword("dtype", read("torch.bool"))
        if node.type is Type.FLOAT:
            return call(read("score.new_tensor"), value)
        return call(read("q.new_tensor"), value, *([kind] if node.type is Type.BOOL else []))

    def write(self, node: Expr) -> Text:
        is_leaf = isinstance(node, Gather) or (isinstance(node, Var) and node.name in VARYING)
        if is_leaf or any(child in self._tensors for child in node.children) or self._may_raise(node):
            self._tensors.add(node)
        self.texts[node] = self._text(node)
        return self.texts[node]

    def _may_raise(self, node: Expr) -> bool:
        """Whether a scalar operation is left to tensors, since Python's own may raise."""
        if self._raises or not isinstance(node, Op) or node.name not in _MAY_RAISE:
            return False
        if node.args[0].type is not Type.FLOAT:
            return False
        if node.name == "truediv":
            return not _positive(node.args[1])
        return not (node.name in ("log", "log2", "sqrt") and _positive(node.args[0]))

    def _text(self, node: Expr) -> Text:
        if isinstance(node, Const):
            return literal(node.value)
        if isinstance(node, Var):
            return read(node.name)
        if isinstance(node, Gather):
            return self._gather(node)
        assert isinstance(node, Op)
        return self._tensor(node) if node in self._tensors else self._scalar(node)

    def _gather(self, node: Gather) -> Text:
        value = read(node.input)
        if node.indices:
            value = element(value, *(self._index(node, axis) for axis in range(len(node.indices))))
        if node.type is Type.BOOL:
            return value
        if node.type is Type.FLOAT:
            return method(value, "to", _SCORE_DTYPE)
        self._uncast[node] = value
        return method(value, "long")

    def _index(self, node: Gather, axis: int) -> Text:
        index = node.indices[axis]
        low, high = self._guard(node, axis)
        text, last = self.texts[index], binary("-", read(f"{node.input}.shape[{axis}]"), number(1))
        if index not in self._tensors:
            text = call("max", text, "0") if low else text
            return call("min", text, last) if high else text
        if low and high:
            return method(text, "clamp", "0", last)
        if low or high:
            return method(text, "clamp", "min=0" if low else keyword("max", last))
        return text

    def _scalar(self, node: Op) -> Text:
        """An operation on Python scalars alone."""
        text = self._scalar_text(node)
        if node.type is not Type.INT or not self._wraps(node):
            return text
        # As 64 bits hold it.
        shifted = binary("+", text, binary("**", number(2), number(63)))
        wrapped = binary("%", shifted, binary("**", number(2), number(64)))
        return binary("-", wrapped, binary("**", number(2), number(63)))

    def _scalar_text(self, node: Op) -> Text:
        name, operands = node.name, self._operands(node)
        if name == "where":
            return conditional(*operands)
        if name in ("floordiv", "mod") and node.type is Type.INT and not _nonzero(node.args[1]):
            return conditional(operands[1], binary(SYMBOLS[name], *operands), number(0))
        if name in ("shl", "shr"):
            return binary(SYMBOLS[name], operands[0], self._shift_count(node.args[1]))
        if node.type is Type.BOOL and name in ("and", "or", "not"):
            return prefix(name, *operands) if name == "not" else binary(name, *operands)
        if name == "exp2":
            return binary("**", number(2.0), operands[0])
        if name == "sigmoid":  # this form cannot overflow
            half = call(read("math.tanh"), binary("*", number(0.5), operands[0]))
            return binary("*", number(0.5), binary("+", number(1.0), half))
        if name == "softcap":
            return call(read("math.tanh"), *operands)
        if name == "floor" or name in FLOAT_FUNCTIONS:
            return call(read(f"math.{name}"), *operands)
        if name in ("to_int", "to_float"):
            self._uncast[node] = operands[0]
            return call(name.removeprefix("to_"), *operands)
        return self._native(name, operands)

    def _tensor(self, node: Op) -> Text:
        """An operation with a tensor among its operands."""
        name, operands = node.name, self._operands(node)
        if name == "where":
            return self._where(node, operands)
        if name in ("floordiv", "mod"):
            return (self._integer_division if node.type is Type.INT else self._float_division)(node, operands)
        if name in ("shl", "shr"):
            return binary(SYMBOLS[name], operands[0], self._shift_count(node.args[1]))
        if name in ("min", "max"):
            return self._extremum(node, operands)
        if node.type is Type.FLOAT and not any(x in self._tensors for x in node.args):
            operands[0] = self._as_tensor(node.args[0])
        if name == "sech2":
            return binary("/", number(1.0), method(call(read("torch.cosh"), *operands), "square"))
        if name in FLOAT_FUNCTIONS or name == "softcap":
            return call(read(f"torch.{'tanh' if name == 'softcap' else name}"), *operands)
        if name == "floor":
            return method(method(self._as_tensor(node.args[0]), "floor"), "long")
        if name == "to_int":
            self._uncast[node] = self.texts[node.args[0]]
            return method(operands[0], "long")
        if name == "to_float":
            self._uncast[node] = operands[0]
            return method(self._uncast.get(node.args[0], operands[0]), "to", _SCORE_DTYPE)
        return self._native(name, operands)

    def _native(self, name: str, operands: list[Text]) -> Text:
        """What Python's own operators do for scalars and tensors alike."""
        if name in ("neg", "not"):
            return prefix("-" if name == "neg" else "~", *operands)
        symbol = SYMBOLS.get(name) or BITWISE.get(name)
        return binary(symbol, *operands) if symbol else call(name, *operands)

    def _operands(self, node: Op) -> list[Text]:
        """The operands, without the casts that PyTorch or Python makes by itself."""
        scalar = node not in self._tensors
        promotes = scalar and (node.name == "truediv" or node.name in FLOAT_FUNCTIONS)
        if len(node.args) == 2:
            # A float scalar does not bring an int tensor to the dtype of the scores; a float tensor does. Python's
            # own min and max return what they were given.
            converts = scalar and node.name not in ("min", "max")
            promotes |= any(
                x.type is Type.FLOAT and x not in self._uncast and (converts or x in self._tensors) for x in node.args
            )
            # Elements of one input compare as they are stored.
            sources = {x.input if isinstance(x, Gather) else None for x in node.args}
            promotes |= node.name in COMPARISONS and len(sources) == 1 and None not in sources
        return [self._uncast.get(x, self.texts[x]) if promotes else self.texts[x] for x in node.args]

    def _where(self, node: Op, operands: list[Text]) -> Text:
        test, then, otherwise = node.args
        if test not in self._tensors:
            return conditional(operands[0], self._as_tensor(then), self._as_tensor(otherwise))
        if node.type is Type.FLOAT and then not in self._tensors and otherwise not in self._tensors:
            # Two Python floats would give torch's default dtype.
            return call(read("torch.where"), operands[0], self._as_tensor(then), operands[2])
        return call(read("torch.where"), *operands)

    def _as_tensor(self, node: Expr) -> Text:
        text = self.texts[node]
        if node in self._tensors:
            return text
        if node.type is Type.BOOL:
            return call(read("q.new_tensor"), text, keyword("dtype", read("torch.bool")))
        return call(read("score.new_tensor" if node.type is Type.FLOAT else "q.new_tensor"), text)

    def _integer_division(self, node: Op, operands: list[Text]) -> Text:
        dividend, divisor = operands
        symbol = SYMBOLS[node.name]
        if _nonzero(node.args[1]):
            return binary(symbol, dividend, divisor)
        if node.args[1] not in self._tensors:
            return conditional(divisor, binary(symbol, dividend, divisor), call(read("q.new_tensor"), "0"))
        is_nonzero = binary("!=", divisor, number(0))
        return call(
            read("torch.where"),
            is_nonzero,
            binary(symbol, dividend, call(read("torch.where"), is_nonzero, divisor, "1")),
            "0",
        )

    def _float_division(self, node: Op, operands: list[Text]) -> Text:
        """Autograd refuses tensors under `//`, and a number % tensor; it takes these forms of them."""
        dividend = operands[0] if node.args[0] in self._tensors else self._as_tensor(node.args[0])
        if node.name == "mod":
            return binary("%", dividend, operands[1])
        return call(read("torch.div"), dividend, operands[1], 'rounding_mode="floor"')

    def _shift_count(self, node: Expr) -> Text:
        if isinstance(node, Const):
            return number(min(max(int(node.value), 0), 63))
        if node in self._tensors:
            return method(self.texts[node], "clamp", "0", "63")
        return call("min", call("max", self.texts[node], "0"), "63")

    def _extremum(self, node: Op, operands: list[Text]) -> Text:
        if any(isinstance(x, Const) and node.type is Type.FLOAT and abs(x.value) > _LARGEST for x in node.args):
            # clamp refuses what float32 does not hold.
            operands = [self._as_tensor(x) for x in node.args]
            return call(read("torch.minimum" if node.name == "min" else "torch.maximum"), *operands)
        if all(x in self._tensors for x in node.args):
            return call(read("torch.minimum" if node.name == "min" else "torch.maximum"), *operands)
        tensor, bound = operands if node.args[0] in self._tensors else reversed(operands)
        if node.name == "max":
            self._raised[node] = (tensor, bound)
        elif node.args[0] in self._raised:
            tensor, low = self._raised[node.args[0]]
            return method(tensor, "clamp", low, bound)
        return method(tensor, "clamp", keyword(_SIDE[node.name], bound))


# min(x, bound) is x clamped from above.
_SIDE = {"min": "max", "max": "min"}
