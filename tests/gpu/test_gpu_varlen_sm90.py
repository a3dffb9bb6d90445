"""Packed sequences by the kernels for Hopper: proven for each variant and config, and beside the dense ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType

import pytest
import torch
from gallery import NAMES, VARIANTS
from packed_batch import Packed, make_packed, packed_case

from flashgen.codegen import default_of, uses_schedule
from flashgen.runtime import Config
from flashgen.runtime.kernels.forward_sm90 import FORWARD_SM90_KERNEL
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.launching import replaced
from flashgen.tuning.space import search_space
from flashgen.verify import run_case
from flashgen.verify.cases import Backward

RAGGED = (
    (0, 0), (1, 1), (15, 15), (16, 17), (17, 16), (100, 100), (1000, 1000), (1000, 300), (200, 1000), (0, 50), (50, 0),
)  # fmt: skip
# Many short sequences, some of them without queries or keys: most tiles are ragged, many slots have none.
SHORT = tuple((i * 37 % 71, i * 53 % 90 if i % 7 else 0) for i in range(300))
LONG = ((2049, 2049), (128, 128), (129, 4095), (256, 256))
# The budget of gradients takes room for each pair of a query and a key of the whole batch.
FEWER, SHORTER = SHORT[:80], ((1025, 1025), (128, 128), (129, 2047), (256, 256))
# Queries and keys behind the last sequence: of queries more than any ragged or short one has.
REST = (1100, 100)
DIMS = [(64, 64), (128, 128), (192, 192), (192, 128), (40, 72), (256, 256)]

Gallery = Callable[[str], ModuleType]

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("on_hopper")]


def hopper_configs(name: str, head_dim: int, v_head_dim: int, family: str = "forward") -> list[Config]:
    scheduled = uses_schedule(VARIANTS[name])
    task = Task(family, "sm_90", "bfloat16", head_dim, v_head_dim, 8192, 8192, scheduled, packed=True)
    return [config for config in search_space(task).configs if config.backend == FORWARD_SM90_KERNEL.backend]


def built_in(name: str, head_dim: int, v_head_dim: int, family: str = "forward") -> Config:
    """What a call of the variant has without records; it is a config of these kernels."""
    config = default_of(VARIANTS[name], family, packed=True)("sm_90", "bfloat16", head_dim, v_head_dim)
    assert config.backend == FORWARD_SM90_KERNEL.backend
    return config


def varlen(module: ModuleType, packed: Packed, *tensors: torch.Tensor) -> torch.Tensor:
    """Attention to other tensors of the same lengths."""
    out: torch.Tensor = module.attention_varlen(*tensors, *packed.ends, *packed.longest)
    return out


def gradients(step: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those of q, k and v for a random gradient of the output, the same for outputs of one shape."""
    leaves = [each.detach().requires_grad_() for each in tensors]
    out = step(*leaves)
    weights = torch.randn(out.shape, generator=torch.Generator("cuda").manual_seed(1), device="cuda").to(out.dtype)
    return [*torch.autograd.grad(out, leaves, weights)]


def launched(step: Callable[[], object]) -> list[str]:
    """The kernels that a step would launch; it launches none."""
    names: list[str] = []
    with replaced(lambda kernel, *_: names.append(kernel.__name__)):
        step()
    return names


@pytest.mark.parametrize("lengths", [RAGGED, SHORT, LONG], ids=["ragged", "short", "long"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_each_variant_is_proven(
    gallery_module: Gallery, name: str, dims: tuple[int, int], lengths: tuple[tuple[int, int], ...]
) -> None:
    case = packed_case("hopper", lengths, head_dim=dims[0], v_head_dim=dims[1], dtype="bfloat16")
    case = replace(case, config=built_in(name, *dims), return_max=True, rest=REST)
    result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
    assert result.ok, result


@pytest.mark.parametrize("deterministic", [False, True], ids=["", "deterministic"])
@pytest.mark.parametrize("lengths", [RAGGED, FEWER, SHORTER], ids=["ragged", "short", "long"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_each_variant_are_proven(
    gallery_module: Gallery, name: str, dims: tuple[int, int], lengths: tuple[tuple[int, int], ...], deterministic: bool
) -> None:
    kv, q = (built_in(name, *dims, family) for family in ("backward_kv", "backward_q"))
    case = packed_case("hopper", lengths, head_dim=dims[0], v_head_dim=dims[1], dtype="bfloat16")
    case = replace(case, backward=Backward(kv=kv, q=q, deterministic=deterministic), rest=REST)
    result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
    assert result.ok, result


@pytest.mark.parametrize("family", ["backward_kv", "backward_q"])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", ["full", "causal", "softcap", "document"])
def test_gradients_of_every_config_are_proven(gallery_module: Gallery, name: str, dim: int, family: str) -> None:
    configs = hopper_configs(name, dim, dim, family)
    assert configs
    for config in configs:
        backward = Backward(kv=config) if family == "backward_kv" else Backward(q=config, deterministic=True)
        case = packed_case("hopper", RAGGED, head_dim=dim, v_head_dim=dim, dtype="bfloat16")
        result = run_case(gallery_module(name), VARIANTS[name], replace(case, backward=backward), "cuda")
        assert result.ok, f"{config}: {result}"


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", ["full", "causal", "sliding_window"])
def test_neighbours_of_nan_spoil_no_gradient(gallery_module: Gallery, name: str, dim: int) -> None:
    """What other sequences have is not read, nor what their rows have of d_out."""
    lengths = ((77, 77), (300, 333), (50, 129), (1, 1), (400, 0), (257, 511))
    packed = make_packed(lengths, head_dim=dim, v_head_dim=dim, dtype=torch.bfloat16, device="cuda")
    step = partial(varlen, gallery_module(name), packed)
    wanted = gradients(step, packed.tensors)
    for spared in range(len(lengths)):
        found = gradients(step, packed.all_nan_but(spared))
        for one, other, own in zip(found, wanted, packed.slices(spared), strict=True):
            torch.testing.assert_close(one[own], other[own], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("count, length", [(512, 128), (1, 8192), (300, 77)])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "alibi"])
def test_gradients_of_sequences_of_one_length_equal_the_dense_ones(
    gallery_module: Gallery, name: str, dim: int, count: int, length: int
) -> None:
    packed = make_packed(((length, length),) * count, head_dim=dim, v_head_dim=dim, dtype=torch.bfloat16, device="cuda")
    module = gallery_module(name)
    step = partial(varlen, module, packed)
    assert "_backward_kv_sm90" in launched(partial(gradients, step, packed.tensors))
    found = gradients(step, packed.tensors)
    dense = [each.unflatten(0, (count, length)).transpose(1, 2) for each in packed.tensors]
    wanted = gradients(lambda *own: module.attention(*own).transpose(1, 2).flatten(0, 1), dense)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.unflatten(0, (count, length)).transpose(1, 2), other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "document"])
def test_every_config_is_proven(gallery_module: Gallery, name: str, dim: int) -> None:
    for config in hopper_configs(name, dim, dim):
        case = replace(packed_case("hopper", RAGGED, head_dim=dim, v_head_dim=dim, dtype="bfloat16"), config=config)
        result = run_case(gallery_module(name), VARIANTS[name], case, "cuda")
        assert result.ok, f"{config}: {result}"


@pytest.mark.parametrize("count, length", [(512, 128), (1, 8192), (300, 77)])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "alibi"])
def test_sequences_of_one_length_equal_the_dense_ones(
    gallery_module: Gallery, name: str, dim: int, count: int, length: int
) -> None:
    packed = make_packed(((length, length),) * count, head_dim=dim, v_head_dim=dim, dtype=torch.bfloat16, device="cuda")
    module = gallery_module(name)
    step = partial(module.attention_varlen, *packed.arguments, return_lse=True)
    assert "_forward_sm90" in launched(step)
    found, lse = step()
    dense = [each.unflatten(0, (count, length)).transpose(1, 2) for each in packed.tensors]
    wanted, wanted_lse = module.attention(*dense, return_lse=True)
    torch.testing.assert_close(found.unflatten(0, (count, length)).transpose(1, 2), wanted, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse.unflatten(1, (count, length)).transpose(0, 1), wanted_lse, rtol=1e-4, atol=1e-4)
