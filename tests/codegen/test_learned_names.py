"""Statements of one learned input's gradient take no name that those of another made for something else."""

from __future__ import annotations

import ast

from flashgen.codegen import render
from flashgen.spec import load

# One table read per pair and at one place a tile; both places want a name for the key clamped from below.
SPEC = {
    "name": "two_places",
    "inputs": {"table": {"shape": [1, "heads", "q_len", "kv_len"], "dtype": "float32", "grad": True}},
    "score": "score + table[0, h, q, k] + max(table[clamp(31, 0, 0), clamp(k, 0, 1), clamp(k, 0, 776), q], -0.5)",
    "mask": "k % 7 < 5",
    "align": "top_left",
}


def kinds(node: ast.AST) -> dict[str, set[str]]:
    """For each name that the branches of an if give, which of a tile's positions its value goes by, through others."""
    found: dict[str, set[str]] = {}
    for each in ast.walk(node):
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            read = {name.id for name in ast.walk(each.value) if isinstance(name, ast.Name)}
            found.setdefault(each.targets[0].id, set()).update(read & {"k", "k_first"})
    return found


def test_branches_of_an_if_give_one_name_to_one_kind_of_value() -> None:
    tree = ast.parse(render(load(SPEC))["backward_inputs.py"])
    kernel = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "_backward_inputs")
    branches = [node for node in ast.walk(kernel) if isinstance(node, ast.If) and node.orelse]
    assert any({"k"} in kinds(branch).values() for branch in branches)
    for branch in branches:
        assert all(len(positions) < 2 for positions in kinds(branch).values()), ast.unparse(branch)
