"""A failing case made small: smaller steps first tried where they take most away, kept where it still fails so."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from flashgen.problems.paged import room
from flashgen.verify.soak.case import Case, Recipe
from flashgen.verify.soak.formula import parsed
from flashgen.verify.soak.paged import PAGE

# The kind of failure that a case has, "passed" for none.
Trial = Callable[[Case], str]


def shrunk(case: Case, kind: str, fails: Trial, steps: int = 200) -> Case:
    """The smallest case found in so many trials that still fails with this kind."""
    tried = {case.digest}
    progress = True
    while progress:
        progress = False
        for smaller in map(tidied, _steps(case)):
            if smaller.digest in tried:
                continue
            if len(tried) > steps:
                return case
            tried.add(smaller.digest)
            if fails(smaller) == kind:
                case, progress = smaller, True
                break
    return case


def _steps(case: Case) -> Iterator[Case]:
    spec = case.spec
    yield replace(case, d_out="none")
    yield replace(case, configs={})
    yield replace(case, batch=1)
    for key in ("mask", "score", "softcap", "window", "bias", "sink", "block_sparse", "causal"):
        if key in spec:
            yield case.with_spec(**{key: None})
    yield from _smaller_sizes(case)
    for name in spec.get("let", {}):
        yield _without_let(case, name)
    for path in _texts(spec):
        for text in smaller_texts(_at(spec, path)):
            yield replace(case, spec=_with(spec, path, text))
    yield from _plainer(case)


def _smaller_sizes(case: Case) -> Iterator[Case]:
    for name, least in (("batch", 1), ("q_len", 1), ("kv_len", 1), ("head_dim", 16), ("v_head_dim", 16)):
        size = getattr(case, name)
        for smaller in dict.fromkeys((least, size // 2, size * 3 // 4, size - 1)):
            if least <= smaller < size:
                yield replace(case, **{name: smaller})
    if case.q_len == case.kv_len:
        for smaller in dict.fromkeys((case.q_len // 2, case.q_len - 1)):
            if smaller:
                yield replace(case, q_len=smaller, kv_len=smaller)
    if case.kv_heads > 1:
        yield replace(case, heads=case.heads // case.kv_heads, kv_heads=1)
    if case.heads > case.kv_heads:
        yield replace(case, heads=case.kv_heads)


def _plainer(case: Case) -> Iterator[Case]:
    """Options as callers leave them."""
    plain = Case(case.spec, *(1,) * 7, dtype="float32")
    for name in (
        "configs",
        "layouts",
        "shared",
        "gain",
        "scale",
        "planned",
        "defaults",
        "broadcast",
        "deterministic",
        "d_lse",
        "converted",
        "lengths",
        "rest",
        "paged",
    ):
        yield replace(case, **{name: getattr(plain, name)})
    for kernel in case.configs:
        yield replace(case, configs={name: each for name, each in case.configs.items() if name != kernel})
    if case.d_out not in ("none", "dense"):
        yield replace(case, d_out="dense")
    if case.dtype != "float32":
        yield replace(case, dtype="float32")
    for key in ("align", "approximate", "dropout"):
        if key in case.spec:
            yield case.with_spec(**{key: None})
    for name, recipe in case.recipes.items():
        yield replace(case, recipes={**case.recipes, name: replace(recipe, layout="plain")})
        form = case.spec["inputs"][name]
        if "grad" in form:
            yield replace(case, spec=_with(case.spec, ("inputs", name), {k: v for k, v in form.items() if k != "grad"}))
        if form["dtype"] not in ("float32", "int32", "bool"):
            dtype = "float32" if "float" in form["dtype"] else "int32"
            yield replace(case, spec=_with(case.spec, ("inputs", name, "dtype"), dtype))
    for name, form in case.spec.get("params", {}).items():
        if isinstance(form, dict):
            params = {each: value for each, value in case.params.items() if each != name}
            spec = _with(case.spec, ("params", name), case.params.get(name, form["value"]))
            yield replace(case, spec=spec, params=params)


def _without_let(case: Case, name: str) -> Case:
    """The let's text in the place of its name."""
    body = parsed(case.spec["let"][name])

    class Spelled(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return copy.deepcopy(body) if node.id == name else node

    spec = _with(case.spec, ("let",), {each: text for each, text in case.spec["let"].items() if each != name})
    for path in _texts(spec):
        spec = _with(spec, path, ast.unparse(Spelled().visit(parsed(_at(spec, path)))))
    return replace(case, spec=spec)


def smaller_texts(text: str) -> Iterator[str]:
    """Texts of the expression with one part replaced by one of its own parts, or by something simple."""
    tree = parsed(text)
    for place in range(len(_parts(tree))):
        for choice in range(8):
            found = _reduced(copy.deepcopy(tree), place, choice)
            if found is not None and len(found) < len(ast.unparse(tree)):
                yield found


def _reduced(tree: ast.expr, place: int, choice: int) -> str | None:
    """The expression whose part number `place` gives way to its simpler form number `choice`."""
    target = _parts(tree)[place]
    simpler = _simpler(target)
    if choice >= len(simpler):
        return None

    class Replaced(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> Any:
            return simpler[choice] if node is target else self.generic_visit(node)

    return ast.unparse(Replaced().visit(tree))


def _parts(tree: ast.expr) -> list[ast.expr]:
    """The expressions below one, without the names of functions and inputs."""
    nodes = list(ast.walk(tree))
    names = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names |= {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}
    return [node for node in nodes if isinstance(node, ast.expr) and id(node) not in names]


def _simpler(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Constant | ast.Tuple) or (isinstance(node, ast.Name) and node.id == "score"):
        return []
    parts: list[ast.expr] = []
    if isinstance(node, ast.Call):
        parts = list(node.args)
    elif isinstance(node, ast.Subscript):
        parts = []
    else:
        parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    if isinstance(node, ast.Compare | ast.BoolOp) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        return [*(part for part in parts if _is_test(part)), ast.Constant(True)]
    return [*parts, ast.Constant(1), ast.Constant(0), ast.Constant(0.5), ast.Constant(True)]


def _is_test(node: ast.expr) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.BinOp | ast.Subscript | ast.Name | ast.Call)


Path = tuple[str, ...]


def _texts(spec: Any) -> list[Path]:
    return [(key,) for key in ("mask", "score") if key in spec] + [("let", name) for name in spec.get("let", {})]


def _at(spec: Any, path: Path) -> str:
    for key in path:
        spec = spec[key]
    return str(spec)


def _with(spec: Any, path: Path, value: Any) -> Any:
    """The spec with another value at a path."""
    if not path:
        return value
    return {**spec, path[0]: _with(spec.get(path[0], {}), path[1:], value)}


def tidied(case: Case) -> Case:
    """Without what nothing reads any more."""
    from flashgen.verify.soak.draw import bound, needed

    spec = bound(needed(dict(case.spec)), dict(case.dims))
    spec = {key: value for key, value in spec.items() if not (key == "score" and value == "score")}
    inputs, params = spec.get("inputs", {}), spec.get("params", {})
    extents = {str(extent) for form in inputs.values() for extent in form["shape"]}
    recipes: dict[str, Recipe] = {name: each for name, each in case.recipes.items() if name in inputs}
    case = _cut(case)
    return replace(
        case, spec=spec, recipes=recipes, params={name: each for name, each in case.params.items() if name in params},
        dims={name: each for name, each in case.dims.items() if name in extents},
    )  # fmt: skip


def _cut(case: Case) -> Case:
    """With as many packed sequences, and as long, as there is room for; in pages with as much room as they need."""
    found = case.lengths[: case.batch]
    lengths = tuple((min(q_len, case.q_len), min(kv_len, case.kv_len)) for q_len, kv_len in found)
    if not lengths:
        return replace(case, lengths=(), rest=(0, 0))
    if not case.paged:
        return replace(case, lengths=lengths)
    return replace(case, lengths=lengths, kv_len=room([kv_len for _, kv_len in lengths], PAGE))
