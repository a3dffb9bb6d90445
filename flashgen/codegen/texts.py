"""The text of a variant's kernels, and the views that it was rendered from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashgen.analysis.facts import facts_of
from flashgen.codegen.backward import BackwardView
from flashgen.codegen.kernels.backward_kv import BackwardKvView, backward_kv_view
from flashgen.codegen.kernels.backward_kv_sm90 import BackwardKvSm90View, backward_kv_sm90_view
from flashgen.codegen.kernels.backward_q import BackwardQView, backward_q_view
from flashgen.codegen.kernels.backward_q_sm90 import BackwardQSm90View, backward_q_sm90_view
from flashgen.codegen.kernels.delta import DeltaView, delta_view
from flashgen.codegen.kernels.forward import ForwardView, forward_view
from flashgen.codegen.kernels.forward_sm90 import ForwardSm90View, forward_sm90_view
from flashgen.codegen.kernels.learned import backward_inputs_view
from flashgen.codegen.kernels.schedule import ScheduleView, schedule_view
from flashgen.codegen.pairs import Function
from flashgen.codegen.templates import environment
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class Kernels:
    """`texts` has a text for each tuned kernel, in the order of the file; `rows` is that of what the backward kernels
    need first, `inputs` that of the gradients of learned inputs. `schedule` and `backward_inputs` are None where
    there is none.
    """

    forward: ForwardView
    hopper: ForwardSm90View
    delta: DeltaView
    backward_q: BackwardQView
    hopper_backward_q: BackwardQSm90View
    backward_kv: BackwardKvView
    hopper_backward: BackwardKvSm90View
    backward_inputs: BackwardQView | None
    schedule: ScheduleView | None
    rows: str
    inputs: str
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        """The whole, as it stands in the module."""
        forward, *backward = (text.strip() for text in self.texts.values())
        return "\n\n\n".join([forward, self.rows.strip(), *backward, self.inputs.strip()])


def render_kernels(variant: Variant) -> Kernels:
    """Work out the views and render all kernels. A function that two kernels share is in the text of the first."""
    facts = facts_of(variant)
    forward = forward_view(facts)
    hopper = forward_sm90_view(facts, forward)
    own = [f for f in hopper.functions if f not in forward.functions]
    by_rows = facts.uses_schedule
    schedule = schedule_view(facts, [*forward.functions, *own]) if by_rows or facts.rows_scheduled else None
    ahead = schedule if by_rows else None
    defined = [*forward.functions, *own]
    of_schedule = [f for f in ahead.functions if f.name not in {g.name for g in defined}] if ahead else []
    first = (
        environment()
        .get_template("kernels.py.jinja")
        .render(forward=forward, hopper=hopper, hopper_functions=own, schedule=ahead, schedule_functions=of_schedule)
    )
    helpers = {*forward.helpers, *hopper.helpers, *(ahead.helpers if ahead else ())}
    known = _Known(helpers, [*defined, *of_schedule])
    for_q = backward_q_view(facts, forward)
    q = known.render("kernel_q", for_q)
    for_hopper_q = backward_q_sm90_view(facts, hopper, tuple(known.functions))
    hopper_q = known.render("hopper_q", for_hopper_q)
    for_kv = backward_kv_view(facts, forward, tuple(known.functions))
    kv = known.render("kernel_kv", for_kv, None if ahead else schedule)
    for_hopper = backward_kv_sm90_view(facts, tuple(known.functions))
    hopper_kv = known.render("hopper_kv", for_hopper)
    wide_kv = known.render("hopper_kv_wide", for_hopper.wide)
    texts = {
        "forward": first,
        "backward_q": "\n\n\n".join(text.strip() for text in (q, hopper_q)),
        "backward_kv": "\n\n\n".join(text.strip() for text in (kv, hopper_kv, wide_kv)),
    }
    for_inputs = backward_inputs_view(facts, forward, tuple(known.functions))
    inputs = known.render("kernel_q", for_inputs) if for_inputs else ""
    for_rows = delta_view(facts)
    rows = known.render("delta", for_rows)
    return Kernels(
        forward, hopper, for_rows, for_q, for_hopper_q, for_kv, for_hopper, for_inputs, schedule, rows, inputs, texts
    )  # fmt: skip


@dataclass
class _Known:
    """What the text so far defines."""

    helpers: set[str]
    functions: list[Function]

    def render(
        self,
        part: str,
        view: BackwardView | BackwardKvSm90View | BackwardQSm90View | DeltaView,
        schedule: ScheduleView | None = None,
    ) -> str:
        """A part of the backward pass, in front of it what it needs and the text so far does not define."""
        wanted = {*view.helpers, *(schedule.helpers if schedule else ())}
        called = {f.name: f for f in (*(schedule.functions if schedule else ()), *view.functions)}
        functions = [f for name, f in called.items() if name not in {g.name for g in self.functions}]
        text = environment().get_template("backward_kernels.py.jinja").render(
            part=part, view=view, schedule=schedule, functions=functions, helpers=sorted(wanted - self.helpers)
        )  # fmt: skip
        self.helpers |= wanted
        self.functions += functions
        return text
