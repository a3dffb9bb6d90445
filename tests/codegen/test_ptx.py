"""No kernel asks an assembler for what it is known to get wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hard_specs import NEGATIONS, SPECS
from offline_compiler import Compile

from flashgen.codegen import generate
from flashgen.codegen.ptx import joined_negations
from flashgen.compiling import jobs_for
from flashgen.spec import load

# Signed integers t, u and v in registers 1 to 3.
LOST = {
    "max(max(t, -u), v)": "neg.s32 %r4, %r2; max.s32 %r5, %r1, %r4; max.s32 %r6, %r5, %r3;",
    "max(t, max(v, -u))": "neg.s32 %r4, %r2; max.s32 %r5, %r3, %r4; max.s32 %r6, %r1, %r5;",
    "min(min(t, v), -u)": "neg.s32 %r4, %r2; min.s32 %r5, %r1, %r3; min.s32 %r6, %r5, %r4;",
    "0 - u, through a move": "sub.s32 %r4, 0, %r2; mov.b32 %r7, %r4; max.s32 %r5, %r1, %r7; max.s32 %r6, %r5, %r3;",
    "u * -1": "mul.lo.s32 %r4, %r2, -1; min.s32 %r5, %r1, %r4; min.s32 %r6, %r5, %r3;",
}
KEPT = {
    "max(t, -u)": "neg.s32 %r4, %r2; max.s32 %r5, %r1, %r4;",
    "min(max(t, -u), v)": "neg.s32 %r4, %r2; max.s32 %r5, %r1, %r4; min.s32 %r6, %r5, %r3;",
    "max(max(t, w - u), v)": "sub.s32 %r4, %r7, %r2; max.s32 %r5, %r1, %r4; max.s32 %r6, %r5, %r3;",
    "floats": "neg.f32 %r4, %r2; max.f32 %r5, %r1, %r4; max.f32 %r6, %r5, %r3;",
}


def as_ptx(text: str) -> str:
    return "".join(f"\t{line.strip()};\n" for line in text.split(";") if line.strip())


@pytest.mark.parametrize("name", LOST)
def test_a_lost_negation_is_seen(name: str) -> None:
    assert joined_negations(as_ptx(LOST[name])) == ("%r6",)


@pytest.mark.parametrize("name", KEPT)
def test_what_keeps_its_minus_is_left_alone(name: str) -> None:
    assert joined_negations(as_ptx(KEPT[name])) == ()


@pytest.mark.matrix
@pytest.mark.parametrize("name", NEGATIONS)
def test_kernels_have_no_negation_to_lose(name: str, tmp_path: Path, compiled: Compile) -> None:
    variant = replace(load(SPECS[name]), dtypes=("bfloat16",), head_dims=(64,))
    module = generate(variant, tmp_path)
    # A kernel in turn.
    jobs = jobs_for(variant, ["sm_90"])
    job = jobs[list(NEGATIONS).index(name) % len(jobs)]
    found = compiled(module, job.kernel, job.target, job.dtype, 64, 64, job.config)
    assert found.error is None, found
    assert found.lost_negations == 0, f"{name}: {job}"
