"""What the Hopper forward kernel and its roles, the producer and the consumers, are given."""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.codegen.arguments import SCHEDULE, extra_arguments
from flashgen.codegen.sm90.keys import KeyTiles, of_roles
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class Role:
    """What the kernel, or one of its roles, is given beside what every variant's is; `sizes` are scalars."""

    arguments: tuple[str, ...]
    sizes: tuple[str, ...]

    @property
    def longest(self) -> str:
        """The sizes as a role calls them, which asks each tile for the lengths of its sequence."""
        return of_roles(self.sizes)


def roles_of(
    variant: Variant, keys: KeyTiles | None, computes: set[str], asked: set[str], *, scheduled: bool, uneven: bool
) -> tuple[Role, Role, Role]:
    """What the kernel is given, and of it consumers, which read `computes`, and the producer, which reads `asked`."""
    counter = ("counter_ptr",) if uneven else ()
    read = (SCHEDULE if scheduled else ()) + _arguments(variant, computes)
    loads = {"kv_heads", "kv_len", "head_dim", "v_head_dim"}
    return (
        Role(counter + read, sizes_of(computes | loads | {"scale"})),
        Role(read, sizes_of(computes)),
        Role(counter + (keys.arguments if keys else ()), sizes_of(asked | loads)),
    )


def _arguments(variant: Variant, computes: set[str]) -> tuple[str, ...]:
    return tuple(name for name in extra_arguments(variant, computes) if name != "batch")


def sizes_of(used: set[str]) -> tuple[str, ...]:
    """Scalars in the order in which the kernel takes them: those that it always reads, and those that are used."""
    names = ("scale", "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "head_group")
    return tuple(name for name in names if name in used or name in ("batch", "heads", "q_len"))
