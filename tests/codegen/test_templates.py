"""Templates whose trees are read and which are rendered are parsed once, and read as they are written."""

from __future__ import annotations

import jinja2
import pytest
from jinja2 import nodes

from flashgen.codegen.templates import environment

TEXT = "{{ 'one' ~ 'other' }} of {{ x }}"


def rendered(text: str) -> str:
    return environment().from_string(text).render(x=2)


def strings(text: str) -> list[str]:
    return [node.value for node in environment().parse(text).find_all(nodes.Const)]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that Jinja parses."""
    found: list[str] = []
    parse = jinja2.Environment._parse

    def note(self: jinja2.Environment, source: str, name: str | None, filename: str | None) -> nodes.Template:
        found.append(source)
        return parse(self, source, name, filename)

    monkeypatch.setattr(jinja2.Environment, "_parse", note)
    return found


def test_a_template_that_was_read_is_not_parsed_again(parsed: list[str]) -> None:
    assert strings(TEXT) == ["one", "other"]
    assert rendered(TEXT) == "oneother of 2"
    assert parsed == [TEXT]


def test_a_tree_is_compiled_once(parsed: list[str]) -> None:
    strings(TEXT)
    assert rendered(TEXT) == rendered(TEXT) == "oneother of 2"
    assert parsed == [TEXT, TEXT]


def test_a_template_is_read_as_it_is_written_after_it_was_rendered_too() -> None:
    assert rendered(TEXT) == "oneother of 2"
    assert strings(TEXT) == ["one", "other"]


def test_a_mistake_is_reported_at_its_line_whichever_comes_first() -> None:
    wrong = "{{ x }}\n{{ x | unknown }}"
    with pytest.raises(jinja2.TemplateAssertionError, match="No filter named 'unknown'") as before:
        rendered(wrong)
    strings(wrong)
    with pytest.raises(jinja2.TemplateAssertionError, match="No filter named 'unknown'") as after:
        rendered(wrong)
    assert before.value.lineno == after.value.lineno == 2
