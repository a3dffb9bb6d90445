"""What specs mean: sugar, names, dimensions, and where each comes from."""

from __future__ import annotations

import itertools
import math
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from gallery import PATHS
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import SpecError, UsageError
from flashgen.lang.evaluate import evaluate
from flashgen.lang.nodes import TRUE, Type, var
from flashgen.lang.traversal import inputs, variables
from flashgen.spec import load
from flashgen.spec.names import ARGUMENTS
from flashgen.spec.variant import DTYPES, Sample, TuneShape, Variant


def visible(variant: Variant, length: int, **tensors: Any) -> list[list[bool]]:
    """The mask as a matrix over queries and keys, for the first batch and head."""
    sizes = {"q_len": length, "kv_len": length, "heads": 1, "kv_heads": 1, "head_dim": 8, "b": 0, "h": 0, "kv_h": 0}
    return [
        [bool(evaluate(variant.mask, sizes | {"q": q, "k": k}, tensors)) for k in range(length)] for q in range(length)
    ]


def score(variant: Variant, value: float, q: int = 0, k: int = 0, **tensors: Any) -> Any:
    return evaluate(variant.score, {"score": value, "b": 0, "h": 0, "kv_h": 0, "q": q, "k": k}, tensors)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_gallery_loads_under_its_file_name(path: Path) -> None:
    variant = load(path)
    assert variant.name == path.stem
    assert variant.description.endswith(".")
    assert variant.source == str(path)


def test_gallery_is_complete() -> None:
    names = "full causal sliding_window alibi softcap gemma2 prefix_lm document block_sparse relative_bias sink dilated"
    assert {path.stem for path in PATHS} == {*names.split(), "global_window"}


def test_defaults() -> None:
    variant = load({"name": "plain"})
    assert (variant.dtypes, variant.head_dims, variant.align) == (("bfloat16", "float16"), (64, 128), "bottom_right")
    assert variant.score is var("score", Type.FLOAT)
    assert variant.mask is TRUE
    assert variant.texts == (("score", "score"), ("mask", "True"))
    assert TuneShape(2, 16, 16, 8192, 8192, 128) in variant.tune_shapes
    assert TuneShape(2, 32, 32, 8192, 8192, 64) in variant.tune_shapes


def test_a_mapping_means_what_the_file_means(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\ncausal: true\nlet: {d: q - k}\nmask: d < 3\n")
    from_file, from_dict = load(path), load({"name": "a", "causal": True, "let": {"d": "q - k"}, "mask": "d < 3"})
    assert (from_file.mask, from_file.lets, from_file.texts) == (from_dict.mask, from_dict.lets, from_dict.texts)


def test_a_mapping_names_the_key_of_an_error() -> None:
    with pytest.raises(SpecError, match=r"^<dict>:let.d:1:5: the unknown name 'p'"):
        load({"name": "a", "let": {"d": "q - p"}})
    with pytest.raises(SpecError, match=r"^<dict>:params.W: a complex; expected"):
        load({"name": "a", "params": {"W": 1j}})


def test_sources_that_are_no_spec(tmp_path: Path) -> None:
    for source in (tmp_path / "none.yaml", tmp_path, "name: a\0b", 3):
        with pytest.raises(UsageError, match="expected"):
            load(source)  # type: ignore[arg-type]


@given(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["both", "left", "right"]))
def test_window(left: int, right: int, sides: str) -> None:
    amounts = {"left": left, "right": right}
    window = {side: amount for side, amount in amounts.items() if sides in (side, "both")}
    drawn = visible(load({"name": "a", "window": window}), 8)
    for q, k in itertools.product(range(8), repeat=2):
        inside = ("left" not in window or k >= q - left) and ("right" not in window or k <= q + right)
        assert drawn[q][k] == inside


def test_window_of_params() -> None:
    literal = load({"name": "a", "window": {"left": 7, "right": 2}})
    params = load({"name": "a", "params": {"W": 4}, "window": {"left": "2*W - 1", "right": "W // 2"}})
    assert params.mask is literal.mask
    runtime = load({"name": "a", "params": {"W": {"value": 4, "runtime": True}}, "window": {"left": "W"}})
    assert variables(runtime.mask) == {"q", "k", "W"}


def test_masks_are_joined() -> None:
    spec = {"name": "a", "causal": True, "window": {"left": 3, "right": 0}, "mask": "k % 2 == 0"}
    drawn = visible(load(spec), 8)
    for q, k in itertools.product(range(8), repeat=2):
        assert drawn[q][k] == (q - 3 <= k <= q and k % 2 == 0)
    assert dict(load(spec).texts)["mask"] == "(k <= q) & (k >= q - 3) & (k % 2 == 0)"


def test_scores_apply_in_order_bias_softcap_score() -> None:
    variant = load({"name": "a", "score": "2 * score + 1", "softcap": 5, "bias": "alibi"})
    expected = 2 * (5 * math.tanh((3.0 - 0.25 * 4) / 5)) + 1
    assert score(variant, 3.0, q=6, k=2, slopes=[0.25]) == pytest.approx(expected, rel=1e-15)
    assert score(variant, 3.0, q=2, k=6, slopes=[0.25]) == pytest.approx(expected, rel=1e-15)
    assert dict(variant.texts)["score"] == "2 * (5 * tanh((score - slopes[h] * abs(q - k)) / 5)) + 1"


def test_a_let_reads_the_score_after_sugar() -> None:
    variant = load({"name": "a", "softcap": 5.0, "let": {"twice": "2 * score"}, "score": "twice"})
    assert variant.lets == (("twice", variant.score),)
    assert score(variant, 3.0) == pytest.approx(10 * math.tanh(0.6), rel=1e-15)


def test_score_may_ignore_the_product() -> None:
    assert score(load({"name": "a", "score": "q - k"}), 7.0, q=5, k=2) == 3.0


def test_a_score_of_many_terms() -> None:
    terms = ["score", *["k * 0.5"] * 900]
    variant = load({"name": "a", "bias": "alibi", "score": " + ".join(terms)})
    assert dict(variant.texts)["score"].startswith("score - slopes[h] * abs(q - k) + k * 0.5 + ")
    assert score(variant, 1.0, q=2, k=2, slopes=[0.5]) == 1.0 + 900


def test_lets_use_earlier_lets() -> None:
    variant = load({"name": "a", "let": {"d": "q - k", "near": "abs(d) < 2"}, "mask": "near | (d % 4 == 0)"})
    drawn = visible(variant, 9)
    assert all(drawn[q][k] == (abs(q - k) < 2 or (q - k) % 4 == 0) for q in range(9) for k in range(9))
    assert [name for name, _ in variant.lets] == ["d", "near"]


def test_shapes_read_so_many_runtime_params() -> None:
    def spec(count: int) -> dict:
        params = {f"n{i}": {"value": 2, "runtime": True} for i in range(count)}
        inputs = {"t": {"shape": [" + ".join(params)], "dtype": "float32"}}
        return {"name": "a", "params": params, "inputs": inputs, "score": "score + t[k]"}

    assert len(load(spec(12)).runtime_params) == 12
    with pytest.raises(SpecError, match="13 runtime params in the shapes of inputs; expected at most 12"):
        load(spec(13))


def test_nested_gathers_and_a_bound_dimension() -> None:
    spec = {
        "name": "a",
        "inputs": {
            "off": {"shape": ["docs"], "dtype": "int32"},
            "last": {"shape": ["docs + 1"], "dtype": "int32"},
            "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
        },
        "mask": "(k >= off[doc[b, q]]) & (docs > 0) & (last[docs] > 0)",
    }
    variant = load(spec)
    assert variant.dim_names == ("docs",)
    off, last, doc = variant.inputs
    assert (off.dims[0].binds, off.dims[0].size) == ("docs", var("docs", Type.INT))
    assert (last.dims[0].binds, last.dims[0].text, variables(last.dims[0].size)) == (None, "docs + 1", {"docs"})
    assert [dim.text for dim in doc.dims] == ["batch", "kv_len"]
    assert inputs(variant.mask) == {"off", "last", "doc"}


def test_names_that_yaml_1_1_takes_for_bools(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\ninputs:\n  off: {shape: [n, y], dtype: bool}\nlet: {yes: 'off[b, k]'}\nmask: yes\n")
    variant = load(path)
    assert (variant.inputs[0].name, variant.dim_names, variant.lets[0][0]) == ("off", ("n", "y"), "yes")


def test_numbers_of_yaml(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\nparams: {r: 1e-6, s: -3, t: .inf, u: 0x10, w: true, x: +2.}\n")
    assert [p.value for p in load(path).params] == [1e-6, -3, math.inf, 16, True, 2.0]
    assert [p.type.value for p in load(path).params] == ["float", "int", "float", "int", "bool", "float"]


def test_runtime_params_stay_variables() -> None:
    variant = load({"name": "a", "params": {"cap": {"value": 30.0, "runtime": True}, "n": 2}, "softcap": "cap * n"})
    assert variables(variant.score) == {"score", "cap"}
    assert [p.name for p in variant.runtime_params] == ["cap"]


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
def test_block_sparse_counts_rows_from_the_first_query(align: str) -> None:
    variant = load({"name": "a", "block_sparse": {"block_q": 2, "block_kv": 3}, "align": align})
    (block_mask,) = variant.inputs
    assert [dim.may_be_one for dim in block_mask.dims] == [True, True, False, False]
    sizes = {"batch": 1, "heads": 1, "q_len": 5, "kv_len": 7}
    assert [evaluate(dim.size, sizes, {}) for dim in block_mask.dims] == [1, 1, 3, 3]
    marked = [[False, True, False], [True, False, False], [False, False, True]]
    first = 2 if align == "bottom_right" else 0
    for row, k in itertools.product(range(5), range(7)):
        place = {"b": 0, "h": 0, "q": row + first, "k": k}
        assert evaluate(variant.mask, sizes | place, {"block_mask": [[marked]]}) == marked[row // 2][k // 3]


def test_sink_and_slopes_are_inputs() -> None:
    variant = load({"name": "a", "sink": "learned", "bias": "alibi"})
    slopes, sinks = variant.inputs
    assert (slopes.name, slopes.dtype, slopes.grad, slopes.default) == ("slopes", "float32", True, "alibi_slopes")
    assert (sinks.name, sinks.dtype, sinks.grad, sinks.default) == ("sinks", "float32", True, None)
    assert variant.sink


def test_tuning_shapes_and_hints() -> None:
    spec = {
        "name": "a",
        "dtype": "float32",
        "head_dim": 40,
        "inputs": {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}},
        "mask": "doc[b, q] == doc[b, k]",
        "tune": {"shapes": [{"batch": 1, "heads": 8, "q_len": 100}], "inputs": {"doc": {"segments": 3}}},
    }
    variant = load(spec)
    assert variant.tune_shapes == (TuneShape(1, 8, 8, 100, 100),)
    assert variant.samples == (("doc", Sample(segments=3)),)
    assert (variant.dtypes, variant.head_dims) == (("float32",), (40,))
    assert set(variant.dtypes) <= set(DTYPES)


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40))
def test_descriptions_are_carried_as_they_are(text: str) -> None:
    try:
        lines = text.replace("\u2028", "\n").replace("\u2029", "\n")
        assert load({"name": "a", "description": text}).description == lines.strip()
    except SpecError as error:
        assert error.expected == "text without control characters"
        assert any(unicodedata.category(c) == "Cf" for c in text)


@pytest.mark.parametrize("end", ["\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_what_ends_a_line_of_a_description_is_a_line_feed(end: str) -> None:
    assert load({"name": "a", "description": f"one{end}two"}).description == "one\ntwo"


def test_quotes_newlines_and_templates_in_a_description(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text('name: a\ndescription: |\n  """{{ 7*7 }}\'\'\' \\\n  {% include "x" %}\n')
    assert load(path).description == '"""{{ 7*7 }}\'\'\' \\\n{% include "x" %}'


@pytest.mark.parametrize("p", [0, 0.0, 0.1, 0.999])
def test_a_probability_of_dropout(p: float) -> None:
    assert load({"name": "mine", "dropout": p}).dropout == float(p)
    assert load({"name": "mine"}).dropout is None


@pytest.mark.parametrize("p", [1, 1.0, -0.1, True, "0.1", math.nan, math.inf, [0.1]])
def test_what_is_no_probability_of_dropout(p: object) -> None:
    with pytest.raises(SpecError, match="expected a number from 0 to 1, 1 excluded"):
        load({"name": "mine", "dropout": p})


# The language has q and k for itself.
TAKEN = sorted(ARGUMENTS["attention"] - {"q", "k"})
TAKEN_LATER = sorted((ARGUMENTS["attention_varlen"] | ARGUMENTS["attention_paged"]) - ARGUMENTS["attention"])


@pytest.mark.parametrize("name", TAKEN)
def test_what_callers_pass_has_no_name_of_an_argument(name: str) -> None:
    table = {name: {"shape": ["heads"], "dtype": "float32"}}
    param = {name: {"value": 1.0, "runtime": True}}
    for spec in ({"inputs": table, "score": f"score + {name}[h]"}, {"params": param, "score": f"score + {name}"}):
        with pytest.raises(SpecError, match=r"already an argument of attention\(\)"):
            load({"name": "mine", **spec})


@pytest.mark.parametrize("name", [*TAKEN, *TAKEN_LATER])
def test_a_let_a_dimension_and_a_constant_may_have_it(name: str) -> None:
    load({"name": "mine", "let": {name: "q - k"}, "score": f"score + {name}"})
    load({"name": "mine", "params": {name: 3}, "score": f"score + {name}"})
    table = {"x": {"shape": [name], "dtype": "float32"}}
    load({"name": "mine", "inputs": table, "score": f"score + x[q % {name}]"})


@pytest.mark.parametrize("name", ["dropout_p", "dropout_seed", "dropout_mask"])
def test_names_of_dropout_are_taken_where_it_is(name: str) -> None:
    spec = {"name": "mine", "inputs": {name: {"shape": ["heads"], "dtype": "float32"}}, "score": f"score + {name}[h]"}
    load(spec)
    with pytest.raises(SpecError, match="already an argument of attention"):
        load({**spec, "dropout": 0.1})
