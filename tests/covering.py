"""A few that show what all of them would: each value of each field is in one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from flashgen.runtime import Config


def covering(configs: Sequence[Config]) -> list[Config]:
    """Configs in which each value of each field that any of them has occurs, the large ones rather than the small."""
    largest_first = sorted(configs, key=lambda config: config.BM * config.BN * config.num_stages, reverse=True)
    chosen: list[Config] = []
    missing = set().union(*map(_values, configs))
    while missing:
        chosen.append(max(largest_first, key=lambda config: len(missing & _values(config))))
        missing -= _values(chosen[-1])
    return chosen


def _values(config: Config) -> set[tuple[str, object]]:
    return {(field.name, getattr(config, field.name)) for field in fields(config)}
