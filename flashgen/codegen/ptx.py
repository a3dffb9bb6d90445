"""Reading PTX for what NVIDIA's assembler is known to get wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?(max|min|neg|sub|mul\.lo|mov)\.[su]?b?(16|32)\s+(%\w+),\s*(.*?);")

Definitions = Mapping[str, tuple[str, tuple[str, ...]]]


def joined_negations(ptx: str) -> tuple[str, ...]:
    """The registers of maxima of maxima, or minima of minima, of integers of which one operand is negated.

    ptxas 12.8 and 12.9 make one instruction of such a pair, VIMNMX3, where the GPU has it, and lose the minus. Those of
    floats are right: FMNMX and FMNMX3 keep it.
    """
    defined = {register: (name, operands) for name, register, operands in _instructions(ptx)}
    return tuple(register for register in defined if _joins_a_negation(register, defined))


def _instructions(ptx: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for line in ptx.splitlines():
        found = _INSTRUCTION.match(line)
        if found:
            yield found[1], found[3], tuple(part.strip() for part in found[4].split(","))


def _joins_a_negation(register: str, defined: Definitions) -> bool:
    name, operands = defined[register]
    if name not in ("max", "min"):
        return False
    inner = [_definition(operand, defined) for operand in operands]
    nested = [parts for kind, parts in inner if kind == name]
    joined = [*operands, *(operand for parts in nested for operand in parts)]
    return bool(nested) and any(_is_negation(*_definition(operand, defined)) for operand in joined)


def _definition(operand: str, defined: Definitions) -> tuple[str, tuple[str, ...]]:
    """The instruction that made an operand, moves aside."""
    seen = set()
    while operand in defined and operand not in seen:
        seen.add(operand)
        name, operands = defined[operand]
        if name != "mov":
            return name, operands
        operand = operands[0]
    return "", ()


def _is_negation(name: str, operands: tuple[str, ...]) -> bool:
    return name == "neg" or (name == "sub" and operands[0] == "0") or (name == "mul.lo" and operands[-1] == "-1")
