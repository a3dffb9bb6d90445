"""Imports, heads of functions and calls as a person writes them: several names or arguments a line."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

# So many arguments of at most so many letters share lines.
_MANY = 6
_SHORT = 24


def in_rows(source: str, laid_out: str, width: int) -> list[str]:
    """`laid_out`, the source after ruff, in rows where ruff gave each argument, or imported name, a line of its own.

    Arguments of a head that share a line in `source` share a row, as far as it has room for them. An import, and a call
    of many short arguments, has as many in a row as there is room for. It comes as the texts of its statements, each
    with what stands in front of it, the last one with what comes after it.
    """
    lines = laid_out.split("\n")
    statements = ast.parse(laid_out).body
    begins = [0, *(node.end_lineno or 0 for node in statements[:-1])]
    found: list[str] = []
    # From the end, so that what comes before stands where the tree has it.
    for node, begin in zip(reversed(statements), reversed(begins), strict=False):
        _group(lines, source, node, width)
        found.append("\n".join(lines[begin:]))
        del lines[begin:]
    return found[::-1] or [laid_out]


def _group(lines: list[str], source: str, node: ast.stmt, width: int) -> None:
    """Rewrite a statement of the module in place; `source` has it as it was written."""
    if isinstance(node, ast.ImportFrom):
        _group_names(lines, node, width)
        return
    if not isinstance(node, ast.FunctionDef):
        _group_calls(lines, node, width)
        return
    for statement in reversed(node.body):
        _group_calls(lines, statement, width)
    _group_arguments(lines, source, node, width)
    for decorator in reversed(node.decorator_list):
        _group_list(lines, decorator, width)


def of_several_lines(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what in it has several lines."""
    yield node
    for child in ast.iter_child_nodes(node):
        if getattr(child, "end_lineno", None) != getattr(child, "lineno", 0):
            yield from of_several_lines(child)


def _group_names(lines: list[str], node: ast.ImportFrom, width: int) -> None:
    """Rewrite an import of several lines in place."""
    first, last = node.lineno, (node.end_lineno or 0) - 1
    if first < last:
        lines[first:last] = joined([line.strip() for line in lines[first:last]], "    ", width)


def _group_calls(lines: list[str], statement: ast.stmt, width: int) -> None:
    """Rewrite the calls in a statement that have many short arguments, in place."""
    found = [node for node in of_several_lines(statement) if isinstance(node, ast.Call) and _is_column(node)]
    for call in sorted(found, key=lambda call: call.lineno, reverse=True):
        first, last = call.lineno, (call.end_lineno or 0) - 1
        items = [line.strip() for line in lines[first:last]]
        if max(map(len, items)) <= _SHORT:
            lines[first:last] = joined(items, " " * call.args[0].col_offset, width)


def _is_column(call: ast.Call) -> bool:
    """Whether it has many arguments and nothing else, each on the next line."""
    if call.keywords or len(call.args) < _MANY:
        return False
    return [each.end_lineno for each in call.args] == [*range(call.lineno + 1, call.end_lineno or 0)]


def _rows(source: str, name: str) -> list[int]:
    """The line of each argument of a function as it was written, a star alone with the one after it."""
    # The head by itself: to parse all of the source would take a third of the layout's time. Prose stands before it.
    begin = f"\n{source}".rindex(f"\ndef {name}(")
    (function,) = ast.parse(source[begin : source.index(":\n", begin)] + ": pass").body
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    lines = [each.lineno for each in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg is not None:
        lines.append(arguments.vararg.lineno)
    elif arguments.kwonlyargs:
        lines.append(arguments.kwonlyargs[0].lineno)
    lines += [each.lineno for each in arguments.kwonlyargs]
    return lines + ([arguments.kwarg.lineno] if arguments.kwarg is not None else [])


def _group_arguments(lines: list[str], source: str, function: ast.FunctionDef, width: int) -> None:
    """Rewrite the head of a function in place; it stays where it is not one argument a line."""
    first = function.lineno
    last = next((n for n in range(first - 1, function.body[0].lineno - 1) if lines[n].endswith(":")), first)
    texts = [line.strip() for line in lines[first:last]]
    if not texts or any("#" in text for text in texts):
        return
    rows = _rows(source, function.name)
    if len(texts) != len(rows):
        return
    whole = lines[first - 1] + " ".join(texts).rstrip(",") + lines[last].strip()
    if len(whole) <= width:
        lines[first - 1 : last + 1] = [whole]
        return
    indent = " " * (function.col_offset + 4)
    starts = [place for place in range(len(rows)) if place == 0 or rows[place] != rows[place - 1]]
    parts = [texts[start:stop] for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True)]
    lines[first:last] = [row for part in parts for row in joined(part, indent, width)]


def _group_list(lines: list[str], decorator: ast.expr, width: int) -> None:
    """Rewrite a list that is a decorator's only argument in place, as `_group_arguments` does a head."""
    if not isinstance(decorator, ast.Call) or decorator.args or len(decorator.keywords) != 1:
        return
    (keyword,) = decorator.keywords
    first, last = decorator.lineno - 1, decorator.end_lineno or 0
    if not isinstance(keyword.value, ast.List) or last - first != len(keyword.value.elts) + 4:
        return
    indent = " " * decorator.col_offset
    items = [line.strip() for line in lines[first + 2 : last - 2]]
    head = lines[first] + lines[first + 1].strip()
    lines[first:last] = [head, *joined(items, f"{indent}   ", width), f"{indent[1:]}])"]


def joined(items: Sequence[str], indent: str, width: int) -> Iterator[str]:
    """The items, each with its comma, as many in each line as there is room for."""
    line = indent
    for item in items:
        if line != indent and len(line) + len(item) > width:
            yield line.rstrip()
            line = indent
        line += f"{item} "
    yield line.rstrip()
