"""Random inputs: sizes, ranges, layouts, repeatability."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.errors import Location, UsageError
from flashgen.lang.check import expression
from flashgen.lang.nodes import Type, var
from flashgen.lang.scope import Scope, TensorType
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.spec.variant import Dim, Input, Param, Sample, Variant

PROBLEM = Problem(2, 4, 2, 50, 70, 16, 24, "bfloat16")
SIZES = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
POSITIONS = ("b", "h", "kv_h", "q", "k")
INT_DTYPES = {"int8", "uint8", "int16", "int32", "int64"}


def variant(
    inputs: dict[str, tuple[str, ...]], score: str = "score", mask: str = "True", runtime: dict[str, int] | None = None
) -> Variant:
    """A variant with inputs given as name -> (dtype, size of each dimension); a leading "=" binds a new name."""
    names = {n: var(n, Type.INT) for n in (*SIZES, *POSITIONS)} | {"score": var("score", Type.FLOAT)}
    names |= {n: var(n, Type.INT) for n in runtime or {}}
    at = Location("<test>")
    tensors, types = [], {}
    for name, (dtype, *sizes) in inputs.items():
        dims = []
        for size in sizes:
            binds = size[1:] if size.startswith("=") else None
            if binds:
                names[binds] = var(binds, Type.INT)
            dims.append(Dim(size, expression(binds or size, Scope(names), at), binds))
        tensors.append(Input(name, tuple(dims), dtype))
        kind = Type.BOOL if dtype == "bool" else Type.INT if dtype in INT_DTYPES else Type.FLOAT
        types[name] = TensorType(kind, len(dims))
    scope = Scope(names, types)
    return Variant(
        name="test", description="", source="<test>", dtypes=("bfloat16",), head_dims=(64,), align="bottom_right",
        params=tuple(Param(n, Type.INT, value, True) for n, value in (runtime or {}).items()),
        inputs=tuple(tensors), lets=(), score=expression(score, scope, at, want=Type.FLOAT),
        mask=expression(mask, scope, at, want=Type.BOOL), sink=False, texts=(), tune_shapes=(),
    )  # fmt: skip


def ascends(values: torch.Tensor) -> bool:
    return bool((values.diff(dim=-1) >= 0).all())


def test_shapes_and_dtypes() -> None:
    call = make_inputs(variant({}), PROBLEM)
    assert call.q.shape == (2, 4, 50, 16)
    assert call.k.shape == (2, 2, 70, 16)
    assert call.v.shape == (2, 2, 70, 24)
    assert {t.dtype for t in (call.q, call.k, call.v)} == {torch.bfloat16}
    assert call.keywords == {}


def test_bshd_is_a_view_of_the_other_layout() -> None:
    call = make_inputs(variant({}), PROBLEM, layout="bshd")
    assert call.q.shape == (2, 4, 50, 16)
    assert call.q.transpose(1, 2).is_contiguous()
    assert not call.q.is_contiguous()


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(UsageError, match="layout is 'bhds'; expected one of bhsd, bshd"):
        make_inputs(variant({}), PROBLEM, layout="bhds")


def test_an_input_beyond_the_memory_is_refused_by_name() -> None:
    huge = variant({"t": ("float32", "kv_len * 10000000000")}, score="score + t[k]")
    expected = r"input t: \[kv_len \* 10000000000\] is \[700000000000\] here, 5,215 GiB to draw; expected at most"
    with pytest.raises(UsageError, match=expected):
        make_inputs(huge, PROBLEM)


def test_the_seed_decides_everything() -> None:
    documents = variant({"doc": ("int32", "batch", "kv_len")}, mask="doc[b, q] == doc[b, k]")
    first, again, other = (make_inputs(documents, PROBLEM, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.q, again.q) and torch.equal(first.inputs["doc"], again.inputs["doc"])
    assert not torch.equal(first.q, other.q) and not torch.equal(first.inputs["doc"], other.inputs["doc"])


def test_ints_along_positions_are_packed_documents() -> None:
    documents = variant({"doc": ("int32", "batch", "kv_len")}, mask="doc[b, q] == doc[b, k]")
    hinted = replace(documents, samples=(("doc", Sample(segments=3)),))
    doc = make_inputs(hinted, PROBLEM).inputs["doc"]
    assert doc.shape == (2, 70) and doc.dtype == torch.int32
    assert ascends(doc)
    assert set(doc.unique().tolist()) == {0, 1, 2}


def test_values_that_index_a_named_dimension_stay_inside_and_bind_its_size() -> None:
    offsets = variant(
        {"off": ("int32", "=docs"), "doc": ("int64", "batch", "q_len")}, mask="k >= off[doc[b, q - (kv_len - q_len)]]"
    )
    for seed in range(8):
        inputs = make_inputs(offsets, PROBLEM, seed=seed).inputs
        assert 5 <= len(inputs["off"]) <= 16
        assert inputs["doc"].min() >= 0 and inputs["doc"].max() < len(inputs["off"])
        assert ascends(inputs["off"]) and inputs["off"].max() <= PROBLEM.kv_len
    hinted = replace(offsets, samples=(("doc", Sample(segments=21)),))
    assert len(make_inputs(hinted, PROBLEM).inputs["off"]) == 21


def test_ints_compared_with_positions_spread_over_the_keys() -> None:
    lengths = variant({"lengths": ("int64", "batch")}, mask="k < lengths[b]")
    drawn = torch.stack([make_inputs(lengths, PROBLEM, seed=seed).inputs["lengths"] for seed in range(50)])
    assert drawn.min() >= 0 and drawn.max() <= PROBLEM.kv_len
    assert drawn.max() > 60 and drawn.min() < 10


def test_a_narrow_dtype_never_wraps() -> None:
    lengths = variant({"lengths": ("int8", "batch")}, mask="k < lengths[b]")
    long = replace(PROBLEM, kv_len=5000)
    assert all(make_inputs(lengths, long, seed=seed).inputs["lengths"].min() >= 0 for seed in range(20))


def test_sizes_follow_params() -> None:
    table = variant(
        {"rel": ("float32", "heads", "2 * W + 1")}, score="score + rel[h, clamp(q - k, -W, W) + W]", runtime={"W": 6}
    )
    call = make_inputs(table, PROBLEM)
    assert call.inputs["rel"].shape == (4, 13) and call.params == {"W": 6}
    assert make_inputs(table, PROBLEM, params={"W": 9}).inputs["rel"].shape == (4, 19)
    with pytest.raises(UsageError, match=r"input rel: dimension 2 \* W \+ 1 is -3"):
        make_inputs(table, PROBLEM, params={"W": -2})


@pytest.mark.parametrize(
    ("dtype", "sample", "low", "high"),
    [
        ("bool", Sample(density=0.1), 0, 1),
        ("int32", (3, 5), 3, 5),
        ("int64", (2**63 - 2, 2**63 - 1), 2**63 - 2, 2**63 - 1),
        ("float16", (2, 4), 2, 4),
        ("float32", (-3.4e38, 3.4e38), -3.4e38, 3.4e38),
    ],
)
def test_samples_and_ranges_come_first(
    dtype: str, sample: Sample | tuple[float, float], low: float, high: float
) -> None:
    flags = variant({"x": (dtype, "batch", "kv_len")}, score="where(x[b, k] > 0, score, 0.0)" if dtype != "bool" else
                    "where(x[b, k], score, 0.0)")  # fmt: skip
    if isinstance(sample, Sample):
        flags = replace(flags, samples=(("x", sample),))
    else:
        flags = replace(flags, inputs=tuple(replace(t, range=sample) for t in flags.inputs))
    x = make_inputs(flags, PROBLEM).inputs["x"]
    assert low <= x.min() and x.max() <= high
    if isinstance(sample, Sample):
        assert 0.02 < x.float().mean() < 0.25
    elif high < 100:
        assert x.unique().numel() > 1


def test_an_input_is_drawn_positive_where_the_formula_asks_for_it() -> None:
    rates = variant({"r": ("float32", "heads")}, score="score - log(1 + r[h] * abs(q - k))")
    assert make_inputs(rates, PROBLEM).inputs["r"].min() > 0
    given = replace(rates, inputs=tuple(replace(t, range=(-1.0, -0.5)) for t in rates.inputs))
    assert make_inputs(given, PROBLEM).inputs["r"].max() < 0


@pytest.mark.parametrize("name", NAMES)
def test_every_gallery_variant_can_be_called(name: str) -> None:
    gallery = VARIANTS[name]
    call = make_inputs(gallery, PROBLEM)
    assert set(call.inputs) == {i.name for i in gallery.inputs}
    assert set(call.params) == {p.name for p in gallery.runtime_params}
    for tensor in gallery.inputs:
        values = call.inputs[tensor.name]
        assert values.dtype == getattr(torch, tensor.dtype) and values.ndim == len(tensor.dims)
        assert values.double().isfinite().all()
