"""A generated package as one file: the sources of `flashgen.runtime` that it uses, its tuned records, its own files.

The sources are moved, not changed, but for private names that two of them or the generated module have: these get the
module's name. Public top-level names are unique over the package, by them the sources reach one another. The generated
module keeps saying `runtime.name`; a namespace of that name stands in. What serving needs beside attention is
among the file's functions too.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import flashgen
from flashgen.codegen.layout import formatted
from flashgen.codegen.render import BEFORE_FILES, MODULE, exported_docstring, identity, render
from flashgen.files import write_if_changed
from flashgen.renaming import renamed
from flashgen.runtime.record_table import to_text
from flashgen.runtime.records import Record, gpu_slug
from flashgen.spec.variant import Variant

RUNTIME = "flashgen.runtime"
FOLDER = Path(flashgen.__file__).parent / "runtime"
# What an exported module uses instead, from `embedded`.
REPLACED = {
    "shipped_root": "embedded_root",
    "attention_operator": "shared_operator",
    "paged_operator": "shared_paged_operator",
}


_ABOUT_FILES = ast.dump(ast.parse(BEFORE_FILES).body[0])
# What a caller may name of the runtime beside what serving needs: the rest is not for help() and `import *`.
_PUBLIC = ("Config", "RecordWarning")


@dataclass(frozen=True)
class Source:
    """A module in parts: what it imports from the runtime (module -> names), its other imports, and the rest.

    What it imports from its own package is left out, with what it does for that. `names` are those that `text` defines,
    `used` those of the runtime that it reads, as `runtime.name` or imported by name, `summary` is the first line of the
    docstring.
    """

    text: str
    runtime: dict[str, tuple[str, ...]]
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    names: tuple[str, ...]
    used: frozenset[str]
    summary: str


@dataclass(frozen=True)
class Exported:
    """A written file, its length, and how many tuned records it carries."""

    path: Path
    lines: int
    records: int


def export_module(variant: Variant, records: Iterable[Record], path: Path) -> Exported:
    """Write the variant's module as one file. Records of another spec or other templates are left out."""
    own = identity(variant)
    kernels = {(kernel, own.spec, digest) for kernel, digest in own.templates.items()}
    # Of two for one key the first counts, as the user's cache comes before what is shipped.
    fitting = {r.key: r for r in reversed([*records]) if (r.key.kernel, r.key.spec, r.key.templates) in kernels}
    tables: dict[str, list[Record]] = {}
    for key, record in fitting.items():
        tables.setdefault(f"{gpu_slug(key.gpu)}.json", []).append(record)
    texts = [(name, to_text(table)) for name, table in sorted(tables.items())]
    source = bundle(render(variant), texts, exported_docstring(variant, path.name))
    text = formatted({"exported.py": source})["exported.py"]
    write_if_changed(path, text)
    return Exported(path, text.count("\n"), len(fitting))


def bundle(files: Mapping[str, str], records: Iterable[tuple[str, str]], docstring: str = "") -> str:
    """The single file's source, not yet formatted.

    `files` are those of a rendered package; `records` are pairs of a file's name and its table of records.
    """
    own = {name: split(text) for name, text in files.items()}
    module = own.pop(MODULE)
    used = sorted({name for source in (*own.values(), module) for name in source.used})
    homes = _homes()
    public = [name for name in used if name in homes]
    # What the module imports by name need not be public.
    by_name = [name for source in (*own.values(), module) for name in source.runtime]
    # Who serves from the file has nothing else to write the cache with.
    order = list(_in_order([*(homes[name] for name in public), *by_name, "embedded", "serving"]))
    defined = [name for source in (*own.values(), module) for name in source.names]
    sources = apart({name: _source(name) for name in order}, defined)
    _refuse_clashes({**sources, **own, "the generated module": module})
    parts = [
        docstring,
        _merged([node for source in (*sources.values(), *own.values(), module) for node in source.imports]),
        *(f"# {RUNTIME}.{name}: {source.summary}\n{source.text}" for name, source in sources.items() if source.text),
        "\n".join(f"EMBEDDED[{path!r}] = {text!r}" for path, text in records),
        f"runtime = SimpleNamespace({', '.join(f'{name}={REPLACED.get(name, name)}' for name in public)})",
        *(f"# {name}: {source.summary}\n{source.text}" for name, source in own.items()),
        module.text,
        f"__all__ = {[*dict.fromkeys((*_public(module), *_given(sources['serving']), *_PUBLIC))]}",
    ]
    return "\n\n\n".join(part for part in parts if part.strip()) + "\n"


def split(text: str) -> Source:
    """Take a module apart at its top-level imports and its docstring."""
    tree = ast.parse(text)
    lines = text.split("\n")
    for node in filter(_is_about_files, tree.body):
        lines[node.lineno - 1] = ""
    tree.body = [node for node in tree.body if not _is_about_files(node)]
    runtime: dict[str, tuple[str, ...]] = {}
    imports: list[ast.Import | ast.ImportFrom] = []
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).split(".")[0] == "flashgen"):
            if not node.level and node.module != "flashgen":
                module = str(node.module).removeprefix(f"{RUNTIME}.")
                runtime[module] = (*runtime.get(module, ()), *(alias.name for alias in node.names))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append(node)
        elif node is not tree.body[0] or not _is_docstring(node):
            names.extend(_defined(node))
            continue
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = ""
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    used = frozenset({*_attributes(tree), *(name for names in runtime.values() for name in names)})
    return Source("\n".join(lines).strip("\n"), runtime, tuple(imports), tuple(names), used, summary)


def _merged(imports: Iterable[ast.Import | ast.ImportFrom]) -> str:
    """All imports once: `from __future__`, the standard library, the rest."""
    plain: set[str] = set()
    names: dict[str, set[str]] = {"types": {"SimpleNamespace"}}
    for node in imports:
        if isinstance(node, ast.Import):
            plain.add(ast.unparse(node))
        else:
            names.setdefault(str(node.module), set()).update(ast.unparse(alias) for alias in node.names)
    future = f"from __future__ import {', '.join(sorted(names.pop('__future__', {'annotations'})))}"
    lines = sorted(plain) + [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)]
    foreign = [line for line in lines if line.split()[1].split(".")[0] not in sys.stdlib_module_names]
    return "\n\n".join([future, "\n".join(line for line in lines if line not in foreign), "\n".join(foreign)])


def _attributes(tree: ast.Module) -> Iterator[str]:
    """What a generated module reads as `runtime.name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "runtime":
            yield node.attr


def _homes() -> dict[str, str]:
    """The module of the runtime that defines each of its public names."""
    package = split((FOLDER / "public.py").read_text(encoding="utf-8"))
    return {name: home for home, names in package.runtime.items() for name in names}


def _in_order(modules: Iterable[str]) -> Iterator[str]:
    """The modules and what they import, each once, after all that it imports."""
    done: set[str] = set()

    def visit(name: str) -> Iterator[str]:
        if name not in done:
            done.add(name)
            for needed in _source(name).runtime:
                yield from visit(needed)
            yield name

    for name in modules:
        yield from visit(name)


@cache
def _source(name: str) -> Source:
    """A module of the runtime by its name within it."""
    return split(FOLDER.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8"))


def apart(sources: Mapping[str, Source], taken: Iterable[str] = ()) -> dict[str, Source]:
    """The sources with the module's name added to private names that several of them define, or that are taken."""
    owners = Counter(name for names in (*(source.names for source in sources.values()), taken) for name in {*names})
    found = {}
    for module, source in sources.items():
        suffix = module.rpartition(".")[2]
        clashing = [name for name in source.names if name.startswith("_") and owners[name] > 1]
        names = {name: f"{name}_of_{suffix}" for name in clashing}
        text = _renamed(source.text, (*names.items(),)) if names else source.text
        found[module] = replace(source, text=text, names=tuple(names.get(name, name) for name in source.names))
    return found


# Most modules of the runtime have the same names changed in every file.
@lru_cache(maxsize=128)
def _renamed(text: str, names: tuple[tuple[str, str], ...]) -> str:
    return renamed(text, dict(names))


def _public(source: Source) -> list[str]:
    return [name for name in source.names if not name.startswith("_")]


def _given(door: Source) -> list[str]:
    """What a module gives of others."""
    return [name for names in door.runtime.values() for name in names]


def _refuse_clashes(sources: dict[str, Source]) -> None:
    owners: dict[str, str] = {}
    for module, source in sources.items():
        for name in source.names:
            other = owners.setdefault(name, module)
            if other != module:
                raise AssertionError(f"{name} is defined in {other} and in {module}: one file cannot hold both")


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


def _is_about_files(node: ast.stmt) -> bool:
    """Whether this is `BEFORE_FILES`, which a single file does not need."""
    return ast.dump(node) == _ABOUT_FILES


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
