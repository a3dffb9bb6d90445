"""The forms of call that a spec's shapes may be for, and which sizes each of them has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashgen.spec.variant import TuneShape, Variant


@dataclass(frozen=True)
class Mode:
    """`needs` are the sizes that a shape must have beside batch and heads, `has` those that it may have too.

    `defaults` are further sizes of shapes that do not say them, `usual` gives those of shapes that are tuned where a
    spec names none, by its head dimensions.
    """

    needs: tuple[str, ...]
    usual: Callable[[Sequence[int]], Iterable[Mapping[str, int]]]
    has: tuple[str, ...] = ()
    defaults: tuple[tuple[str, int], ...] = ()

    @property
    def sizes(self) -> tuple[str, ...]:
        """All of them, with those that every shape has."""
        return ("batch", "heads", "kv_heads", "head_dim", "v_head_dim", *self.needs, *self.has)


def _trained(head_dims: Sequence[int]) -> Iterable[Mapping[str, int]]:
    """Of about as many elements whatever the head dimension."""
    return (
        {"batch": batch, "heads": 32 if head_dim <= 64 else 16, "q_len": length, "head_dim": head_dim}
        for head_dim in head_dims
        for batch, length in ((2, 8192), (8, 2048))
    )


# Heads of the usual shapes.
_SERVED = {"heads": 32, "kv_heads": 8}
_DECODED = tuple(
    {**_SERVED, "batch": batch, "kv_len": kv_len} for batch, kv_len in ((1, 131072), (16, 8192), (64, 4096))
)
# What a batch of documents looks like in training.
_PACKED = ({"batch": 32, "heads": 16, "kv_heads": 16, "max_len": 4096},)
MODES = {
    "dense": Mode(("q_len",), _trained, ("kv_len",)),
    "decode": Mode(("kv_len",), lambda _: _DECODED, ("q_len",), (("q_len", 1),)),
    "paged": Mode(
        ("kv_len",), lambda _: _DECODED, ("q_len", "block_size", "cache"), (("q_len", 1), ("block_size", 16))
    ),
    "varlen": Mode(("max_len",), lambda _: _PACKED, ("min_len",)),
}  # fmt: skip
# What the decode kernel takes of a dense call.
MOST_QUERIES = 16
BLOCK_SIZES = 16
# A packed batch has all its lengths drawn at once.
MOST_SEQUENCES = 65536
# How many times the shortest sequence of a packed batch the longest is, where a shape does not say.
SPREAD = 32
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
    if mode == "varlen" and sizes["batch"] > MOST_SEQUENCES:
        return "batch", f"1 to {MOST_SEQUENCES} with mode varlen"
    if sizes.get("min_len", 1) > sizes.get("max_len", 1):
        return "min_len", f"1 to max_len, {sizes['max_len']}"
    if sizes.get("block_size", BLOCK_SIZES) % BLOCK_SIZES:
        return "block_size", f"a multiple of {BLOCK_SIZES}"
    return None


def tune_shape(mode: str, given: Mapping[str, Any]) -> TuneShape:
    """A shape of sizes that fit their mode: heads share no KV head and keys are as many as queries where not said.

    Packed sequences have as many keys as queries, the longest max_len.
    """
    sizes = {**dict(MODES[mode].defaults), **given}
    if mode == "varlen":
        sizes["q_len"] = sizes.pop("max_len")
        sizes.setdefault("min_len", max(1, sizes["q_len"] // SPREAD))
    sizes.setdefault("kv_heads", sizes["heads"])
    sizes.setdefault("kv_len", sizes.get("q_len"))
    return TuneShape(**sizes, mode=mode)


def usual_shapes(mode: str, head_dims: Sequence[int]) -> tuple[TuneShape, ...]:
    """What is tuned for a form of call where a spec names no shape of it."""
    return tuple(tune_shape(mode, sizes) for sizes in MODES[mode].usual(head_dims))


def shapes_of(variant: Variant, modes: Collection[str] | None = None) -> tuple[TuneShape, ...]:
    """The spec's own shapes for some forms of call, the usual ones where it names none of a form; None: all its own."""
    if modes is None:
        return variant.tune_shapes
    found: list[TuneShape] = []
    for mode in modes:
        own = [shape for shape in variant.tune_shapes if shape.mode == mode]
        found += own or usual_shapes(mode, variant.head_dims)
    return tuple(found)
