"""Machine code is disassembled where it can have sums of 64 bits that the assembler got wrong, and seldom else."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from triton import knobs

from flashgen.codegen.cubin import may_double_words
from flashgen.codegen.sass import disassembled, doubled_words

# Sums of 64 bits of what threads share, and of what they do not.
SUMS = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry sums(.param .u64 from, .param .u64 to, .param .u64 step, .param .u32 times)
{
    .reg .u64 %from, %to, %step, %each, %read, %sum, %shared;
    .reg .u32 %thread, %times;
    .reg .pred %more;
    ld.param.u64 %from, [from];
    ld.param.u64 %to, [to];
    ld.param.u64 %step, [step];
    ld.param.u32 %times, [times];
    mov.u32 %thread, %tid.x;
    mul.wide.u32 %each, %thread, 8;
    add.u64 %from, %from, %each;
    add.u64 %to, %to, %each;
    mov.u64 %sum, 0;
    mov.u64 %shared, 0;
again:
    .pragma "nounroll";
    ld.global.u64 %read, [%from];
    add.u64 %sum, %sum, %read;
    add.u64 %sum, %sum, 0x4000004000000010;
    add.u64 %from, %from, %step;
    add.u64 %shared, %shared, 0x4000004000000020;
    add.u64 %shared, %shared, %step;
    sub.u32 %times, %times, 1;
    setp.ne.u32 %more, %times, 0;
    @%more bra again;
    st.global.u64 [%to], %sum;
    st.global.u64 [%to + 8], %shared;
    ret;
}
"""
# A line of code that `doubled_words` looks for before anything else.
PRODUCT = "HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4].tnspB, R24 ;"
SUM = re.compile(r"(?P<name>U?IADD3(?:\.X)?) \S+, (?P<operands>.*);")
ENCODED = re.compile(r"/\*\w{4}\*/\s+(?P<code>.*?;)\s+/\* 0x(?P<low>\w{16}) \*/\s+/\* 0x(?P<high>\w{16}) \*/")


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("sums")
    (folder / "sums.ptx").write_text(SUMS, encoding="utf-8")
    command = [knobs.nvidia.ptxas.path, "-arch=sm_90a", folder / "sums.ptx", "-o", folder / "sums.cubin"]
    subprocess.run(command, check=True)
    return (folder / "sums.cubin").read_bytes()


def test_right_sums_are_not_suspected(cubin: bytes) -> None:
    assert doubled_words(f"{disassembled(cubin)}\n{PRODUCT}") == ()
    assert not may_double_words(cubin)


def test_what_is_found_in_the_text_is_suspected(cubin: bytes, tmp_path: Path) -> None:
    lower, wrong = dict[str, int](), set[str]()
    for code, encoded in _instructions(cubin, tmp_path):
        if (found := SUM.search(code)) is None:
            continue
        name, carries = found["name"], re.findall(r"U?P\d", found["operands"])
        if ".X" not in name:
            *_, last = re.findall(r"R(\d+)", found["operands"]) or "0"
            lower |= dict.fromkeys(carries, int(last))
            continue
        # Where the upper word's register stands, that of the lower word.
        for place in (3, 4):
            if encoded[place] == lower[carries[0]] + 1:
                other = cubin.replace(encoded, encoded[:place] + bytes([encoded[place] - 1]) + encoded[place + 1 :])
                assert doubled_words(f"{disassembled(other)}\n{PRODUCT}")
                assert may_double_words(other)
                wrong.add(name)
    assert wrong == {"IADD3.X", "UIADD3.X"}


def _instructions(cubin: bytes, folder: Path) -> list[tuple[str, bytes]]:
    """Each instruction's text and its 16 bytes."""
    (folder / "code.cubin").write_bytes(cubin)
    command = [knobs.nvidia.nvdisasm.path, "-c", "-hex", folder / "code.cubin"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [
        (found["code"], b"".join(int(found[half], 16).to_bytes(8, "little") for half in ("low", "high")))
        for found in ENCODED.finditer(text)
    ]
