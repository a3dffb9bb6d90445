"""Gradients of learned inputs of which each pair has an element: a kernel of their own makes them."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pair_gradients import BESIDE, OF_HEADS, SPECS, Made, gradients, made, spec

from flashgen.codegen import generate, load_module
from flashgen.runtime.kernels import backward_pairs
from flashgen.runtime.kernels.backward_pairs import shares
from flashgen.runtime.launching import replaced
from flashgen.spec import load

# batch, heads, kv_heads, q_len, kv_len: tiles that are ragged, several of each side, and few that many share.
SIZES = [(3, 4, 2, 37, 70), (2, 2, 2, 130, 33), (9, 1, 1, 20, 30)]


def module_of(found: Any, folder: Path) -> ModuleType:
    return load_module(generate(load(found), folder))


def in_wide_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with a gap behind each row."""
    return torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % 8))[..., : tensor.shape[-1]]


def launched(attend: Any, call: Made) -> list[str]:
    """The kernels of the backward pass."""
    names: list[str] = []
    inputs = {name: t.detach().requires_grad_(t.requires_grad) for name, t in call.inputs.items()}
    out = attend(*(leaf.requires_grad_() for leaf in call.leaves), **inputs)
    with replaced(lambda kernel, *_: names.append(kernel.__name__)):
        torch.autograd.grad(out, [t for t in inputs.values() if t.requires_grad], call.d_out)
    return names


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SPECS)
def test_they_are_those_of_the_formula(name: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    module, call = module_of(SPECS[name], tmp_path), made(SPECS[name], sizes)
    wanted = gradients(module.reference, call, double=True)
    found = gradients(module.attention, call)
    for each, gradient in found.items():
        bound = 4e-6 * max(1.0, wanted[each].abs().max().item()) * math.sqrt(sizes[0] * sizes[1])
        assert gradient.dtype is torch.float32
        torch.testing.assert_close(gradient.double(), wanted[each], rtol=0, atol=bound)
    again = gradients(module.attention, call)
    assert all(torch.equal(found[each], again[each]) for each in found)
    kernels = launched(module.attention, call)
    assert "_backward_pairs" in kernels
    assert "_backward_inputs" not in kernels


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", BESIDE)
def test_those_beside_others_are(name: str, sizes: tuple[int, ...], deterministic: bool, tmp_path: Path) -> None:
    module, call = module_of(BESIDE[name], tmp_path), made(BESIDE[name], sizes)
    wanted = gradients(module.reference, call, double=True)
    for each, gradient in gradients(module.attention, call, deterministic=deterministic).items():
        bound = 4e-6 * max(1.0, wanted[each].abs().max().item()) * math.sqrt(sizes[0] * sizes[1])
        torch.testing.assert_close(gradient.double(), wanted[each], rtol=0, atol=bound)
    assert {"_backward_pairs", "_backward_inputs"} <= {*launched(module.attention, call)}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_those_of_16_bits_are_rounded_once(sizes: tuple[int, ...], tmp_path: Path) -> None:
    found = spec("score + t[h, q, k]", *OF_HEADS, dtype="bfloat16")
    module, call = module_of(found, tmp_path), made(found, sizes)
    wanted = gradients(module.reference, call, double=True)["t"]
    gradient = gradients(module.attention, call)["t"]
    assert gradient.dtype is torch.bfloat16
    # Half a unit of 8 bits, and the float32 sum's own error.
    torch.testing.assert_close(gradient.double(), wanted, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("head_dim", [16, 5])
@pytest.mark.parametrize("repeated", ["k", "v", "d_out"])
def test_tensors_that_repeat_along_a_dimension_are_read_right(repeated: str, head_dim: int, tmp_path: Path) -> None:
    module, call = module_of(SPECS["of heads"], tmp_path), made(SPECS["of heads"], SIZES[0], head_dim)
    # With rows that begin at multiples of 16 bytes, so that these are read as they are.
    call = Made([in_wide_rows(leaf) for leaf in call.leaves], call.inputs, in_wide_rows(call.d_out))
    place = {"k": 1, "v": 2}.get(repeated)
    if place is None:
        call = Made(call.leaves, call.inputs, call.d_out[:1].expand(call.d_out.shape))
    else:
        call.leaves[place] = call.leaves[place].detach()[:, :1].expand(call.leaves[place].shape)
    found, wanted = gradients(module.attention, call), gradients(module.reference, call, double=True)
    torch.testing.assert_close(found["t"].double(), wanted["t"], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("change", "sizes"),
    [
        ({"align": "bottom_right"}, (2, 2, 2, 20, 40)),  # the last queries' positions lie outside
        ({"score": "score + t[min(h, 1), q, k]"}, (2, 4, 2, 20, 20)),  # some heads share elements, others do not
        ({"score": "score + t[h // (b + 1), q, k]"}, (2, 4, 2, 20, 20)),  # not the same ones in all batch elements
        ({"score": "score + t[h, q, k] + t[h // 2, q, k]"}, (2, 4, 2, 20, 20)),  # not the same ones at both places
        (spec("score + t[b // n, q, k]", "1", "q_len", "kv_len", params={"n": 2}), (5, 2, 2, 20, 20)),  # one too few
        (spec("score + t[h, q, k, clamp(floor(score), 0, 3)]", *OF_HEADS, "4"), (3, 2, 2, 20, 20)),
    ],
    ids=["beyond the ends", "of some heads", "by the batch", "two kinds", "too few", "by the score"],
)
def test_others_are_left_to_the_kernel_that_adds_up(change: Any, sizes: tuple[int, ...], tmp_path: Path) -> None:
    found = spec("score + t[h, q, k]", *OF_HEADS) | change
    module, call = module_of(found, tmp_path), made(found, sizes)
    assert "_backward_inputs" in launched(module.attention, call)
    wanted = gradients(module.reference, call, double=True)
    for each, gradient in gradients(module.attention, call).items():
        torch.testing.assert_close(gradient.double(), wanted[each], rtol=0, atol=2e-5)


@pytest.mark.parametrize("multiprocessors", [2, 132])
@pytest.mark.parametrize("owners", [1, 8, 4096])
@pytest.mark.parametrize("sharers", [1, 2, 7, 500])
@pytest.mark.parametrize("tiles", [(1, 1), (3, 5), (128, 64)])
def test_all_work_is_shared_out_once(owners: int, sharers: int, tiles: tuple[int, int], multiprocessors: int) -> None:
    most = 20
    found = shares(owners, sharers, *tiles, multiprocessors, most)
    q_tiles, k_tiles = tiles
    assert found.programs == owners * q_tiles * math.ceil(k_tiles / found.run) * found.splits
    # As a kernel has it: each split has a part, and the last one ends with the last sharer.
    each = math.ceil(sharers / found.splits)
    assert (found.splits - 1) * each < sharers <= found.splits * each
    assert found.splits <= most
    assert found.splits == 1 or found.run == 1
    # Elements of splits are few.
    assert found.splits == 1 or found.programs < 4 * multiprocessors + owners * q_tiles * k_tiles


def test_splits_of_what_has_room_for_many_pairs_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of few pairs leaves most of an input's elements alone, and each split has a sum for all of them."""
    monkeypatch.setattr(backward_pairs, "_INTERPRETED", 100)
    found = spec("score + t[q, k]", "q_len + room", "kv_len + room", params={"room": {"value": 0, "runtime": True}})
    module = module_of(found, tmp_path)
    of_splits: list[int] = []
    zeros = torch.zeros
    monkeypatch.setattr(
        torch, "zeros", lambda *size, **more: of_splits.append(math.prod(size[0])) or zeros(*size, **more)
    )
    for room in (0, 2000, 4500):
        drawn = made(spec("score + t[q, k]", "q_len", "kv_len"), SIZES[2])
        wide = torch.nn.functional.pad(drawn.inputs["t"].detach(), (0, room, 0, room))
        call = Made(drawn.leaves, {"t": wide.requires_grad_()}, drawn.d_out)
        of_splits.clear()
        gradient = gradients(module.attention, call, room=room)["t"]
        assert wide.numel() <= max(of_splits) <= max(wide.numel(), 2**24)
        assert (max(of_splits) > wide.numel()) == (room < 4500)
        wanted = gradients(module.reference, call, double=True, room=room)["t"]
        torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=2e-5)
