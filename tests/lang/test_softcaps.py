from __future__ import annotations

import pytest
from language_world import compile

from flashgen.lang.nodes import Expr, Op, Type
from flashgen.lang.softcaps import with_softcaps
from flashgen.lang.traversal import walk


def kinds(score: Expr) -> list[str]:
    return [node.name for node in walk(score) if isinstance(node, Op) and node.name in ("tanh", "softcap")]


def marked(text: str) -> list[str]:
    return kinds(with_softcaps(compile(text, Type.FLOAT), ["rel"])[0])


@pytest.mark.parametrize(
    "text",
    [
        "tanh(score)",
        "cap * tanh(score / cap)",
        "30 * tanh(score / 30) - 0.5 * abs(q - k)",
        "-20 * tanh(score / 30)",
        "30 * tanh((score + rel[h, q]) / 30)",
        "30 * tanh(score / 30) if q < k else score",
    ],
)
def test_what_is_nowhere_steeper_than_the_score_only_caps_it(text: str) -> None:
    assert marked(text) == ["softcap"]


@pytest.mark.parametrize(
    "text",
    [
        "31 * tanh(score / 30)",
        "tanh(score * score)",
        "tanh(score * q)",
        "q * tanh(score)",
        "exp(tanh(score))",
        "cap * tanh(score)",
        "tanh((score + 3 * rel[h, q]) / 2)",
        "rel[h, q] * tanh(score)",
    ],
)
def test_what_may_be_steeper_is_a_tanh_as_others_are(text: str) -> None:
    assert marked(text) == ["tanh"]


def test_each_tanh_is_judged_by_what_is_around_it() -> None:
    assert marked("30 * tanh(score / 30) + 7 * tanh(score)") == ["softcap", "tanh"]
    assert marked("2 * tanh(5 * tanh(score / 5))") == ["tanh", "tanh"]


def test_other_expressions_keep_their_parts() -> None:
    score = compile("cap * tanh(score / cap)", Type.FLOAT)
    capped, part = with_softcaps(score, [], score.children[1])
    assert part in set(walk(capped))
