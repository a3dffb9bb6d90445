"""How many programs fit on a multiprocessor, held against what the vendors' calculators say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.runtime.gpus import GPUS


@pytest.mark.parametrize(
    ("target", "warps", "registers", "shared", "programs"),
    [
        # A thousand threads of 64 registers are the whole register file, of 65 more than that.
        ("sm_90", 32, 64, 0, 1),
        ("sm_90", 32, 65, 0, 0),
        ("sm_90", 12, 168, 200 * 1024, 1),
        ("sm_80", 4, 128, 64 * 1024, 2),
        ("sm_80", 4, 128, 0, 4),
        ("sm_80", 1, 16, 0, 32),
        ("sm_86", 1, 16, 0, 16),
        ("sm_89", 4, 32, 0, 12),
        ("sm_86", 8, 255, 0, 1),
        # The whole 100 KiB but for what is reserved.
        ("sm_120", 4, 32, 99 * 1024, 1),
        ("sm_120", 4, 32, 99 * 1024 + 1, 0),
        ("gfx942", 4, 128, 0, 4),
        ("gfx942", 4, 129, 0, 3),
        ("gfx942", 4, 512, 0, 1),
        ("gfx942", 8, 512, 0, 0),
        ("gfx942", 4, 64, 33 * 1024, 1),
        ("gfx950", 4, 64, 33 * 1024, 4),
    ],
)
def test_programs_at_once(target: str, warps: int, registers: int, shared: int, programs: int) -> None:
    assert GPUS[target].multiprocessor.programs_at_once(warps, registers, shared) == programs


@pytest.mark.parametrize("target", GPUS)
def test_a_program_of_the_most_shared_memory_runs_alone(target: str) -> None:
    gpu = GPUS[target]
    assert gpu.multiprocessor.programs_at_once(1, 32, gpu.shared) == 1


@given(st.sampled_from(sorted(GPUS)), st.integers(1, 16), st.integers(1, 255), st.integers(0, 2**18))
def test_what_runs_fits_and_one_more_does_not(target: str, warps: int, registers: int, shared: int) -> None:
    unit = GPUS[target].multiprocessor
    count = unit.programs_at_once(warps, registers, shared)

    def fits(programs: int) -> bool:
        of_warp = -(-registers * unit.lanes // unit.granule) * unit.granule
        return (
            programs <= unit.programs
            and programs * warps <= unit.warps
            and programs * warps * of_warp <= unit.registers
            and programs * (shared + unit.reserved) <= unit.shared
        )

    assert fits(count) and not fits(count + 1)
