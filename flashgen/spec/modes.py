"""The forms of call that a spec's shapes may be for, and which sizes each of them has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flashgen.spec.variant import TuneShape, Variant


@dataclass(frozen=True)
class Mode:
    """`needs` are the sizes that a shape must have beside batch and heads, `has` those that it may have too.

    `defaults` are further sizes of shapes that do not say them, `usual` batch and kv_len of those that are tuned where
    a spec names none.
    """

    needs: tuple[str, ...]
    has: tuple[str, ...] = ()
    defaults: tuple[tuple[str, int], ...] = ()
    usual: tuple[tuple[int, int], ...] = ()

    @property
    def sizes(self) -> tuple[str, ...]:
        """All of them, with those that every shape has."""
        return ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", *self.needs, *self.has)


_DECODED = ((1, 131072), (16, 8192), (64, 4096))
MODES = {
    "dense": Mode(("q_len",), ("kv_len",)),
    "decode": Mode(("kv_len",), ("q_len",), (("q_len", 1),), _DECODED),
    "paged": Mode(
        ("kv_len",), ("q_len", "block_size", "cache"), (("q_len", 1), ("block_size", 16)), _DECODED
    ),
}  # fmt: skip
# Heads of the usual shapes.
USUAL_HEADS, USUAL_KV_HEADS = 32, 8
# What the decode kernel takes of a dense call.
MOST_QUERIES = 16
BLOCK_SIZES = 16
CACHES = ("float8_e4m3fn", "float8_e5m2", "int8")


def misfit(mode: str, sizes: Mapping[str, Any]) -> tuple[str, str] | None:
    """The size that does not fit its mode, or is missing, and what would be right; None where all is."""
    about = MODES[mode]
    for name in about.needs:
        if name not in sizes:
            return name, f"{name}, as mode {mode} needs it"
    for name in sizes:
        if name not in about.sizes:
            return name, f"{', '.join(about.sizes)} with mode {mode}"
    if mode == "decode" and sizes.get("q_len", 1) > MOST_QUERIES:
        return "q_len", f"1 to {MOST_QUERIES} with mode decode"
    if sizes.get("block_size", BLOCK_SIZES) % BLOCK_SIZES:
        return "block_size", f"a multiple of {BLOCK_SIZES}"
    return None


def tune_shape(mode: str, given: Mapping[str, Any]) -> TuneShape:
    """A shape of sizes that fit their mode: heads share no KV head and keys are as many as queries where not said."""
    sizes = {**dict(MODES[mode].defaults), **given}
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("kv_len", sizes.get("q_len"))
    return TuneShape(**sizes, mode=mode)


def shapes_of(variant: Variant, modes: Collection[str] | None = None) -> tuple[TuneShape, ...]:
    """The spec's own shapes for some forms of call, the usual ones where it names none of a form; None: all its own."""
    if modes is None:
        return variant.tune_shapes
    found: list[TuneShape] = []
    for mode in modes:
        own = [shape for shape in variant.tune_shapes if shape.mode == mode]
        heads = {"heads": USUAL_HEADS, "kv_heads": USUAL_KV_HEADS}
        usual = [{**heads, "batch": batch, "kv_len": kv_len} for batch, kv_len in MODES[mode].usual]
        found += own or [tune_shape(mode, sizes) for sizes in usual]
    return tuple(found)
