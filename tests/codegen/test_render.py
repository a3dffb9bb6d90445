"""What a generated file looks like: right for any spec that is accepted, and no longer than it must be."""

from __future__ import annotations

import ast
import gc
import re
import shlex
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import pytest
import torch
from expression_strategies import expressions
from gallery import VARIANTS
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packages import whole

from flashgen.codegen import generate, load_module, render, uses_schedule
from flashgen.errors import SpecError
from flashgen.lang.nodes import Type, var
from flashgen.lang.scope import Scope, TensorType
from flashgen.processes import program
from flashgen.runtime import Config
from flashgen.runtime.registry import REGISTRY
from flashgen.spec import load

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Config(32, 32, 4, 1)


@cache
def files_of(name: str) -> dict[str, str]:
    """The files of a gallery variant, rendered once."""
    return render(VARIANTS[name])


def text_of(name: str) -> str:
    """All of them as one text."""
    return whole(files_of(name))


def functions(text: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def source(text: str, name: str) -> str:
    return ast.unparse(functions(text)[name])


def test_rendering_is_not_interrupted_by_collections() -> None:
    variant = load({"name": "uncollected", "score": "score - 0.25 * abs(q - k)", "mask": "k % 3 <= q"})
    begun: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        begun.extend([info["generation"]] if phase == "start" else [])

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1000, 10, 10)
    gc.callbacks.append(note)
    try:
        render(variant)
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
    # What was made within comes after it.
    assert len(begun) <= 1
    assert gc.isenabled()


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))


def lint(files: Mapping[str, str]) -> str:
    """What ruff finds of names unused, undefined or hidden in the files, and of imports out of order."""
    with TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name.replace("__init__", "module")).write_text(text, encoding="utf-8")
        # Imports stand in rows, as ruff would not lay them out.
        subprocess.run(
            [*program("ruff"), "format", "--isolated", "--quiet", "--line-length", "120", folder], check=True
        )
        rules = ["--isolated", "--select", "F,I,B006,B023", "--no-cache", "--line-length", "120"]
        done = subprocess.run([*program("ruff"), "check", *rules, folder], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("name", VARIANTS)
def test_nothing_in_a_module_is_unused(name: str) -> None:
    assert lint(files_of(name)) == ""


@pytest.mark.parametrize("name", VARIANTS)
def test_no_argument_is_unused(name: str) -> None:
    for function in functions(text_of(name)).values():
        read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
        # The eager formula has one form for all variants; `deterministic` has nothing to change here.
        assert arguments - read <= {"deterministic"}, function.name


@pytest.mark.parametrize("name", VARIANTS)
def test_a_file_says_what_it_is(name: str) -> None:
    variant, files = VARIANTS[name], files_of(name)
    documentation = {file: ast.get_docstring(ast.parse(text)) or "" for file, text in files.items()}
    assert all(f"flashgen build {variant.source}" in each for each in documentation.values())
    first = documentation.pop("__init__.py")
    assert variant.description in first
    assert all(tensor.name in first for tensor in variant.inputs)
    assert all(f"    {file} " in first for file in documentation)
    text = files["__init__.py"]
    attention = ast.get_docstring(functions(text)["attention"]) or ""
    assert all(f"\n{name}: " in attention for name in [*(t.name for t in variant.inputs), "scale", "config"])
    assert not re.search(r"\b20\d\d-\d\d-\d\d\b", text_of(name))


# Those that may be longer.
LONG = {"__init__.py": 380}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_file_is_no_longer_than_it_must_be(name: str) -> None:
    lengths = {file: text.count("\n") for file, text in files_of(name).items()}
    assert lengths["forward.py"] <= 150
    assert {file: length for file, length in lengths.items() if length > LONG.get(file, 350)} == {}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_kernels_share_is_in_one_file_and_what_one_calls_in_its_own(name: str) -> None:
    files = files_of(name)
    defined = {file: functions(text) for file, text in files.items()}
    assert len({function for each in defined.values() for function in each}) == sum(map(len, defined.values()))
    for function in defined.get("pair.py", ()):
        readers = [file for file, text in files.items() if file != "pair.py" and function in words_of(text)]
        others = [f for f in defined["pair.py"] if f != function and function in words_of(source(files["pair.py"], f))]
        assert len(readers) > 1 or others, function


def test_a_causal_file_does_not_mention_windows() -> None:
    others = {"window", "left", "lower", "sink", "sinks", "slopes", "score_mod", "schedule"}
    assert not words(text_of("causal")) & others


def test_an_unmasked_file_has_one_loop_and_no_mask() -> None:
    kernel = functions(text_of("full"))["_forward"]
    assert sum(isinstance(node, ast.For | ast.While) for node in ast.walk(kernel)) == 1
    assert "_visible" not in text_of("full")
    assert "plan" not in functions(text_of("full"))


@pytest.mark.parametrize("name", VARIANTS)
def test_only_a_scheduled_file_classifies_tiles(name: str) -> None:
    scheduled = uses_schedule(VARIANTS[name])
    assert ("_classify" in text_of(name)) == ("def plan(" in text_of(name)) == scheduled


@pytest.mark.parametrize("name", VARIANTS)
def test_no_switch_is_left_in_a_kernel(name: str) -> None:
    """Every `if` in a kernel tests a value, the dtype or a tuned axis, and no constant besides is an argument."""
    tuned = {axis.upper() for kernel in REGISTRY for axis in kernel.axes}
    for function in functions(text_of(name)).values():
        if any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list):
            constants = {a.arg for a in function.args.args if a.annotation is not None}
            # PRECISE, TOKEN_SCALES and CONVERTED follow from a call, SKIP_UNIFORM from which kernels it runs, TILE and
            # WIDTH from their configs.
            sizes = {"BM", "BN", "TILE", "WIDTH", "CHUNK", "HEAD_DIM", "V_HEAD_DIM", "STAGES", "BLOCK_SIZE"}
            others = {"PRECISE", "TOKEN_SCALES", "CONVERTED", "SKIP_UNIFORM"}
            assert constants <= sizes | others | tuned
            for node in ast.walk(function):
                if isinstance(node, ast.If):
                    assert (
                        not {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)} <= constants - others - tuned
                    )


@pytest.mark.parametrize("name", VARIANTS)
def test_only_a_file_with_learned_inputs_adds_up_their_gradients(name: str) -> None:
    assert ("LEARNED" in text_of(name)) == ("_backward_inputs" in text_of(name)) == (name in ("alibi", "relative_bias"))


@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "dilated"])
def test_a_score_that_is_left_alone_costs_one_multiplication(name: str) -> None:
    assert not re.search(r"\b_score", text_of(name))
    assert "online_softmax_scaled(qk, qk_scale, v_tile, acc, m, l)" in text_of(name)


def test_alibi_takes_no_absolute_value_and_reads_its_slope_once() -> None:
    assert "tl.abs" not in text_of("alibi")
    assert source(text_of("alibi"), "_forward").count("tl.load") == 1


def _bound(function: ast.AST) -> set[str]:
    """What a function assigns, and its arguments."""
    return _stored(function) | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}


def _stored(code: ast.AST) -> set[str]:
    """What is assigned."""
    return {node.id for node in ast.walk(code) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def _is_kernel(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        kind in ast.unparse(d) for d in node.decorator_list for kind in ("triton.jit", "gluon.jit")
    )


DESCRIPTIONS = [
    'It says "quoted" and ends in a quote"',
    "Backslashes \\n \\x41 \\",
    "Three \"\"\" of them, and ''' too",
    'Four """" and a backslash before one \\"""',
    "{{ 7 * 7 }} {% raw %} {# comment #} ${x} %s {}",
    "Привет, 世界, ∑ exp(αᵢ) — naïve",
    "Two lines\nof text",
    "'''\nimport os\n'''",
    '"""\nraise SystemExit\n"""',
    "\\",
    "# no comment",
]


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_any_description_is_text_and_nothing_else(description: str, tmp_path: Path) -> None:
    variant = load({"name": "described", "description": description, "causal": True})
    module = load_module(generate(variant, tmp_path))
    for text in (module.__doc__, module.attention.__doc__):
        assert text is not None
        assert variant.description in text.replace("\n    ", "\n")
    assert lint(render(variant)) == ""


@given(description=st.text(max_size=60))
@settings(max_examples=20)
def test_a_description_of_any_characters_renders(description: str) -> None:
    try:
        variant = load({"name": "described", "description": description})
    except SpecError:
        return
    documentation = ast.get_docstring(ast.parse(render(variant)["__init__.py"]), clean=False) or ""
    assert documentation.startswith(variant.description)


@pytest.mark.parametrize("folder", ['a"b', "a'b", "a\\b", "naïve {{ x }}", 'tri"""ple'])
def test_any_path_of_a_spec(folder: str, tmp_path: Path) -> None:
    path = tmp_path / folder / "mine.yaml"
    path.parent.mkdir()
    path.write_text("name: mine\ncausal: true\n")
    variant = load(path)
    module = load_module(generate(variant, tmp_path))
    assert variant.source == module.IDENTITY.source
    assert shlex.quote(variant.source) in (module.__doc__ or "")


NAMES = {name: var(name, Type.INT) for name in ("b", "h", "kv_h", "q", "k", "q_len", "kv_len", "heads", "batch", "n")}
SCOPE = Scope(
    {name: node for name, node in NAMES.items() if name != "batch"} | {"score": var("score", Type.FLOAT)},
    {"doc": TensorType(Type.INT, 2), "off": TensorType(Type.INT, 1)},
)
MASK_SCOPE = Scope({name: node for name, node in SCOPE.names.items() if name != "score"}, SCOPE.tensors)


@example(score="score", mask="b < off[b]")
@given(score=expressions(Type.FLOAT, SCOPE, 2), mask=expressions(Type.BOOL, MASK_SCOPE, 2))
@settings(max_examples=25)
def test_nothing_is_unused_whatever_the_expressions(score: str, mask: str) -> None:
    named = set(re.findall(r"\w+", f"{score} {mask}"))
    inputs = {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}, "off": {"shape": ["docs"], "dtype": "int64"}}
    spec: dict[str, Any] = {"name": "drawn", "score": f"score + {score}", "mask": mask}
    spec["inputs"] = {name: form for name, form in inputs.items() if name in named}
    spec["params"] = {"n": {"value": 3, "runtime": True}} if "n" in named else {}
    try:
        files = render(load({key: value for key, value in spec.items() if value}))
    except SpecError:
        # What folding removes is refused as unread.
        return
    assert lint(files) == ""


def call(module: ModuleType, **arguments: Any) -> None:
    q, k = torch.randn(2, 2, 40, 16, device=DEVICE), torch.randn(2, 1, 50, 16, device=DEVICE)
    arguments = {name: torch.as_tensor(x, device=DEVICE) if isinstance(x, list) else x for name, x in arguments.items()}
    out, lse = module.attention(q, k, k, **arguments, return_lse=True, config=SMALL)
    expected = module.reference(q.double(), k.double(), k.double(), **arguments, return_lse=True)
    torch.testing.assert_close((out.double(), lse.double()), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("param", ["other", "doc_b"])
def test_names_that_two_values_suggest_stay_apart(param: str, tmp_path: Path) -> None:
    """doc[b, q + 1] and doc[b, k + 1] suggest one name, which a param may have too."""
    variant = load(
        {
            "name": "apart",
            "params": {param: {"value": 1, "runtime": True}},
            "inputs": {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}},
            "score": f"score + 0.1 * doc[b, k + 1] * (doc[b, k + 1] - doc[b, q + 1] + {param} * k)",
            "mask": f"(doc[b, k + 1] == doc[b, q + 1]) | (doc[b, k + 1] < doc[b, q - 3] + {param} * k)",
        }
    )
    doc = torch.randint(0, 4, (2, 50), dtype=torch.int32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    call(load_module(generate(variant, tmp_path)), doc=doc, **{param: 2})


def test_an_index_kept_inside_by_the_batch_size(tmp_path: Path) -> None:
    table = {"shape": ["batch", "kv_len"], "dtype": "float32"}
    variant = load({"name": "by_batch", "inputs": {"x": table}, "score": "score + x[h + 1, k]", "mask": "x[k, q] < 1"})
    call(
        load_module(generate(variant, tmp_path)),
        x=torch.randn(2, 50, generator=torch.Generator().manual_seed(0)).to(DEVICE),
    )


def test_dimensions_that_are_written_alike(tmp_path: Path) -> None:
    table = {"shape": ["kv_len // 4 + 1", "kv_len // 4 + 1"], "dtype": "float32"}
    variant = load({"name": "alike", "inputs": {"x": table}, "score": "score + x[q // 4, k // 4]"})
    call(load_module(generate(variant, tmp_path)), x=torch.randn(13, 13, device=DEVICE))


def test_sizes_beyond_32_bits(tmp_path: Path) -> None:
    """The product of two sizes is computed in 64 bits."""
    variant = load(
        {"name": "wide", "inputs": {"x": {"shape": ["n"], "dtype": "int8"}}, "mask": "(n * n + k > n) & (x[k] == 0)"}
    )
    call(load_module(generate(variant, tmp_path)), x=torch.zeros(50_000, dtype=torch.int8, device=DEVICE))
