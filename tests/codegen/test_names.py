"""Any name that is no word of the language may be a param's, an input's, a dimension's or a let's."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

import pytest
from packages import files_of, whole
from ruff import find_ruff_bin

from flashgen import runtime
from flashgen.codegen import generate, load_module
from flashgen.codegen.words import inner_name, words
from flashgen.runtime import gluon
from flashgen.spec import load
from flashgen.spec.names import name_problem
from flashgen.verify import gradient_cases_for, run_case

GALLERY = sorted((Path(__file__).parents[2] / "generated").glob("*/*.py"))
PARAMS, INPUTS, DIMS, LETS = 24, 12, 12, 24
AT_ONCE = PARAMS + INPUTS + DIMS + LETS


def bound_in(module: ModuleType) -> set[str]:
    """What the functions and modules that generated code uses are called, and their arguments."""
    tree = ast.parse(inspect.getsource(module))
    defined = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef))
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {node.name for node in defined} | arguments | set(vars(module))


@cache
def stored_in_gallery() -> frozenset[str]:
    nodes = [node for path in GALLERY for node in ast.walk(ast.parse(path.read_text()))]
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return frozenset(arguments | {node.id for node in nodes if isinstance(node, ast.Name)})


# And names like those that are made for values, and for inputs.
MADE = {
    "c",
    "r",
    "t",
    "t_2",
    "q_",
    "m_",
    "tiles_",
    "tiles__",
    "x_ptr",
    "stride_x_0",
    "x_base",
    "x_row",
    "d_x",
    "d_x_sums",
}
# As many as take all names, some twice.
CHUNKS = 22


@cache
def names() -> list[str]:
    every = words() | bound_in(runtime) | bound_in(gluon) | stored_in_gallery() | MADE
    return sorted(name for name in every if name_problem(name) is None)


def names_of(chunk: int) -> list[str]:
    return (names() * 2)[chunk * AT_ONCE :][:AT_ONCE]


def test_the_chunks_have_every_name() -> None:
    assert {name for chunk in range(CHUNKS) for name in names_of(chunk)} == {*names()}
    assert all(len(names_of(chunk)) == AT_ONCE for chunk in range(CHUNKS))


def spec_of(names: list[str]) -> dict[str, Any]:
    """A spec in which each name has a part in the score, and some in the mask."""
    params, rest = names[:PARAMS], names[PARAMS:]
    inputs, dims, lets = rest[:INPUTS], rest[INPUTS : INPUTS + DIMS], rest[INPUTS + DIMS :]
    tables = {
        name: {"shape": ["heads", dim], "dtype": "float32", **({"grad": True} if place % 4 == 0 else {})}
        for place, (name, dim) in enumerate(zip(inputs, dims, strict=True))
    }
    reads = {
        let: f"{inputs[place % INPUTS]}[h, (q + {place} * k) % {dims[place % DIMS]}]" for place, let in enumerate(lets)
    }
    return {
        "name": "named",
        "params": {name: {"value": place - 3, "runtime": True} for place, name in enumerate(params)},
        "inputs": tables,
        "let": reads,
        "score": f"score + 0.01 * ({' + '.join(params)}) + 0.1 * ({' + '.join(lets)})",
        "mask": f"(k <= q + abs({params[0]})) | (k % {dims[0]} == abs({params[1]}) % {dims[1]})",
    }


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_user_may_take_any_name(tmp_path: Path, chunk: int) -> None:
    variant = load(spec_of(names_of(chunk)))
    path = generate(variant, tmp_path)
    check = [find_ruff_bin(), "check", "--isolated", "--select", "F821,F822,F823,F811", str(path)]
    found = subprocess.run(check, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    given = {inner_name(name) for name in names_of(chunk)}
    for function in filter(is_kernel, ast.parse(whole(files_of(path))).body):
        arguments = {argument.arg for argument in function.args.args}
        stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        assert not given & arguments & stored, function.name


def is_kernel(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    decorators = [ast.unparse(d) for d in node.decorator_list] if isinstance(node, ast.FunctionDef) else []
    return any("jit" in decorator for decorator in decorators)


# All of them take minutes; what a name would hide is seen above for each.
@pytest.mark.parametrize("chunk", [0, *(pytest.param(n, marks=pytest.mark.matrix) for n in range(1, CHUNKS, 9))])
def test_it_computes_what_the_formula_says(tmp_path: Path, chunk: int) -> None:
    variant = load(spec_of(names_of(chunk)))
    module = load_module(generate(variant, tmp_path))
    case = gradient_cases_for(variant, "quick", gpu=False, scheduled=True)[0]
    result = run_case(module, variant, case, "cpu")
    assert result.ok, str(result)


def test_every_name_that_generated_code_binds_gives_way() -> None:
    """What a spec of the gallery names, and what is made for it, is its own; the rest is a word of generated code."""
    own = ("slopes", "sinks", "block_mask", "doc", "is_global", "off", "prefix", "rel")
    made = re.compile(rf"(d_|stride_|_d_)?({'|'.join(own)})(_.*)?|[crth]_\w+|t\d+|_.*")
    assert [name for name in sorted(stored_in_gallery() - words()) if not made.fullmatch(name)] == []


def test_different_names_stay_different() -> None:
    both = [*names(), *(f"{name}_" for name in names())]
    assert len({inner_name(name) for name in both}) == len(set(both))


@pytest.mark.parametrize("name", ["scale", "config", "plan"])
def test_an_argument_of_attention_may_still_name_what_is_none(name: str, tmp_path: Path) -> None:
    variant = load({"name": "named", "let": {name: "q - k"}, "score": f"score - 0.1 * abs({name})"})
    module = load_module(generate(variant, tmp_path))
    result = run_case(module, variant, gradient_cases_for(variant, "quick", gpu=False, scheduled=False)[0], "cpu")
    assert result.ok, str(result)
