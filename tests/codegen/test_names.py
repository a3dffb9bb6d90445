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
import torch
from packages import files_of, whole
from ruff import find_ruff_bin

from flashgen import runtime
from flashgen.codegen import generate, load_module
from flashgen.codegen.words import mangled_name, words
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
CHUNKS = 23


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
    given = {mangled_name(name) for name in names_of(chunk)}
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
    both = {
        f"{before}{name}{after}" for name in names() for before in ("", "_", "under_", "under") for after in ("", "_")
    }
    assert len({mangled_name(name) for name in both}) == len(both)


@pytest.mark.parametrize("name", ["scale", "config", "plan"])
def test_an_argument_of_attention_may_still_name_what_is_none(name: str, tmp_path: Path) -> None:
    variant = load({"name": "named", "let": {name: "q - k"}, "score": f"score - 0.1 * abs({name})"})
    module = load_module(generate(variant, tmp_path))
    result = run_case(module, variant, gradient_cases_for(variant, "quick", gpu=False, scheduled=False)[0], "cpu")
    assert result.ok, str(result)


# Words of Python and Triton that generated code could not say, and names that look like its own.
ODD = {
    "name": "odd",
    "params": {"class": 2, "pass": {"value": 0.5, "runtime": True}, "__debug__": {"value": 1, "runtime": True}},
    "inputs": {
        "lambda": {"shape": ["heads", "is"], "dtype": "float32", "grad": True},
        "_x": {"shape": ["batch", "kv_len"], "dtype": "float32"},
        "_x_ptr": {"shape": ["_forward"], "dtype": "float32"},
        "under_x": {"shape": [], "dtype": "float32"},
        "in": {"shape": [], "dtype": "float32"},
    },
    "let": {"from": "q - k", "_": "abs(from)", "__class__": "lambda[h, _ % is]", "None": "_x[b, k] + in"},
    "score": "score + class * pass * __class__ + None + _x_ptr[_ % _forward] + under_x + sum(i, _forward, _x_ptr[i])",
    "mask": "from >= -__debug__",
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_module(generate(load(ODD), tmp_path_factory.mktemp("odd")))


def odd_inputs() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    shapes = {"lambda": (2, 3), "_x": (1, 7), "_x_ptr": (4,), "under_x": (), "in": ()}
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_words_of_python_and_names_with_underscores(odd: ModuleType) -> None:
    given = odd_inputs()
    query, key, value = (torch.randn(1, 2, length, 16) for length in (5, 7, 7))
    learned, x, x_ptr, number, more = given.values()
    learned.requires_grad_()
    q, k = torch.arange(5)[:, None] + 2, torch.arange(7)
    score = query.double() @ key.double().mT / 4
    score = score + 2 * 0.25 * learned[:, (q - k).abs() % 3] + x[0] + more + x_ptr[(q - k).abs() % 4] + number
    score = (score + x_ptr.sum()).masked_fill(q - k < -2, -torch.inf)
    expected = score.softmax(-1) @ value.double()
    (gradient,) = torch.autograd.grad((expected * expected).sum(), learned)
    for found in (
        odd.attention(query, key, value, **given, **{"pass": 0.25, "__debug__": 2}),
        odd.reference(query, key, value, **{**given, "pass_": 0.25, "__debug__": 2}),
    ):
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.autograd.grad((found * found).sum(), learned)[0], gradient)


@pytest.mark.parametrize("word", ["_visible", "_score", "__debug__", "lambda", "range"])
def test_an_index_may_have_any_name(tmp_path: Path, word: str) -> None:
    spec = {
        "name": "counted",
        "inputs": {"x": {"shape": ["heads", "n"], "dtype": "float32"}},
        "score": f"score + sum({word}, n, x[h, {word}] * {word}) * abs(q - k)",
        "mask": f"(k <= q + any({word}, n, x[h, {word}] > 1)) & (k % 3 != 1)",
    }
    module = load_module(generate(load(spec), tmp_path))
    torch.manual_seed(0)
    query, x = torch.randn(1, 2, 40, 16, requires_grad=True), torch.tensor([[0.5, -1.5, 0.3], [1, -1, 2]])
    q, k = torch.arange(40)[:, None], torch.arange(40)
    score = query.double() @ query.double().mT / 4 + (x @ torch.arange(3.0))[:, None, None] * (q - k).abs()
    visible = (k <= q + (x > 1).any(1)[:, None, None]) & (k % 3 != 1)
    expected = score.masked_fill(~visible, -torch.inf).softmax(-1) @ query.double()
    found = module.attention(query, query, query, x=x)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    gradients = (torch.autograd.grad(each.sum(), query)[0] for each in (found, expected))
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=0)


def test_a_call_spells_a_keyword_with_an_underscore(odd: ModuleType) -> None:
    given = odd_inputs()
    q = torch.randn(1, 2, 7, 16)
    expected = odd.attention(q, q, q, **given)
    spelled = {"lambda_": given.pop("lambda"), "in_": given.pop("in"), "pass_": 0.5}
    assert torch.equal(odd.attention(q, q, q, **given, **spelled), expected)
    assert "\n    lambda_: float32 [heads, is].\n" in str(odd.attention.__doc__)
    with pytest.raises(TypeError, match="got both 'in' and 'in_'"):
        odd.attention(q, q, q, **given, **spelled, **{"in": 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'from_'"):
        odd.attention(q, q, q, **given, **spelled, from_=1)
