"""floor as an integer of 64 bits: the nearest where it does not fit, as GPUs have it."""

from __future__ import annotations

from flashgen.lang.infix import Text, binary, call, method, number, read
from flashgen.lang.magnitudes import may_pass_64_bits
from flashgen.lang.nodes import Op


def floor(node: Op, operand: Text) -> Text:
    """The floor of a tensor, which is read again where `may_pass_64_bits`: a CPU makes of those the least integer."""
    whole = method(method(operand, "floor"), "long")
    if not may_pass_64_bits(node.args[0]):
        return whole
    beyond = binary(">=", operand, binary("**", number(2.0), number(63)))
    return call(read("torch.where"), beyond, number(2**63 - 1), whole)
