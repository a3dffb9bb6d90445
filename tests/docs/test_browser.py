"""The site as a reader gets it: every page in a browser, narrow and wide, light and dark.

mkdocs build --strict && FLASHGEN_SITE=site pytest -n 0 tests/docs/test_browser.py
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag
from urllib.request import urlopen

import headless_browser
import pytest

BUILT = os.environ.get("FLASHGEN_SITE")
WIDTHS, SCHEMES = (1400, 400), ("light", "dark")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(headless_browser.find() is None, reason="no Chromium"),
    pytest.mark.skipif(not BUILT, reason="FLASHGEN_SITE names no built site"),
]

# What is wrong with the page as it stands in the window.
FAULTS = """(() => {
    const faults = [], root = document.documentElement;
    const inBox = element => {
        for (let up = element.parentElement; up && up !== document.body; up = up.parentElement)
            if (getComputedStyle(up).overflowX !== "visible") return true;
        return false;
    };
    if (root.scrollWidth > innerWidth) faults.push(`the page is ${root.scrollWidth} wide`);
    for (const element of document.querySelectorAll("main *")) {
        const box = element.getBoundingClientRect();
        if (box.width && box.right > innerWidth + 1 && !inBox(element))
            faults.push(`${element.tagName} ${element.textContent.slice(0, 40)} ends at ${Math.round(box.right)}`);
    }
    for (const image of document.querySelectorAll("main img")) {
        if (!image.offsetParent) continue;
        if (!image.naturalWidth) faults.push(`no picture ${image.src}`);
        else if (image.width < 0.4 * image.naturalWidth) faults.push(`${image.src} is ${image.width} wide`);
    }
    return faults;
})()"""
SHOWN = "getComputedStyle(document.body).colorScheme"
# The page has followed the window: its script, its pictures, what moves. One that never does is looked at as it is.
SETTLED = f"""(async scheme => {{
    for (let tries = 100; tries && {SHOWN} !== scheme; tries--) await new Promise(then => setTimeout(then, 20));
    const pictures = [...document.images].map(image => image.decode());
    const moving = document.getAnimations().map(each => each.finished);
    await Promise.race([Promise.allSettled([...pictures, ...moving]), new Promise(then => setTimeout(then, 3000))]);
}})"""
LINKS = """[...document.querySelectorAll("a[href], img[src], link[href], script[src]")].map(e => e.href || e.src)"""
NAMES = """[...document.querySelectorAll("[id]")].map(e => e.id)"""


class Visit(NamedTuple):
    """What a page turned out to have; `names` can be linked to, `elsewhere` is what it fetched that the site is not."""

    faults: list[str]
    complaints: list[str]
    links: set[str]
    names: set[str]
    elsewhere: set[str]


Site = tuple[str, dict[str, Visit]]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder's address while the block runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextmanager
def visited(folder: Path) -> Iterator[Site]:
    """The address of a site, and every page of it by its own."""
    visits = {}
    with served(folder) as address, headless_browser.browser() as tab:
        for path in sorted(folder.rglob("*.html")):
            url = address + path.relative_to(folder).as_posix()
            faults = []
            tab.open(url)
            for width, scheme in product(WIDTHS, SCHEMES):
                tab.show(width, scheme)
                tab.ask(f"{SETTLED}('{scheme}')")
                faults += [f"{width} {scheme}: {fault}" for fault in tab.ask(FAULTS)]
                if tab.ask(SHOWN) != scheme:
                    faults.append(f"{width} {scheme}: shown for the other")
            elsewhere = {each for each in tab.fetched if not each.startswith((address, "data:", "blob:"))}
            visits[url] = Visit(faults, list(tab.complaints), set(tab.ask(LINKS)), set(tab.ask(NAMES)), elsewhere)
        yield address, visits


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    assert BUILT
    with visited(Path(BUILT)) as found:
        yield found


def missing(address: str, visits: dict[str, Visit]) -> list[str]:
    """Links within the site to what is not there, be it a file or a place in a page."""
    answers: dict[str, int] = {}
    wrong = []
    for page, visit in visits.items():
        for link in sorted(each for each in visit.links if each.startswith(address)):
            url, name = urldefrag(link)
            if url not in answers:
                answers[url] = status(url)
            target = visits.get(f"{url}index.html" if url.endswith("/") else url)
            if answers[url] != 200 or (name and target and unquote(name) not in target.names):
                wrong.append(f"{page}: {link}")
    return wrong


def status(url: str) -> int:
    try:
        with urlopen(url) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


def test_every_page_fits_narrow_and_wide_windows(site: Site) -> None:
    _, visits = site
    assert len(visits) > 30
    assert {url: visit.faults for url, visit in visits.items() if visit.faults} == {}


def test_every_link_within_the_site_leads_somewhere(site: Site) -> None:
    assert missing(*site) == []


def test_no_page_complains_or_fetches_from_elsewhere(site: Site) -> None:
    _, visits = site
    assert {url: visit.complaints for url, visit in visits.items() if visit.complaints} == {}
    assert {url: visit.elsewhere for url, visit in visits.items() if visit.elsewhere} == {}


PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="200"/>'
WRONG = {
    "wide": '<main><p style="width: 500px">a</p></main>',
    "clipped": '<style>html, body {overflow-x: hidden}</style><main><p style="width: 500px">a</p></main>',
    "unseen": '<main><img src="nothing.png"></main>',
    "small": f"<main><img width=50 src='data:image/svg+xml,{PICTURE}'></main>",
    "foreign": '<link rel="stylesheet" href="http://127.0.0.1:1/a.css">',
    "light": "<style>body {color-scheme: light}</style>",
    "link": '<a href="elsewhere.html">a</a>',
    "place": '<a href="wide.html#nowhere">a</a>',
    "thrown": "<script>throw new Error('thrown')</script>",
    "logged": "<script>console.error('logged')</script>",
}


def test_what_is_wrong_with_a_page_is_seen(tmp_path: Path) -> None:
    """Each of these pages has one fault, and a page without any has none."""
    plain = "<!doctype html><title>a</title><link rel=icon href=data:,>"
    both = "<style>body {color-scheme: light} @media (prefers-color-scheme: dark) {body {color-scheme: dark}}</style>"
    right = '<main><div style="overflow: auto"><p id="p" style="width: 500px">a</p></div><a href="#p">a</a></main>'
    for name, text in {**WRONG, "right": right}.items():
        (tmp_path / f"{name}.html").write_text(f"{plain}{'' if name == 'light' else both}{text}", encoding="utf-8")
    with visited(tmp_path) as (address, visits):
        of = {Path(url).stem: visit for url, visit in visits.items()}
        assert {name for name, visit in of.items() if visit.faults} == {"wide", "clipped", "unseen", "small", "light"}
        assert {name for name, visit in of.items() if visit.complaints} == {"unseen", "foreign", "thrown", "logged"}
        assert {name for name, visit in of.items() if visit.elsewhere} == {"foreign"}
        links = {Path(line.split(": ")[0]).stem for line in missing(address, visits)}
        assert links == {"link", "place", "unseen"}
