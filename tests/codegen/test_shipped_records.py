"""What is shipped beside the gallery fits it: a record of other kernels would never be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashgen.codegen.export import identity_of
from flashgen.runtime.records import Record

GENERATED = Path(__file__).parents[2] / "generated"
RECORDS = sorted((GENERATED / "tuned").rglob("*.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_shipped_record_is_of_the_kernel_beside_it(path: Path) -> None:
    record = Record.from_json(path.read_text(encoding="utf-8"))
    identity = identity_of((GENERATED / f"{record.key.variant}.py").read_text(encoding="utf-8"))
    assert path == GENERATED / "tuned" / record.key.path
    assert (record.key.spec, record.key.templates) == (identity.spec, identity.templates[record.key.kernel])
