"""What the soak draws: the same from the same seed, the whole language among a few hundred; what it makes small."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace

import pytest

from flashgen.codegen.words import words
from flashgen.lang.vocabulary import FUNCTIONS
from flashgen.spec.names import OF_DROPOUT
from flashgen.verify.soak.case import Case, from_yaml, to_yaml
from flashgen.verify.soak.draw import draw
from flashgen.verify.soak.formula import parsed
from flashgen.verify.soak.shrink import shrunk, smaller_texts


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [draw(7, index) for index in range(400)]


def texts(case: Case) -> list[str]:
    spec = case.spec
    return [str(spec[key]) for key in ("score", "mask") if key in spec] + list(spec.get("let", {}).values())


def test_a_case_depends_on_seed_and_index_alone(cases: list[Case]) -> None:
    assert draw(7, 3) == cases[3]
    assert draw(7, 3).digest == cases[3].digest
    assert len({case.digest for case in cases}) == len(cases)
    assert draw(8, 3) != cases[3]
    assert draw(7, 3, attempt=1) != cases[3]


def test_a_case_comes_back_from_its_file(cases: list[Case]) -> None:
    for case in cases[:50]:
        assert from_yaml(to_yaml(case)) == case


def test_all_of_the_language_is_drawn(cases: list[Case]) -> None:
    nodes = Counter(
        type(getattr(node, "op", node)).__name__ for case in cases for text in texts(case)
        for node in ast.walk(parsed(text))
    )  # fmt: skip
    operators = {"Add", "Sub", "Mult", "Div", "FloorDiv", "Mod", "Pow", "BitAnd", "BitOr", "BitXor", "LShift", "RShift",
                 "And", "Or", "Not", "Invert", "USub", "UAdd", "IfExp", "Compare", "Subscript"}  # fmt: skip
    assert operators <= nodes.keys()
    calls = {
        node.func.id for case in cases for text in texts(case) for node in ast.walk(parsed(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }  # fmt: skip
    assert calls >= FUNCTIONS
    keys = {key for case in cases for key in case.spec}
    sugar = {"causal", "window", "bias", "softcap", "block_sparse", "sink", "align", "approximate"}
    assert sugar | {"params", "inputs", "let", "score", "mask"} <= keys


def test_all_kinds_of_inputs_and_calls_are_drawn(cases: list[Case]) -> None:
    forms = [form for case in cases for form in case.spec.get("inputs", {}).values()]
    assert {form["dtype"] for form in forms} == {
        "bool", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    }  # fmt: skip
    assert {len(form["shape"]) for form in forms} == {0, 1, 2, 3, 4}
    assert any(form.get("grad") for form in forms)
    runtime = [value for case in cases for value in case.params.values()]
    assert {0, 1, 16, -1} <= {value for value in runtime if type(value) is int}
    assert {type(value) for value in runtime} == {bool, int, float}
    assert {case.dtype for case in cases} == {"bfloat16", "float16", "float32"}
    for name in ("planned", "defaults", "broadcast", "deterministic", "d_lse"):
        assert {getattr(case, name) for case in cases} == {True, False}
    assert any(case.q_len > case.kv_len for case in cases)
    assert any(case.q_len < case.kv_len for case in cases)
    assert any(case.q_len == 1 for case in cases)
    assert any(case.heads > case.kv_heads > 1 for case in cases)
    assert any(case.head_dim % 2 for case in cases)
    assert any(case.head_dim != case.v_head_dim for case in cases)
    packed, paged = ([case for case in cases if case.lengths and case.paged == pages] for pages in (False, True))
    for found in (packed, paged):
        assert {len(case.lengths) for case in found} == {case.batch for case in found} == {1, 2, 3, 4}
    assert {case.rest == (0, 0) for case in packed} == {True, False}
    assert any(case.rest[0] > case.q_len for case in packed) and any(case.rest[1] > case.kv_len for case in packed)
    assert all((case.q_len, case.kv_len) in case.lengths for case in packed)
    assert all(max(case.lengths)[0] == case.q_len and case.kv_len % 16 == 0 for case in paged)


def test_large_cases_are_for_a_gpu() -> None:
    large = [draw(7, index, large=True) for index in range(100)]
    assert max(case.kv_len for case in large) > 1000
    assert max(case.head_dim for case in large) > 128
    usual = [case for case in large if case.head_dim in (16, 32, 64, 128)]
    assert 60 < len(usual) < 100
    without = [case for case in large if case.d_out == "none"]
    assert 35 < len(without) < 65


def test_kernels_own_names_and_shared_keys_are_drawn(cases: list[Case]) -> None:
    names = {name for case in cases for section in ("params", "inputs", "let") for name in case.spec.get(section, {})}
    assert len(names & words()) > 100
    assert any(case.shared and case.batch > 1 for case in cases)


def test_a_failing_case_is_made_small(cases: list[Case]) -> None:
    case = next(case for case in cases if "%" in str(case.spec.get("mask", "")) and "score" in case.spec)
    tried = []

    def trial(smaller: Case) -> str:
        tried.append(smaller)
        return "out" if "%" in str(smaller.spec.get("mask", "")) and smaller.q_len >= 2 else "passed"

    case = replace(case, q_len=max(case.q_len, 2))
    small = shrunk(case, "out", trial, steps=400)
    assert trial(small) == "out"
    assert set(small.spec) <= {"name", "mask"}
    assert len(small.spec["mask"]) <= 12
    assert small.q_len == 2
    assert small.kv_len == small.batch == small.heads == 1
    assert small.d_out == "none"
    assert not small.configs
    assert len(tried) <= 401


def test_a_case_keeps_its_kind_of_failure_while_it_is_made_small(cases: list[Case]) -> None:
    def trial(smaller: Case) -> str:
        return "out" if "score" in smaller.spec else "refused"

    case = next(case for case in cases if "score" in case.spec and "mask" in case.spec)
    small = shrunk(case, "out", trial, steps=100)
    assert "score" in small.spec
    assert "mask" not in small.spec


def test_lets_are_spelled_out_on_the_way() -> None:
    case = Case(
        {"name": "x", "let": {"a": "q - k", "c": "a * 2"}, "mask": "(c > 3) | (k < 5)"},
        1,
        1,
        1,
        4,
        4,
        16,
        16,
        "float32",
    )
    small = shrunk(case, "out", lambda each: "out" if "q" in str(each.spec) else "", steps=200)
    assert "let" not in small.spec


@pytest.mark.parametrize(
    ("text", "smaller"),
    [("a + b * 2", "a"), ("f[k] < 3 and k > 2", "k > 2"), ("max(a, b)", "b"), ("a if t else b", "b")],
)
def test_parts_take_the_place_of_the_whole(text: str, smaller: str) -> None:
    assert smaller in set(smaller_texts(text))


def test_no_name_of_dropout_stands_beside_it() -> None:
    # Of these one draws such a name and, but for it, dropout.
    for case in (draw(20261301, index) for index in range(60)):
        if "dropout" in case.spec:
            assert not OF_DROPOUT & {
                *case.spec.get("params", {}),
                *case.spec.get("inputs", {}),
                *case.spec.get("let", {}),
            }
