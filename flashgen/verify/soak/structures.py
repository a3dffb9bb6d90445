"""What people write: masks and scores of papers and libraries, with sizes and dtypes drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from flashgen.verify.soak.builder import Builder
from flashgen.verify.soak.case import Recipe

INTS = ("int32", "int32", "int64", "int16", "int8", "uint8")
FLOATS = ("float32", "float32", "bfloat16", "float16")
LAYOUTS = ("plain", "plain", "plain", "turned", "wide", "alike")


def mask_documents(s: Builder) -> None:
    """Packed documents, by an id of each token."""
    recipe = Recipe("segments", 0, s.pick(2, 4, 9), s.pick(*LAYOUTS))
    doc = s.input(["batch", "kv_len"], s.pick(*INTS), recipe, "doc", "document")
    s.masks.append(s.pick(f"{doc}[b, q] == {doc}[b, k]", f"{doc}[b, q] >= {doc}[b, k]"))


def mask_offsets(s: Builder) -> None:
    """Documents by where each begins and ends: a gather in a gather, over a dimension with a name."""
    docs = s.pick(2, 3, 5)
    doc = s.input(["batch", "kv_len"], "int32", Recipe("segments", 0, docs - 1), "doc")
    name = s.dim(docs, "docs", "n")
    off = s.input([name], s.pick("int32", "int64"), Recipe("sorted", 0, s.sizes["kv_len"]), "off", "ends")
    s.named(name)
    s.masks.append(s.pick(f"k >= {off}[{doc}[b, q]]", f"(k < {off}[{doc}[b, q]]) | (k == q)",
                          f"(k < {off}[{doc}[b, k]]) & (q >= {off}[{doc}[b, q]] - 20)"))  # fmt: skip


def mask_prefix(s: Builder) -> None:
    """A prefix that all see, causal beyond: of one length, or one for each sequence."""
    length = s.random.choice([0, 1, 16, -3, s.sizes["kv_len"] // 3, 10**6, 2**31 - 1, -(2**31)])
    prefix = s.param(length, "prefix", runtime=s.roll(0.7))
    s.masks.append(f"(k <= q) | (k < {prefix})")


def mask_lengths(s: Builder) -> None:
    """Keys up to a length of each sequence."""
    recipe = Recipe("outside" if s.roll(0.2) else "uniform", 0, s.sizes["kv_len"], s.pick(*LAYOUTS))
    lengths = s.input(["batch"], s.pick("int32", "int64"), recipe, "lengths", "n")
    s.masks.append(s.pick(f"k < {lengths}[b]", f"(k < {lengths}[b]) & (q < {lengths}[b])"))


def mask_neighbourhood(s: Builder) -> None:
    """NATTEN: a square around each pixel, kept inside the picture."""
    width, r = s.pick(3, 4, 5, 7, 8, 11), s.pick(1, 2, 3)
    W, R = s.param(width, "W", runtime=False), s.param(min(r, width // 2), "r")
    if s.roll(0.5):
        cx = s.let(f"clamp(q // {W}, {R}, {W} - 1 - {R})", "cx")
        cy = s.let(f"clamp(q % {W}, {R}, {W} - 1 - {R})", "cy")
    else:
        cx = s.let(f"min(max(q // {W}, {R}), (kv_len + {W} - 1) // {W} - 1)", "cx")
        cy = s.let(f"max({R}, min(q % {W}, {W} - 1 - {R}))", "cy")
    s.masks.append(f"(abs({cx} - k // {W}) <= {R}) & (abs({cy} - k % {W}) <= {R})")


def mask_dilated(s: Builder) -> None:
    """Every n-th key, or every n-th stretch of keys."""
    n = s.param(s.pick(1, 2, 3, 4, 7), "n", "dilation")
    s.masks.append(s.pick(f"(q - k) % {n} == 0", f"((q - k) % {n} == 0) & (q - k < 40)", f"q % {n} == k % {n}",
                          f"(q // 8 - k // 8) % {n} == 0", f"(k // {n}) % 2 == (q // {n}) % 2"))  # fmt: skip


def mask_global(s: Builder) -> None:
    """A window, and tokens that see and are seen by all."""
    W = s.param(s.pick(0, 1, 4, 16, 33), "W", "reach")
    flag = s.input(["batch", "kv_len"], "bool", Recipe("either", 0, 1, s.pick(*LAYOUTS)), "is_global", "flag")
    s.masks.append(f"(abs(q - k) <= {W}) | {flag}[b, k] | {flag}[b, q]")


def mask_per_head(s: Builder) -> None:
    """A window for each head."""
    reach = s.input(["heads"], s.pick("int32", "int64", "int16"), Recipe("uniform", -1, 60), "win", "reach")
    s.masks.append(s.pick(f"abs(q - k) <= {reach}[h]", f"(k <= q) & (k > q - {reach}[h])",
                          f"k <= q + {reach}[h] - 30"))  # fmt: skip


def mask_table(s: Builder) -> None:
    """Bits for each pair or for each pair of buckets."""
    if s.roll(0.5):
        heads = s.pick("heads", 1)
        seen = s.input([heads, "q_len", "kv_len"], "bool", Recipe("either", 1, 0, s.pick(*LAYOUTS)), "allowed", "keep")
        row = "q" if s.align == "top_left" else "q - kv_len + q_len"
        s.masks.append(f"{seen}[{'h' if heads == 'heads' else 0}, {row}, k]")
    else:
        n = s.pick(2, 3, 4)
        kind = s.input(["batch", "kv_len"], s.pick("int32", "uint8", "int8"), Recipe("uniform", 0, n - 1), "kind")
        sees = s.input([n, n], "bool", Recipe("either", 1, 0, s.pick(*LAYOUTS)), "sees")
        s.masks.append(f"{sees}[{kind}[b, q], {kind}[b, k]]")


def mask_stages(s: Builder) -> None:
    """Stages of some tokens each, a runtime number of them ahead."""
    stage = s.param(s.pick(0, 1, 16, -1, 2), "stage", runtime=True)
    s.masks.append(s.pick(f"(q - {stage}) // 8 >= k // 8", f"k <= q + {stage}", f"(q + k) % 5 != {stage}"))


def mask_chosen(s: Builder) -> None:
    """Blocks of keys that each block of queries has chosen, as of native sparse attention."""
    n, top = s.pick(4, 8, 16), _count(s, s.pick(1, 2, 3, 5), "top")
    blocks = s.sizes["kv_len"] // n
    recipe = Recipe("uniform", -1 if s.roll(0.3) else 0, blocks, s.pick(*LAYOUTS))
    shape: list[str | int] = ["batch", "heads", f"(q_len + {n - 1}) // {n}", top]
    chosen = s.input(shape, s.pick("int32", "int64", "int16"), recipe, "chosen", "picked")
    _named(s, top)
    i, row = s.name("i", "j"), "q" if s.align == "top_left" else "(q - kv_len + q_len)"
    s.masks.append(s.pick(f"any({i}, {top}, {chosen}[b, h, {row} // {n}, {i}] == k // {n})",
                          f"~all({i}, {top}, {chosen}[b, h, {row} // {n}, {i}] != k // {n})",
                          f"sum({i}, {top}, {chosen}[b, h, {row} // {n}, {i}] == k // {n}) > 0"))  # fmt: skip


def _count(s: Builder, value: int, *like: str) -> str:
    """How many there are of something: a param, baked or of the call, or what an input has of it."""
    return s.dim(value, *like) if s.roll(0.4) else s.param(value, *like, runtime=s.roll(0.5))


def _named(s: Builder, count: str) -> None:
    """From here on a count may be read, if it is a dimension."""
    if count in s.dims:
        s.named(count)


def _of_call(s: Builder, count: str) -> bool:
    """Whether a call decides how many there are."""
    return count in s.dims or count in s.values


def mask_steps(s: Builder) -> None:
    """Every so many keys, of several distances, of which there may be none."""
    n = s.param(s.pick(-1, 0, 1, 2, 4), "n", "steps", runtime=s.roll(0.8))
    i = s.name("i", "j")
    s.masks.append(s.pick(f"all({i}, {n}, (q - k) % ({i} + 2) != 1)", f"any({i}, {n}, abs(q - k) == 3 * {i} + 1)",
                          f"k <= q + sum({i}, {n}, {i} * {i})",
                          f"sum({i}, {n}, (k % ({i} + 2) == 0)) <= {n} // 2"))  # fmt: skip


def mask_limit(s: Builder) -> None:
    """A limit that may be infinite."""
    limit = s.param(s.pick(math.inf, -math.inf, 3e38, 1e30, 7.0, 30.5), "limit", "reach", runtime=s.roll(0.6))
    s.masks.append(s.pick(f"q - k < {limit}", f"(k <= q) | ({limit} > 20.0)", f"abs(q - k) <= max({limit}, 3)"))


def score_limited(s: Builder) -> None:
    """Scores up to a limit that may be infinite, or hidden by minus infinity."""
    if s.roll(0.5):
        cap = s.param(s.pick(math.inf, 3e38, 2.0, 20.0), "cap", "limit", runtime=s.roll(0.6))
        s.scores.append(s.pick(f"min({{}}, {cap})", f"clamp({{}}, -{cap}, {cap})", f"max({{}}, -{cap})"))
    else:
        low = "-inf" if s.roll(0.4) else s.param(s.pick(-math.inf, -1e30), "low", runtime=s.roll(0.5))
        s.scores.append(s.pick(f"where(abs(q - k) < 30, {{}}, {low})", f"{{}} if k % 7 != 3 else {low}",
                               f"{{}} + where((q + k) % 3 == 0, 0.0, {low})"))  # fmt: skip


def score_additive(s: Builder) -> None:
    """BERT's mask, added to the score."""
    low = s.pick("-10000.0", "-1e4", "-1e9", "-30000.0", "-3.4028234663852886e38")
    dtype = s.pick("float32", "int32", "bool", "bfloat16")
    pad = s.input(["batch", "kv_len"], dtype, Recipe("either", 1, 0, s.pick(*LAYOUTS)), "pad", exact=True)
    keep = f"where({pad}[b, k], 1.0, 0.0)" if dtype == "bool" else f"{pad}[b, k]"
    forms = [f"{{}} + (1.0 - {keep}) * {low}", f"{{}} + where({keep} > 0.5, 0.0, {low})"]
    s.scores.append(s.pick(*forms, f"{{}} + {low[1:]} * ({keep} - 1.0)", f"({{}}) - (1 - {keep}) * ({low[1:]})"))


def score_pairs(s: Builder) -> None:
    """A bias for each pair, with a mask added perhaps."""
    shape = [s.pick("batch", 1), s.pick("heads", 1), "q_len", "kv_len"]
    grad = s.roll(0.4)
    recipe = Recipe("normal", 0, 0.7, s.pick(*LAYOUTS))
    pair = s.input(shape, s.pick(*FLOATS), recipe, "pair", "bias", grad=grad, exact=False)
    row = "q" if s.align == "top_left" else "q - (kv_len - q_len)"
    b, h = ("b" if shape[0] == "batch" else "0"), ("h" if shape[1] == "heads" else "0")
    s.scores.append(f"{{}} + {pair}[{b}, {h}, {row}, k]")


def score_relative(s: Builder) -> None:
    """A learned bias of the clamped distance."""
    W = s.param(s.pick(0, 1, 4, 16, 40), "W", runtime=s.roll(0.3))
    recipe = Recipe(*s.pick(("normal", 0, 0.5), ("quarters", -1, 1)))
    rel = s.input(["heads", f"2*{W} + 1"], s.pick(*FLOATS), recipe, "rel", "rpb", grad=s.roll(0.7), exact=False)
    s.scores.append(s.pick(f"{{}} + {rel}[h, clamp(q - k, -{W}, {W}) + {W}]", f"{{}} + {rel}[h, q - k + {W}]",
                           f"{{}} * (1 + 0.1 * {rel}[h, max(min(k - q, {W}), -{W}) + {W}])"))  # fmt: skip


def score_buckets(s: Builder) -> None:
    """T5's buckets, logarithmic in the distance."""
    n = s.pick(8, 16, 32)
    half = n // 2
    table = s.input([n, "heads"], "float32", Recipe("normal", 0, 0.5), "table", "t5", grad=s.roll(0.6), exact=False)
    d = s.let("max(q - k, 0)", "d")
    far = f"{half} + (16 * {d}) // 80"
    s.scores.append(f"{{}} + {table}[min(where({d} < {half}, {d}, {far}), {n - 1}), h]")


def score_forget(s: Builder) -> None:
    """The Forgetting Transformer: what has been added up from the first token on, large numbers that cancel."""
    centre = s.pick(0.0, -50.0, -2000.0, -20000.0, 20000.0)
    recipe = Recipe("normal", centre, 2.0, s.pick(*LAYOUTS))
    log_f = s.input(["batch", "heads", "kv_len"], "float32", recipe, "log_f", grad=s.roll(0.4), exact=False)
    form = f"{{}} + ({log_f}[b, h, q] - {log_f}[b, h, k])"
    s.scores.append(s.pick(form, f"{{}} + {log_f}[b, h, q] - {log_f}[b, h, k]"))


def score_tanh(s: Builder) -> None:
    """tanh of products of the score."""
    c = s.param(s.pick(0.1, -0.103, 0.5, 2.0, 20.0), "c", "steepness")
    s.scores.append(s.pick(f"tanh(({c} * (kv_h - q)) ** 2 * abs({{}}))", f"8 * tanh({c} * {{}} * (1 + h))",
                           f"{{}} * sigmoid({c} * (k - q))", f"30.0 * tanh({{}} * {c} / 30.0)",
                           f"{{}} + 3.0 * tanh({c} * {{}})"))  # fmt: skip


def score_kerple(s: Builder) -> None:
    """KERPLE: a logarithm of the distance, learned."""
    r1 = s.input(["heads"], "float32", Recipe("uniform", 0.1, 2.0), "r1", grad=s.roll(0.7), exact=False)
    r2 = s.input(["heads"], "float32", Recipe("uniform", 0.1, 2.0), "r2", grad=s.roll(0.7), exact=False)
    s.scores.append(s.pick(f"{{}} - {r1}[h] * log(1 + {r2}[h] * abs(q - k))",
                           f"{{}} - {r1}[h] * abs(q - k) ** {r2}[h]"))  # fmt: skip


def score_scaled(s: Builder) -> None:
    """Scores scaled by position, by length, by a temperature of each head."""
    if s.roll(0.5):
        shape = s.pick(["heads"], ["heads"], [])
        tau = s.input(shape, s.pick(*FLOATS), Recipe("uniform", 0.2, 3.0), "tau", grad=s.roll(0.6), exact=False)
        tau = f"{tau}[h]" if shape else tau
        s.scores.append(s.pick(f"{{}} * {tau}", f"{{}} / {tau}"))
    else:
        c = s.param(s.pick(0.5, 1, 2, 0, -1), "c")
        s.scores.append(s.pick("{} * log(2 + max(q, 0)) / log(2.0 + kv_len)", f"{{}} * ({c} + 1.0 / (1 + abs(q)))",
                               f"{{}} * {c} - 0.05 * abs(q - k)"))  # fmt: skip


def score_parts(s: Builder) -> None:
    """Products of short vectors beside those of the heads, as MLA's with positions turned into them."""
    size = _count(s, s.pick(1, 2, 4), "R", "rope")
    grad, recipe = s.roll(0.7) and not _of_call(s, size), Recipe("normal", 0, 0.7, s.pick(*LAYOUTS))
    qr = s.input(["batch", "heads", "q_len", size], s.pick(*FLOATS), recipe, "qr", grad=grad, exact=False)
    kr = s.input(["batch", "kv_len", size], s.pick(*FLOATS), recipe, "kr", grad=grad, exact=False)
    i, row = s.name("i", "j"), "q" if s.align == "top_left" else "q - kv_len + q_len"
    s.scores.append(f"{{}} + sum({i}, {size}, {qr}[b, h, {row}, {i}] * {kr}[b, k, {i}])")


def score_mixture(s: Builder) -> None:
    """Several functions of one score, each with a weight of its own."""
    n = _count(s, s.pick(1, 2, 3), "n", "parts")
    weight = s.input(["heads", s.pick(n, 2)], "float32", Recipe("normal", 0, 0.7), "w", exact=False)
    gain = s.input(["heads"], "float32", Recipe("uniform", 0.2, 2.0), "gain", grad=s.roll(0.6), exact=False)
    _named(s, n)
    i, j = s.name("i"), s.name("j")
    s.scores.append(s.pick(f"{{}} + sum({i}, {n}, {weight}[h, {i}] * tanh({{}} * ({i} + 1)))",
                           f"{{}} * {gain}[h] + sum({i}, {n}, {weight}[h, {i}] * {gain}[h] * cos(0.1 * {i} * (q - k)))",
                           f"{{}} + 0.1 * {gain}[h] * sum({i}, {n}, any({j}, {n}, (k + {i}) % 4 == {j}))"))  # fmt: skip


def score_rows(s: Builder) -> None:
    """A term that is the same along the row, or along the keys."""
    n = s.dim(s.pick(2, 5), "n")
    table = s.input(["heads", n], s.pick("int32", "float32"), Recipe("quarters", -3, 3), "t", exact=True)
    s.named(n)
    s.scores.append(s.pick(f"{{}} + 0.1 * (q // {n}) + {table}[h, q % {n}]", f"{{}} + {table}[h, k // 9 % {n}]"))


MASKS: Mapping[Callable[[Builder], None], int] = {
    mask_documents: 4, mask_offsets: 3, mask_prefix: 3, mask_lengths: 3, mask_neighbourhood: 5, mask_dilated: 3,
    mask_global: 3, mask_per_head: 3, mask_table: 3, mask_stages: 3, mask_limit: 2, mask_chosen: 2,
    mask_steps: 2,
}  # fmt: skip
SCORES: Mapping[Callable[[Builder], None], int] = {
    score_additive: 5, score_pairs: 3, score_relative: 4, score_buckets: 2, score_forget: 3, score_tanh: 4,
    score_kerple: 3, score_scaled: 2, score_rows: 2, score_limited: 3, score_parts: 2,
    score_mixture: 2,
}  # fmt: skip
