"""Others that attend with few queries, as calls without arguments; each is optional.

All but FlexAttention compute plain softmax attention, whatever the variant: where there is one query a sequence, which
stands last, that is causal attention too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from flashgen.bench.candidates import CUDNN, FLEX
from flashgen.bench.flex import flex_attention
from flashgen.bench.installed import Unavailable, imported
from flashgen.codegen.pairwise import SIZES, make
from flashgen.problems.calls import Call
from flashgen.problems.paged import PagedCall
from flashgen.problems.problem import Problem
from flashgen.spec.variant import Variant

Run = Callable[[], object]
Peer = Callable[[Variant, Problem, Any], Run]
# What FlashInfer asks for as room of its own.
_WORKSPACE_BYTES = 128 << 20


def cudnn(variant: Variant, problem: Problem, call: Call) -> Run:
    """Torch's attention by cuDNN."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def run() -> object:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(call.q, call.k, call.v, enable_gqa=True)

    return run


def flex(variant: Variant, problem: Problem, call: Call) -> Run:
    """Compiled FlexAttention with the variant's own score and mask."""
    sizes = {name: getattr(problem, name) for name in SIZES}
    return flex_attention(variant, problem, call, make(variant, sizes, call.keywords))


def flash_attention(variant: Variant, problem: Problem, call: Call) -> Run:
    """FlashAttention-2 with a cache that is no paged one."""
    attend = imported("flash_attn", "flash_attn_with_kvcache")
    q, k, v = (each.transpose(1, 2).contiguous() for each in (call.q, call.k, call.v))
    return lambda: attend(q, k, v, causal=True)


def flash_attention_paged(variant: Variant, problem: Problem, call: PagedCall) -> Run:
    """FlashAttention-2 with a paged cache, of pages of 256 keys or a multiple of it."""
    if problem.block_size % 256 or problem.cache:
        raise Unavailable("takes pages of multiples of 256 keys in the dtype of q")
    attend = imported("flash_attn", "flash_attn_with_kvcache")
    batch = call.batch
    q = batch.q.unflatten(0, (problem.batch, problem.q_len))
    options = {"cache_seqlens": batch.seq_lens, "block_table": batch.block_table, "causal": True}
    return lambda: attend(q, batch.k_cache, batch.v_cache, **options)


def flashinfer(variant: Variant, problem: Problem, call: PagedCall) -> Run:
    """FlashInfer's decode wrapper, planned once."""
    import torch

    if problem.q_len > 1 or problem.cache == "int8":
        raise Unavailable("decodes one query a sequence, from caches of 16 bits or float8")
    wrapper = imported("flashinfer", "BatchDecodeWithPagedKVCacheWrapper")
    batch, pages = call.batch, -(-problem.kv_len // problem.block_size)
    like: dict[str, Any] = {"dtype": torch.int32, "device": batch.q.device}
    ends = torch.arange(problem.batch + 1, **like) * pages
    last = torch.full((problem.batch,), (problem.kv_len - 1) % problem.block_size + 1, **like)
    decode = wrapper(torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=batch.q.device), "NHD")
    decode.plan(
        ends, batch.block_table[:, :pages].flatten(), last, problem.heads, problem.kv_heads, problem.head_dim,
        problem.block_size, q_data_type=batch.q.dtype, kv_data_type=batch.k_cache.dtype,
    )  # fmt: skip
    return lambda: decode.run(batch.q, (batch.k_cache, batch.v_cache))


def vllm(variant: Variant, problem: Problem, call: PagedCall) -> Run:
    """vLLM's Triton kernel."""
    import torch

    if problem.cache:
        raise Unavailable("is measured with caches in the dtype of q")
    attend = imported("vllm.v1.attention.ops.triton_unified_attention", "unified_attention")
    batch = call.batch
    starts = torch.arange(problem.batch + 1, dtype=torch.int32, device=batch.q.device) * problem.q_len
    out, lengths = torch.empty_like(batch.q), batch.seq_lens
    options = {
        "cu_seqlens_q": starts, "max_seqlen_q": problem.q_len, "seqused_k": lengths, "max_seqlen_k": problem.kv_len,
        "softmax_scale": 1 / math.sqrt(problem.head_dim), "causal": True, "window_size": (-1, -1),
        "block_table": batch.block_table, "softcap": 0.0, "q_descale": None, "k_descale": None, "v_descale": None,
    }  # fmt: skip
    return lambda: attend(q=batch.q, k=batch.k_cache, v=batch.v_cache, out=out, **options)


FLASH_ATTENTION = "FlashAttention-2"
# By the form of call.
PEERS: Mapping[str, Mapping[str, Peer]] = {
    "decode": {CUDNN: cudnn, FLEX: flex, FLASH_ATTENTION: flash_attention},
    "paged": {FLASH_ATTENTION: flash_attention_paged, "FlashInfer": flashinfer, "vLLM": vllm},
}
