"""One node after another as a text of eager PyTorch, operands first.

A node is either a Python scalar (made of sizes and runtime params alone) or a tensor that broadcasts to
[batch, heads, q_len, kv_len]: bool, int64, or float in the dtype of `score`. What Python would raise on, such as a
division by zero, is a tensor, which follows IEEE 754; an integer that may pass 64 bits wraps as a tensor's does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from flashgen.emit.eager_operations import (
    bounded,
    extremum_of_tensors,
    float_division,
    floor,
    integer_division,
    scalar_extremum,
)
from flashgen.emit.eager_signs import is_nonzero, is_positive
from flashgen.lang.fold import nothing
from flashgen.lang.infix import Text, binary, call, conditional, element, keyword, method, number, prefix, read
from flashgen.lang.interval import LARGEST_FLOAT32
from flashgen.lang.nodes import (
    COMPARISONS,
    FLOAT_FUNCTIONS,
    Const,
    Expr,
    Gather,
    Op,
    Reduction,
    Type,
    Var,
)
from flashgen.lang.show import BITWISE, SYMBOLS
from flashgen.lang.vocabulary import VARYING

# Whether an index along an axis may fall below 0, and whether it may pass the last element.
Guard = Callable[[Gather, int], tuple[bool, bool]]
# Whether the dimension that an axis indexes may have no element.
MayLack = Callable[[Gather, int], bool]
# Whether an integer may pass 64 bits.
Wraps = Callable[[Expr], bool]

_BATCH = read("b")
_SCORE_DTYPE = read("score.dtype")
# Functions of floats on which Python's own may raise, for some argument.
_MAY_RAISE = FLOAT_FUNCTIONS - {"tanh", "sigmoid"} | {"truediv", "floordiv", "mod", "pow", "floor"}


def literal(value: bool | int | float) -> Text:
    """A number in Python, which has no literals for infinities and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        name = read("math.nan" if math.isnan(value) else "math.inf")
        return prefix("-", name) if value < 0 else name
    return number(value)


class EagerWriter:
    """Writes one node after another, operands first.

    Of an index without axes PyTorch looks at the value, which a tensor of a trace does not have, and it reads the
    element where there is no pair, too. So with `may_lack` such an index is spread over the batch: a tensor always, a
    number where the dimension may have no element.
    """

    def __init__(self, guard: Guard, wraps: Wraps, raises: bool, may_lack: MayLack | None = None) -> None:
        self._guard, self._wraps, self._raises = guard, wraps, raises
        self._may_lack = may_lack
        self._tensors: set[Expr] = set()
        # Those that have axes.
        self._spacious: set[Expr] = set()
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
        if isinstance(node, Reduction):
            self._find_axes(node)

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
        self._find_axes(node)
        return self.texts[node]

    def _find_axes(self, node: Expr) -> None:
        varies = isinstance(node, Var) and node.name in VARYING
        if varies or any(child in self._spacious for child in node.children):
            self._spacious.add(node)

    def _may_raise(self, node: Expr) -> bool:
        """Whether a scalar operation is left to tensors, since Python's own may raise."""
        if self._raises or not isinstance(node, Op) or node.name not in _MAY_RAISE:
            return False
        if node.args[0].type is not Type.FLOAT:
            return False
        if node.name == "truediv":
            return not is_positive(node.args[1])
        return not (node.name in ("log", "log2", "sqrt") and is_positive(node.args[0]))

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
            text = call("min", text, last) if high else text
        else:
            text = self._clamped(text, last if high else None, low)
        if index in self._spacious or self._may_lack is None:
            return text
        if index not in self._tensors and not self._may_lack(node, axis):
            return text
        self._spacious.add(node)
        is_number = index not in self._tensors
        return call(read("torch.full_like"), _BATCH, text) if is_number else method(text, "expand_as", _BATCH)

    def _clamped(self, text: Text, last: Text | None, low: bool) -> Text:
        if low and last is not None:
            return method(text, "clamp", "0", last)
        if last is not None:
            return method(text, "clamp", keyword("max", last))
        return method(text, "clamp", "min=0") if low else text

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
        if name in ("min", "max"):
            return scalar_extremum(node, operands)
        if name in ("floordiv", "mod") and node.type is Type.INT and not is_nonzero(node.args[1]):
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
        if name in ("floordiv", "mod") and node.type is Type.INT:
            return integer_division(node, operands, divides_by_tensor=node.args[1] in self._tensors)
        if name in ("floordiv", "mod"):
            dividend = operands[0] if node.args[0] in self._tensors else self._as_tensor(node.args[0])
            return float_division(node, dividend, operands[1])
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
            return floor(node, self._as_tensor(node.args[0]))
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

    def _shift_count(self, node: Expr) -> Text:
        if isinstance(node, Const):
            return number(min(max(int(node.value), 0), 63))
        if node in self._tensors:
            return method(self.texts[node], "clamp", "0", "63")
        return call("min", call("max", self.texts[node], "0"), "63")

    def _extremum(self, node: Op, operands: list[Text]) -> Text:
        is_wide = [isinstance(x, Const) and abs(x.value) > LARGEST_FLOAT32 for x in node.args]
        if node.type is Type.FLOAT and any(is_wide):
            # clamp refuses what float32 does not hold.
            return extremum_of_tensors(node, [self._as_tensor(x) for x in node.args])
        if all(x in self._tensors for x in node.args):
            return extremum_of_tensors(node, operands)
        tensor, bound = operands if node.args[0] in self._tensors else reversed(operands)
        if node.name == "max":
            self._raised[node] = (tensor, bound)
        elif node.args[0] in self._raised:
            tensor, low = self._raised[node.args[0]]
            return method(tensor, "clamp", low, bound)
        return bounded(node.name, tensor, bound)
