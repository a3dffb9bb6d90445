"""What is timed of a kernel: a launch of it alone, on tensors that are ready."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any

import torch

from flashgen import runtime
from flashgen.codegen import inputs_summed_by_key
from flashgen.problems.calls import Call
from flashgen.problems.dropped import Dropout, DroppedModule
from flashgen.problems.packed import Module, PackedCall, PackedModule
from flashgen.problems.paged import PagedCall, packed_keywords
from flashgen.problems.prepared import prepared
from flashgen.runtime.backward import Incoming
from flashgen.runtime.backward_pass import key_gradients_of, query_gradient_of
from flashgen.runtime.call import Call as PreparedCall
from flashgen.runtime.config import Config
from flashgen.runtime.forward_pass import decoded
from flashgen.runtime.input_gradients import input_gradients, sums_of_inputs
from flashgen.runtime.kernels.delta import launch_delta
from flashgen.runtime.registry import kernel_of
from flashgen.spec.variant import Variant
from flashgen.tuning.concord import Result, Results, beside_dk, beside_dq

Launch = Callable[[], object]


class Launches:
    """The launches of a generated module's kernels on one call, whose forward pass the backward takes as done."""

    def __init__(self, module: ModuleType, variant: Variant, call: Call) -> None:
        # All configs drop the same weights.
        self._dropout = None if variant.dropout is None else Dropout(variant.dropout)
        self._module: Any = self._dropping(module)
        self._variant: runtime.Variant = module.VARIANT
        self._call = call
        self._adds_to_sums = bool(inputs_summed_by_key(variant))

    def _dropping(self, module: Module) -> Module:
        return module if self._dropout is None else DroppedModule(module, self._dropout)

    def of(self, kernel: str, config: Config) -> Launch:
        """A launch of `kernel` in this config."""
        return getattr(self, f"_{kernel}")(config)

    def results(self, kernel: str, config: Config, query_gradient: Config) -> Results:
        """What `kernel` writes in this config, by name; a dQ that it leaves to backward_q in `query_gradient`."""
        if kernel == "decode":
            out, lse, *_ = self._decode(config)()
            return {"out": Result(out), "lse": Result(lse)}
        if kernel == "forward":
            q, k, v = self._call.q, self._call.k, self._call.v
            keywords = self._keywords(config)
            out, lse = self._module.attention(q, k, v, **keywords, return_lse=True)
            return {"out": Result(out), "lse": Result(lse)}
        call, out = self._prepared, self._done[0]
        if kernel == "backward_q":
            gradients: Any = (self._backward_q(config)(), None, None)
        else:
            gradients = self._backward_kv(config)()
        dq, dk, dv = gradients
        if dq is None:
            dq = self._backward_q(query_gradient)()
        found = {"dQ": Result(dq, beside_dq(call.k, self.d_out, out, call.scale))}
        if dv is not None:
            found |= {"dK": Result(dk, beside_dk(call.q, call.v, dv, call.scale)), "dV": Result(dv)}
        return found

    def _keywords(self, config: Config) -> dict[str, Any]:
        """The variant's own arguments, with the config and, of a variant that has them, a schedule."""
        keywords: dict[str, Any] = {**self._call.keywords, "config": config}
        if self._variant.planned:
            keywords["plan"] = self._module.plan(self._call.q, self._call.k, self._call.v, **keywords)
        return keywords

    def _forward(self, config: Config) -> Launch:
        """A schedule is made before, as its users do."""
        q, k, v = self._call.q, self._call.k, self._call.v
        keywords = self._keywords(config)
        return lambda: self._module.attention(q, k, v, **keywords)

    def _decode(self, config: Config) -> Callable[[], tuple[torch.Tensor, ...]]:
        return lambda: decoded(self._variant, self._prepared, config)

    def _backward_q(self, config: Config) -> Launch:
        rows = self._rows(config)(None)
        return lambda: query_gradient_of(self._variant, self._prepared, config, rows)

    def _backward_kv(self, config: Config) -> Launch:
        """With the kernel before it, which clears the sums of a fused dQ, and the one that turns them into dQ.

        Where it adds up gradients of learned inputs itself, also with what makes these, or what is left of them: how
        much that is depends on the config.
        """
        variant, call, rows_of = self._variant, self._prepared, self._rows(config)
        query_sums = kernel_of("backward_kv", config).query_sums

        def launched() -> object:
            dq_sums = query_sums(call, config)
            rows = rows_of(dq_sums)
            sums = sums_of_inputs(variant, call, exact=False) if self._adds_to_sums else None
            gradients = key_gradients_of(variant, call, config, rows, dq_sums, sums)
            if sums is not None:
                input_gradients(variant, call, rows, sums, config)
            return gradients

        return launched

    def _rows(self, config: Config) -> Callable[[torch.Tensor | None], Incoming]:
        """What the backward needs of each row, by where sums are to be cleared; the forward pass is done before."""
        variant, call, output, d_out = self._variant, self._prepared, self._done, self.d_out
        return lambda dq_sums: launch_delta(variant, call, config, output, d_out, None, dq_sums)

    @cached_property
    def _prepared(self) -> PreparedCall:
        """The call as kernels take it."""
        return prepared(self._variant, self._call, dropout=self._dropout)

    @cached_property
    def d_out(self) -> torch.Tensor:
        """The gradient of out that the backward starts from: random."""
        return torch.randn_like(self._done[0])

    @cached_property
    def _done(self) -> tuple[torch.Tensor, ...]:
        """out and lse, and what that has lost where the backward takes it: next to nothing, with scores as drawn."""
        q, k, v = self._call.q, self._call.k, self._call.v
        with torch.no_grad():
            out, lse = self._module.attention(q, k, v, **self._call.keywords, return_lse=True)
        return (out, lse, torch.zeros_like(lse)) if self._variant.natural else (out, lse)


class PackedLaunches(Launches):
    """The launches of a call over packed sequences, told where they end."""

    def __init__(self, module: ModuleType, variant: Variant, packed: PackedCall) -> None:
        super().__init__(module, variant, packed.call)
        self._variant = module.VARLEN
        self._packed = PackedModule(module, variant, packed.problem, packed.problem.lengths)
        self._module = self._dropping(self._packed)

    @cached_property
    def _prepared(self) -> PreparedCall:
        return prepared(self._variant, self._packed.told(self._call), dropout=self._dropout)


class PagedLaunches:
    """The launches of the paged kernel on one call, whose plan is made before, as for all layers of a step."""

    def __init__(self, module: ModuleType, variant: Variant, call: PagedCall) -> None:
        self._module: Any = module
        self._batch = call.batch
        self._keywords = packed_keywords(variant, call.batch, call.own)

    def of(self, kernel: str, config: Config) -> Launch:
        batch = self._batch
        given, told = batch.planning
        plan = self._module.plan_paged(*given, **told, config=config)
        arguments, options = batch.arguments, {**batch.options, **self._keywords, "plan": plan}
        return lambda: self._module.attention_paged(*arguments, **options, return_lse=True)

    def results(self, kernel: str, config: Config, query_gradient: Config) -> Results:
        found: Any = self.of(kernel, config)()
        return {"out": Result(found[0]), "lse": Result(found[1])}
