"""The dtypes of paged caches: specs, tuning and proof have those of the runtime's table."""

from __future__ import annotations

import pytest
import torch

from flashgen.problems.problem import Problem
from flashgen.runtime.cache_dtypes import CACHE_DTYPES, QUANTISED, quantised_names
from flashgen.spec import load
from flashgen.spec.modes import CACHES
from flashgen.tuning.compiler import storage_of
from flashgen.verify import paged_cases_for


def test_the_table_has_the_numbers_of_each() -> None:
    assert CACHE_DTYPES[torch.int8] == (-128.0, 127.0, True)
    assert CACHE_DTYPES[torch.float8_e4m3fn] == (-448.0, 448.0, True)
    assert CACHE_DTYPES[torch.float8_e5m2] == (-57344.0, 57344.0, True)
    assert CACHE_DTYPES[torch.bfloat16] == (-torch.finfo(torch.bfloat16).max, torch.finfo(torch.bfloat16).max, False)
    assert quantised_names() == "float8_e4m3fn, float8_e5m2 or int8"


def test_a_spec_may_name_those_of_the_table() -> None:
    assert tuple(str(dtype).removeprefix("torch.") for dtype in QUANTISED) == CACHES


@pytest.mark.parametrize("cache", CACHES)
def test_each_is_compiled_for(cache: str) -> None:
    types, _ = storage_of(Problem(2, 4, 2, 1, 64, 16, 16, "float16", block_size=16, cache=cache))
    assert types["k_ptr"] == types["v_ptr"] and types["k_ptr"].startswith("*")


def test_each_is_proven() -> None:
    cases = paged_cases_for(load({"name": "plain"}), "full")
    assert {case.cache for case in cases} == {"", *CACHES}
