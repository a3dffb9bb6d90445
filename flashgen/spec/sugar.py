"""The sugar of a spec, spelled out as the expressions and inputs that it stands for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from flashgen.spec.model import SpecForm
from flashgen.spec.source import KeyPath


@dataclass(frozen=True)
class Piece:
    """An expression, as a person would write it, and the key that asked for it."""

    text: str
    path: KeyPath


@dataclass(frozen=True)
class SugarInput:
    """An input that sugar adds. `may_be_one` says of each dimension whether the caller may pass size 1 instead."""

    name: str
    shape: tuple[str, ...]
    dtype: str
    key: str
    grad: bool = False
    default: str | None = None
    may_be_one: tuple[bool, ...] = (False,)


def inputs(spec: SpecForm) -> tuple[SugarInput, ...]:
    """The inputs that the spec's sugar adds after its own."""
    found = []
    if spec.bias is not None:
        found.append(SugarInput("slopes", ("heads",), "float32", "bias", grad=True, default="alibi_slopes"))
    if spec.sink is not None:
        found.append(SugarInput("sinks", ("heads",), "float32", "sink", grad=True))
    if spec.block_sparse is not None:
        block_q, block_kv = spec.block_sparse.block_q, spec.block_sparse.block_kv
        shape = ("batch", "heads", _blocks("q_len", block_q), _blocks("kv_len", block_kv))
        may_be_one = (True, True, False, False)
        found.append(SugarInput("block_mask", shape, "bool", "block_sparse", may_be_one=may_be_one))
    return tuple(found)


def scores(spec: SpecForm) -> tuple[Piece, ...]:
    """What becomes of `score`, step by step: each piece reads the result of the one before as `score`."""
    found = []
    if spec.bias is not None:
        found.append(Piece("score - slopes[h] * abs(q - k)", ("bias",)))
    if spec.softcap is not None:
        cap = atom(spec.softcap)
        found.append(Piece(f"{cap} * tanh(score / {cap})", ("softcap",)))
    if spec.score is not None:
        found.append(Piece(spec.score, ("score",)))
    return tuple(found)


def masks(spec: SpecForm) -> tuple[Piece, ...]:
    """The masks that are joined with `&`."""
    found = []
    if spec.causal:
        found.append(Piece("k <= q", ("causal",)))
    if spec.window is not None:
        if spec.window.left is not None:
            found.append(Piece("k >= " + _offset("q", "-", spec.window.left), ("window", "left")))
        if spec.window.right is not None:
            found.append(Piece("k <= " + _offset("q", "+", spec.window.right), ("window", "right")))
    if spec.block_sparse is not None:
        # Blocks count the rows of q, not the key positions that rows are aligned to.
        row = "q" if spec.align == "top_left" else "(q - (kv_len - q_len))"
        block = f"block_mask[b, h, {row} // {spec.block_sparse.block_q}, k // {spec.block_sparse.block_kv}]"
        found.append(Piece(block, ("block_sparse",)))
    if spec.mask is not None:
        found.append(Piece(spec.mask, ("mask",)))
    return tuple(found)


def score_text(pieces: tuple[Piece, ...]) -> str:
    """The whole score as one text."""
    text = "score"
    for piece in pieces:
        text = with_score(piece.text, text)
    return text


def mask_text(pieces: tuple[Piece, ...]) -> str:
    """The whole mask as one text."""
    texts = list(dict.fromkeys(one_line(piece.text) for piece in pieces)) or ["True"]
    return texts[0] if len(texts) == 1 else " & ".join(f"({text})" for text in texts)


def with_score(text: str, score: str) -> str:
    """The text of an expression with `score` spelled out."""
    return re.sub(r"\bscore\b", lambda _: atom(score), one_line(text))


def one_line(text: str) -> str:
    return " ".join(text.split())


def atom(text: str) -> str:
    """The text in parentheses, unless it is a number or a name."""
    text = one_line(text)
    return text if re.fullmatch(r"[\w.]+", text) else f"({text})"


def _offset(position: str, sign: str, amount: str) -> str:
    return position if amount == "0" else f"{position} {sign} {atom(amount)}"


def _blocks(length: str, block: int) -> str:
    return length if block == 1 else f"({length} + {block - 1}) // {block}"
