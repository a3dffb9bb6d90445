"""The sugar of a spec, spelled out as the expressions and inputs that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flashgen.errors import Location
from flashgen.lang.syntax import Literal, Name, Operation, Syntax, with_names
from flashgen.lang.written import written
from flashgen.spec.model import SpecForm
from flashgen.spec.source import KeyPath


@dataclass(frozen=True)
class Piece:
    """An expression, where its text starts, and the key that asked for it."""

    syntax: Syntax
    at: Location
    path: KeyPath

    def with_names(self, **meanings: Syntax) -> Piece:
        return Piece(with_names(self.syntax, meanings), self.at, self.path)


# Parses the text of an expression that stands under a key, or that its sugar stands for.
Read = Callable[[KeyPath, str], Piece]


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


def scores(spec: SpecForm, read: Read) -> tuple[Piece, ...]:
    """What becomes of `score`, step by step: each piece reads the result of the one before as `score`."""
    found = []
    if spec.bias is not None:
        found.append(read(("bias",), "score - slopes[h] * abs(q - k)"))
    if spec.softcap is not None:
        cap = read(("softcap",), spec.softcap).syntax
        found.append(read(("softcap",), "cap * tanh(score / cap)").with_names(cap=cap))
    if spec.score is not None:
        found.append(read(("score",), spec.score))
    return tuple(found)


def masks(spec: SpecForm, read: Read) -> tuple[Piece, ...]:
    """The masks that are joined with `&`."""
    found = []
    if spec.causal:
        found.append(read(("causal",), "k <= q"))
    if spec.window is not None:
        if spec.window.left is not None:
            found.append(_window_side(read, "left", spec.window.left, "k >= q - amount", "k >= q"))
        if spec.window.right is not None:
            found.append(_window_side(read, "right", spec.window.right, "k <= q + amount", "k <= q"))
    if spec.block_sparse is not None:
        # Blocks count the rows of q, not the key positions that rows are aligned to.
        row = "q" if spec.align == "top_left" else "(q - (kv_len - q_len))"
        block = f"block_mask[b, h, {row} // {spec.block_sparse.block_q}, k // {spec.block_sparse.block_kv}]"
        found.append(read(("block_sparse",), block))
    if spec.mask is not None:
        found.append(read(("mask",), spec.mask))
    return tuple(found)


def _window_side(read: Read, side: str, amount: str, bound: str, at_zero: str) -> Piece:
    path = ("window", side)
    size = read(path, amount).syntax
    if isinstance(size, Literal) and size.value == 0:
        return read(path, at_zero)
    return read(path, bound).with_names(amount=size)


def score_text(pieces: Sequence[Piece]) -> str:
    """The whole score as one text."""
    score: Syntax = Name(Location(""), "score")
    for piece in pieces:
        score = with_names(piece.syntax, {"score": score})
    return written(score)


def mask_text(pieces: Sequence[Piece]) -> str:
    """The whole mask as one text."""
    distinct = list({written(piece.syntax): piece.syntax for piece in pieces}.values())
    if not distinct:
        return "True"
    whole = distinct[0]
    for syntax in distinct[1:]:
        whole = Operation(syntax.at, "&", (whole, syntax))
    return written(whole)


def _blocks(length: str, block: int) -> str:
    return length if block == 1 else f"({length} + {block - 1}) // {block}"
