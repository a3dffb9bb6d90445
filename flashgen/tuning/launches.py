"""What is timed of a kernel: a launch of it alone, on tensors that are ready."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any

import torch

from flashgen import runtime
from flashgen.problems import Call
from flashgen.runtime.config import Config

Launch = Callable[[], object]


class Launches:
    """The launches of a generated module's kernels on one call, whose forward pass the backward takes as done."""

    def __init__(self, module: ModuleType, call: Call) -> None:
        self._module: Any = module
        self._call = call

    def of(self, kernel: str, config: Config) -> Launch:
        """A launch of `kernel` in this config."""
        return getattr(self, f"_{kernel}")(config)

    def _forward(self, config: Config) -> Launch:
        """A schedule is made before, as its users do."""
        q, k, v = self._call.q, self._call.k, self._call.v
        keywords: dict[str, Any] = {**self._call.keywords, "config": config}
        if hasattr(self._module, "plan"):
            keywords["plan"] = self._module.plan(q, k, v, **keywords)
        return lambda: self._module.attention(q, k, v, **keywords)

    def _backward_q(self, config: Config) -> Launch:
        backend = "" if config.backend == "portable" else f"_{config.backend}"
        launch = getattr(self._module, f"_launch_backward_q{backend}")
        call, rows = self._prepared
        own = self._own(launch)
        return lambda: launch(call, rows, *own, config)

    def _backward_kv(self, config: Config) -> Launch:
        """With what turns the sums of a fused dQ into dQ."""
        backend = "" if config.backend == "portable" else f"_{config.backend}"
        launch = getattr(self._module, f"_launch_backward_kv{backend}")
        call, rows = self._prepared
        own = self._own(launch)
        return lambda: launch(call, rows, *own, config)

    @cached_property
    def _prepared(self) -> tuple[Any, Any]:
        """The call as kernels take it, and what they need of its rows for a random gradient of out."""
        q, k, v = self._call.q, self._call.k, self._call.v
        with torch.no_grad():
            out, lse = self._module.attention(q, k, v, **self._call.keywords, return_lse=True)
        call = runtime.prepare(q, k, v, None)
        return call, self._module._incoming(call, out, lse, torch.randn_like(out), None)

    def _own(self, launch: Callable[..., object]) -> list[Any]:
        """The variant's own arguments, in the order in which a launch function takes them."""
        names = [name for name in inspect.signature(launch).parameters if name in self._call.keywords]
        values = dict(self._call.keywords)
        if self._call.inputs:
            call, _ = self._prepared
            ready = self._module._inputs(call.q, call.sizes, *self._call.inputs.values())
            values |= zip(self._call.inputs, ready if isinstance(ready, tuple) else (ready,), strict=True)
        return [values[name] for name in names]
