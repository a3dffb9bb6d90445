"""Random score and mask mods as users of torch write them: text of Python, with the tensors and numbers they capture.

The mods are tame, so that torch's results in any precision and those of a spec can be compared:
- integers stay small, but for those of few bits, which wrap; divisors are not zero and indices stay in their tensors;
- what jumps (comparisons, floor, //, %, casts to integers) reads only floats that are exact in all dtypes;
- functions are used inside their domains and where they are not steep.
"""

from __future__ import annotations

import random
import re

BATCH, HEADS, Q_LEN, KV_LEN = 2, 2, 9, 11
LENGTHS = {"b": BATCH, "h": HEADS, "q": Q_LEN, "k": KV_LEN}

# Each {symbol} of a rule is drawn anew. `exact` is a tensor of floats without rounding, `float` one of any floats;
# `number` is an integer or a float of Python, `count` an integer of Python above 0.
RULES = {
    "bool": [
        "({int} {compare} {int})", "({int} {compare} {number})", "({number} {compare} {int})",
        "({exact} {compare} {exact})", "({exact} {compare} {int})", "({exact} {compare} {number})",
        "({bool} {bits} {bool})", "({bool} {bits} {bool})", "(~{bool})", "{bool}.logical_not()",
        "torch.logical_{bitword}({int}, {bool})", "torch.logical_{bitword}({bool}, {bool})",
        "torch.bitwise_{bitword}({bool}, {bool})", "torch.{cmpword}({int}, {exact})", "{int}.{cmpword}({number})",
        "{int}.bool()", "{int}.to(torch.bool)", "{exact}.bool()", "torch.where({bool}, {bool}, {bool})",
        "({bool} + {bool})", "({bool} * {bool})", "({bool} == {bool})", "({bool} != {bool})", "({bool} > {bool})",
        "torch.maximum({bool}, {bool})", "torch.minimum({bool}, {bool})", "({bool} & {pybool})",
        "({pybool} | {bool})", "torch.ones_like({int}, dtype=torch.bool)", "(({int} & {count}) != 0)", "{row}.any()",
        "({row} == {int}).any()", "torch.all({row} {compare} {number})", "{bool}.clone()", "torch.zeros_like({bool})",
        "torch.isinf({exact})", "torch.isnan({exact})", "({exact} == {exact}.floor())",
        "{int}.eq({int}).logical_or({bool})", "torch.full_like({bool}, {pybool})",
    ],
    "int": [
        "({int} {sum} {int})", "({int} {sum} {whole})", "({whole} {sum} {int})", "({int} {sum} {bool})",
        "({int} * {factor})", "({factor} * {int})", "({int} * {bool})", "(-{int})", "{int}.neg()", "(~{int})",
        "({int} // {divisor})", "({int} % {divisor})", "({whole} // ({int}.abs() + 1))",
        "({int} % ({int}.abs() + 1))", "torch.div({int}, {divisor}, rounding_mode='{rounding}')",
        "torch.fmod({int}, {divisor})", "torch.remainder({int}, {divisor})", "torch.floor_divide({int}, {divisor})",
        "(({int} % 5) ** {power})", "({int} {bits} {int})", "({int} {bits} {count})", "(({int} & 7) << {power})",
        "({int} >> {power})", "({int} >> ({int} & 3))", "(1 << ({int} & 3))", "({int} {bits} {bool})",
        "(2 ** ({int} & 3))", "torch.{extreme}({int}, {int})", "{int}.clamp({low}, {high})",
        "torch.clamp({int}, min={low})", "{int}.clamp(max={high})", "{int}.clamp_min({low})", "{int}.abs()",
        "abs({int})", "torch.sign({int})", "torch.where({bool}, {int}, {int})", "torch.where({bool}, {int}, {whole})",
        "{int}.masked_fill({bool}, {whole})", "{bool}.int()", "{bool}.long()", "{bool}.to(torch.int8)",
        "{int}.to({inttype})", "{int}.long()", "{int}.int()", "{exact}.int()", "{exact}.long()",
        "{exact}.floor().to(torch.int32)", "{int}.type_as({int})", "{int}.square()", "({bool} + {whole})",
        "({bool} * {factor})", "{row}.sum()", "({row} * {row}).sum()", "{row}[{place}]",
        "({row} {compare} {number}).sum()", "({row} == {int}).sum()", "torch.full_like({int}, {whole})",
        "torch.tensor({whole})", "torch.tensor({whole}, dtype={inttype})", "torch.zeros_like({int})", "({int} ^ -1)",
        "torch.ones_like({int}, dtype={inttype})", "{int}.add({int}, alpha={factor})", "{int}.sub({int})",
        "torch.rsub({int}, {int})", "{int}.mul({factor})", "torch.bitwise_{bitword}({int}, {int})",
        "torch.bitwise_not({int})", "torch.clamp({int}, {int}, {int})", "({int}).floor()", "torch.trunc({int})",
        "{int}.ceil()", "{int}.clone()", "torch.square({int})",
    ],
    "exact": [
        "({exact} {sum} {exact})", "({exact} {sum} {number})", "({number} {sum} {exact})", "({exact} {sum} {int})",
        "({exact} {sum} {bool})", "({exact} * {half})", "({half} * {int})", "({int} / {two})", "({exact} / {two})",
        "({exact} // {two})", "({exact} % {half})", "({exact} // {half})", "(-{exact})", "{exact}.abs()",
        "torch.{extreme}({exact}, {exact})", "torch.{extreme}({exact}, {int})", "{exact}.clamp({low}, {high})",
        "{int}.clamp({half}, 4.5)", "{exact}.floor()", "torch.ceil({exact})", "torch.trunc({exact})",
        "{exact}.sign()", "torch.where({bool}, {exact}, {exact})", "torch.where({bool}, {exact}, {number})",
        "{exact}.relu()", "torch.where({bool}, {int}, {exact})", "{int}.float()", "{int}.double()", "{bool}.float()",
        "{int}.to({exact}.dtype)", "{exact}.to(torch.float32)", "{int}.type_as({exact})",
        "torch.fmod({exact}, {two})", "({bool} * {half})", "torch.tensor({quarter})",
        "torch.full_like({exact}, {whole})", "torch.div({exact}, {two}, rounding_mode='{rounding}')", "{frow}.sum()",
        "({frow} * {row}).sum()", "{frow}[{place}]", "({int} / {two} + {quarter})",
        "torch.nn.functional.relu({exact})", "{exact}.masked_fill({bool}, {number})", "torch.square({int} * 0.5)",
        "torch.frac({exact})", "torch.heaviside({exact}, {exact})", "torch.lerp({exact}, {exact}, 0.5)",
        "torch.nan_to_num({exact})", "torch.nn.functional.hardtanh({exact})",
        "torch.nn.functional.leaky_relu({exact}, 0.25)", "torch.addcmul({exact}, {exact}, {exact}, value=0.5)",
        "{frow}.mean() * {frow}.shape[0]", "torch.sort({frows})[0][{place}]", "({frows}).flip(0)[{place}]",
        "torch.cumsum({frows}, 0)[{place}]", "({frow} - {frow}).amax()",
        "{frow}.min()",
    ],
    "float": [
        "({float} {sum} {float})", "({float} {sum} {number})", "({number} {sum} {float})", "({float} {sum} {int})",
        "({float} * {quarter})", "({float} * {tame})", "({float} / ({tame}.abs() + 1))", "(1 / ({int}.abs() + 1))",
        "({float} {sum} {bool})", "(-{float})", "{float}.abs()", "torch.where({bool}, {float}, {float})",
        "torch.where({bool}, {float}, {number})", "{tame}.exp()", "torch.exp2({tame})", "torch.log({positive})",
        "{positive}.log2()", "{positive}.sqrt()", "{positive}.rsqrt()", "torch.tanh({tame})", "{tame}.sigmoid()",
        "torch.sin({tame})", "{tame}.cos()", "torch.erf({tame})", "torch.nn.functional.gelu({tame})",
        "torch.nn.functional.silu({tame})", "torch.nn.functional.softplus({tame})",
        "torch.nn.functional.logsigmoid({tame})", "torch.log1p({positive})", "torch.expm1({tame})",
        "{positive}.reciprocal()", "({tame} ** 2)", "({tame} ** {power})", "({positive} ** 0.5)",
        "({positive} ** {tame})", "(2.0 ** {tame})", "torch.pow({positive}, {quarter})",
        "torch.maximum({float}, {exact})", "{float}.clamp(min={low})", "{float}.clamp({low}, {high})", "{exact}",
        "{exact}", "(20.0 * torch.tanh({float} / 20.0))", "{float}.masked_fill({bool}, {quarter})",
        "({frow} * {float}).sum()", "torch.nn.functional.elu({tame})", "torch.log10({positive})",
        "torch.nn.functional.mish({tame})", "{float}.double().float()",
        "torch.nn.functional.gelu({tame}, approximate='tanh')", "torch.tan({tame} * 0.5)",
        "torch.addcdiv({float}, {tame}, {positive})", "torch.nn.functional.hardswish({tame})", "torch.sinc({tame})",
        "torch.nn.functional.softsign({tame})", "torch.softmax({frows}, 0)[{place}]",
    ],
    "tame": [
        "torch.tanh({float})", "{exact}.clamp(-2, 2)", "({int} % 5 * 0.25)", "torch.sin({int})",
        "{float}.clamp(-2, 2)",
    ],
    "positive": [
        "({tame}.abs() + 0.5)", "({int}.abs() + 1)", "torch.exp({tame})", "({int} % 7 + 0.25)",
    ],
}  # fmt: skip
# Where an expression may not be deeper.
LEAVES = {
    "bool": ["({position} {compare} {position})", "{table_bool}", "({position} {compare} {whole})", "{scalar_bool}"],
    "int": ["{position}", "{position}", "{table_int}", "{table_int}", "{scalar_int}"],
    "exact": ["{table_float}", "{table_float}", "({position} * 0.5)", "{scalar_float}", "{learned}"],
    "float": ["{score}", "{score}", "{table_float}", "{learned}"],
    "tame": ["{exact}.clamp(-2, 2)", "({position} * 0.125)"],
    "positive": ["({position} + 1)", "({table_float}.abs() + 0.5)"],
}
WORDS = {
    "compare": ["<", "<=", ">", ">=", "==", "!="], "cmpword": ["eq", "ne", "lt", "le", "gt", "ge"], "sum": ["+", "-"],
    "bits": ["&", "|", "^"], "bitword": ["and", "or", "xor"], "rounding": ["floor", "trunc"],
    "extreme": ["minimum", "maximum"], "power": ["0", "1", "2", "3"], "half": ["0.5", "-0.5", "1.5", "2"],
    "two": ["2", "4", "-2", "0.5"], "quarter": ["0.25", "-1.75", "3.0", "0.0", "1.5"], "low": ["-3", "-1", "0"],
    "high": ["2", "5"], "position": ["b", "h", "q", "k", "q", "k"], "place": ["0", "1", "-1", "{int}.long() % 3", "h"],
    "inttype": ["torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64"],
    "number": ["{whole}", "{quarter}", "{own_float}"], "whole": ["0", "1", "-2", "5", "{own_int}", "{own_int}"],
    "factor": ["2", "3", "-1", "-2", "{own_int}"], "count": ["1", "3", "6", "{own_count}"],
    "divisor": ["2", "3", "-3", "7", "{own_count}"], "pybool": ["True", "False", "{own_bool}"],
}  # fmt: skip
# Numbers of Python that a mod captures.
OWN = {
    "own_int": ["-7", "-2", "0", "1", "3", "12"], "own_count": ["1", "2", "3", "5"], "own_bool": ["True", "False"],
    "own_float": ["0.25", "-1.5", "2.0", "0.0"],
}  # fmt: skip
DTYPES = {
    "bool": ["torch.bool"],
    "int": ["torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64", "torch.int64"],
    "float": ["torch.float16", "torch.bfloat16", "torch.float32", "torch.float32", "torch.float64"],
}
# Some are called as dimensions are, or as words of the language.
CAPTURED = ["w", "tab", "doc", "n", "tab_len", "w_rows", "doc_cols", "scale", "x", "i", "score_", "sum", "bias"]
VARIABLES = ["d", "x1", "tab_len", "w_len", "acc", "i", "near", "seen", "term", "test", "doc_q"]
MINUS = ["-math.inf", 'float("-inf")', "-torch.inf", "-1e9", "torch.finfo(torch.float32).min"]
SCORES = [
    "{float}", "score + {float}", "score + {exact}", "score * ({tame}) + {float}",
    "torch.where({bool}, score, {minus}) + {float}", "torch.where({bool}, {float}, {minus})",
    "{float} + torch.where({bool}, 0, {minus})", "score.masked_fill({bool}, {minus}) + {float}",
]  # fmt: skip
MASKS = ["{bool}", "{bool}", "{bool} & (q >= k)", "{bool} | (q >= k)", "{int}"]

# WIDE makes all captured floats double; OTHER are other values for the captured numbers.
HEAD = '''
import functools
import math
import random
from types import SimpleNamespace

import torch


def made(seed, dtype, *shape, how="plain", grad=False):
    """A tensor of small numbers; if WIDE floats are in double precision."""
    drawn = random.Random(seed)
    count = math.prod(shape)
    if dtype.is_floating_point:
        values = [drawn.randrange(-8, 9) / 4 for _ in range(count)]
        dtype = torch.float64 if WIDE else dtype
    elif dtype == torch.bool:
        values = [drawn.random() < 0.5 for _ in range(count)]
    else:
        wide = {torch.uint8: (0, 256), torch.int8: (-128, 128)}.get(dtype, (-9, 10))
        values = [drawn.randrange(*drawn.choice([wide, (0, 5)])) for _ in range(count)]
    whole = torch.tensor(values, dtype=dtype).reshape(shape)
    if how == "strided" and shape:
        whole = whole.repeat_interleave(2, -1)[..., ::2]
    elif how == "turned" and len(shape) > 1:
        whole = whole.transpose(0, 1).contiguous().transpose(0, 1)
    elif how == "expanded" and shape:
        whole = whole[:1].expand(shape)
    return whole.requires_grad_(grad)

'''


class Writer:
    """Writes a module with `score_mod` and `mask_mod`. The same seed gives the same text."""

    def __init__(self, seed: int, depth: int = 2) -> None:
        self._random = random.Random(seed)
        self._depth = depth
        # What is captured, by name: as a text, and the kind.
        self._captured: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._numbers: list[str] = []
        self._variables: dict[str, list[str]] = {}
        self._has_score = True

    def text(self) -> str:
        bodies = self._body(SCORES), self._body(MASKS)
        return f"{HEAD}NUMBERS = OTHER or [{', '.join(self._numbers)}]\n{self._laid_out(*bodies)}"

    def _filled(self, rule: str, depth: int) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: self._symbol(found[1], depth), rule)

    def _symbol(self, symbol: str, depth: int) -> str:
        if symbol in RULES:
            return self._term(symbol, depth)
        if symbol in OWN:
            return self._number(symbol)
        if symbol == "score":
            return "score" if self._has_score else self._table("float")
        if symbol in ("row", "frow"):
            return self._row("int" if symbol == "row" else "float")
        if symbol == "frows":
            return self._rows()
        if symbol == "minus":
            return self._random.choice(MINUS)
        if symbol == "learned":
            return self._table("float", grad=True)
        how, _, kind = symbol.partition("_")
        if how == "table":
            return self._table(kind)
        if how == "scalar":
            return self._capture(symbol, self._made(kind, []))
        return self._filled(self._random.choice(WORDS[symbol]), depth)

    def _term(self, kind: str, depth: int) -> str:
        known = self._variables.get(kind)
        if known and self._random.random() < 0.25:
            return self._random.choice(known)
        rules = RULES if depth > 0 and self._random.random() < 0.9 else LEAVES
        return self._filled(self._random.choice(rules[kind]), depth - 1)

    def _made(self, kind: str, shape: list[int], grad: bool = False) -> str:
        dtype = "torch.float32" if grad else self._random.choice(DTYPES[kind])
        how = self._random.choice(["plain", "plain", "strided", "turned", "expanded"])
        sizes = "".join(f", {size}" for size in shape)
        return f'made({self._random.randrange(99)}, {dtype}{sizes}, how="{how}"{", grad=True" if grad else ""})'

    def _number(self, symbol: str) -> str:
        value = self._random.choice(OWN[symbol])
        if symbol != "own_bool":
            self._numbers.append(value)
            value = f"NUMBERS[{len(self._numbers) - 1}]"
        return self._capture(symbol, value)

    def _capture(self, kind: str, value: str) -> str:
        """The name of a captured value, in brackets until it is known where it will be."""
        known = [name for name in self._captured if kind in OWN and self._kinds[name] == kind]
        if known and self._random.random() < 0.3:
            return f"<{known[0]}>"
        base = self._random.choice(CAPTURED)
        name = next(each for each in [base, *(f"{base}{n}" for n in range(99))] if each not in self._captured)
        self._captured[name], self._kinds[name] = value, kind
        return f"<{name}>"

    def _table(self, kind: str, grad: bool = False) -> str:
        """An element of a captured tensor, indexed in one of the ways there are."""
        places, shape = zip(*(self._place() for _ in range(self._random.choice([1, 1, 2, 2, 3]))), strict=True)
        name = self._capture(kind, self._made(kind, [*shape], grad))
        first, rest = places[0], ", ".join(places[1:])
        ways = [f"{name}[{', '.join(places)}]"] * 4 + [name + "".join(f"[{place}]" for place in places)]
        ways.append(f"{name}[..., {places[-1]}]" + "".join(f"[{place}]" for place in places[:-1]))
        if rest:
            ways += [f"{name}[{first}][{rest}]", f"{name}[:, {rest}][{first}]"]
        if self._random.random() < 0.25:
            return self._viewed(name, kind, places, shape)
        return self._random.choice(ways)

    def _viewed(self, name: str, kind: str, places: tuple[str, ...], shape: tuple[int, ...]) -> str:
        """An element of what torch makes of a captured tensor."""
        every, last = ", ".join(places), len(shape) - 1
        order = self._random.sample(range(len(shape)), len(shape))
        ways = [
            f"{name}.permute({', '.join(map(str, order))})[{', '.join(places[each] for each in order)}]",
            f"{name}.transpose(0, -1)[{', '.join([places[-1], *places[1:-1], places[0]][: len(shape)])}]",
            f"{name}[None][0, {every}]", f"{name}.unsqueeze(-1)[{every}, 0]", f"{name}.flip({last})[{every}]",
            f"{name}.roll(1, 0)[{every}]", f"torch.stack([{name}, {name}.flip(0)])[1, {every}]",
            f"torch.cat([{name}, {name}], {last})[{every}]", f"{name}.unbind(0)[0][{', '.join(places[1:]) or '...'}]",
            f"{name}[:{shape[0]}][{every}]", f"torch.cat([{name}, {name}])[{shape[0]}:][{every}]",
            f"{name}.repeat({', '.join(['2'] * len(shape))})[{every}]", f"{name}.clone()[{every}]",
            f"{name}.chunk(1)[0][{every}]", f"torch.where({name} == {name}, {name}, {name}.flip(0))[{every}]",
        ]  # fmt: skip
        if last:
            rest = ", ".join(places[1:])
            ways += [f"{name}[{places[0]}].flip(-1)[{rest}]", f"{name}[{places[0]}, :][None][0, {rest}]"]
            ways += [f"({name}[{places[0]}] {symbol} {name}[{places[0]}])[{rest}]" for symbol in ("==", "!=")] * (
                kind == "bool"
            )
            ways.append(f"{name}.transpose(0, 1).flatten(0, 1)[{self._random.randrange(shape[0] * shape[1])}]" + (
                f"[{', '.join(places[2:])}]" if last > 1 else ""
            ))  # fmt: skip
        if kind != "bool":
            ways += [f"{name}.cumsum(0)[{every}]", f"({name} + {name}.amax())[{every}]", f"{name}.abs().sum(0)"]
            ways[-1:] = [f"{ways[-1]}[{', '.join(places[1:])}]"] if last else []
        return self._random.choice(ways)

    def _place(self) -> tuple[str, int]:
        """An index, and the length of what it is for."""
        if self._random.random() < 0.55:
            position = self._random.choice("bhqkqk")
            return position, LENGTHS[position] + self._random.choice([0, 0, 0, 2])
        size = self._random.randrange(1, 7)
        # torch takes no narrow integers.
        inner = f"{self._term('int', 1)}.long()"
        return self._random.choice([
            (str(self._random.randrange(-size, size)), size), (f"{inner} % {size}", size),
            (f"{inner}.clamp({-size}, {size - 1})", size), (f"({inner} % {size} - {size})", size),
            (f"(q - k).clamp(-{size}, {size}) + {size}", 2 * size + 1),
        ])  # fmt: skip

    def _row(self, kind: str) -> str:
        """A row of three."""
        place, size = self._place()
        whole, alone = (self._capture(kind, self._made(kind, shape)) for shape in ([size, 3], [3]))
        return self._random.choice(
            [f"{whole}[{place}]", alone, f"{whole}[{place}, :]", f"({alone} + {whole}[{place}])"]
        )

    def _rows(self) -> str:
        """Rows of three at one place of two tables, of any lengths."""
        place = self._random.choice("bhqk")
        lengths = [LENGTHS[place] + self._random.choice([0, 1, 4]) for _ in range(2)]
        one, other = (self._capture("float", self._made("float", [length, 3])) for length in lengths)
        if self._random.random() < 0.25:
            return f"torch.cat([{one}[{place}], {other}[{place}]])"
        return f"{one}[{place}] {self._random.choice('+-*')} {other}[{place}]"

    def _body(self, results: list[str]) -> list[str]:
        self._has_score = results is SCORES
        self._variables = {"bool": [], "int": [], "exact": [], "float": []}
        lines = [line for _ in range(self._random.randrange(3)) for line in self._statement()]
        return [*lines, f"return {self._filled(self._random.choice(results), self._depth)}"]

    def _statement(self) -> list[str]:
        kind = self._random.choice([*self._variables])
        used = {name for each in self._variables.values() for name in each}
        name = self._random.choice([each for each in VARIABLES if each not in used])
        # Before it has its name, which a term in it may not read.
        first, other = self._term(kind, 2), self._term(kind, 1)
        self._variables[kind].append(name)
        lines = [f"{name} = {first}"]
        form = self._random.choice(["alone", "alone", "loop", "in place", "choice"])
        if form == "loop":
            count, symbol = self._number("own_count"), "&" if kind == "bool" else "+"
            lines += [f"for step in range({count}):", f"    {name} = {name} {symbol} {other}"]
        elif form == "in place" and kind in ("exact", "float") and self._has_score:
            lines = [f"{name} = torch.zeros_like(score)", f"{name} += {first}", f"{name} -= {other}"]
        elif form == "choice":
            test = self._random.choice([f"{self._number('own_int')} > 0", self._number("own_bool")])
            lines = [f"if {test}:", f"    {lines[0]}", "else:", f"    {name} = {other}"]
        return lines

    def _laid_out(self, score: list[str], mask: list[str]) -> str:
        """The two functions, with what they capture in one of the places where users have it."""
        where = self._random.choice(["globals", "closure", "defaults", "partial", "namespace", "mapping", "object"])
        read = {"object": "self.{}", "namespace": "given.{}", "mapping": 'given["{}"]'}.get(where, "{}")
        score, mask = (
            [re.sub(r"<(\w+)>", lambda name: read.format(name[1]), line) for line in body] for body in (score, mask)
        )
        names = [*self._captured]
        define = [f"{name} = {value}" for name, value in self._captured.items()]
        more = {"defaults": [f"{name}={name}" for name in names], "partial": [f"{name}=None" for name in names]}.get(
            where, []
        )
        own = ["self"] * (where == "object")
        functions = [
            *function("score_mod" if not own else "__call__", [*own, "score", "b", "h", "q", "k", *more], score),
            *function("mask_mod", [*own, "b", "h", "q", "k", *more], mask),
        ]
        inside = ", ".join(f"{name}={value}" for name, value in self._captured.items())
        given = "".join(f", {name}={name}" for name in names)
        lines = {
            "globals": [*define, *functions],
            "defaults": [*define, *functions],
            "closure": [
                *function("make", [], [*define, *functions, "return score_mod, mask_mod"]),
                "score_mod, mask_mod = make()",
            ],
            "partial": [
                *define,
                *functions,
                *(f"{mod} = functools.partial({mod}{given})" for mod in ("score_mod", "mask_mod")),
            ],
            "namespace": [f"given = SimpleNamespace({inside})", *functions],
            "mapping": [f"given = dict({inside})", *functions],
            "object": [
                "class Mods:",
                *indented([*function("__init__", own, [*(f"self.{line}" for line in define), "pass"]), *functions]),
                "score_mod = Mods()",
                "mask_mod = score_mod.mask_mod",
            ],
        }[where]
        return "\n".join(lines) + "\n"


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def function(name: str, parameters: list[str], body: list[str]) -> list[str]:
    return [f"def {name}({', '.join(parameters)}):", *indented(body)]
