"""The engine: a model, a paged cache and a scheduler, and the step that brings them together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.attention import Paged
from engine.batch import Batch
from engine.model import Model
from engine.scheduler import Limits, Part, Request, Scheduler, Sequence
from flashgen.runtime import serving


def captured(function: Callable[[], None], device: torch.device, pool: Any = None) -> Callable[[], None]:
    """The function as a CUDA graph; on the CPU as it is. It is run before, since kernels compile on their first run."""
    if device.type != "cuda":
        return function
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        function()
    return graph.replay


class Engine:
    """Greedy decoding of requests that come and go.

    A step of sequences with one new token each replays a graph, of which there is one for each power of two of
    sequences; with chunks of prompts among them it runs kernel by kernel. `step` waits for the GPU once, for the
    tokens. `keep_logits`: each Sequence gets those of its new tokens, on the host. `debug`: what the kernels are told
    is checked before each step.
    """

    def __init__(
        self, model: Model, limits: Limits, cache: torch.dtype, *, keep_logits: bool = False, debug: bool = False
    ) -> None:
        self.model, self.limits, self.debug = model, limits, debug
        self.scheduler, self.batch = Scheduler(limits), Batch(limits, model.device)
        config, device, most = model.config, model.device, limits.max_batch
        shape = (limits.num_blocks, limits.block_size, config.kv_heads, config.head_dim)
        zeros = partial(torch.zeros, dtype=cache, device=device)
        self.caches = [(zeros(shape), zeros(shape)) for _ in range(config.layers)]
        # What a step finds for each sequence, tokens and perhaps logits: on the device, and on the host.
        found = [torch.zeros(most, dtype=torch.int64, device=device)]
        if keep_logits:
            found.append(torch.zeros(most, config.vocabulary, dtype=model.dtype, device=device))
        self.found = found
        on_gpu = device.type == "cuda"
        self.fetched = [torch.zeros_like(each, device="cpu", pin_memory=on_gpu) for each in found]
        self.arrived = torch.cuda.Event() if on_gpu else None
        self.sizes = sorted({*(1 << power for power in range(most.bit_length())), most})
        self.graphs = self._graphs()

    @torch.inference_mode()
    def _graphs(self) -> dict[int, Callable[[], None]]:
        """A decode step by its number of sequences, captured without any; the smaller ones in the largest's memory."""
        device = self.model.device
        pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.batch.fill([])
        return {size: captured(partial(self._decode, size), device, pool) for size in reversed(self.sizes)}

    def add(self, request: Request) -> Sequence:
        """Queue a request; ValueError for one that is too long for the engine."""
        return self.scheduler.add(request)

    @torch.inference_mode()
    def step(self) -> list[Part]:
        """Bring each sequence's part into the cache and find the tokens that follow; no part where nobody waits."""
        parts = self.scheduler.schedule()
        if parts:
            total = self.batch.fill(parts)
            longest = max(part.count for part in parts)
            if self.debug:
                self._check(total, longest)
            if longest == 1:
                self.graphs[self.sizes[bisect_left(self.sizes, len(parts))]]()
            else:
                self._mixed(total)
            tokens, *logits = self._fetch(len(parts))
            for part, *rows in zip(parts, *logits, strict=True):
                if part.yields:
                    part.sequence.logits += (row.clone() for row in rows)
            self.scheduler.advance(parts, tokens.tolist())
        return parts

    def paged(self, size: int) -> Paged:
        """Attention of a decode step of so many sequences, the first of the batch."""
        fields = self.batch.device
        return Paged(self.caches, fields.slots[:size], fields.block_table[:size], fields.seq_lens[:size])

    def _decode(self, size: int) -> None:
        """A step of the first `size` sequences with one token each; those beyond the batch are padding."""
        fields = self.batch.device
        self._choose(self.model(fields.tokens[:size], fields.positions[:size], self.paged(size)))

    def _mixed(self, total: int) -> None:
        """A step of `total` tokens, chunks of prompts and decoding sequences in one call of attention a layer."""
        fields = self.batch.device
        attend = Paged(
            self.caches, fields.slots[:total], fields.block_table, fields.seq_lens, fields.cu_seqlens_q,
            self.limits.max_tokens,
        )  # fmt: skip
        hidden = self.model(fields.tokens[:total], fields.positions[:total], attend)
        self._choose(hidden.index_select(0, fields.cu_seqlens_q[1:] - 1))

    def _choose(self, hidden: Tensor) -> None:
        """The likeliest token after each of these [rows, width], for the first rows of `found`."""
        logits = self.model.head(hidden)
        for found, new in zip(self.found, (logits.argmax(-1), logits), strict=False):
            found[: len(new)] = new

    def _fetch(self, rows: int) -> list[Tensor]:
        """The first rows of what was found, on the host; they change with the next step."""
        for here, there in zip(self.fetched, self.found, strict=True):
            here.copy_(there, non_blocking=True)
        if self.arrived is not None:
            self.arrived.record()
            self.arrived.synchronize()  # the only wait of a step
        return [here[:rows] for here in self.fetched]

    def _check(self, total: int, longest: int) -> None:
        """ValueError where the scheduler has made a mistake; reads the host's side alone, and so waits for nothing."""
        host = self.batch.host
        serving.check(
            host.tokens[:total], self.caches[0][0], host.block_table, host.seq_lens, cu_seqlens_q=host.cu_seqlens_q,
            max_seqlen_q=longest,
        )  # fmt: skip
