"""Emitted code says what is in it, and is written in the dialect and by the names of its kernel."""

from __future__ import annotations

import ast
import inspect

import pytest
from expression_strategies import expressions
from hypothesis import given
from hypothesis import strategies as st
from language_world import SCOPE, compile

from flashgen.analysis.levels import COL, ROW, Level
from flashgen.codegen.imports import defined_names
from flashgen.emit.dialects import GLUON, TRITON, Dialect
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.emit.setting import Setting, Tensor
from flashgen.emit.torch import emit
from flashgen.lang.intervals import Ranges
from flashgen.lang.log2 import of_qk
from flashgen.lang.nodes import Expr, Type, var
from flashgen.runtime.device import arithmetic, floats, loops, reciprocals, waves

TENSORS = {
    "doc": Tensor((var("batch", Type.INT), var("kv_len", Type.INT)), "int32"),
    "off": Tensor((var("docs", Type.INT),), "int8"),
    "rel": Tensor((var("heads", Type.INT), var("docs", Type.INT)), "bfloat16"),
    "gain": Tensor((), "float16"),
    "shift": Tensor((), "int64"),
    "keep": Tensor((var("batch", Type.INT), var("kv_len", Type.INT)), "bool"),
}
DTYPES = {name: tensor.dtype for name, tensor in TENSORS.items()}
# Of a kernel, not of the caller: what Triton and Python have.
BUILT_IN = {"tl", "gl", "float", "min", "max", "abs", "int", "range"}
# Functions of the device.
CALLED = {
    name
    for module in (arithmetic, floats, loops, reciprocals, waves)
    for name in defined_names(inspect.getsource(module))
}


def prologue(dialect: Dialect = TRITON, walked: Level = COL, **spelled: str) -> Prologue:
    ranges = Ranges(DTYPES, frozenset({"docs"}), True)
    return Prologue.begin(Setting(ranges, TENSORS, dialect, walked=walked, spelled=spelled))


def named_in(fragment: Fragment) -> tuple[set[str], set[str]]:
    """What a fragment reads and defines, by its syntax."""
    tree = ast.parse("\n".join([*fragment.lines, *fragment.results]))
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defines = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - defines - CALLED - BUILT_IN, defines


@pytest.mark.parametrize("inlined", [True, False])
@pytest.mark.parametrize("walked", [ROW, COL], ids=["rows", "columns"])
@given(data=st.data())
def test_a_fragment_says_what_it_reads_and_defines(walked: Level, inlined: bool, data: st.DataObject) -> None:
    roots = [of_qk(compile(data.draw(expressions(kind, SCOPE)))) for kind in (Type.FLOAT, Type.BOOL)]
    here = prologue(GLUON, walked)
    fragment = here.body(*roots, inlined=inlined)
    assert (set(fragment.reads), set(fragment.defines)) == named_in(fragment)
    reads, defines = named_in(Fragment(tuple(here.lines)))
    assert reads <= here.reads
    assert set(here.defines) == defines


@given(data=st.data())
def test_eager_code_says_what_it_reads_and_defines(data: st.DataObject) -> None:
    fragment = emit([compile(data.draw(expressions(kind, SCOPE))) for kind in (Type.FLOAT, Type.BOOL)])
    assert (set(fragment.reads), set(fragment.defines)) == named_in(fragment)


@given(data=st.data())
def test_gluon_is_triton_by_other_names(data: st.DataObject) -> None:
    root = of_qk(compile(data.draw(expressions(Type.FLOAT, SCOPE))))
    triton, gluon = prologue(TRITON), prologue(GLUON)
    of_triton, of_gluon = triton.body(root, inlined=True), gluon.body(root, inlined=True)
    texts = [*triton.lines, *of_triton.lines, *of_triton.results]
    expected = [text.replace("tl.", "gl.").replace("gl.sigmoid", "tl.sigmoid") for text in texts]
    assert [*gluon.lines, *of_gluon.lines, *of_gluon.results] == expected


def text_of(expr: Expr, dialect: Dialect) -> str:
    return prologue(dialect).body(expr, inlined=True).results[0]


def test_a_divisor_that_is_one_number_has_its_reciprocal_in_front_of_the_loop() -> None:
    here = prologue()
    body = here.body(compile("(k // n == q // n) & (k % n == 1)"), inlined=True)
    assert here.lines == ("n_reciprocal = reciprocal_of(n)", "r = floor_div_by(q, n_reciprocal)")
    assert body.lines == ("t = floor_div_by(k, n_reciprocal)",)
    assert body.results == ("(t == r) & (remainder_or_zero(k, t, n) == 1)",)
    assert text_of(compile("k % heads"), TRITON) == "k - floor_div_by(k, heads_reciprocal) * heads"


def test_gluon_takes_from_triton_what_it_has_not() -> None:
    assert text_of(compile("sigmoid(exp(k))"), GLUON) == "tl.sigmoid(gl.exp(k.to(gl.float32)))"
    assert text_of(compile("sigmoid(exp(k))"), TRITON) == "tl.sigmoid(tl.exp(k.to(tl.float32)))"


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("floor(k / 41)", "gl.floor(quotient(k.to(gl.float32), 41.0)).to(gl.int32)"),
        ("k / 41 >= q", "quotient(k.to(gl.float32), 41.0) >= q_f"),
        ("floor(1.0 + exp(k / 41))", "gl.floor(1.0 + gl.exp(quotient(k.to(gl.float32), 41.0))).to(gl.int64)"),
        ("k * 0.5 // 41", "float_floordiv(k.to(gl.float32) * 0.5, 41.0)"),
        # Exact on its own, and what decides nothing.
        ("floor(k / 64)", "gl.floor(k.to(gl.float32) / 64.0).to(gl.int32)"),
        ("where(k / 41 < 0, ceil(k / 41), floor(k / 41))", "quotient(k.to(gl.float32), 41.0).to(gl.int32)"),
        ("exp(k / 41)", "gl.exp(k.to(gl.float32) / 41.0)"),
        ("exp(k / 41) > -inf", 'gl.exp(k.to(gl.float32) / 41.0) > -float("inf")'),
    ],
)
def test_a_division_that_decides_is_right_to_the_last_bit(text: str, written: str) -> None:
    assert text_of(compile(text), GLUON) == written


def test_functions_are_tritons_in_either_dialect() -> None:
    here = prologue(GLUON)
    body = here.body(compile("exp(k) * log(q)"))
    assert body.results == ("tl.exp(k.to(tl.float32)) * r",)
    assert here.lines == ("r = gl.log(q.to(gl.float32))",)


def test_a_variable_goes_by_another_name_in_a_part_of_the_kernel() -> None:
    here = prologue()
    apart = here.fork(spelled={"k": "keys"})
    assert apart.name(compile("doc[b, k]")) == "doc_b_k"
    assert "keys" in apart.lines[-1]
    assert here.body(compile("k + 1")).results == ("k + 1",)


def test_a_variable_goes_by_another_name_in_one_text() -> None:
    here, first = prologue(), var("k_first", Type.INT)
    assert here.inline(compile("exp(q)")) == "tl.exp(q.to(tl.float32))"
    assert here.inline(first, spelled={"k_first": "start"}) == "start"
    assert here.inline(first) == "k_first"


def test_a_fork_has_what_was_computed_before_it() -> None:
    here = prologue()
    assert here.name(compile("off[n]")) == "off_n"
    epilogue = here.fork()
    assert epilogue.name(compile("off[n]")) == "off_n"
    assert epilogue.lines == ()
    assert epilogue.name(compile("off[n + 1]")) not in here.defines
