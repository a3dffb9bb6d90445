"""A case from a seed and an index: what is in it, how large it is, and how it is called."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from random import Random
from typing import Any

from flashgen.problems.paged import room
from flashgen.spec.names import OF_DROPOUT
from flashgen.verify.soak.builder import Builder
from flashgen.verify.soak.case import Case, Recipe
from flashgen.verify.soak.formula import parsed
from flashgen.verify.soak.paged import PAGE
from flashgen.verify.soak.pieces import Piece, Scope
from flashgen.verify.soak.structures import FLOATS, INTS, LAYOUTS, MASKS, SCORES
from flashgen.verify.soak.wild import Wild

# Pairs of one call: what the interpreter is done with soon, and what a GPU holds of float64 many times over.
MOST_PAIRS = {"small": 30_000, "large": 3_000_000}
# The share of draws whose sequences are packed, and of those whose keys are in pages.
PACKED, PAGED = 0.15, 0.1
# Layouts of the gradient of out.
D_OUT = ("dense", "dense", "dense", "transposed", "expanded", "none")
SCORE = Piece("score", "float", -40.0, 40.0, exact=False, smooth=True, tight=True)


def draw(seed: int, index: int, attempt: int = 0, large: bool = False) -> Case:
    """The case with this number; `attempt` counts the draws before it that said nothing. `large`: for a GPU."""
    random = Random(f"{seed} {index} {attempt}")
    sizes = _sizes(random, large)
    align = "top_left" if random.random() < 0.35 else "bottom_right"
    s = Builder(random, {name: size for name, size in sizes.items() if name != "v_head_dim"}, align)
    sugar = _sugar(s)
    _extras(s)
    for table, counts in ((MASKS, [0, 0, 1, 1, 1, 2]), (SCORES, [0, 1, 1, 1, 2])):
        for _ in range(random.choice(counts)):
            random.choices(list(table), list(table.values()))[0](s)
    _lets(s)
    score, mask = _score(s), _mask(s)
    spec: dict[str, Any] = {"name": "soak"} | sugar
    if align == "top_left":
        spec["align"] = align
    if random.random() < 0.2:
        spec["approximate"] = False
    spec |= {"params": s.params, "inputs": s.inputs, "let": s.lets, "score": score, "mask": mask}
    spec = {key: value for key, value in spec.items() if value not in ({}, "", None)}
    # By numbers of their own: the rest of a case is what it was before there was dropout.
    dropping = Random(f"{seed} {index} {attempt} dropout")
    if dropping.random() < 0.15 and not s.taken & OF_DROPOUT:
        spec["dropout"] = dropping.choice((0.1, 0.1, 0.5, 0.9))
    case = _called(s, bound(needed(spec), s.dims), sizes, large)
    serving = Random(f"{seed} {index} {attempt} packing")
    form = serving.random()
    if form < PACKED:
        return _packed(case, serving)
    return _paged(_packed(case, serving)) if form < PACKED + PAGED else case


def _sizes(random: Random, large: bool) -> dict[str, int]:
    if large:
        q_len, kv_len = (random.choice([1, 17, 64, 100, 128, 255, 256, 333, 500, 777, random.randint(1, 1500)])
                         for _ in range(2))  # fmt: skip
        kv_heads, group = random.choice([1, 1, 2, 3]), random.choice([1, 1, 2, 4])
        # Each needs kernels of its own, and those for the largest take longest to compile.
        dims: tuple[int, ...] = (16, 16, 32, 32, 64, 64, 64, 128) * 3 + (40, 80, 96, 192, 256, random.randint(1, 512))
    else:
        lengths = [1, 2, 15, 16, 17, 31, 33, 64, 65]
        q_len, kv_len = (random.choice([*lengths, random.randint(1, 100), random.randint(1, 150)]) for _ in range(2))
        kv_heads, group = random.choice([1, 1, 1, 2]), random.choice([1, 1, 2, 3])
        dims = (1, 3, 8, 16, 16, 16, 17, 24, 32, 40)
    if random.random() < 0.4:
        q_len = kv_len
    batch = random.choice([1, 1, 2])
    most = MOST_PAIRS["large" if large else "small"]
    while batch * kv_heads * group * q_len * kv_len > most:
        q_len, kv_len = max(1, q_len * 2 // 3), max(1, kv_len * 2 // 3)
    head_dim = random.choice(dims)
    return {
        "batch": batch, "heads": kv_heads * group, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
        "head_dim": head_dim, "v_head_dim": head_dim if random.random() < 0.6 else random.choice(dims),
    }  # fmt: skip


def _sugar(s: Builder) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if s.roll(0.3):
        found["causal"] = True
    if s.roll(0.2):
        sides = s.pick(("left", "right"), ("left",), ("right",), ("left", "right"))
        found["window"] = {side: _extent(s) for side in sides}
    if s.roll(0.15):
        found["bias"] = "alibi"
        s.taken.add("slopes")
    if s.roll(0.2):
        cap: Any = s.pick(0.5, 1, 5.0, 30.0, 50.0, 100.0)
        found["softcap"] = s.param(cap, "cap") if s.roll(0.25) else cap
    if s.roll(0.12):
        found["block_sparse"] = {"block_q": s.pick(1, 3, 16, 32, 64, 100), "block_kv": s.pick(1, 5, 16, 32, 64, 100)}
        s.taken.add("block_mask")
    if s.roll(0.15):
        found["sink"] = "learned"
        s.taken.add("sinks")
    return found


def _extent(s: Builder) -> int | str:
    value = s.pick(0, 1, 7, 16, 40, 5000)
    if s.roll(0.6):
        return value
    name = s.param(value, "reach", "W")
    return s.pick(name, f"2*{name} + 1")


def _extras(s: Builder) -> None:
    """Params and inputs for wild expressions, beside those of structures. What stays unread is taken away again."""
    for _ in range(s.random.choice([0, 1, 2, 3])):
        s.param(s.pick(0, 1, 16, -1, -7, 3, 100, 5000, 0.5, -1.25, 2.0, 0.1, True, False))
    for _ in range(s.random.choice([0, 1, 1, 2])):
        _any_input(s)


def _any_input(s: Builder) -> None:
    rank = s.random.choice([0, 1, 1, 1, 2, 2, 2, 3, 4])
    shape: list[str | int] = [
        s.pick("batch", "heads", "kv_heads", "q_len", "kv_len", "kv_len", 1, 3, "head_dim", "(kv_len + 15) // 16")
        for _ in range(rank)
    ]
    if shape and s.roll(0.25):
        shape[0] = name = s.dim(s.pick(1, 3, 8))
        s.named(name)
    if s.roll(0.35):
        kind = "outside" if s.roll(0.15) else "uniform"
        s.input(shape, s.pick(*INTS), Recipe(kind, s.pick(0, 0, -5), s.pick(3, 20, 100), s.pick(*LAYOUTS)))
    elif s.roll(0.3):
        s.input(shape, "bool", Recipe("either", 1, 0, s.pick(*LAYOUTS)))
    else:
        kind, low, high = s.pick(("quarters", -3, 3), ("normal", 0, 0.7))
        s.input(shape, s.pick(*FLOATS), Recipe(kind, low, high, s.pick(*LAYOUTS)), grad=s.roll(0.4))


def _lets(s: Builder) -> None:
    for _ in range(s.random.choice([0, 0, 1, 1, 2, 3])):
        smooth = s.roll(0.3)
        scalars = [*s.scalars, SCORE, SCORE] if smooth else s.scalars
        kind = "float" if smooth else s.pick("int", "int", "bool", "float")
        piece = Wild(s.random, Scope(scalars, s.tensors), smooth).draw(kind, 2)
        piece = _tamed(s, piece) if smooth else piece
        s.let(piece.text, piece=piece)


def _wild_score(s: Builder) -> Piece:
    scope = Scope([*s.scalars, SCORE, SCORE, SCORE], s.tensors)
    return _tamed(s, Wild(s.random, scope, True).draw("float", s.random.choice([2, 3, 3, 4])))


def _tamed(s: Builder, piece: Piece) -> Piece:
    """Brought to the size of scores, but for some."""
    if piece.size <= 60 or s.roll(0.1):
        return piece
    factor = float(f"{20 / piece.size:.1g}")
    return Piece(f"{factor!r} * {piece}", "float", -20, 20, False, piece.smooth)


def _score(s: Builder) -> str | None:
    """What structures and the wild make of `score`, one around the other."""
    text = "score"
    for form in s.scores:
        text = form.replace("{}", text if text == "score" else f"({text})")
    if s.roll(0.55) or (not s.scores and s.roll(0.5)):
        wild = _wild_score(s)
        text = f"({text}) + ({wild.text})" if s.scores or s.roll(0.3) else wild.text
    return None if text == "score" else _spelled(s, text)


def _mask(s: Builder) -> str | None:
    parts = list(s.masks)
    if s.roll(0.45):
        wild = Wild(s.random, s.scope, False).draw("bool", s.random.choice([1, 2, 3, 3, 4])).text
        n, m = s.pick((2, 1), (40, 25), (16, 9), (7, 5))
        parts.append(s.pick(wild, wild, f"({wild}) | (k % {n} < {m})", f"({wild}) ^ (q % {n} < {m})",
                            f"({wild}) | (q // {n} == k // {n})", f"({wild}) & (k % {n} < {m})"))  # fmt: skip
    if not parts:
        return None
    text = parts[0]
    for part in parts[1:]:
        text = f"({text}) {s.pick('&', '&', '|', '^', 'and', 'or')} ({part})"
    return _spelled(s, text)


def _spelled(s: Builder, text: str) -> str:
    """With no more parentheses than Python needs, half of the time."""
    return ast.unparse(parsed(text)) if s.roll(0.5) else text


def needed(spec: dict[str, Any]) -> dict[str, Any]:
    """Without lets, params and inputs that nothing reads: flashgen refuses some, a user writes none."""
    while True:
        read = _read(spec)
        for section in ("let", "inputs", "params"):
            kept = {name: form for name, form in spec.get(section, {}).items() if name in read}
            if len(kept) < len(spec.get(section, {})):
                spec = {**spec, section: kept}
                break
        else:
            return {key: value for key, value in spec.items() if value != {}}


def bound(spec: dict[str, Any], dims: dict[str, int]) -> dict[str, Any]:
    """With the length itself where no input that is left binds a dimension's name."""
    lost = dims.keys() - _extents(spec)
    if not lost:
        return spec

    def spelled(text: str) -> str:
        return re.sub(r"[A-Za-z_]\w*", lambda word: str(dims[word[0]]) if word[0] in lost else word[0], text)

    lets = {name: spelled(text) for name, text in spec.get("let", {}).items()}
    found = {**spec, "let": lets} | {key: spelled(spec[key]) for key in ("score", "mask") if key in spec}
    return {key: value for key, value in found.items() if value != {}}


def _extents(spec: dict[str, Any]) -> set[str]:
    """The dimensions of inputs, as they are written."""
    return {str(extent) for form in spec.get("inputs", {}).values() for extent in form["shape"]}


def _read(spec: dict[str, Any]) -> set[str]:
    """The names that are read by score, mask, lets, sugar and shapes."""
    texts = [spec.get("score", "0"), spec.get("mask", "0"), str(spec.get("softcap", 0)), *spec.get("let", {}).values()]
    texts += [str(extent) for extent in spec.get("window", {}).values()]
    texts += [str(extent) for form in spec.get("inputs", {}).values() for extent in form["shape"]]
    return {node.id for text in texts for node in ast.walk(parsed(text)) if isinstance(node, ast.Name)}


def _called(s: Builder, spec: dict[str, Any], sizes: dict[str, Any], large: bool) -> Case:
    """How the spec is called. Where `large`, half of the time without gradients, whose kernels take long to compile."""
    random = s.random
    bound = _extents(spec)
    layouts = ("bhsd", "bhsd", "bshd", "bshd", "fused", "wide", "turned", "alike")
    same = s.pick(*layouts)
    kernels = [kernel for kernel in ("forward", "backward_q", "backward_kv") if s.roll(0.75)]
    return Case(
        spec, **sizes,
        dtype=s.pick("bfloat16", "float16", "float32"), shared=sizes["batch"] > 1 and s.roll(0.25),
        values=random.randrange(2**31),
        gain=s.pick(1.0, 1.0, 1.0, 1.0, 4.0, 30.0, 0.0),
        scale=s.pick(None, None, None, None, 0.3, 1.0, -0.3, 0.0, 0.001),
        layouts=(s.pick(*layouts), s.pick(*layouts), s.pick(*layouts)) if s.roll(0.4) else (same, same, same),
        dims={name: length for name, length in s.dims.items() if name in bound},
        params={name: value for name, value in s.values.items() if name in spec.get("params", {})},
        recipes={name: recipe for name, recipe in s.recipes.items() if name in spec.get("inputs", {})},
        configs={kernel: round(random.random(), 6) for kernel in kernels},
        planned=s.roll(0.4), defaults=s.roll(0.4), broadcast=s.roll(0.3),
        converted=s.roll(0.12), deterministic=s.roll(0.2),
        d_out=s.pick(*D_OUT, *(["none"] * 4 if large else ())), d_lse=s.roll(0.7),
    )  # fmt: skip


def _packed(case: Case, random: Random) -> Case:
    """The case with a few sequences of lengths of their own, which may be none, and what belongs to no sequence."""
    batch = random.choice((1, 2, 3, 4))

    def length(most: int) -> int:
        return random.choice((most, random.randint(0, most), random.randint(0, most), 1))

    lengths = [(length(case.q_len), length(case.kv_len)) for _ in range(batch)]
    lengths[random.randrange(batch)] = case.q_len, case.kv_len
    rest = (random.randint(0, 2 * case.q_len), random.randint(0, 2 * case.kv_len)) if random.random() < 0.5 else (0, 0)
    return replace(case, batch=batch, shared=False, converted=False, lengths=tuple(lengths), rest=rest)


def _paged(case: Case) -> Case:
    """The case with keys in pages: without gradients, and with inputs for as many keys as a row of the table has."""
    kv_len = room([length for _, length in case.lengths], PAGE)
    return replace(case, kv_len=kv_len, paged=True, rest=(0, 0), scale=None, d_out="none")
