"""What the entries of a study's journal may be.

Optuna believes what it reads: a text for a time stays in memory until a sampler compares it, far from where it came
from. So each entry is looked at before Optuna has it. Of another version's entries no field is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Test = Callable[[Any], bool]


def is_entry(log: Mapping[str, Any]) -> bool:
    """Whether an entry has the types that Optuna's own have, as far as we know its fields."""
    operation = log.get("op_code")
    if not (_is_count(operation) and isinstance(log.get("worker_id"), str)):
        return False
    return all(test(log[name]) for name, test in _FIELDS.items() if name in log)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e300 and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _or_none(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _are_attributes(value: Any) -> bool:
    """Also that what is enqueued names its params."""
    return isinstance(value, dict) and isinstance(value.get("fixed_params", {}), dict)


_FIELDS: Mapping[str, Test] = {
    "study_id": _is_count,
    "trial_id": _is_count,
    "study_name": _is_text,
    # What is fastest is best: of one objective the least.
    "directions": lambda value: value == [1] and _is_count(value[0]),
    "state": _is_count,
    "value": _or_none(_is_number),
    "values": _or_none(lambda value: isinstance(value, list) and len(value) == 1 and _is_number(value[0])),
    "param_name": _is_text,
    "param_value_internal": _is_number,
    "distribution": _is_text,
    "distributions": _is_dict,
    "params": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "datetime_start": _or_none(_is_text),
    "datetime_complete": _or_none(_is_text),
    "intermediate_values": _is_dict,
    "intermediate_value": _is_number,
    "step": _is_count,
    "user_attr": _is_dict,
    "user_attrs": _is_dict,
    "system_attr": _are_attributes,
    "system_attrs": _are_attributes,
}
