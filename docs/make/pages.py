"""Pages that are made, not written: mkdocs runs this file (mkdocs-gen-files) whenever it builds the site."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import mkdocs_gen_files

sys.path.insert(0, str(Path(__file__).parent))

import gallery
import links
import mods_page
import reference

LANGUAGES = {".py": "python", ".yaml": "yaml", ".md": "markdown", ".jinja": "jinja", ".json": "json"}


def write(name: str, content: str | bytes) -> None:
    with mkdocs_gen_files.open(name, "w" if isinstance(content, str) else "wb") as file:
        file.write(content)


def make_gallery() -> None:
    rows = gallery.rows()
    listed = ["# Gallery\n", "One concept each; each page has the formula, the pictures, the speeds, the kernels.\n"]
    with tempfile.TemporaryDirectory() as folder:
        for path in gallery.specs():
            variant = gallery.load(path)
            names = gallery.pictures(variant, Path(folder))
            write(f"gallery/{variant.name}.md", gallery.page(path, Path("generated", variant.name), rows, names))
            listed.append(f"- [{variant.name}]({variant.name}.md): {variant.description}")
        for picture in Path(folder).glob("*.png"):
            write(f"gallery/pictures/{picture.name}", picture.read_bytes())
    write("gallery/index.md", "\n".join(listed) + "\n")


def make_sources() -> None:
    """A page for each file of the repository that a page links to."""
    pages = {path: str(path.parent) for path in [*Path("docs").rglob("*.md"), Path("CONTRIBUTING.md")]}
    linked = {target for path, folder in pages.items() for target in links.targets(path.read_text("utf-8"), folder)}
    for target in sorted(linked):
        if links.page_for(target) == f"source/{target}.md":
            write(f"source/{target}.md", f"# {target}\n\n{source(Path(target))}")


def source(path: Path) -> str:
    """A file, or one after the other those of a folder."""
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix in LANGUAGES)
        return "\n".join(f"## {each.name}\n\n{source(each)}" for each in files)
    return f"````{LANGUAGES[path.suffix]}\n{path.read_text(encoding='utf-8')}````\n"


make_gallery()
make_sources()
write("flex_mods.md", mods_page.page())
write("reference/spec.md", reference.keys())
write("reference/functions.md", reference.functions())
write("reference/commands.md", reference.commands())
write("reference/python.md", reference.PYTHON)
write("contributing.md", links.mended(Path("CONTRIBUTING.md").read_text(encoding="utf-8"), ".", "contributing.md"))
