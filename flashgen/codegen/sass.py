"""Reading machine code for what NVIDIA's assembler is known to get wrong."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator

from triton import knobs

_INSTRUCTION = re.compile(r"^(?:@!?\w+ )?(?P<name>[A-Z][\w.]*) (?P<operands>.*?) ?;$")
_NO_CODE = re.compile(r"\s*/\*.*?\*/\s*")
_REGISTER = re.compile(r"U?R\d+")
_CARRY = re.compile(r"!?(U?P\d)")


def disassembled(cubin: bytes) -> str:
    """The machine code of a cubin as text, by the disassembler that Triton brings along; OSError without one."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def doubled_words(sass: str) -> tuple[str, ...]:
    """The second halves of sums of 64 bits that take both words of an operand from the same register.

    ptxas 12.8 writes such for sm_90 where two tiles of different layout have one place in shared memory, and one of
    them is an operand of WGMMA: its address is wrong, the product reads whatever lies there, or beyond the end.
    """
    return tuple(_wrong_sums(sass))


def _wrong_sums(sass: str) -> Iterator[str]:
    # The registers that the lower words came from, by the predicate with the carry, while they hold what they held.
    lower: dict[str, set[str]] = {}
    for line in sass.splitlines():
        code = _NO_CODE.sub("", line).strip()
        if code.startswith(".L"):
            lower = {}
        found = _INSTRUCTION.match(code)
        if found is None:
            continue
        name, operands = found["name"], [each.strip().removesuffix(".reuse") for each in found["operands"].split(",")]
        read = {each for each in operands[1:] if _REGISTER.fullmatch(each)}
        carries = [match[1] for each in operands[1:] if (match := _CARRY.fullmatch(each))]
        if name in ("IADD3.X", "UIADD3.X") and any(read & lower.get(carry, set()) for carry in carries):
            yield code
        written = _written(name, operands[0])
        for registers in lower.values():
            registers -= written
        if name in ("IADD3", "UIADD3"):
            lower |= dict.fromkeys(carries, read - written)


def _written(name: str, target: str) -> set[str]:
    """The registers that an instruction writes, as far as they are named."""
    if not _REGISTER.fullmatch(target):
        return set()
    file, number = target.rstrip("0123456789"), int(target.lstrip("UR"))
    return {f"{file}{number + offset}" for offset in range(2 if "64" in name or "WIDE" in name else 1)}
