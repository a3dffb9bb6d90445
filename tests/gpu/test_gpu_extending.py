"""Sequences of many new queries over a paged cache, by the forward kernel for Hopper, and others beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gallery import VARIANTS
from hard_specs import SPECS

from flashgen.codegen import generate, load_module
from flashgen.problems.paged import Batch, dense_inputs, make_batch, packed_keywords
from flashgen.runtime import decoding_paged
from flashgen.runtime.extending_paged import MOST_DECODED
from flashgen.spec import load
from flashgen.verify.paged import judge_batch
from flashgen.verify.poison import poisoned

SERVED = ["causal", "alibi", "sliding_window", "softcap", "gemma2", "sink"]
OTHERS = sorted({*VARIANTS} - {*SERVED})
Q_LENS = (1, 17, 100, 512, 700, 65, 128)
KV_LENS = (3000, 17, 1500, 512, 2999, 0, 2048)
DIMS = [(64, 64), (96, 96), (128, 128), (256, 256), (192, 128), (80, 128), (192, 192)]

Gallery = Callable[[str], ModuleType]

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]


@pytest.fixture
def extended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many launches of the forward kernel there were, as a list that grows."""
    launches, launch = list[int](), decoding_paged.launch_extension

    def counted(*given: Any) -> None:
        launches.append(1)
        launch(*given)

    monkeypatch.setattr(decoding_paged, "launch_extension", counted)
    return launches


def drawn(**how: Any) -> Batch:
    given = {"heads": 8, "kv_heads": 2, "head_dim": 128, "v_head_dim": 128, "dtype": torch.bfloat16, **how}
    return make_batch(given.pop("kv_lens", KV_LENS), given.pop("q_lens", Q_LENS), device="cuda", **given)


def assert_proven(module: ModuleType, name: str, batch: Batch, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    variant = VARIANTS[name]
    own = dense_inputs(variant, batch)
    keywords = packed_keywords(variant, batch, own)
    with poisoned():
        out, lse = module.attention_paged(*batch.arguments, **batch.options, **keywords, **how, return_lse=True)
    verdict = judge_batch(module, variant, batch, own, out, lse)
    assert verdict.ok, verdict
    return out, lse


def test_one_sequence_of_whole_tiles(gallery_module: Gallery, extended: list[int]) -> None:
    """The plainest call: what is wrong here is wrong everywhere."""
    assert_proven(gallery_module("full"), "full", drawn(kv_lens=(256,), q_lens=(128,), heads=1, kv_heads=1))
    assert extended


@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", SERVED)
def test_mixed_batches(
    gallery_module: Gallery, extended: list[int], name: str, dtype: torch.dtype, dims: tuple[int, int]
) -> None:
    batch = drawn(head_dim=dims[0], v_head_dim=dims[1], dtype=dtype)
    assert_proven(gallery_module(name), name, batch)
    assert extended


@pytest.mark.parametrize("by_head", [False, True], ids=["tokens first", "heads first"])
@pytest.mark.parametrize("block_size", [16, 48, 64, 192, 256])
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 192), (80, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("name", ["causal", "sliding_window"])
def test_layouts_of_pages(
    gallery_module: Gallery, extended: list[int], name: str, dims: tuple[int, int], block_size: int, by_head: bool
) -> None:
    batch = drawn(head_dim=dims[0], v_head_dim=dims[1], block_size=block_size, by_head=by_head)
    assert_proven(gallery_module(name), name, batch)
    assert extended


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_variant(gallery_module: Gallery, extended: list[int], name: str, planned: bool) -> None:
    module, batch = gallery_module(name), drawn(head_dim=64, v_head_dim=64)
    given, told = batch.planning
    assert_proven(module, name, batch, plan=module.plan_paged(*given, **told) if planned else None)
    assert bool(extended) != module.VARIANT.planned


@pytest.mark.parametrize("name", SPECS)
def test_hard_specs(tmp_path: Path, name: str) -> None:
    """Inputs along queries and keys, of other elements, of pairs: where they lie beside packed queries."""
    variant = load(SPECS[name])
    module = load_module(generate(variant, tmp_path))
    batch = drawn(kv_lens=(700, 17, 0, 530), q_lens=(300, 17, 70, 65), heads=4, head_dim=64, v_head_dim=64)
    own = dense_inputs(variant, batch)
    keywords = packed_keywords(variant, batch, own)
    with poisoned():
        out, lse = module.attention_paged(*batch.arguments, **batch.options, **keywords, return_lse=True)
    verdict = judge_batch(module, variant, batch, own, out, lse)
    assert verdict.ok, verdict


@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (40, 1)], ids=str)
def test_groups(gallery_module: Gallery, extended: list[int], heads: tuple[int, int]) -> None:
    assert_proven(gallery_module("sink"), "sink", drawn(heads=heads[0], kv_heads=heads[1]))
    assert extended


@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_sequences_that_share_pages(gallery_module: Gallery, block_size: int) -> None:
    batch = drawn(kv_lens=(2000, 1800, 900), q_lens=(300, 700, 3), block_size=block_size)
    shared = 768 // block_size
    batch.block_table[1:, :shared] = batch.block_table[0, :shared]
    assert_proven(gallery_module("causal"), "causal", batch)


def test_pages_far_into_a_cache(gallery_module: Gallery) -> None:
    """Beyond 2^31 elements, where offsets need 64 bits."""
    batch = drawn(kv_lens=(700, 300), q_lens=(512, 100), heads=8, kv_heads=8)
    page = batch.k_cache[0].numel()
    first = 2**31 // page + 5
    caches = []
    for cache in (batch.k_cache, batch.v_cache):
        far = torch.empty((first + cache.shape[0], *cache.shape[1:]), dtype=cache.dtype, device="cuda")
        far[first:] = cache
        caches.append(far)
    table = torch.where(batch.block_table >= 0, batch.block_table + first, batch.block_table)
    moved = replace(batch, k_cache=caches[0], v_cache=caches[1], block_table=table)
    assert_proven(gallery_module("causal"), "causal", moved)


def test_what_stands_in_a_table_is_not_read_out_of_bounds(gallery_module: Gallery) -> None:
    """Sequences whose pages are none get what means nothing, the others what is theirs."""
    module, batch = gallery_module("causal"), drawn()
    wanted = module.attention_paged(*batch.arguments, **batch.options)
    batch.block_table[4] = torch.tensor([2**31 - 1, -(2**31), -1, 10**6], device="cuda").repeat(
        -(-batch.block_table.shape[1] // 4)
    )[: batch.block_table.shape[1]]
    out = module.attention_paged(*batch.arguments, **batch.options)
    torch.cuda.synchronize()
    start, end = batch.query_ends[4:6]
    assert torch.equal(out[:start], wanted[:start]) and torch.equal(out[end:], wanted[end:])


@pytest.mark.parametrize("left", ["launch_extension", "_launch_decode"])
def test_no_kernel_writes_rows_of_the_other(
    gallery_module: Gallery, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    module, batch = gallery_module("alibi"), drawn()
    out = torch.full((batch.q.shape[0], 8, 128), 7.0, dtype=torch.bfloat16, device="cuda")
    monkeypatch.setattr(decoding_paged, left, lambda *_: None)
    module.attention_paged(*batch.arguments, **batch.options, out=out)
    for b, length in enumerate(batch.q_lens):
        rows = out[batch.query_ends[b] : batch.query_ends[b + 1]]
        left_alone = (length > MOST_DECODED) == (left == "launch_extension")
        assert bool((rows == 7).all()) == left_alone, b


@pytest.mark.parametrize("odd", ["gaps in out", "caches apart", "named config"])
def test_what_the_forward_kernel_does_not_take(gallery_module: Gallery, extended: list[int], odd: str) -> None:
    module, batch, how = gallery_module("causal"), drawn(), dict[str, Any]()
    if odd == "gaps in out":
        how = {"out": torch.empty(batch.q.shape[0], 8, 256, dtype=batch.q.dtype, device="cuda")[..., :128]}
    elif odd == "caches apart":
        batch = replace(batch, v_cache=batch.v_cache.transpose(1, 2).contiguous().transpose(1, 2))
    else:
        how = {"config": "BM=64 BN=64 num_warps=4 num_stages=2"}
    assert_proven(module, "causal", batch, **how)
    if odd != "named config":
        given, told = batch.planning
        assert_proven(module, "causal", batch, **how, plan=module.plan_paged(*given, **told))
    assert not extended


@pytest.mark.parametrize("name", ["causal", "alibi"])
def test_a_sequence_has_the_same_bits_in_every_batch(gallery_module: Gallery, name: str) -> None:
    module, batch = gallery_module(name), drawn()
    out = module.attention_paged(*batch.arguments, **batch.options, batch_invariant=True)
    for b, length in enumerate(batch.q_lens):
        start, end = batch.query_ends[b : b + 2]
        ends = torch.tensor([0, length], dtype=torch.int32, device="cuda")
        alone = module.attention_paged(
            batch.q[start:end], batch.k_cache, batch.v_cache, batch.block_table[b : b + 1], batch.seq_lens[b : b + 1],
            cu_seqlens_q=ends, max_seqlen_q=length, batch_invariant=True,
        )  # fmt: skip
        assert torch.equal(alone, out[start:end]), b


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", ["causal", "sliding_window", "full"])
def test_a_graph_replays_on_other_lengths(gallery_module: Gallery, name: str, planned: bool) -> None:
    """Which kernel has a sequence is decided on the device: no step waits, and a graph follows."""
    module, variant = gallery_module(name), VARIANTS[name]
    batch = drawn(kv_lens=(3000, 2000, 4000), q_lens=(600, 3, 97), head_dim=64, v_head_dim=64)
    own = dense_inputs(variant, batch)
    keywords = packed_keywords(variant, batch, own)
    lengths, ends = batch.seq_lens, batch.cu_seqlens_q
    assert ends is not None
    told = {"cu_seqlens_q": ends, "max_seqlen_q": 700}

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        given = (batch.q, batch.k_cache, batch.block_table, lengths)
        plan = module.plan_paged(*given, **told) if planned else None
        arguments = (batch.q, batch.k_cache, batch.v_cache, batch.block_table, lengths)
        return module.attention_paged(*arguments, **told, **keywords, plan=plan, return_lse=True)

    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, lse = step()
    for q_lens, kv_lens in (
        ((1, 2, 697), (2000, 17, 3999)),
        ((64, 65, 571), (64, 1000, 600)),
        ((700, 0, 0), (700, 9, 1)),
    ):
        ends.copy_(torch.tensor([0, q_lens[0], q_lens[0] + q_lens[1], 700]))
        lengths.copy_(torch.tensor(kv_lens))
        graph.replay()
        wanted = step()
        assert torch.equal(out, wanted[0]) and torch.equal(lse, wanted[1])
        changed = replace(batch, q_lens=q_lens, kv_lens=kv_lens)
        verdict = judge_batch(module, variant, changed, own, out, lse)
        assert verdict.ok, (q_lens, kv_lens, verdict)


def test_under_torch_compile(gallery_module: Gallery) -> None:
    module, batch = gallery_module("causal"), drawn(head_dim=64, v_head_dim=64)
    run = torch.compile(lambda: module.attention_paged(*batch.arguments, **batch.options), fullgraph=True)
    assert torch.equal(run(), module.attention_paged(*batch.arguments, **batch.options))
