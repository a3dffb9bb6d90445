"""What is timed of a kernel: a launch of it alone, on tensors that are ready."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any

import torch

from flashgen import runtime
from flashgen.codegen import inputs_summed_by_key
from flashgen.codegen.naming import inner_names
from flashgen.problems import Call
from flashgen.runtime.config import Config
from flashgen.runtime.registry import kernel_of
from flashgen.spec.variant import Variant
from flashgen.tuning.concord import Result, Results, beside_dk, beside_dq

Launch = Callable[[], object]


class Launches:
    """The launches of a generated module's kernels on one call, whose forward pass the backward takes as done."""

    def __init__(self, module: ModuleType, variant: Variant, call: Call) -> None:
        self._module: Any = module
        self._call = call
        self._inner = inner_names(variant)
        self._summed = [call.inputs[name] for name in inputs_summed_by_key(variant)]

    def of(self, kernel: str, config: Config) -> Launch:
        """A launch of `kernel` in this config."""
        return getattr(self, f"_{kernel}")(config)

    def results(self, kernel: str, config: Config, query_gradient: Config) -> Results:
        """What `kernel` writes in this config, by name; a dQ that it leaves to backward_q in `query_gradient`."""
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
        if hasattr(self._module, "plan"):
            keywords["plan"] = self._module.plan(self._call.q, self._call.k, self._call.v, **keywords)
        return keywords

    def _forward(self, config: Config) -> Launch:
        """A schedule is made before, as its users do."""
        q, k, v = self._call.q, self._call.k, self._call.v
        keywords = self._keywords(config)
        return lambda: self._module.attention(q, k, v, **keywords)

    def _backward_q(self, config: Config) -> Launch:
        launch, own = self._backward("backward_q", config)
        rows = self._rows(config)(None)
        return lambda: launch(self._prepared, rows, *own, config)

    def _backward_kv(self, config: Config) -> Launch:
        """With the kernel before it, which clears the sums of a fused dQ, and the one that turns them into dQ.

        Where it adds up gradients of learned inputs itself, also with what makes these, or what is left of them: how
        much that is depends on the config.
        """
        launch, own = self._backward("backward_kv", config)
        rows, query_sums = self._rows(config), kernel_of("backward_kv", config).query_sums
        learned = self._learned(config)

        def launched() -> object:
            dq_sums = () if query_sums is None else (query_sums(self._prepared, config),)
            incoming, input_sums = rows(*(dq_sums or (None,))), self._input_sums()
            further = {"input_sums": input_sums} if dq_sums and input_sums else {}
            gradients = launch(self._prepared, incoming, *dq_sums, *own, config, **further)
            learned(incoming, input_sums)
            return gradients

        return launched

    def _input_sums(self) -> tuple[torch.Tensor, ...]:
        return tuple(runtime.input_sums(tensor, exact=False) for tensor in self._summed)

    def _learned(self, config: Config) -> Callable[[Any, tuple[torch.Tensor, ...]], object]:
        """The launch for the gradients of learned inputs after that in `config`, from the rows and the sums."""
        if not self._summed:
            return lambda incoming, input_sums: None
        launch = self._module._launch_backward_inputs
        own = self._own(launch)
        by_key = config if kernel_of("backward_kv", config).sums_inputs else None
        return lambda incoming, input_sums: launch(self._prepared, incoming, *own, input_sums, by_key)

    def _backward(self, family: str, config: Config) -> tuple[Callable[..., object], list[Any]]:
        """A launch of the module, and the variant's own arguments as it takes them."""
        launch = getattr(self._module, kernel_of(family, config).launcher)
        return launch, self._own(launch)

    @cached_property
    def _prepared(self) -> Any:
        """The call as kernels take it."""
        return runtime.prepare(self._call.q, self._call.k, self._call.v, None)

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
        takes = inspect.signature(self._module._incoming).parameters
        return (out, lse, torch.zeros_like(lse)) if "residue" in takes else (out, lse)

    def _rows(self, config: Config) -> Callable[[torch.Tensor | None], Any]:
        """What the backward needs of each row, by where sums are to be cleared."""
        incoming = self._module._incoming
        given = (self._prepared, *self._done, self.d_out, None)
        own = self._own(incoming)
        return lambda dq_sums: incoming(*given, dq_sums, *own, config)

    def _own(self, function: Callable[..., object]) -> list[Any]:
        """The variant's own arguments, in the order in which a function of the module takes them."""
        own = {self._inner[name]: value for name, value in self._call.keywords.items()}

        def taken(by: Callable[..., object]) -> list[Any]:
            return [own[name] for name in inspect.signature(by).parameters if name in own]

        if self._call.inputs:
            check, call = self._module._inputs, self._prepared
            ready = check(call.q, call.sizes, *taken(check))
            names = (self._inner[name] for name in self._call.inputs)
            own |= zip(names, ready if isinstance(ready, tuple) else (ready,), strict=True)
        return taken(function)
