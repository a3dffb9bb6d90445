"""What is found of a function by its indents is what Python's tokenizer finds."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from function_blocks import BY_TOKENS, block, by_indents

FUNCTION = "def f(x):\n    return x\n"
AWKWARD = {
    "nothing after it": FUNCTION,
    "one line": "def f(x): return x\ny = 1\n",
    "another function": f"{FUNCTION}\n\n{FUNCTION}",
    "a class": f"{FUNCTION}class A:\n    pass\n",
    "decorators": f"@first\n@second(\n    1,\n)\n{FUNCTION}y = 1\n",
    "a head of several lines": "def f(\n    x,\n):\n    return x\n\n\ny = 1\n",
    "comments behind it": f"{FUNCTION}    # its own\n\n# another's\ny = 1\n",
    "a comment within": "def f(x):\n# here\n    return x\ny = 1\n",
    "a string at the margin": 'def f(x):\n    y = """\nz = 1\n"""\n    return y\nz = 2\n',
    "a string of other quotes": "def f(x):\n    y = '''\nz = 1\n'''\n    return y\nz = 2\n",
    "arguments at the margin": "def f(x):\n    return g(\nx,\nx)\ny = 1\n",
    "a line that goes on": "def f(x):\n    return \\\nx\ny = 1\n",
    "a lambda": "f = lambda x: x\ny = 1\n",
    "a method": "    def f(self):\n        return 1\n\n    def g(self):\n        return 2\n",
}


@pytest.mark.parametrize("what", AWKWARD)
def test_it_is_what_tokens_say(what: str) -> None:
    lines = AWKWARD[what].splitlines(keepends=True)
    assert block(lines) == BY_TOKENS(lines)


def test_generated_functions_need_no_tokens(repository: Path) -> None:
    """Of one package all; they are alike."""
    for path in sorted((repository / "generated" / "alibi").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines(keepends=True)
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
                assert by_indents(lines[first:]) == BY_TOKENS(lines[first:]), f"{path.name}: {node.name}"
