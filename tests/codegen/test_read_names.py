"""The modules of hard_specs.py, read as Python: what their kernels name exists, and is not compiled anew each time."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest
from hard_specs import RUNTIME, SPECS
from packages import files_of, whole
from ruff import find_ruff_bin

from flashgen.codegen import generate
from flashgen.codegen.words import mangled_name
from flashgen.lang.nodes import Type
from flashgen.spec import load


@pytest.mark.parametrize("name", SPECS)
def test_every_name_that_is_read_is_defined(tmp_path: Path, name: str) -> None:
    module = generate(load(SPECS[name]), tmp_path)
    check = [find_ruff_bin(), "check", "--isolated", "--select", "F821,F822,F823", "--output-format", "concise"]
    found = subprocess.run([*check, str(module)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("name", RUNTIME)
def test_no_kernel_is_made_for_one_value_of_a_runtime_param(tmp_path: Path, name: str) -> None:
    variant = load(SPECS[name])
    tree = ast.parse(whole(files_of(generate(variant, tmp_path))))
    integers = {mangled_name(param.name) for param in variant.runtime_params if param.type is Type.INT}
    launched = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _options(node) is not None]
    assert len(launched) > 5
    for kernel in launched:
        taken = integers & {argument.arg for argument in kernel.args.args}
        assert taken <= set(_options(kernel) or ()), kernel.name


def _options(function: ast.FunctionDef) -> list[str] | None:
    """What a kernel is not specialized for; None for a function that kernels call."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call):
            return [name for option in decorator.keywords for name in ast.literal_eval(option.value)]
    return None
