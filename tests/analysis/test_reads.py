"""Which inputs are read at places that depend on how many queries there are."""

from __future__ import annotations

import pytest
from gallery import NAMES, VARIANTS

from flashgen.analysis.facts import facts_of
from flashgen.analysis.reads import counts_queries, counts_queries_for_first_pair
from flashgen.spec import load


def found(read: str, shape: list[str], align: str = "bottom_right") -> tuple[bool, bool]:
    """For any pair, and for the first one."""
    spec = {"name": "reads", "align": align, "score": f"score + t{read}"}
    facts = facts_of(load({**spec, "inputs": {"t": {"shape": shape, "dtype": "float32"}}}))
    return counts_queries(facts, facts.gathers), counts_queries_for_first_pair(facts)


@pytest.mark.parametrize(
    ("read", "shape"),
    [
        ("[q_len - 1]", ["q_len"]),
        ("[h]", ["q_len"]),
        ("[k + 1]", ["q_len"]),
        ("[b, q_len // 2]", ["batch", "q_len"]),
        ("[b, 0, h + k]", ["batch", "heads", "q_len"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
def test_a_place_that_is_counted_from_the_last_query(read: str, shape: list[str], align: str) -> None:
    assert found(read, shape, align) == (True, True)


@pytest.mark.parametrize(
    ("read", "shape"), [("[k]", ["q_len"]), ("[q - (kv_len - q_len)]", ["q_len"]), ("[k // 3]", ["q_len // 2"])]
)
def test_the_first_pair_reads_the_first_element(read: str, shape: list[str]) -> None:
    assert not found(read, shape)[1]


@pytest.mark.parametrize(("read", "shape"), [("[h]", ["heads"]), ("[k]", ["kv_len"]), ("[h, k]", ["heads", "kv_len"])])
def test_other_places(read: str, shape: list[str]) -> None:
    assert found(read, shape) == (False, False)


@pytest.mark.parametrize("name", NAMES)
def test_no_variant_of_the_gallery_has_one_for_its_first_pair(name: str) -> None:
    assert not counts_queries_for_first_pair(facts_of(VARIANTS[name]))
