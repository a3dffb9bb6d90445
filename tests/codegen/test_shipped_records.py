"""What is shipped beside the gallery fits it: a record of other kernels would never be used."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from flashgen.codegen import load_module
from flashgen.runtime import gpus
from flashgen.runtime.identity import Identity
from flashgen.runtime.record_files import table_path
from flashgen.runtime.record_table import parse
from flashgen.runtime.records import Device, Record
from flashgen.runtime.registry import TUNED
from flashgen.spec import load
from flashgen.tuning.workloads import problems, workloads

REPOSITORY = Path(__file__).parents[2]
GENERATED = REPOSITORY / "generated"
GALLERY = sorted((REPOSITORY / "variants").glob("*.yaml"))
TABLES = sorted(GENERATED.glob("*/tuned/*.json"))
# The forms of call that are tuned together, and for which dtypes: as the spec says, or as the documentation does.
FORMS: dict[str, tuple[tuple[str, ...] | None, tuple[str, ...] | None]] = {
    "dense": (None, None),
    "serving": (("decode", "paged", "varlen"), ("bfloat16",)),
}


@cache
def read(path: Path) -> tuple[Record, ...]:
    return parse(path.read_text(encoding="utf-8"))


@cache
def identity(variant: str) -> Identity:
    found: Identity = load_module(GENERATED / variant).IDENTITY
    return found


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_shipped_records_are_of_the_kernels_beside_them(path: Path) -> None:
    beside = identity(path.parts[-3])
    for record in read(path):
        assert path == table_path(GENERATED / record.key.variant / "tuned", record.key.gpu)
        assert (record.key.spec, record.key.templates) == (beside.spec, beside.templates[record.key.kernel])
        assert record.key.capability in gpus.GPUS


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
@pytest.mark.parametrize("form", FORMS)
def test_a_gpu_with_records_of_a_form_has_all_that_are_tuned(form: str, path: Path) -> None:
    modes, dtypes = FORMS[form]
    variant = load(REPOSITORY / f"variants/{path.parts[-3]}.yaml")
    found = {record.key for record in read(path)}
    device = {Device(key.gpu, key.capability, key.triton) for key in found}
    assert len(device) == 1
    wanted = workloads(problems(variant, modes=modes, dtypes=dtypes), identity(variant.name), device.pop(), TUNED)
    missing = [str(task.key) for task in wanted if task.key not in found]
    assert not missing or len(missing) == len(wanted), missing


def test_every_variant_has_dense_records_of_the_gpu_that_figures_are_of() -> None:
    assert {path.parts[-3] for path in TABLES if path.stem == "nvidia-h200"} == {spec.stem for spec in GALLERY}
