"""What the Hopper kernels and their roles, the producer and the consumers, are given."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flashgen.codegen.arguments import SCHEDULE, extra_arguments
from flashgen.codegen.sm90.keys import KeyTiles, of_roles
from flashgen.spec.variant import Variant

# Scalars in the order in which these kernels take them.
_SIZES = ("scale", "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim", "num_rows", "head_group")
# Those by which each role of the forward kernel finds its tiles of queries.
PLACES = frozenset({"batch", "heads", "q_len"})


@dataclass(frozen=True)
class Role:
    """What the forward kernel, or one of its roles, is given beside what every variant's is; `sizes` are scalars."""

    arguments: tuple[str, ...]
    sizes: tuple[str, ...]

    @property
    def longest(self) -> str:
        """The sizes as a role calls them, which asks each tile for the lengths of its sequence."""
        return of_roles(self.sizes)


def roles_of(
    variant: Variant, keys: KeyTiles | None, computes: set[str], asked: set[str], *, scheduled: bool, uneven: bool
) -> tuple[Role, Role, Role]:
    """What the forward kernel is given, and of it consumers, which read `computes`, and the producer, which reads
    `asked`."""
    counter = ("counter_ptr",) if uneven else ()
    # The number of batch elements is among the sizes.
    read = (SCHEDULE if scheduled else ()) + extra_arguments(variant, computes - {"batch"})
    loads = {"kv_heads", "kv_len", "head_dim", "v_head_dim"}
    return (
        Role(counter + read, sizes_of(computes | loads | PLACES | {"scale"})),
        Role(read, sizes_of(computes | PLACES)),
        Role(counter + (keys.arguments if keys else ()), sizes_of(asked | loads | PLACES)),
    )


def sizes_of(used: Collection[str]) -> tuple[str, ...]:
    """Those that are used of the scalars that every variant's kernels may have."""
    return tuple(name for name in _SIZES if name in used)
