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
from flashgen.runtime.registry import FAMILIES
from flashgen.spec import load
from flashgen.tuning.workloads import problems, workloads

REPOSITORY = Path(__file__).parents[2]
GENERATED = REPOSITORY / "generated"
GALLERY = sorted((REPOSITORY / "variants").glob("*.yaml"))
TABLES = sorted(GENERATED.glob("*/tuned/*.json"))
GPUS = sorted({path.stem for path in TABLES})


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


@pytest.mark.parametrize("spec", GALLERY, ids=lambda path: path.stem)
@pytest.mark.parametrize("gpu", GPUS)
def test_a_gpu_with_records_has_one_for_each_kernel_dtype_and_shape_that_is_tuned(gpu: str, spec: Path) -> None:
    variant = load(spec)
    found = {record.key for record in read(GENERATED / variant.name / "tuned" / f"{gpu}.json")}
    devices = {Device(key.gpu, key.capability, key.triton) for key in found}
    assert len(devices) == 1
    wanted = workloads(problems(variant), identity(variant.name), devices.pop(), FAMILIES)
    assert [str(task.key) for task in wanted if task.key not in found] == []
