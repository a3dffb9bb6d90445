"""Dependencies run one way: what each part of the package may import, of the package and of others."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "flashgen"
# Modules that any part may read: they are about no kernel.
COMMON = {"errors", "printable"}
PARTS = {
    "runtime": set(),
    "lang": COMMON,
    "spec": {"lang", *COMMON},
    "analysis": {"lang", "spec"},
    "emit": {"analysis", "lang"},
    "flex": {"codegen", "lang", "runtime", "spec", *COMMON},
    "integrations": {"flex", *COMMON},
    "codegen": {"analysis", "emit", "files", "lang", "processes", "renaming", "runtime", "spec", *COMMON},
}
# NumPy is the interpreter's, and of the language's own evaluation.
OTHERS = {
    "runtime": {"torch", "triton", "numpy"},
    "lang": {"numpy"},
    "spec": {"pydantic", "pydantic_core", "yaml"},
    "analysis": set(),
    "emit": set(),
}
# Modules of codegen whose matter is text: docstrings, whole files, what compilers made of them.
OF_TEXTS = {"assembler", "docstrings", "export", "layout", "offline", "ptx", "render", "sass", "words", "write"}


def imported(part: str) -> Iterator[tuple[str, ...]]:
    """The modules that a part of the package imports, in functions and for type checkers too."""
    for path in (PACKAGE / part).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (tuple(alias.name.split(".")) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None
                assert node.level == 0, f"{path} imports by its own place"
                yield from ((*node.module.split("."), alias.name) for alias in node.names)


def parts_read(part: str) -> set[str]:
    """The parts that it imports from; of the package itself nothing counts but its version."""
    found = {module[1] for module in imported(part) if module[0] == "flashgen" and len(module) > 1}
    return found - {part, "__version__"}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_reads_those_below_it_alone(part: str) -> None:
    assert parts_read(part) <= PARTS[part]


@pytest.mark.parametrize("part", OTHERS)
def test_a_part_needs_few_packages(part: str) -> None:
    packages = {module[0] for module in imported(part)} - {"flashgen", *sys.stdlib_module_names}
    assert packages <= OTHERS[part]


def test_nothing_reads_the_command() -> None:
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"cli"}
    assert {"runtime", "bench", "explain"} <= parts
    assert [part for part in sorted(parts) if "cli" in parts_read(part)] == []


def test_nothing_but_commands_reads_the_integrations() -> None:
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"integrations", "cli"}
    assert [part for part in sorted(parts) if "integrations" in parts_read(part)] == []


@pytest.mark.parametrize("part", ["analysis", "emit", "codegen"])
def test_no_text_of_a_kernel_is_searched_or_edited(part: str) -> None:
    paths = [path for path in (PACKAGE / part).rglob("*.py") if part != "codegen" or path.stem not in OF_TEXTS]
    assert len(paths) > 1
    for path in paths:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        methods = {function.attr for function in called if isinstance(function, ast.Attribute)}
        assert not methods & {"replace", "sub", "partition", "search", "findall", "finditer"}, path
        assert "re" not in {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}, path


# Beside the files that have its name: the kinds of GPU, the shim over Gluon, where names of Gluon are imported from,
# and the comparison of its forward kernel's techniques.
OF_ONE_GPU = {"runtime/gpus.py", "runtime/gluon.py", "codegen/imports.py", "bench/ablation.py", "bench/techniques.py"}


def test_one_kind_of_gpu_is_named_in_its_own_files_alone() -> None:
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    named = {path for path, text in texts.items() if re.search("hopper|sm_90", text, re.IGNORECASE)}
    assert {path for path in named if "sm90" not in path} == OF_ONE_GPU
