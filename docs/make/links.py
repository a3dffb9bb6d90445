"""A hook of mkdocs: what the pages say for readers of the repository, said for readers of the site.

A link to a file outside of docs/ leads to the page that shows it. A picture that has a version for dark backgrounds,
`NAME_dark.png` beside `NAME.png`, gets it; a wide one is marked, so that a narrow page scrolls it (css/site.css).
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\]\((?!\w+:)([^)#\s]+)(#[^)]*)?\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\((?!\w+:)([^)#\s]+)\.png\)")
# Files that have pages of their own.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
FOLDERS = {"variants": "gallery/index.md", "generated": "gallery/index.md"}
# Pixels from which on a picture has several plots beside each other: on a telephone nobody could read them.
WIDE = 1000


def page_for(target: str) -> str:
    """The page, counted from docs/, that shows a file or folder of the repository."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    parts = target.split("/")
    if target in FOLDERS:
        return FOLDERS[target]
    if parts[0] == "generated":
        return f"gallery/{parts[1]}.md"
    return PAGES.get(target, f"source/{target}.md")


def targets(markdown: str, folder: str) -> list[str]:
    """The files of the repository, outside of docs/, that a page in this folder of it links to."""
    found = [posixpath.normpath(posixpath.join(folder, link[1])) for link in LINK.finditer(markdown)]
    return [target for target in found if not target.startswith("docs/")]


def mended(markdown: str, folder: str, page: str) -> str:
    """The text of a page for the site. Its links count from `folder` of the repository; `page` counts from docs/."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        shown = posixpath.relpath(page_for(target), posixpath.dirname(page) or ".")
        return f"]({shown}{match[2] or ''})"

    return LINK.sub(link, markdown)


def width(png: bytes) -> int:
    """Pixels in a row, as the header of a PNG file has them."""
    return int.from_bytes(png[16:20], "big")


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    source = page.file.src_uri
    folder = posixpath.join("docs", posixpath.dirname(source))

    def picture(match: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        shown, twin = (files.get_file_from_path(f"{name}{suffix}.png") for suffix in ("", "_dark"))
        mark = "{ .wide }" if shown is not None and width(shown.content_bytes) >= WIDE else ""
        if twin is None:
            return f"{match[0]}{mark}"
        light, dark = f"{match[2]}.png#only-light", f"{match[2]}_dark.png#only-dark"
        return f"![{match[1]}]({light}){mark}![{match[1]}]({dark}){mark}"

    if page.file.generated_by is None and (Path("docs") / source).exists():
        markdown = mended(markdown, folder, source)
    return PICTURE.sub(picture, markdown)
