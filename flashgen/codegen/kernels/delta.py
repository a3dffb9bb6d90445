"""What the kernel `_delta` computes of each row beside delta: what the logits of a variant leave out of their tiles.

A term of the logits that is constant along a row, such as that of ALiBi, belongs to the row's log-sum-exp. A kernel
that makes dK and dV in warps with few registers to spare reads log-sum-exps that have it off already.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashgen.analysis.facts import Facts
from flashgen.analysis.levels import ROW
from flashgen.codegen.arguments import PACKED_SIZES, extra_arguments, new_prologue, own_integers, q_offset
from flashgen.codegen.backward import row_step
from flashgen.codegen.kernel_text import KernelText

_SIZES = ("kv_heads", "kv_len", "head_dim")


@dataclass(frozen=True)
class DeltaView:
    """The holes of `_delta`: `lines` compute `row`, the term of rows [BM], by the names in `reads`.

    `arguments` are those of the variant, `integers` among them; `sizes` are the scalars beyond those of all.
    """

    lines: tuple[str, ...]
    row: str
    natural: bool
    reads: frozenset[str]
    q_offset: str
    arguments: tuple[str, ...]
    integers: tuple[str, ...]
    sizes: tuple[str, ...]
    dropout: bool
    functions: tuple[()] = ()

    @property
    def unspecialized(self) -> tuple[str, ...]:
        packed = (name for name in PACKED_SIZES if name != "total_k" or self.reads_keys)
        return ("heads", "q_len", "num_rows", "v_head_dim", *self.sizes, *self.integers, *packed)

    @property
    def reads_keys(self) -> bool:
        """Whether it asks for the length of the keys."""
        return "kv_len" in self.sizes


def delta_view(facts: Facts) -> DeltaView:
    """Work the holes out; `row` is empty for a variant whose logits leave nothing out."""
    prologue = new_prologue(facts, walked=ROW, packs=True)
    variant, body = facts.variant, row_step(facts, prologue)
    reads = prologue.reads.union(body.reads)
    offset = q_offset(facts) if body.results else ""
    dropout = variant.dropout is not None
    return DeltaView(
        lines=(*prologue.lines, *body.lines),
        row=" ".join(body.results),
        natural=facts.logits.natural,
        reads=frozenset(reads),
        q_offset=offset,
        arguments=extra_arguments(variant, reads | ({"dropout_p"} if dropout else set())),
        integers=own_integers(variant, reads),
        sizes=tuple(
            name
            for name in _SIZES
            if name in reads
            or (name == "kv_len" and (offset or "begin_k" in reads))
            or (name == "kv_heads" and "kv_h" in reads)
        ),
        dropout=dropout,
    )


DELTA = KernelText("delta", "what the backward kernels need of each row", lambda views: delta_view(views.facts))
