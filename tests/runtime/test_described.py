"""Launches whose descriptors were made before hand over what Triton's own would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton.backends.nvidia.driver import CudaLauncher, wrap_handle_tensordesc
from triton.experimental.gluon import language as gl
from triton.runtime import driver

from flashgen.runtime.described import Described
from flashgen.runtime.descriptors import Tile, Tiling, rows_tiling

SIGNATURE = {0: "tensordesc<fp16[1, 1, 64, 64]>", 1: "*fp32", 2: "tensordesc<fp16[1, 1, 64, 64]>", 3: "i32"}
DESCRIPTION = {"swizzle": 3, "elem_size": 2, "elem_type": 6, "block_size": [1, 1, 64, 64], "fp4_padded": False}
Q, K = (torch.zeros(2, 3, 40, 64, dtype=torch.float16) for _ in range(2))
STREAM = 3


class Launched:
    """What reached the launcher in C, and for which addresses descriptors were made."""

    def __init__(self) -> None:
        self.handed: list[tuple[Any, ...]] = []
        self.described: list[int] = []

    def launch(self, *handed: Any) -> None:
        self.handed.append(handed)

    def describe(self, address: int, *rest: Any) -> tuple[Any, ...]:
        self.described.append(address)
        return "map", address, *rest


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launched]:
    seen = Launched()
    utils = SimpleNamespace(fill_tma_descriptor=seen.describe, fill_tma_descriptor_tiled=seen.describe)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "_active", SimpleNamespace(utils=utils), raising=False)
        yield seen


def tiling() -> Tiling:
    layout = gl.NVMMASharedLayout.get_default_for([1, 1, 64, 64], gl.float16)
    return rows_tiling(Q.shape, Q.stride(), Tile((1, 1, 64, 64), torch.float16, layout))


def compiled(launched: Launched, scratch: int = 0) -> Any:
    run = object.__new__(CudaLauncher)
    run.launch = wrap_handle_tensordesc(launched.launch, SIGNATURE, [DESCRIPTION] * 2)
    run.global_scratch_size = scratch
    run.profile_scratch_size = run.global_scratch_align = run.profile_scratch_align = 0
    run.launch_cooperative_grid = run.launch_pdl = run.gsan_enabled = False
    run.arg_annotations, run.kernel_signature, run.num_ctas = "annotations", "signature", 1
    return SimpleNamespace(run=run, function=7, packed_metadata=(4, 1, 0))


def launch(again: Described, q: torch.Tensor, k: torch.Tensor, stream: int = STREAM, length: int = 40) -> None:
    addresses = [q.data_ptr(), 11, k.data_ptr(), length]
    again(5, stream, addresses, lambda: [tiling().of(q), 11, tiling().of(k), length])


def test_what_triton_would_hand_over_is_handed_over(launched: Launched) -> None:
    kernel = compiled(launched)
    arguments = (tiling().of(Q), 11, tiling().of(K), 40)
    kernel.run(5, 1, 1, STREAM, kernel.function, kernel.packed_metadata, None, None, None, *arguments)
    again = Described.of(kernel, [tiling()] * 2, [])
    assert again is not None
    for _ in range(3):
        launch(again, Q, K)
    first, *others = launched.handed
    assert len(others) == 3 and all(other == first for other in others)
    assert launched.described == [Q.data_ptr(), K.data_ptr()] * 2


def test_other_addresses_streams_and_numbers_are_other_launches(launched: Launched) -> None:
    again = Described.of(compiled(launched), [tiling()] * 2, [])
    assert again is not None
    for _ in range(2):
        launch(again, Q, K)
        launch(again, K, Q)
        launch(again, Q, K, stream=STREAM + 1)
        launch(again, Q, K, length=39)
    assert len({str(handed) for handed in launched.handed}) == 4
    assert len(launched.described) == 2 * 4


def test_kernels_do_not_share_what_was_made(launched: Launched) -> None:
    one, other = (Described.of(compiled(launched), [tiling()] * 2, []) for _ in range(2))
    assert one is not None and other is not None
    launch(one, Q, K)
    launch(other, Q, K)
    assert len(launched.described) == 4


def test_copies_memory_and_floats_are_new_on_each_launch(launched: Launched) -> None:
    kernel = compiled(launched)
    assert Described.of(kernel, [tiling()], [11, None]) is not None
    assert Described.of(kernel, [tiling(), replace(tiling(), copies=True)], []) is None
    assert Described.of(compiled(launched, scratch=128), [tiling()], []) is None
    assert Described.of(kernel, [tiling()], [11, 0.5]) is None
    assert Described.of(kernel, [], []) is None
    kernel.run.launch = launched.launch
    assert Described.of(kernel, [tiling()], []) is None
