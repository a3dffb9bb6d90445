"""What the template of the kernel for the gradients of learned inputs needs to know: it walks as that for dQ does."""

from __future__ import annotations

from collections.abc import Sequence

from flashgen.analysis.facts import Facts
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.kernels.backward_q import BackwardQView, along_keys
from flashgen.codegen.kernels.forward import ForwardView
from flashgen.codegen.learned import learned_inputs
from flashgen.codegen.pairs import Function
from flashgen.spec.variant import Variant


def backward_inputs_view(
    facts: Facts, forward: ForwardView, known: Sequence[Function]
) -> BackwardQView | None:  # fmt: skip
    """The holes of the kernel for the gradients of learned inputs; None where no score depends on any smoothly."""
    view = along_keys(facts, forward, known, for_inputs=True)
    return view if view.learned is not None and view.learned.sites else None


def _title(variant: Variant) -> str:
    learned = learned_inputs(variant)
    return f"the gradient{'s' * (len(learned) > 1)} of {', '.join(learned)}"


BACKWARD_INPUTS = KernelText(
    "backward_inputs",
    _title,
    lambda views: backward_inputs_view(views.facts, views["forward"], views.functions),
    template="backward_q",
    launched=(("learned", "_backward_inputs"),),
)
