"""Sums of 64 bits that the assembler gets wrong are found in machine code, and only those."""

from __future__ import annotations

import pytest

from flashgen.codegen import offline
from flashgen.codegen.assembler import Assembler
from flashgen.codegen.sass import doubled_words

# As nvdisasm prints what ptxas 12.8 made of the address of V's tile.
WRONG = """
        /*49a0*/                   UIADD3 UR4, UP0, UR8, 0x20, URZ ;
        /*49b0*/                   FFMA R25, R48, UR12, R4.reuse ;
        /*49c0*/                   UIADD3.X UR5, UR8, -0x3ffffff0, URZ, UP0, !UPT ;
        /*49d0*/                   HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4].tnspB, R24 ;
"""


def test_a_sum_of_one_register_with_itself_is_found():
    assert doubled_words(WRONG) == ("UIADD3.X UR5, UR8, -0x3ffffff0, URZ, UP0, !UPT ;",)
    assert doubled_words(WRONG.replace("UR", "R").replace("UP", "P")) != ()


def test_two_registers_are_two_words():
    assert doubled_words(WRONG.replace("UIADD3.X UR5, UR8", "UIADD3.X UR5, UR9")) == ()


def test_a_register_written_in_between_holds_another_word():
    for between in ("UMOV UR8, URZ ;", "@UP1 UIADD3 UR8, UR8, 0x800, URZ ;", "ULDC.64 UR8, c[0x0][0x210] ;"):
        assert doubled_words(WRONG.replace("FFMA R25, R48, UR12, R4.reuse ;", between)) == ()


def test_an_instruction_writes_as_many_registers_as_it_says():
    wrong = (
        WRONG.replace("UR", "R").replace("UP", "P").replace("R8", "R15").replace("R4,", "R44,").replace("R5,", "R45,")
    )
    between = next(line for line in wrong.splitlines() if "FFMA" in line)
    for write in (
        "CS2R R14, SRZ ;",
        "LDS.128 R12, [R1] ;",
        "IMAD.WIDE.U32 R14, R2, 0x4, R6 ;",
        "SHFL.BFLY PT, R15, R2, 0x1 ;",
        "LDSM.16.M88.4 R12, [R3] ;",
        "HGMMA.64x64x16.F32 R0, gdesc[UR4], R0 ;",
    ):
        assert doubled_words(wrong.replace(between, write)) == ()
    for spare in (
        "CS2R.32 R14, SRZ ;",
        "LDS.64 R12, [R1] ;",
        "SHF.R.U64 R14, R2, 0x4, R3 ;",
        "ISETP.LT.AND P1, PT, R15, R2, PT ;",
        "LDSM.16.M88.2 R12, [R3] ;",
        "HGMMA.64x16x16.F32 R0, gdesc[UR4], R0 ;",
        "MOV R14, R2 ;",
    ):
        assert doubled_words(wrong.replace(between, spare)) != ()


def test_a_carry_of_another_sum_or_of_another_block_is_no_sum():
    assert doubled_words(WRONG.replace("URZ, UP0, !UPT", "URZ, UP1, !UPT")) == ()
    between = "        /*49b0*/                   FFMA R25, R48, UR12, R4.reuse ;"
    assert doubled_words(WRONG.replace(between, ".L_x_53:")) == ()


def test_both_words_of_a_mask_are_the_same_register():
    masks = ("SEL R75, RZ, 0xffffffff, !P0 ;", "SHF.R.S32.HI R75, RZ, 0x1f, R4 ;", "USEL UR75, URZ, 0xffffffff, UP0 ;")
    for mask in masks:
        register = mask.split()[1].rstrip(",")
        added = f"IADD3 R10, P0, R10, {register}, RZ ;\nIADD3.X R11, R11, {register}, RZ, P0, !PT ;\n{WRONG[-80:]}"
        assert doubled_words(f"{mask}\n{added}") == ()
        copied = f"{mask}\nMOV R7, {register} ;\n{added.replace(register, 'R7')}"
        assert doubled_words(copied) == ()
        assert doubled_words(f"{mask}\nFADD {register}, R1, R2 ;\n{added}") != ()
    assert doubled_words(f"SEL R75, R3, 0xffffffff, !P0 ;\n{added.replace('UR75', 'R75')}") != ()


def test_a_kernel_without_products_of_tiles_in_shared_memory_has_no_such_sums():
    assert doubled_words(WRONG.partition("        /*49d0*/")[0]) == ()


@pytest.mark.parametrize(
    ("version", "ptx", "wrong"),
    [
        ("12.8", "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16", True),
        ("12.8", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", False),
        ("13.1", "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16", False),
    ],
)
def test_machine_code_is_read_where_there_can_be_such_sums(
    version: str, ptx: str, wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []
    monkeypatch.setattr(offline, "assembler", lambda target: Assembler(version, "/ptxas", "TRITON_PTXAS_PATH", False))
    monkeypatch.setattr(offline, "may_double_words", lambda cubin: True)
    monkeypatch.setattr(offline, "disassembled", lambda cubin: read.append(cubin) or WRONG)
    found = offline.wrong_sums({"cubin": b"code", "ptx": ptx}, "sm_90")
    assert (bool(found), read) == (wrong, [b"code"] if wrong else [])
