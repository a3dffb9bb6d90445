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

    ptxas 12.8 writes such where two tiles of different layout have one place in shared memory, and one of
    them is an operand of WGMMA: its address is wrong, the product reads whatever lies there, or beyond the end. A
    kernel without WGMMA has no such operands.
    """
    return tuple(_wrong_sums(sass)) if "GMMA" in sass else ()


def _wrong_sums(sass: str) -> Iterator[str]:
    # The registers that the lower words came from, by the predicate with the carry, while they hold what they held.
    lower: dict[str, set[str]] = {}
    # Registers that hold 0 or -1, of which both words are the same.
    masks: set[str] = set()
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
        summed = read - masks
        if name in ("IADD3.X", "UIADD3.X") and any(summed & lower.get(carry, set()) for carry in carries):
            yield code
        written = _written(name, operands)
        masks = masks | written if _is_mask(name, operands, masks) else masks - written
        for registers in lower.values():
            registers -= written
        if name in ("IADD3", "UIADD3"):
            lower |= dict.fromkeys(carries, read - written)


def _is_mask(name: str, operands: list[str], masks: set[str]) -> bool:
    """Whether an instruction writes 0 or -1: a choice of these, a sign drawn out, or a copy of such."""
    match name.split("."):
        case ["SEL" | "USEL", *_]:
            return {*operands[1:3]} <= {"RZ", "URZ", "0x0", "0xffffffff", "-0x1"}
        case [("SHF" | "USHF"), "R", "S32", *_]:
            return "0x1f" in operands[1:]
        case ["MOV" | "UMOV", *_]:
            return operands[1] in masks
        case _:
            return False


def _written(name: str, operands: list[str]) -> set[str]:
    """The registers that an instruction writes, as far as they are named."""
    # These write a predicate first.
    target = operands[1] if name.startswith(("SHFL", "ATOM")) and len(operands) > 1 else operands[0]
    if not _REGISTER.fullmatch(target):
        return set()
    file, number = target.rstrip("0123456789"), int(target.lstrip("UR"))
    return {f"{file}{number + offset}" for offset in range(_width(name))}


def _width(name: str) -> int:
    """How many registers an instruction writes."""
    operation, *parts = name.split(".")
    tile = re.search(r"\.64x(\d+)x", name)
    if operation == "HGMMA" and tile:
        return int(tile[1]) // 2  # Of float32, by the 128 threads of a warpgroup.
    if "128" in parts or operation == "HMMA" or (operation == "LDSM" and "4" in parts):
        return 4
    wide = operation == "CS2R" and "32" not in parts
    return 2 if wide or {"64", "WIDE"} & {*parts} or (operation == "LDSM" and "2" in parts) else 1
