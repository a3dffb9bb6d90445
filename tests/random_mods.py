"""Random score and mask mods as users of torch write them: text of Python, with the tensors and numbers they capture.

The mods are tame, so that torch's results in any precision and those of a spec can be compared:
- integers stay small, but for those of few bits, which wrap; divisors are not zero and indices stay in their tensors;
- what jumps (comparisons, floor, //, %, casts to integers) reads only floats that are exact in all dtypes;
- functions are used inside their domains and where they are not steep.
"""

from __future__ import annotations

import random
import re

from mod_grammar import LEAVES, MASKS, MINUS, OWN, RULES, SCORES, WORDS

BATCH, HEADS, Q_LEN, KV_LEN = 2, 2, 9, 11
LENGTHS = {"b": BATCH, "h": HEADS, "q": Q_LEN, "k": KV_LEN}

DTYPES = {
    "bool": ["torch.bool"],
    "int": ["torch.uint8", "torch.int8", "torch.int16", "torch.int32", "torch.int64", "torch.int64"],
    "float": ["torch.float16", "torch.bfloat16", "torch.float32", "torch.float32", "torch.float64"],
}
# Some are called as dimensions are, or as words of the language.
CAPTURED = ["w", "tab", "doc", "n", "tab_len", "w_rows", "doc_cols", "scale", "x", "i", "score_", "sum", "bias"]
VARIABLES = ["d", "x1", "tab_len", "w_len", "acc", "i", "near", "seen", "term", "test", "doc_q"]

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
