"""A cubin looked through for what makes it worth disassembling, which takes half a second; this takes 10 ms.

Reads NVIDIA's instructions of 16 bytes, as `nvdisasm -hex` shows them for GPUs with WGMMA.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_EXECUTABLE = 4
_IADD3, _UIADD3 = 0x010, 0x090
# The prefix of the one register that an operation writes, by the lowest nine bits of its code.
_WRITES = {
    **dict.fromkeys((0x002, 0x007, _IADD3, 0x011, 0x012, 0x019, 0x024), ""),  # MOV SEL LEA LOP3 SHF IMAD
    **dict.fromkeys((0x082, 0x087, _UIADD3, 0x091, 0x092, 0x099, 0x0A4), "U"),
    **dict.fromkeys((0x0B9, 0x0CA), "U"),  # ULDC R2UR
}
# Three more bits say what the second and third operand are.
_SECOND_IS_REGISTER, _ONE_IS_UNIFORM = (1,), (6, 7)
_ZERO_REGISTER = {"": 255, "U": 63}
_TRUE = 7


def may_double_words(cubin: bytes) -> bool:
    """Whether `sass.doubled_words` can find a sum of 64 bits with one register for both words in a cubin.

    It knows of few operations which registers they write, so that some code is suspected without reason.
    """
    lower: dict[str, set[str]] = {}
    for low, high in _instructions(cubin):
        operation, is_upper = low & 0x1FF, high >> 10 & 1
        if (file := _WRITES.get(operation)) is None:
            continue
        written = f"{file}R{low >> 16 & 255}"
        read, carries = set[str](), list[str]()
        if operation in (_IADD3, _UIADD3):
            read, carries = _registers(file, low, high), _carries(file, high)
        if is_upper and any(read & lower.get(carry, set()) for carry in carries):
            return True
        for registers in lower.values():
            registers.discard(written)
        if not is_upper:
            lower |= {carry: read - {written} for carry in carries}
    return False


def _instructions(cubin: bytes) -> Iterator[tuple[int, int]]:
    """The lower and upper 8 bytes of each instruction in the executable sections of an ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count = struct.unpack_from("<HH", cubin, 0x3A)
    for header in range(table, table + size * count, size):
        flags, _, start, length = struct.unpack_from("<QQQQ", cubin, header + 8)
        if flags & _EXECUTABLE:
            yield from struct.iter_unpack("<QQ", cubin[start : start + length])


def _registers(file: str, low: int, high: int) -> set[str]:
    """The registers that a sum reads."""
    form = low >> 9 & 7
    read = [(file, low >> 24 & 255), (file, high & 255)]
    if form in _SECOND_IS_REGISTER:
        read.append((file, low >> 32 & 255))
    if form in _ONE_IS_UNIFORM:
        read.append(("U", low >> 32 & 63))
    return {f"{prefix}R{number}" for prefix, number in read if number != _ZERO_REGISTER[prefix]}


def _carries(file: str, high: int) -> list[str]:
    """The predicates that a sum writes its carries to, and those that it takes as carries."""
    bits = (high >> place & 7 for place in (17, 20, 23, 13))
    return [f"{file}P{number}" for number in bits if number != _TRUE]
