"""From what a user types to problem sizes."""

from __future__ import annotations

import pytest

from flashgen.cli.shapes import chosen_dtypes, chosen_shapes, parse_shape
from flashgen.errors import UsageError
from flashgen.spec.variant import TuneShape


def test_a_shape_fills_in_what_is_left_out() -> None:
    assert parse_shape("batch=2, heads=16,q_len=128") == TuneShape(2, 16, 16, 128, 128)
    assert parse_shape("batch=1,heads=8,kv_heads=2,q_len=1,kv_len=64,head_dim=40,v_head_dim=80") == TuneShape(
        1, 8, 2, 1, 64, 40, 80
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found ''; expected NAME=NUMBER"),
        ("batch=2,head=16,q_len=1", "found 'head=16'; expected NAME=NUMBER"),
        ("batch=2,heads=-1,q_len=1", "found 'heads=-1'; expected NAME=NUMBER"),
        ("batch=0,heads=1,q_len=1", "found 'batch=0'; expected NAME=NUMBER"),
        ("batch=1.5,heads=1,q_len=1", "found 'batch=1.5'; expected NAME=NUMBER"),
        ("batch=2", "heads, q_len not found; expected batch, heads, q_len at least"),
        ("batch=2,heads=16,kv_heads=3,q_len=1", "heads must be a multiple of kv_heads"),
    ],
)
def test_a_wrong_shape_says_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_shape(text)
    assert message in str(error.value)


def test_what_is_not_asked_for_is_left_to_the_spec() -> None:
    assert (chosen_shapes(None), chosen_dtypes(None)) == (None, None)
    assert chosen_shapes(["batch=1,heads=2,q_len=8"]) == (TuneShape(1, 2, 2, 8, 8),)
    assert chosen_dtypes(["float32"]) == ("float32",)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="--dtype 'float64'; expected one of float16, bfloat16, float32"):
        chosen_dtypes(["float64"])
