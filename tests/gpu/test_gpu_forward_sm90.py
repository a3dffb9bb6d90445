"""Both backends of the forward pass on a Hopper GPU: every kind of Hopper config, and the portable one beside them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

from flashgen.codegen import uses_schedule
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.kernels.kernel import Task
from flashgen.tuning.space import search_space
from flashgen.verify import Case, run_case

# Head dimensions of q and v: powers of two, sums of two of them, and such as are padded.
DIMS = ((64, 64), (128, 128), (256, 256), (96, 96), (192, 128), (40, 72), (128, 64))
# Lengths of queries and keys, both ways; grouped heads.
SHAPES = ((300, 300), (1, 200), (129, 1000), (700, 130))

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]


def hopper_configs(head_dim: int, v_head_dim: int, scheduled: bool) -> list[Config]:
    task = Task("forward", "sm_90", "bfloat16", head_dim, v_head_dim, 8192, 8192, scheduled)
    return [config for config in search_space(task).configs if config.backend == "hopper"]


@pytest.mark.parametrize(("name", "dims"), list(product(VARIANTS, DIMS)), ids=str)
def test_every_variant_and_head_dim(
    gallery_module: Callable[[str], ModuleType], name: str, dims: tuple[int, int]
) -> None:
    variant, dtype = VARIANTS[name], "float16" if dims[0] == 96 else "bfloat16"
    config = hopper_configs(*dims, uses_schedule(variant))[0]
    for q_len, kv_len in SHAPES:
        case = Case("hopper", Problem(2, 4, 2, q_len, kv_len, *dims, dtype), config, return_max=True)
        result = run_case(gallery_module(name), variant, case, "cuda")
        assert result.ok, f"{q_len} x {kv_len}: {result}"


@pytest.mark.parametrize(
    ("name", "dim"), list(product(("full", "causal", "sliding_window", "document"), (64, 128, 256))), ids=str
)
def test_every_config(gallery_module: Callable[[str], ModuleType], name: str, dim: int) -> None:
    variant = VARIANTS[name]
    for config in hopper_configs(dim, dim, uses_schedule(variant)):
        case = Case("config", Problem(1, 6, 3, 777, 901, dim, dim, "bfloat16"), config)
        result = run_case(gallery_module(name), variant, case, "cuda")
        assert result.ok, f"{config}: {result}"


@pytest.mark.parametrize("name", VARIANTS)
def test_the_portable_kernel_beside_it(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    case = Case("portable", Problem(2, 4, 2, 257, 513, 64, 64, "bfloat16"), Config(64, 64, 4, 2), return_max=True)
    result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
    assert result.ok, str(result)


def test_many_more_tiles_than_programs(gallery_module: Callable[[str], ModuleType]) -> None:
    """Programs take tile after tile, of even and of uneven length."""
    for name in ("full", "causal", "document"):
        config = hopper_configs(64, 64, uses_schedule(VARIANTS[name]))[0]
        case = Case("tiles", Problem(8, 64, 8, 520, 520, 64, 64, "bfloat16"), config)
        result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
        assert result.ok, f"{name}: {result}"


def test_expanded_heads_and_strides_of_a_fused_projection(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("causal")
    fused = torch.randn(2, 300, 3, 4, 64, device="cuda", dtype=torch.bfloat16)
    q, k, v = fused.permute(2, 0, 3, 1, 4)
    once = k[:, :1].expand(-1, 4, -1, -1)
    for keys in (k, once):
        out = module.attention(q, keys, v, config=hopper_configs(64, 64, False)[0])
        assert torch.equal(
            out, module.attention(*(t.contiguous() for t in (q, keys, v)), config=hopper_configs(64, 64, False)[0])
        )


def test_what_it_does_not_serve_is_refused_by_name(gallery_module: Callable[[str], ModuleType]) -> None:
    config = hopper_configs(64, 64, False)[0]
    q = torch.randn(1, 1, 64, 64, device="cuda")
    with pytest.raises(ValueError, match="config backend is 'hopper'; it takes float16 and bfloat16, this is float32"):
        gallery_module("causal").attention(q, q, q, config=config)
    q = q.bfloat16()
    with pytest.raises(ValueError, match="v_head_dim is 20"):
        gallery_module("causal").attention(q, q, q[..., :20], config=config)


def test_launches_share_a_counter_on_a_stream_and_none_across_streams(
    gallery_module: Callable[[str], ModuleType],
) -> None:
    """Each launch finds its counter at zero: after another launch, beside one, in a graph."""
    module, config = gallery_module("causal"), hopper_configs(64, 64, False)[0]
    q, k, v = (torch.randn(4, 16, 1030, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def attend() -> torch.Tensor:
        return module.attention(q, k, v, config=config)

    expected = attend()
    streams = [torch.cuda.Stream() for _ in range(4)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    outs = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                outs.append(attend())
    graphs = []
    for _ in streams:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outs += [attend(), attend()]
        graphs.append(graph)
    for _ in range(3):
        for stream, graph in zip(streams, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
    outs.append(attend())
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)
