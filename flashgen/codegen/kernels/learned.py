"""What the template of the kernel for the gradients of learned inputs needs to know: it walks as that for dQ does."""

from __future__ import annotations

from collections.abc import Sequence

from flashgen.analysis.facts import Facts
from flashgen.codegen.kernels.backward_q import BackwardQView, along_keys
from flashgen.codegen.kernels.forward import ForwardView
from flashgen.codegen.pairs import Function


def backward_inputs_view(
    facts: Facts, forward: ForwardView, known: Sequence[Function]
) -> BackwardQView | None:  # fmt: skip
    """The holes of the kernel for the gradients of learned inputs; None where no score depends on any smoothly."""
    view = along_keys(facts, forward, known, for_inputs=True)
    return view if view.learned is not None and view.learned.sites else None
