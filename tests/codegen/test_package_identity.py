"""What generated packages on disk say of themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.codegen import load_module
from flashgen.codegen.package_identity import package_identity

GENERATED = Path(__file__).parents[2] / "generated"


@pytest.mark.parametrize("variant", ["alibi", "relative_bias"])
def test_a_package_is_read_as_it_is_imported(variant: str) -> None:
    assert package_identity(GENERATED / variant) == load_module(GENERATED / variant).IDENTITY


@pytest.mark.parametrize(
    "content",
    [
        b"", b"IDENTITY = 1", b"IDENTITY = Identity(variant=name())", b"IDENTITY = Identity(variant='a')",
        b"IDENTITY = Identity(**{})", b"(", b"\xff", b"\0", b"A[0] = 1", b"IDENTITY = Identity('a', 'b', {}, 'c', {})",
    ],
)  # fmt: skip
def test_what_says_nothing_of_itself_has_no_identity(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "__init__.py").write_bytes(content)
    assert package_identity(tmp_path) is None


def test_without_a_package_there_is_no_identity(tmp_path: Path) -> None:
    assert package_identity(tmp_path / "nothing") is None
