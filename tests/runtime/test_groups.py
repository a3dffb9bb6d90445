"""Which heads Hopper kernels take together, on a GPU of 132 multiprocessors and 50 MB of L2 cache."""

import pytest
import torch

from flashgen.runtime.call import Call, prepare
from flashgen.runtime.config import Config
from flashgen.runtime.kernels import sm90_keys, sm90_queries
from flashgen.runtime.kernels.sm90_keys import key_head_group
from flashgen.runtime.kernels.sm90_queries import head_group
from flashgen.runtime.packed_sizes import packed_call

KEYS = "BM=64 BN=128 num_warps=4 num_stages=2 backend=hopper fuse_dq=1 delay_dq=0"


@pytest.fixture(autouse=True)
def h200(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sm90_queries, sm90_keys):
        monkeypatch.setattr(module, "multiprocessors", lambda gpu: 132)


def call(batch: int, heads: int, kv_heads: int, length: int, head_dim: int = 128) -> Call:
    q, k, v = (
        torch.empty(batch, n, length, head_dim, dtype=torch.bfloat16, device="meta")
        for n in (heads, kv_heads, kv_heads)
    )
    return prepare(q, k, v, None)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((2, 16, 16, 8192), 8),  # 4 MB of K and V each
        ((2, 32, 8, 8192), 32),  # the same for four heads together
        ((2, 8, 8, 8192, 256), 4),
        ((1, 1, 1, 1 << 20), 1),
        ((32, 16, 16, 512), 64),  # not 128, of which the longest tiles alone would fill the GPU
        ((1, 256, 1, 128), 256),  # heads that share keys stay together
    ],
)
def test_the_forward_takes_heads_whose_keys_fit_the_cache(sizes: tuple[int, ...], expected: int) -> None:
    assert head_group(call(*sizes)) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((2, 16, 16, 8192), 4),  # 4 MB of Q and dO each
        ((2, 32, 32, 8192, 64), 8),
        ((2, 32, 8, 8192), 4),  # 16 MB each, whose 64 tiles of keys would leave half of the GPU idle
        ((8, 16, 16, 2048), 16),
        ((1, 2, 2, 1 << 17), 1),
        ((1, 1, 1, 64), 1),
    ],
)
def test_the_backward_takes_heads_whose_queries_fit_the_cache(sizes: tuple[int, ...], expected: int) -> None:
    assert key_head_group(call(*sizes), Config.parse(KEYS)) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((16, 16, 4096), 4),
        ((32, 8, 4096), 4),
        ((16, 16, 5000), 3),  # of 16: 3, 3, 3, 3, 3 and 1
        ((16, 16, 1 << 20), 1),
        ((30, 30, 512), 30),
        ((30, 30, 1024), 15),  # not 16 and 14
    ],
)
def test_the_backward_takes_fewer_heads_of_packed_sequences(sizes: tuple[int, ...], expected: int) -> None:
    heads, kv_heads, longest = sizes
    dense = call(1, heads, kv_heads, 20000)
    ends = torch.empty(33, dtype=torch.int32, device="meta")
    packed = packed_call(dense, (ends, ends), {"max_seqlen_q": longest, "max_seqlen_k": longest})
    assert key_head_group(packed, Config.parse(KEYS)) == expected
    assert key_head_group(packed, Config.parse(f"{KEYS} all_heads=1")) == kv_heads


def test_a_config_has_the_backward_take_all_heads_together() -> None:
    assert key_head_group(call(2, 32, 8, 8192), Config.parse(f"{KEYS} all_heads=1")) == 16
