"""What is shipped beside the gallery fits it: a record of other kernels would never be used."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from gallery import NAMES

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
TABLES = sorted(GENERATED.glob("*/tuned/*.json"))
# What is tuned together, by form of call and dtype: as the spec says, or as the documentation does.
Form = tuple[tuple[str, ...] | None, tuple[str, ...] | None]
DENSE: Form = (None, None)
SERVING: Form = (("decode", "paged", "varlen"), ("bfloat16",))
TRAINING: Form = (("dense",), ("bfloat16",))
SERVED = ("alibi", "causal", "gemma2", "sink", "sliding_window", "softcap")
SHIPPED: dict[str, dict[Form, tuple[str, ...]]] = {
    "nvidia-h200": {DENSE: tuple(NAMES)},
    "nvidia-h100-80gb-hbm3": {SERVING: SERVED, TRAINING: tuple(NAMES)},
}
WHOLE = [(gpu, form, name) for gpu, forms in SHIPPED.items() for form, names in forms.items() for name in names]


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


@pytest.mark.parametrize(("gpu", "form", "name"), WHOLE)
def test_a_gpu_has_a_record_for_each_kernel_dtype_and_shape_that_is_tuned(gpu: str, form: Form, name: str) -> None:
    modes, dtypes = form
    variant = load(REPOSITORY / f"variants/{name}.yaml")
    found = {record.key for record in read(GENERATED / name / "tuned" / f"{gpu}.json")}
    devices = {Device(key.gpu, key.capability, key.triton) for key in found}
    assert len(devices) == 1
    wanted = workloads(problems(variant, modes=modes, dtypes=dtypes), identity(name), devices.pop(), TUNED)
    assert wanted and [str(task.key) for task in wanted if task.key not in found] == []


def test_no_other_gpu_has_records() -> None:
    assert {(path.stem, path.parts[-3]) for path in TABLES} == {(gpu, name) for gpu, _, name in WHOLE}
