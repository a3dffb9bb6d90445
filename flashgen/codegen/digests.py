"""Digests of kernels' texts: a tuned record belongs to kernels that read as they did when it was measured."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from functools import lru_cache

from flashgen.codegen.imports import RUNTIME, homes_of
from flashgen.runtime.registry import TUNED, kernels_of

_DEVICE = "flashgen.runtime.device."


def kernel_digests(texts: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """12 hex digits for each family of kernels, of the texts that its kernels consist of.

    These are the kernels' own, and of what they call the variant's and that of `flashgen.runtime.device`. `texts` are
    those of the variant's files, without the docstring, which names the spec's path; `own` says where each name is
    defined.
    """
    return {family: _digest(_parts(family, texts, own)) for family in TUNED}


def _digest(texts: Mapping[str, str]) -> str:
    whole = hashlib.sha256()
    for name in sorted(texts):
        whole.update(f"{name}\0{texts[name]}\0".encode())
    return whole.hexdigest()[:12]


def _parts(family: str, texts: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The texts that a family's kernels consist of, by file or module."""
    found: dict[str, str] = {}
    waiting = [f".{kernel.name}" for kernel in kernels_of(family) if kernel.name in texts]
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        if module.startswith("."):
            found[module] = texts[module[1:]]
            read = [home.module for home in homes_of(found[module], own)]
        else:
            found[module] = _source(module)
            read = _imported(found[module])
        waiting += [each for each in read if each.startswith((".", _DEVICE))]
    return found


@lru_cache(maxsize=64)
def _imported(text: str) -> list[str]:
    return [str(node.module) for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]


def _source(module: str) -> str:
    path = RUNTIME.parent.joinpath(*module.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
