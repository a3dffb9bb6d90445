"""Which sequences of a paged call are the forward kernel's for Hopper, what is launched, and where keys are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.bench.unlaunched import unlaunched
from flashgen.codegen import generate, load_module
from flashgen.problems.paged import Batch, dense_inputs, make_batch, packed_keywords
from flashgen.runtime import decoding_paged, extending_paged, planning_paged
from flashgen.runtime.decoding_paged import launch_paged
from flashgen.runtime.device.sm90.tiles import far_rows
from flashgen.runtime.extending_paged import MOST_DECODED, Extension, reaches, stays, steps_of
from flashgen.runtime.kernels import forward_sm90
from flashgen.runtime.launching import replaced
from flashgen.runtime.own_arguments import given_own
from flashgen.runtime.paged import PagedArguments, PagedCall, PagedTensors, prepare_paged
from flashgen.runtime.variant import Variant
from flashgen.spec import load

SCHEDULED = ("block_sparse", "dilated", "document", "global_window")
LENGTHS = {"kv_lens": (900, 70, 0, 300), "q_lens": (512, 17, 100, 1)}

Gallery = Callable[[str], ModuleType]


def batch_of(**how: Any) -> Batch:
    given = {"dtype": torch.bfloat16, "head_dim": 64, "v_head_dim": 64, **LENGTHS, **how}
    return make_batch(given.pop("kv_lens"), given.pop("q_lens"), **given)


def call_of(batch: Batch, variant: Variant | None = None, keywords: dict[str, Any] | None = None) -> PagedCall:
    scales = (batch.scales.get("k_scale"), batch.scales.get("v_scale"))
    tensors = PagedTensors(*batch.arguments, batch.cu_seqlens_q, *scales)
    call = prepare_paged(PagedArguments(tensors, max(batch.q_lens), None, None))
    if variant is None or not (variant.inputs or variant.params):
        return call
    named = keywords or {}
    inputs = [named.get(each.public) for each in variant.inputs]
    params = {each.name: named.get(each.public, 0.0) for each in variant.params}
    given, own = given_own(variant, variant.packed_inputs, call.tensors.q, call.layout, inputs, params)
    return call._replace(given=given, own=own)


def why(module: ModuleType, batch: Batch, capability: str = "sm_90") -> str:
    call = call_of(batch)
    return stays(module.VARIANT, call.layout, capability, batch.q.dtype, batch.k_cache.dtype)


@pytest.mark.parametrize("name", NAMES)
def test_a_variant_whose_mask_has_limits_is_the_forward_kernels(gallery_module: Gallery, name: str) -> None:
    assert bool(why(gallery_module(name), batch_of())) == gallery_module(name).VARIANT.planned


@pytest.mark.parametrize(
    ("how", "capability", "reason"),
    [
        ({}, "sm_90", ""),
        ({"by_head": True, "block_size": 48}, "sm_90", ""),
        ({"head_dim": 192, "v_head_dim": 128}, "sm_90", ""),
        ({}, "sm_80", "runs on sm_90"),
        ({}, "gfx942", "runs on sm_90"),
        ({"dtype": torch.float32}, "sm_90", "float32"),
        ({"cache": torch.float8_e4m3fn}, "sm_90", "does not convert"),
        ({"cache": torch.int8, "scales": "token"}, "sm_90", "does not convert"),
        ({"head_dim": 272}, "sm_90", "up to 256"),
        ({"v_head_dim": 20}, "sm_90", "multiple of 16 bytes"),
        ({"head_dim": 20}, "sm_90", "multiples of 16 bytes apart"),
    ],
)
def test_who_stays_with_the_decode_kernel_is_told_why(
    gallery_module: Gallery, how: dict[str, Any], capability: str, reason: str
) -> None:
    found = why(gallery_module("causal"), batch_of(**how), capability)
    assert reason in found and bool(found) == bool(reason)


def test_caches_of_unlike_steps_and_outputs_with_gaps_stay() -> None:
    batch = batch_of()
    call, out = call_of(batch), torch.empty(630, 4, 64, dtype=torch.bfloat16)
    assert reaches(call, out)
    assert not reaches(call, torch.empty(630, 4, 128, dtype=torch.bfloat16)[..., :64])
    assert not reaches(call, torch.empty(630 * 256 + 1, dtype=torch.bfloat16)[1:].view(630, 4, 64))
    by_head = batch.v_cache.transpose(1, 2).contiguous().transpose(1, 2)
    assert not reaches(call_of(replace(batch, v_cache=by_head)), out)


def test_queries_and_caches_that_tma_does_not_reach_stay(gallery_module: Gallery) -> None:
    """By strides of any axis, and by where either cache begins."""
    batch = batch_of()
    out, module = torch.empty(630, 4, 64, dtype=torch.bfloat16), gallery_module("causal")
    for shape, cut in (((630, 4, 68), (...,)), ((630, 5, 68), (slice(None), slice(4)))):
        q = torch.empty(shape, dtype=torch.bfloat16)[cut][..., :64]
        assert "multiples of 16 bytes apart" in why(module, replace(batch, q=q)), q.stride()
    for name in ("k_cache", "v_cache"):
        cache = getattr(batch, name)
        later = torch.empty(cache.numel() + 1, dtype=cache.dtype)[1:].view(cache.shape)
        assert not reaches(call_of(replace(batch, **{name: later})), out)


def test_inputs_along_keys_that_are_read_for_other_sequences_stay(tmp_path: Path) -> None:
    """Which one of a batch a sequence is the kernel tells by tokens, and has these for its own alone."""
    keys = {"on": {"shape": ["batch", "kv_len"], "dtype": "float32"}}
    for score, stays_put in (("score + on[b, k]", False), ("score + on[b, k] + b / batch", True)):
        variant = load({"name": "along", "causal": True, "inputs": keys, "score": score})
        module = load_module(generate(variant, tmp_path / str(stays_put)))
        found = why(module, batch_of())
        assert ("read for other sequences" in found) == stays_put and bool(found) == stays_put


@pytest.mark.parametrize("q_lens", [(65,) * 9, (65, 1, 129, 0, 200), (512, 66, 3), (64, 64, 64), (1000, 1000)])
def test_there_is_room_for_each_tile(gallery_module: Gallery, q_lens: tuple[int, ...]) -> None:
    """A plan writes no more items than there is room for: rows of those that it leaves out would be nobody's."""
    call = call_of(batch_of(kv_lens=(1000,) * len(q_lens), q_lens=q_lens))
    with unlaunched():
        extension = extending_paged.extension_of(gallery_module("causal").VARIANT, call, None)
    if extension is None:
        assert max(q_lens) <= MOST_DECODED
        return
    assert extension.room >= sum(ceil(length / extension.config.BM) for length in q_lens if length > MOST_DECODED)


def test_few_queries_or_a_config_leave_a_call_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host it is a comparison or two; nothing asks which GPU it is."""
    monkeypatch.setattr(extending_paged, "current_device", lambda gpu: pytest.fail("asked"))
    few = call_of(batch_of(kv_lens=(900, 70), q_lens=(MOST_DECODED, 3)))
    many = call_of(batch_of())
    unasked: Any = object()
    assert extending_paged.extension_of(unasked, few, None) is None
    assert extending_paged.extension_of(unasked, many, "BM=64 BN=64 num_warps=4 num_stages=2") is None


def padded_pages(cache: torch.Tensor) -> torch.Tensor:
    """The same cache with room between its pages that is no multiple of a slot."""
    num_blocks, block_size, kv_heads, dim = cache.shape
    page = block_size * kv_heads * dim + 24
    return torch.empty(num_blocks * page, dtype=cache.dtype).as_strided(
        cache.shape, (page, kv_heads * dim, dim, 1)
    )  # fmt: skip


@pytest.mark.parametrize("which", ["tokens first", "heads first", "both caches in a page", "padded pages", "one page"])
def test_rows_of_pages_lie_where_the_steps_say(which: str) -> None:
    """As device/sm90/paged_keys.py computes addresses, in 64 bits."""
    batch = batch_of(by_head=which == "heads first", block_size=48)
    k = batch.k_cache
    if which == "both caches in a page":
        k = torch.empty(k.shape[0], 2, *k.shape[1:], dtype=k.dtype)[:, 0]
    elif which == "padded pages":
        k = padded_pages(k)
    elif which == "one page":
        k = k[3:4].expand(1, -1, -1, -1)
    layout = call_of(replace(batch, k_cache=k, v_cache=k)).layout
    steps = steps_of(layout, "k")
    assert steps is not None
    rows, slot_stride = far_rows(), k.stride(1)
    for page in (0, k.shape[0] - 1):
        for used, slot in ((48, 0), (48, 47), (17, 16), (1, 0)):
            at = page * steps.page + used * steps.slot
            address = rows * (2**34 - slot_stride) + at * steps.elements + (rows - used + slot) * slot_stride
            assert address % 2**64 == page * k.stride(0) + slot * slot_stride
            assert 0 <= at < 2**31 and 0 <= rows - used + slot < rows


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in SCHEDULED])
def test_what_is_launched(gallery_module: Gallery, name: str, planned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan, the decode kernel for few queries, the merge, and the forward kernel for many, with all arguments."""
    module, batch = gallery_module(name), batch_of(kv_heads=1)
    own = dense_inputs(VARIANTS[name], batch)
    keywords = packed_keywords(VARIANTS[name], batch, own)
    variant, launched = module.VARIANT, list[tuple[str, int, dict[str, Any]]]()
    config = forward_sm90.FORWARD_SM90_KERNEL.default("", "sm_90", "bfloat16", 64, 64)
    extension = Extension(config, 7)
    for asking in (decoding_paged, planning_paged):
        monkeypatch.setattr(asking, "extension_of", lambda variant, call, config: extension)
    monkeypatch.setattr(forward_sm90, "multiprocessors", lambda gpu: 132)
    monkeypatch.setattr(forward_sm90, "tile_counter", lambda call: call.q.new_zeros(2, dtype=torch.int32))

    def note(kernel: Any, programs: int, arguments: tuple[Any, ...], constants: dict[str, Any]) -> None:
        named = dict(zip(kernel.arg_names, arguments, strict=False))
        assert not {*named} & {*constants} and {*kernel.arg_names} <= {*named, *constants}
        launched.append((kernel.__name__, programs, {**named, **constants}))

    out = torch.empty(630, 4, 64, dtype=torch.bfloat16)
    lse = torch.empty(4, 630)
    with replaced(note):
        plan: Any = (None, None, None)
        if planned:
            given, told = batch.planning
            made = module.plan_paged(*given, **told)
            plan = (made.items, made.count, made.sizes)
            launched.clear()
        launch_paged(variant, call_of(batch, variant, keywords), out, lse, plan, False, None)
    names = [kernel for kernel, _, _ in launched]
    assert names == [*([] if planned else ["plan_splits"]), "_decode_paged", "merge_splits", "_forward_sm90"]
    _, programs, given = launched[-1]
    assert programs == min(132, 7 * 4) and given["BLOCK_SIZE"] == 16 and given["BM"] == config.BM
    assert given["kv_len"] == batch.longest and given["total_k"] is None and given["num_seqs"] == 4
    assert given["cu_seqlens_k_ptr"] is not None and given["count_ptr"].shape == (2,)
    assert given["items_ptr"].shape == (7, 4)
    few = launched[-3][2]
    assert few["max_q"] == MOST_DECODED and few["items_ptr"].shape[0] > 7
    if not planned:
        assert launched[0][2]["MOST_Q"] == MOST_DECODED and launched[0][2]["max_q"] == 512
