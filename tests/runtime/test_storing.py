"""Keys and values written into a paged cache."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from handed import addresses_of

from flashgen.bench.unlaunched import is_repeated, unlaunched
from flashgen.runtime.serving import store_kv

NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, HEAD_DIM, V_HEAD_DIM = 4, 16, 3, 40, 24
SLOTS = torch.tensor([3, -1, 63, 17, 16, 64, 5])
MOST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0, torch.float16: 65504.0}
DTYPES = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]


def new_cache(dtype: torch.dtype, dim: int, by_head: bool = False) -> torch.Tensor:
    """An empty cache, laid out by tokens or by heads."""
    if by_head:
        return torch.zeros(NUM_BLOCKS, KV_HEADS, BLOCK_SIZE, dim, dtype=dtype).transpose(1, 2)
    return torch.zeros(NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, dim, dtype=dtype)


def expected_values(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One token's values as the cache is to hold them."""
    x = x / scale
    if dtype == torch.int8:
        return x.round().clamp(-128, 127).float()
    most = MOST.get(dtype, math.inf)
    return x.clamp(-most, most).to(dtype).float()


def scales_of_slot(scale: torch.Tensor, slot: int) -> torch.Tensor:
    """The scales of one slot, [kv_heads, 1]."""
    each = scale.reshape(-1, KV_HEADS)[slot] if scale.ndim == 3 else scale.expand(KV_HEADS)
    return each[:, None]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (KV_HEADS,), (NUM_BLOCKS, BLOCK_SIZE, KV_HEADS)], ids=["one", "head", "token"])
def test_stored_values_are_the_nearest_that_the_cache_holds(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    k, v = torch.randn(7, KV_HEADS, HEAD_DIM) * 200, torch.randn(7, KV_HEADS, V_HEAD_DIM) * 1e5
    k_cache, v_cache = new_cache(dtype, HEAD_DIM), new_cache(dtype, V_HEAD_DIM, by_head=True)
    k_scale, v_scale = torch.rand(shape) + 0.5, torch.rand(shape) + 0.5
    store_kv(k, v, k_cache, v_cache, SLOTS, k_scale, v_scale)
    for x, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        written = torch.zeros(NUM_BLOCKS * BLOCK_SIZE, dtype=torch.bool)
        for token, slot in enumerate(SLOTS.tolist()):
            if 0 <= slot < len(written):
                written[slot] = True
                wanted = expected_values(x[token], scales_of_slot(scale, slot), dtype)
                found = cache[slot // BLOCK_SIZE, slot % BLOCK_SIZE].float()
                assert torch.equal(found, wanted)
        left = cache.float()[~written.view(NUM_BLOCKS, BLOCK_SIZE)]
        assert torch.all(left == 0), "a slot that no token names was written"


@pytest.mark.parametrize("slot", [-1, -2, -BLOCK_SIZE, -BLOCK_SIZE - 1, 64, 80, 127])
def test_slots_that_are_none_of_the_cache_write_nothing_beside_it(slot: int) -> None:
    """A cache may be some of the pages of another: what lies before and behind it stays."""
    k, v = torch.ones(1, KV_HEADS, HEAD_DIM), torch.ones(1, KV_HEADS, V_HEAD_DIM)
    pools = [torch.zeros(3 * NUM_BLOCKS, BLOCK_SIZE, KV_HEADS, dim) for dim in (HEAD_DIM, V_HEAD_DIM)]
    k_cache, v_cache = (pool[NUM_BLOCKS : 2 * NUM_BLOCKS] for pool in pools)
    store_kv(k, v, k_cache, v_cache, torch.tensor([slot]))
    assert not any(pool.any() for pool in pools)


def test_what_is_not_converted_is_copied() -> None:
    k = torch.tensor([math.inf, -math.inf, math.nan, 1.0]).to(torch.bfloat16).expand(1, KV_HEADS, 4)
    k_cache, v_cache = new_cache(torch.bfloat16, 4), new_cache(torch.bfloat16, 4)
    store_kv(k.contiguous(), k.contiguous(), k_cache, v_cache, torch.tensor([20], dtype=torch.int32))
    torch.testing.assert_close(k_cache[1, 4], k[0], equal_nan=True)


@pytest.mark.parametrize("what", ["k", "v", "slot_mapping", "scales"])
def test_what_is_stored_may_lie_anyhow(what: str) -> None:
    """As slices of one projection, or of a scheduler's numbers, do; what lies between is not stored."""
    torch.manual_seed(0)
    k, v = torch.randn(7, KV_HEADS, HEAD_DIM), torch.randn(7, KV_HEADS, V_HEAD_DIM)
    scales = [torch.rand(NUM_BLOCKS, BLOCK_SIZE, KV_HEADS) + 0.5 for _ in range(2)]
    stored = []
    for apart in (False, True):
        given = {"k": k, "v": v, "slot_mapping": SLOTS, "scales": scales}
        if apart and what in "kv":
            wide = torch.full((KV_HEADS, 2 * 7, given[what].shape[2] + 5), math.nan)
            place = wide[:, ::2, : given[what].shape[2]].transpose(0, 1)
            given[what] = place.copy_(given[what])
        elif apart and what == "slot_mapping":
            given[what] = torch.stack([SLOTS, SLOTS + 1], 1)[:, 0]
        elif apart:
            given[what] = [each.permute(2, 1, 0).contiguous().permute(2, 1, 0) for each in scales]
        k_cache, v_cache = new_cache(torch.int8, HEAD_DIM), new_cache(torch.int8, V_HEAD_DIM)
        store_kv(given["k"], given["v"], k_cache, v_cache, given["slot_mapping"], *given["scales"])
        stored.append((k_cache, v_cache))
    assert all(torch.equal(one, other) and one.any() for one, other in zip(*stored, strict=True))


def test_what_a_scale_takes_beyond_the_dtype_of_both_becomes_its_largest() -> None:
    k = torch.full((1, KV_HEADS, 4), 30000.0, dtype=torch.float16)
    caches = new_cache(torch.float16, 4), new_cache(torch.float16, 4)
    store_kv(k, -k, *caches, torch.tensor([20]), torch.tensor(0.25), torch.tensor(0.25))
    assert [cache[1, 4].unique().tolist() for cache in caches] == [[65504.0], [-65504.0]]


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (torch.int8, [0.0, 127.0, -128.0]),
        (torch.float8_e4m3fn, [math.nan, 448.0, -448.0]),
        (torch.float8_e5m2, [math.nan, 57344.0, -57344.0]),
    ],
    ids=str,
)
def test_infinities_become_the_ends_and_no_number_stays_none_where_it_can(
    dtype: torch.dtype, stored: list[float]
) -> None:
    k = torch.tensor([math.nan, math.inf, -math.inf]).expand(1, KV_HEADS, 3).contiguous()
    k_cache, v_cache = new_cache(dtype, 3), new_cache(dtype, 3)
    store_kv(k, k, k_cache, v_cache, torch.tensor([20]), torch.tensor(2.0), None)
    for cache in (k_cache, v_cache):
        torch.testing.assert_close(cache[1, 4].float(), torch.tensor(stored).expand(KV_HEADS, 3), equal_nan=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": torch.zeros(7, KV_HEADS, 8)}, "k has shape"),
        ({"v": torch.zeros(7, KV_HEADS, V_HEAD_DIM, dtype=torch.int32)}, "v has dtype"),
        ({"slot_mapping": torch.zeros(6, dtype=torch.int64)}, "slot_mapping has shape"),
        ({"slot_mapping": torch.zeros(7)}, "slot_mapping has dtype"),
        ({"k_scale": torch.ones(2)}, "k_scale has shape"),
        ({"v_scale": torch.ones(3, dtype=torch.float64)}, "v_scale is"),
        ({"k_cache": torch.zeros(4, 15, KV_HEADS, HEAD_DIM)}, "k_cache has shape"),
        ({"k_cache": torch.zeros(4, 16, KV_HEADS, HEAD_DIM, dtype=torch.int32)}, "k_cache has dtype"),
        ({"k": [1.0]}, "k is list; expected a torch.Tensor"),
        ({"v_cache": None}, "v_cache is NoneType; expected a torch.Tensor"),
        ({"v_scale": 0.5}, "v_scale is float; expected a torch.Tensor"),
        ({"slot_mapping": SLOTS.to_sparse()}, "slot_mapping is a sparse_coo tensor"),
        ({"v_cache": torch.zeros(4, 16, KV_HEADS, V_HEAD_DIM, dtype=torch.int8, device="meta")}, "v_cache is on meta"),
        ({"v_cache": torch.zeros(16, KV_HEADS, V_HEAD_DIM).expand(4, -1, -1, -1)}, r"v_cache has strides \(0, "),
        ({"v_cache": torch.zeros(5, 16, KV_HEADS, V_HEAD_DIM)}, "v_cache has shape .*; expected k_cache's num_blocks"),
        ({"v_cache": torch.zeros(2, 32, KV_HEADS, V_HEAD_DIM)}, "v_cache has shape .*; expected k_cache's num_blocks"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_nothing_is_written(change: dict[str, Any], message: str) -> None:
    arguments = {
        "k": torch.ones(7, KV_HEADS, HEAD_DIM), "v": torch.ones(7, KV_HEADS, V_HEAD_DIM),
        "k_cache": new_cache(torch.int8, HEAD_DIM), "v_cache": new_cache(torch.int8, V_HEAD_DIM),
        "slot_mapping": SLOTS,
    }  # fmt: skip
    with pytest.raises((TypeError, ValueError), match=message):
        store_kv(**{**arguments, **change})
    assert not arguments["k_cache"].any() and not arguments["v_cache"].any()


def test_a_compiler_has_it_in_its_graph() -> None:
    """Also where both caches lie in one tensor, and with any number of tokens."""

    def step(k: torch.Tensor, v: torch.Tensor, caches: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        store_kv(k, v, caches[:, 0], caches[:, 1], slots)
        return caches.sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for tokens in (3, 4, 7):
        k, v = torch.randn(2, tokens, KV_HEADS, HEAD_DIM)
        found, wanted = torch.zeros(2, NUM_BLOCKS, 2, BLOCK_SIZE, KV_HEADS, HEAD_DIM)
        torch.testing.assert_close(compiled(k, v, found, SLOTS[:tokens]), step(k, v, wanted, SLOTS[:tokens]))
        assert torch.equal(found, wanted) and found.any()


def test_tensors_without_memory_are_checked_alone() -> None:
    k, v, k_cache, v_cache, slots = (
        each.to("meta")
        for each in (torch.ones(7, 1, 4), torch.ones(7, 1, 4), *torch.ones(2, 3, 16, 1, 4), torch.zeros(7).long())
    )
    store_kv(k, v, k_cache, v_cache, slots)
    with pytest.raises(ValueError, match="v has shape"):
        store_kv(k, v[..., :2], k_cache, v_cache, slots)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU stand for those of a GPU")
@pytest.mark.parametrize("shared", [False, True], ids=["two sources", "one source"])
def test_a_call_that_is_repeated_stores_its_own_tokens(shared: bool) -> None:
    """Whichever tensors were given to the calls before, one for two of them too."""
    handed: list[list[int]] = []
    with unlaunched(lambda *launched: handed.append(addresses_of(launched)[:3])):
        for call in range(6):
            k, v = torch.randn(2, 7, KV_HEADS, HEAD_DIM)
            k_cache, v_cache = new_cache(torch.int8, HEAD_DIM), new_cache(torch.int8, HEAD_DIM)
            v = k if shared and call < 3 else v
            handed.clear()
            store_kv(k, v, k_cache, v_cache, SLOTS)
            wanted = [[each.data_ptr() for each in given] for given in ((k, k_cache, SLOTS), (v, v_cache, SLOTS))]
            assert handed == wanted
        assert is_repeated(lambda: store_kv(k, v, k_cache, v_cache, SLOTS))
