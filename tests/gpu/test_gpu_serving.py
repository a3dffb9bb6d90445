"""Serving on a GPU: decode and paged attention proven, and replayed in graphs on other lengths without a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.problems.paged import SCALES, dense_inputs, make_batch, packed_keywords
from flashgen.problems.problem import Problem
from flashgen.runtime.cache_dtypes import QUANTISED
from flashgen.runtime.serving import merge_states, store_kv
from flashgen.verify import Case, paged_cases_for, run_case
from flashgen.verify.paged import judge_batch

RAGGED = (0, 1, 15, 16, 17, 100, 1000, 5000)
SEVERAL = (1, 1, 3, 0, 2, 5, 90, 1)
DECODE = [
    Problem(2, 8, 2, 1, 5000, 128, 128, "bfloat16"),
    Problem(1, 16, 2, 7, 3000, 64, 64, "float16"),
    Problem(2, 4, 4, 1, 2049, 80, 80, "float32"),
    Problem(1, 4, 1, 16, 1025, 256, 256, "bfloat16"),
]

Gallery = Callable[[str], ModuleType]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("problem", DECODE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_few_queries_agree_with_the_reference(gallery_module: Gallery, name: str, problem: Problem) -> None:
    case = Case("decode", problem, return_max=True)
    result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
    assert result.ok, result


def assert_proven(module: ModuleType, name: str, **how: object) -> None:
    variant = VARIANTS[name]
    batch = make_batch(**{"device": "cuda", **how})
    own = dense_inputs(variant, batch)
    keywords = packed_keywords(variant, batch, own)
    out, lse = module.attention_paged(*batch.arguments, **batch.options, **keywords, return_lse=True)
    verdict = judge_batch(module, variant, batch, own, out, lse)
    assert verdict.ok, verdict


@pytest.mark.parametrize("name", NAMES)
def test_the_cases_of_verify_are_proven(gallery_module: Gallery, name: str) -> None:
    module, variant = gallery_module(name), VARIANTS[name]
    major, minor = torch.cuda.get_device_capability()
    for case in paged_cases_for(variant, "full", f"sm_{major}{minor}"):
        result = run_case(module, variant, case, "cuda")
        assert result.ok, result


@pytest.mark.parametrize("q_lens", [None, SEVERAL], ids=["one query", "several"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_serves_ragged_sequences(
    gallery_module: Gallery, name: str, dtype: torch.dtype, q_lens: tuple[int, ...] | None
) -> None:
    sizes = {"heads": 8, "kv_heads": 2, "head_dim": 64, "v_head_dim": 64}
    assert_proven(gallery_module(name), name, kv_lens=RAGGED, q_lens=q_lens, dtype=dtype, **sizes)


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("cache", QUANTISED, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_caches_of_eight_bits(gallery_module: Gallery, dtype: torch.dtype, cache: torch.dtype, scales: str) -> None:
    if cache == torch.float8_e4m3fn and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("Triton has no float8_e4m3fn below sm_89")
    sizes = {"heads": 8, "kv_heads": 2, "head_dim": 128, "v_head_dim": 128}
    for name in ("causal", "alibi"):
        assert_proven(
            gallery_module(name), name, kv_lens=RAGGED, q_lens=SEVERAL, dtype=dtype, cache=cache, scales=scales, **sizes
        )


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "block_size"), [(4, 4, 16), (8, 2, 64), (16, 2, 48), (40, 1, 256)])
def test_layouts_and_groups(gallery_module: Gallery, heads: int, kv_heads: int, block_size: int, by_head: bool) -> None:
    assert_proven(
        gallery_module("sink"), "sink", kv_lens=RAGGED, q_lens=SEVERAL, heads=heads, kv_heads=kv_heads, head_dim=80,
        v_head_dim=96, block_size=block_size, by_head=by_head, dtype=torch.bfloat16,
    )  # fmt: skip


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", ["causal", "sliding_window", "document"])
def test_a_graph_replays_on_other_lengths(gallery_module: Gallery, name: str, planned: bool) -> None:
    """Nothing is read on the host: neither a plan nor a call waits for the GPU, and both may be captured."""
    module, variant = gallery_module(name), VARIANTS[name]
    batch = make_batch((3000, 2000, 4000), dtype=torch.bfloat16, head_dim=64, v_head_dim=64, device="cuda")
    own = dense_inputs(variant, batch)
    keywords = packed_keywords(variant, batch, own)
    lengths = batch.seq_lens

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        arguments = (batch.q, batch.k_cache, batch.v_cache, batch.block_table, lengths)
        plan = module.plan_paged(batch.q, batch.k_cache, batch.block_table, lengths) if planned else None
        return module.attention_paged(*arguments, **keywords, plan=plan, return_lse=True)

    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = step()
    for changed in ((1, 2000, 17), (0, 1, 3999), (3000, 1999, 64)):
        lengths.copy_(torch.tensor(changed))
        graph.replay()
        wanted = step()
        assert torch.equal(out, wanted[0])
        assert torch.equal(lse, wanted[1])
        verdict = judge_batch(module, variant, replace(batch, kv_lens=changed), own, out, lse)
        assert verdict.ok, (changed, verdict)


def test_a_sequence_has_the_same_bits_in_every_batch(gallery_module: Gallery) -> None:
    module = gallery_module("alibi")
    lengths = torch.randint(1, 9000, (64,), generator=torch.Generator().manual_seed(0)).tolist()
    batch = make_batch(lengths, heads=32, kv_heads=8, head_dim=128, v_head_dim=128, block_size=64,
                       dtype=torch.bfloat16, device="cuda")  # fmt: skip
    out = module.attention_paged(*batch.arguments, batch_invariant=True)
    for order in ([5], [63], torch.randperm(64).tolist(), [1, 0, 2]):
        arguments = (batch.q[order], batch.k_cache, batch.v_cache, batch.block_table[order], batch.seq_lens[order])
        assert torch.equal(module.attention_paged(*arguments, batch_invariant=True), out[order])


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.float16, *QUANTISED], ids=str)
def test_what_is_stored_is_the_nearest_that_the_cache_holds(cache: torch.dtype) -> None:
    if cache == torch.float8_e4m3fn and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("Triton has no float8_e4m3fn below sm_89")
    torch.manual_seed(0)
    k, v = (torch.randn(1000, 8, 128, device="cuda", dtype=torch.bfloat16) * 100 for _ in "kv")
    k_cache, v_cache = (torch.zeros(100, 16, 8, 128, device="cuda").to(cache) for _ in "kv")
    slots = torch.randperm(1600, device="cuda")[:1000]
    scale = torch.rand(8, device="cuda") + 0.1
    scales = {"k_scale": scale, "v_scale": scale}
    store_kv(k, v, k_cache, v_cache, slots, **scales)
    for x, stored in ((k, k_cache), (v, v_cache)):
        found = stored.flatten(0, 1)[slots].float()
        wanted = x.float() / scale[:, None]
        if cache == torch.int8:
            wanted = wanted.round().clamp(-128, 127)
        else:
            wanted = wanted.clamp(-torch.finfo(cache).max, torch.finfo(cache).max).to(cache).float()
        # A quotient may be a bit off, and so on the other side of a tie.
        differs = found != wanted
        assert differs.float().mean() < 1e-3
        assert torch.all((found - wanted).abs() <= torch.where(differs, wanted.abs() / 4 + 1, 0))


def test_parts_of_a_prompt_merge_into_the_whole(gallery_module: Gallery) -> None:
    """A shared beginning, and what each sequence has of its own, as a cascade computes them."""
    module = gallery_module("full")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, n, 64, device="cuda", dtype=torch.bfloat16) for n in (3, 2000, 2000))
    parts = [
        module.attention(q, k[:, :, part], v[:, :, part], return_lse=True) for part in (slice(0, 700), slice(700, 2000))
    ]
    out, lse = merge_states(*zip(*parts, strict=True))
    wanted = module.attention(q, k, v, return_lse=True)
    torch.testing.assert_close(out, wanted[0], atol=4e-3, rtol=2e-2)
    torch.testing.assert_close(lse, wanted[1], atol=1e-4, rtol=1e-5)
