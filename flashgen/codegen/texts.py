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
from flashgen.codegen.kernels.decode import DecodeView, decode_view
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
    need first, `inputs` that of the gradients of learned inputs, `serving` that of the decode kernels. `schedule` and
    `backward_inputs` are None where there is none.
    """

    forward: ForwardView
    forward_sm90: ForwardSm90View
    delta: DeltaView
    backward_q: BackwardQView
    backward_q_sm90: BackwardQSm90View
    backward_kv: BackwardKvView
    backward_kv_sm90: BackwardKvSm90View
    backward_inputs: BackwardQView | None
    schedule: ScheduleView | None
    decode: DecodeView
    decode_paged: DecodeView
    rows: str
    inputs: str
    serving: str
    texts: Mapping[str, str]

    @property
    def text(self) -> str:
        """The whole, as it stands in the module."""
        forward, *backward = (text.strip() for text in self.texts.values())
        return "\n\n\n".join([forward, self.rows.strip(), *backward, self.inputs.strip(), self.serving.strip()])


def render_kernels(variant: Variant) -> Kernels:
    """Work out the views and render all kernels. A function that two kernels share is in the text of the first."""
    facts = facts_of(variant)
    forward = forward_view(facts)
    sm90 = forward_sm90_view(facts, forward)
    own = [f for f in sm90.functions if f not in forward.functions]
    by_rows = facts.uses_schedule
    schedule = schedule_view(facts, [*forward.functions, *own]) if by_rows or facts.rows_scheduled else None
    ahead = schedule if by_rows else None
    defined = [*forward.functions, *own]
    of_schedule = [f for f in ahead.functions if f.name not in {g.name for g in defined}] if ahead else []
    first = (
        environment()
        .get_template("kernels.py.jinja")
        .render(
            forward=forward,
            forward_sm90=sm90,
            forward_sm90_functions=own,
            schedule=ahead,
            schedule_functions=of_schedule,
        )
    )
    helpers = {*forward.helpers, *sm90.helpers, *(ahead.helpers if ahead else ())}
    known = _Known(helpers, [*defined, *of_schedule])
    for_q = backward_q_view(facts, forward)
    q = known.render("backward_q", for_q)
    for_q_sm90 = backward_q_sm90_view(facts, sm90, tuple(known.functions))
    q_sm90 = known.render("backward_q_sm90", for_q_sm90)
    for_kv = backward_kv_view(facts, forward, tuple(known.functions))
    kv = known.render("backward_kv", for_kv, None if ahead else schedule)
    for_kv_sm90 = backward_kv_sm90_view(facts, tuple(known.functions))
    kv_sm90 = known.render("backward_kv_sm90", for_kv_sm90)
    wide_kv = known.render("backward_kv_wide_sm90", for_kv_sm90.wide)
    texts = {
        "forward": first,
        "backward_q": "\n\n\n".join(text.strip() for text in (q, q_sm90)),
        "backward_kv": "\n\n\n".join(text.strip() for text in (kv, kv_sm90, wide_kv)),
    }
    for_inputs = backward_inputs_view(facts, forward, tuple(known.functions))
    inputs = known.render("backward_q", for_inputs) if for_inputs else ""
    for_rows = delta_view(facts)
    rows = known.render("delta", for_rows)
    decode = decode_view(variant, tuple(known.functions), paged=False)
    serving = [known.render("decode", decode)]
    decode_paged = decode_view(variant, tuple(known.functions), paged=True)
    serving.append(known.render("decode", decode_paged))
    return Kernels(
        forward, sm90, for_rows, for_q, for_q_sm90, for_kv, for_kv_sm90, for_inputs, schedule, decode, decode_paged,
        rows, inputs, "\n\n\n".join(text.strip() for text in serving), texts,
    )  # fmt: skip


@dataclass
class _Known:
    """What the text so far defines."""

    helpers: set[str]
    functions: list[Function]

    def render(
        self,
        kernel: str,
        view: BackwardView | BackwardKvSm90View | BackwardQSm90View | DecodeView | DeltaView,
        schedule: ScheduleView | None = None,
    ) -> str:
        """A kernel after the forward ones, in front of it what it needs and the text so far does not define."""
        wanted = {*view.helpers, *(schedule.helpers if schedule else ())}
        called = {f.name: f for f in (*(schedule.functions if schedule else ()), *view.functions)}
        functions = [f for name, f in called.items() if name not in {g.name for g in self.functions}]
        text = environment().get_template("backward_kernels.py.jinja").render(
            kernel=kernel, view=view, schedule=schedule, functions=functions, helpers=sorted(wanted - self.helpers)
        )  # fmt: skip
        self.helpers |= wanted
        self.functions += functions
        return text
