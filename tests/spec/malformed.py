"""What a malformed spec must say."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.errors import SpecError
from flashgen.spec import load

INPUT = "inputs: {doc: {shape: [batch, kv_len], dtype: int32}}\n"


def refused(text: str, message: str, folder: Path) -> SpecError:
    """The error of a spec of this text, whose message behind the file's name is this one."""
    path = folder / "spec.yaml"
    path.write_bytes(text.encode())
    with pytest.raises(SpecError) as caught:
        load(path)
    assert str(caught.value) == f"{path}{message}"
    assert caught.value.exit_code == 2
    return caught.value
