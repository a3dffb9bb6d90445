"""Files that are no spec, or hardly one: each is refused with its name and a message, at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flashgen.errors import FlashgenError, SpecError, UsageError
from flashgen.printable import is_printable
from flashgen.spec import load

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{','.join([f'*{before}'] * 9)}]}}\n" for before, name in zip("abcde", "bcdef", strict=True)
)

# id: (what the file has, what the message says)
FILES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "an empty file"),
    "spaces": (b"  \n\n", "an empty file"),
    "comments": (b"# name: a\n", "an empty file"),
    "a document's start": (b"---\n", "no mapping at the top"),
    "two documents": (b"name: a\n---\nname: b\n", "another document"),
    "an end": (b"...\n", "found '<document end>'"),
    "NUL": (b"name: a\0b\n", "the character U+0000"),
    "NUL at the end": (b"name: a\n\0", "the character U+0000"),
    "NUL alone": (b"\0", "the character U+0000"),
    "NUL in an expression": (b'name: a\nmask: "k <= q \\0"\n', "character U+0000"),
    "NUL in a dimension": (b'name: a\ninputs: {t: {shape: ["heads\\0"], dtype: int32}}\n', "character U+0000"),
    "NUL in a let": (b'name: a\nlet: {d: "q\\0-k"}\n', "character U+0000"),
    "NUL in a softcap": (b'name: a\nsoftcap: "3\\0"\n', "character U+0000"),
    "NUL in a window": (b'name: a\nwindow: {left: "3\\0"}\n', "character U+0000"),
    "NUL in a name": (b'name: "a\\0"\n', "the name 'a\\x00'"),
    "NUL in a key": (b'"na\\0me": a\n', "the unknown key 'na\\x00me'"),
    "NUL in an input's name": (b'name: a\ninputs: {"t\\0": {shape: [2], dtype: int32}}\n', "the input name 't\\x00'"),
    "Latin-1": (b"name: a\ndescription: caf\xe9\n", "the byte 0xE9"),
    "UTF-16": ("name: a\n".encode("utf-16"), "the byte 0xFF"),
    "UTF-32": ("name: a\n".encode("utf-32-be"), "the character U+0000"),
    "half a character": (b"name: a\ndescription: \xe6\xbc", "the byte 0xE6"),
    "surrogates": (b"name: a\ndescription: \xed\xa0\x80\n", "the byte 0xED"),
    "an overlong form": (b"name: a\ndescription: \xc0\x80\n", "the byte 0xC0"),
    "a program": (b"\x7fELF\x02\x01\x01\0", "the character U+007F"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "the byte 0x89"),
    "an archive": (b"PK\x03\x04", "the character U+0003"),
    "escapes of a terminal": (b"name: a\ndescription: \x1b]0;x\x07\n", "the character U+001B"),
    "a tab": (b"name: a\n\tcausal: true\n", "cannot start any token"),
    "a bomb": (BOMB.encode() + b"name: [*i]\n", "too many values"),
    "a bomb of merges": (MERGE_BOMB.encode() + b"name: a\n", "too many values"),
    "a loop": (b"name: a\nlet: &l {x: *l}\n", "deeper nesting"),
    "no anchor": (b"name: *n\n", "found undefined alias"),
    "anchors twice": (b"name: &a a\nlet: {&a x: 1}\nscore: *b\n", "found"),
    "a tag": (b"name: !!str a\n", "the YAML tag"),
    "a tag of Python": (b"name: !!python/object/new:os.system [touch P]\n", "the YAML tag"),
    "a tag of its own": (b"name: !mine a\n", "the YAML tag"),
    "a binary tag": (b"name: !!binary YQ==\n", "the YAML tag"),
    "a set": (b"name: a\nparams: !!set {x, y}\n", "the YAML tag"),
    "a tag's directive": (b"%TAG ! tag:example.com,2000:\n---\nname: !x a\n", "the YAML tag"),
    "an unknown version": (b"%YAML 9.9\n---\nname: a\n", "found incompatible YAML document"),
    "the same key": (b"name: a\nname: a\n", "the key 'name' again"),
    "the same key, quoted": (b"name: a\n'name': a\n", "the key 'name' again"),
    "the same param": (b"name: a\nparams: {W: 1, W: 2}\n", "the key 'W' again"),
    "a key that is a list": (b"name: a\n[a, b]: 1\n", "a compound key"),
    "a key that is a mapping": (b"name: a\n? {a: b}\n: 1\n", "a compound key"),
    "a key that is nothing": (b"name: a\n~: 1\n", "the key ~"),
    "a key that is a bool": (b"name: a\ntrue: 1\n", "the key true"),
    "deep brackets": (b"name: " + b"[" * 100_000, "deeper nesting"),
    "deep braces": (b"name: " + b"{a: " * 20_000, "deeper nesting"),
    "deep lists": (b"name:\n" + b"".join(b" " * n + b"-\n" for n in range(300)), "deeper nesting"),
    "a long line": (b"name: a\nmask: " + b"(" * 200_000, "more than 4000 tokens"),
    "many bytes": (b"name: a\n#" + b"x" * 300_000, "more than 262144 bytes"),
    "many values": (b"name: [" + b"1," * 50_000 + b"]", "too many values"),
    "many params": (b"name: a\nparams: {" + b",".join(b"p%d: 1" % n for n in range(200)) + b"}\n", "200 params"),
    "many inputs": (
        b"name: a\ninputs: {" + b",".join(b"t%d: {shape: [2], dtype: int32}" % n for n in range(100)) + b"}\n",
        "100 inputs",
    ),
    "many dimensions": (b"name: a\ninputs: {t: {shape: [" + b"2," * 50 + b"], dtype: int32}}\n", "list of 50"),
    "many dtypes": (b"name: a\ndtype: [" + b"float16," * 50 + b"]\n", "list of 50"),
    "many digits": (b"name: a\nhead_dim: " + b"9" * 5000, "an integer of 5000 digits"),
    "many digits in hexadecimal": (b"name: a\nhead_dim: 0x" + b"f" * 5000, "an integer of 5002 digits"),
    "many digits in an expression": (b"name: a\nmask: k < " + b"9" * 5000, "number"),
    "a long exponent": (b"name: a\nsoftcap: 1e" + b"9" * 5000, "expected a number > 0"),
    "a date": (b"name: 2020-01-01\n", "the name '2020-01-01'"),
    "a cycle of lets": (b"name: a\nlet: {x: y, y: z, z: x}\nscore: x\n", "'y' before its own let"),
    "an unclosed quote": (b'name: "a\n', "found unexpected end of stream"),
    "an unknown escape": (b'name: "\\q"\n', "found unknown escape character"),
    "an unknown escape that hides": (b'name: "\\\xe2\x80\xae"\n', "found unknown escape character"),
    "JSON with a comma too many": (b'{"name": "a",,}\n', "one valid YAML document"),
    "Python": (b"import os\nos.system('touch P')\n", "no mapping at the top"),
    "XML": (b"<?xml version='1.0'?>\n<name>a</name>\n", "no mapping at the top"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_it_is_refused_with_its_name_and_at_once(name: str, tmp_path: Path) -> None:
    content, says = FILES[name]
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    start = time.process_time()
    with pytest.raises(SpecError) as caught:
        load(path)
    assert time.process_time() - start < 3.0
    text = str(caught.value)
    assert text.startswith(f"{path}") and says in text
    assert is_printable(text) and len(text) < 1600


def test_a_byte_order_mark_and_other_line_ends_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: a\r\ncausal: true\r\n")
    assert load(path).name == "a"


PLACES = (
    "",
    ".",
    "/",
    "/dev/null",
    "/dev/zero",
    "nope.yaml",
    "nope/x.yaml",
    "a\0b",
    "\udcff.yaml",
    "x" * 5000,
    "\u202e.yaml",
)


@pytest.mark.parametrize("place", PLACES, ids=ascii)
def test_a_path_of_no_file_is_refused(place: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(place)
    assert is_printable(str(caught.value))


@pytest.mark.parametrize("source", [None, 3, b"spec.yaml", ["name"], ("name", "a"), 1.5, object(), load])
def test_what_is_neither_a_path_nor_a_mapping_is_refused(source: object) -> None:
    with pytest.raises(FlashgenError, match="expected a path or a mapping"):
        load(source)  # type: ignore[arg-type]


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spec.yaml")
    with pytest.raises(UsageError, match="is no file; expected the path of a YAML file"):
        load(tmp_path / "spec.yaml")


def test_a_path_that_is_not_utf8_is_read_and_shown(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.yaml"))
    path.write_text("name: a\ncausal: yes\n")
    with pytest.raises(SpecError) as caught:
        load(path)
    assert str(caught.value) == f"{tmp_path}/caf\\udce9.yaml:2:9: 'yes'; expected true or false"
    path.write_text("name: a\n")
    assert load(path).source == f"{tmp_path}/caf\\udce9.yaml"
