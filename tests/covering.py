"""A few that show what all of them would: each value of each field is in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from flashgen.runtime import Config

Dims = tuple[int, int]


def covering(configs: Sequence[tuple[Dims, Config]]) -> list[tuple[Dims, Config]]:
    """Configs, each for head dimensions, in which each of these and each value of each field occurs.

    The large ones rather than the small.
    """
    largest_first = sorted(configs, key=lambda each: each[1].BM * each[1].BN * each[1].num_stages, reverse=True)
    chosen: list[tuple[Dims, Config]] = []
    missing = set().union(*map(_values, configs))
    while missing:
        chosen.append(max(largest_first, key=lambda each: len(missing & _values(each))))
        missing -= _values(chosen[-1])
    return chosen


def _values(each: tuple[Dims, Config]) -> set[tuple[str, object]]:
    dims, config = each
    return {("dims", dims), *((field.name, getattr(config, field.name)) for field in fields(config))}


def two_of_three(names: Sequence[str], left_out: int) -> list[str]:
    """The names without every third: of three kernels, each name is tried with two."""
    return [name for place, name in enumerate(names) if place % 3 != left_out]
