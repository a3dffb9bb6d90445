"""A call that is like an earlier one but for one thing gets the answer that is its own: what is remembered of a call is
all that its answer follows from.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import CONFIG, DEVICE
from watched_launches import watch_launches

from flashgen.codegen import generate, load_module
from flashgen.spec import load

Gallery = Callable[[str], ModuleType]
Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _copies_are_no_matter() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@pytest.fixture(autouse=True)
def _launches_are_set_up_by_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter sets up each launch anew, and would not miss what a key lacks."""
    watch_launches(monkeypatch)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same for the same shape."""
    generator = torch.Generator(DEVICE).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)


def apart(axis: int) -> Change:
    """The same values, elsewhere NaN or the greatest number: in memory there is as much more between two along an
    axis."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        shape = list(tensor.shape)
        shape[axis] *= 2
        wide = torch.full(shape, _garbage(tensor.dtype), device=tensor.device).to(tensor.dtype)
        wide.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
        return wide.narrow(axis, 0, tensor.shape[axis])

    return change


def turned(one: int, other: int) -> Change:
    """The same values, two axes the other way round in memory."""
    return lambda tensor: tensor.transpose(one, other).contiguous().transpose(one, other)


def one_for_all(axis: int) -> Change:
    """The first along an axis for all, one place in memory."""
    return lambda tensor: tensor.narrow(axis, 0, 1).expand(tensor.shape)


def later(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, one element behind a multiple of 16 bytes."""
    flat = tensor.new_empty(tensor.numel() + 1)[1:]
    return flat.copy_(tensor.flatten()).view(tensor.shape)


def _garbage(dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return True
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).max


# Of tensors with four axes, of which the third is along positions.
LAYOUTS: dict[str, Change] = {
    "batch apart": apart(1),
    "heads apart": apart(2),
    "rows apart": apart(3),
    "heads inside": turned(1, 2),
    "dims outside": turned(2, 3),
    "dims apart": lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2],
    "heads alike": one_for_all(1),
    "batch alike": one_for_all(0),
    "later": later,
}


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tensor_that_lies_otherwise(gallery_module: Gallery, name: str, layout: str) -> None:
    module = gallery_module("causal")
    given = {"q": drawn(2, 4, 9, 16), "k": drawn(2, 2, 11, 16), "v": drawn(2, 2, 11, 24)}
    changed = given | {name: LAYOUTS[layout](given[name])}
    for each in (given, changed):
        leaves = {key: tensor.detach().requires_grad_() for key, tensor in each.items()}
        out = module.attention(**leaves, config=CONFIG)
        wanted = module.reference(**each)
        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)
        found = torch.autograd.grad(out.sum(), list(leaves.values()))
        sure = torch.autograd.grad(module.reference(**leaves).sum(), list(leaves.values()))
        torch.testing.assert_close(found, sure, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layout", [*LAYOUTS, "one number"])
def test_a_gradient_that_lies_otherwise(gallery_module: Gallery, layout: str) -> None:
    module = gallery_module("causal")
    leaves = [drawn(*shape).requires_grad_() for shape in ((2, 4, 9, 16), (2, 2, 11, 16), (2, 2, 11, 24))]
    d_out = drawn(2, 4, 9, 24)
    changed = d_out[:1, :1, :1, :1].expand(d_out.shape) if layout == "one number" else LAYOUTS[layout](d_out)
    for each in (d_out, changed):
        found, wanted = (
            torch.autograd.grad(out, leaves, each)
            for out in (module.attention(*leaves, config=CONFIG), module.reference(*leaves))
        )
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def assert_answers(module: ModuleType, tensors: dict[str, torch.Tensor], learned: tuple[str, ...], **more: Any) -> None:
    """out and the gradients of q, k, v and the learned inputs are those of the formula."""
    leaves = {name: tensors[name].detach().requires_grad_() for name in ("q", "k", "v", *learned)}
    given = {**tensors, **leaves, **more}
    answers = [module.attention(**given, config=CONFIG), module.reference(**given)]
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)
    found, wanted = (torch.autograd.grad(out.square().sum(), list(leaves.values())) for out in answers)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


OWN = {
    "name": "own",
    "align": "top_left",
    "params": {"W": {"value": 2, "runtime": True}},
    "inputs": {
        "doc": {"shape": ["batch", "kv_len"], "dtype": "int32"},
        "bias": {"shape": ["batch", "heads", "q_len", "kv_len"], "dtype": "float32", "grad": True},
        "near": {"shape": ["heads", "W + 1"], "dtype": "float32", "grad": True},
        "turn": {"shape": ["turn_len"], "dtype": "float32", "grad": True},
    },
    "bias": "alibi",
    "block_sparse": {"block_q": 8, "block_kv": 8},
    "score": "score + bias[b, h, q, k] + near[h, min(abs(q - k), W)] + turn[(q + k) % turn_len]",
    "mask": "doc[b, k] <= 6",
}
LEARNED = ("bias", "near", "turn")
# What is changed of a call, by the names of arguments: a function of what it was, or what it is then.
OWN_CHANGES: dict[str, dict[str, Any]] = {
    "doc apart": {"doc": apart(1)},
    "doc outside": {"doc": turned(0, 1)},
    "doc of one": {"doc": one_for_all(0)},
    "doc of 64 bits": {"doc": torch.Tensor.long},
    "bias apart": {"bias": apart(3)},
    "bias of heads inside": {"bias": turned(1, 2)},
    "bias of rows inside": {"bias": turned(2, 3)},
    "bias of one head": {"bias": one_for_all(1)},
    "bias later": {"bias": later},
    "bias of 16 bits": {"bias": torch.Tensor.half},
    "near outside": {"near": turned(0, 1)},
    "near apart": {"near": apart(0)},
    "more of turn": {"turn": drawn(7)},
    "turn apart": {"turn": lambda tensor: tensor.repeat_interleave(2)[::2]},
    "another width": {"W": 4, "near": drawn(4, 5)},
    "blocks of one sequence": {"block_mask": lambda tensor: tensor[:1]},
    "blocks of one head": {"block_mask": lambda tensor: tensor[:, :1]},
    "blocks apart": {"block_mask": turned(2, 3)},
    "slopes": {"slopes": drawn(4)},
    "no scale": {"scale": 0.0},
    "a scale": {"scale": 0.4},
    "a scale below 0": {"scale": -0.4},
}


@pytest.fixture(scope="module")
def own_module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_module(generate(load(OWN), tmp_path_factory.mktemp("own")))


@pytest.mark.parametrize("change", OWN_CHANGES)
def test_an_own_argument_that_is_another(own_module: ModuleType, change: str) -> None:
    blocks = torch.rand(2, 4, 2, 2, generator=torch.Generator().manual_seed(0)).to(DEVICE) < 0.7
    given: dict[str, Any] = {
        "q": drawn(2, 4, 9, 16), "k": drawn(2, 2, 11, 16), "v": drawn(2, 2, 11, 24), "W": 2, "near": drawn(4, 3),
        "doc": (drawn(2, 11) * 8).int(), "bias": drawn(2, 4, 9, 11), "turn": drawn(5), "block_mask": blocks,
    }  # fmt: skip
    changed = given | {
        name: each(given[name]) if callable(each) else each for name, each in OWN_CHANGES[change].items()
    }
    for each in (given, changed):
        assert_answers(own_module, each, LEARNED)


def test_inputs_that_fitted_another_call_are_refused(own_module: ModuleType) -> None:
    """By what a param makes of a shape, and by the lengths."""
    given = {
        "doc": torch.zeros(1, 5, dtype=torch.int32, device=DEVICE), "bias": drawn(1, 2, 4, 5), "turn": drawn(5),
        "block_mask": torch.ones(1, 2, 1, 1, dtype=torch.bool, device=DEVICE), "near": drawn(2, 3),
        "slopes": drawn(2), "config": CONFIG,
    }  # fmt: skip
    q, k = drawn(1, 2, 4, 16), drawn(1, 2, 5, 16)
    own_module.attention(q, k, k, **given, W=2)
    with pytest.raises(ValueError, match=r"near has shape \(2, 3\); expected \[heads, W \+ 1\], here \(2, 4\)"):
        own_module.attention(q, k, k, **given, W=3)
    with pytest.raises(ValueError, match=r"doc has shape \(1, 5\); expected \[batch, kv_len\], here \(1, 4\)"):
        own_module.attention(q, k[:, :, :4], k[:, :, :4], **given, W=2)
    with pytest.raises(ValueError, match=r"bias has shape \(1, 2, 4, 5\); expected .*, here \(1, 2, 3, 5\)"):
        own_module.attention(q[:, :, :3], k, k, **given, W=2)


SERVED = {
    "name": "served",
    "inputs": {
        "row": {"shape": ["batch", "heads", "q_len"], "dtype": "float32"},
        "column": {"shape": ["batch", "heads", "kv_len"], "dtype": "float32"},
        "table": {"shape": ["heads", "kv_len"], "dtype": "float32"},
    },
    "causal": True,
    "score": "score + row[b, h, q - (kv_len - q_len)] + column[b, h, k] + table[h, k]",
}


@pytest.fixture(scope="module")
def served_module(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_module(generate(load(SERVED), tmp_path_factory.mktemp("served")))


def ends(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)


# Of sequences of 7, 0, and 5 queries and 9, 3, and 6 keys.
PACKED_CHANGES: dict[str, dict[str, Any]] = {
    **{f"{name} {what}": {name: change} for name in ("q", "k", "v", "row", "column") for what, change in {
        "apart": apart(1), "twice as long": apart(0), "the other way round": turned(0, 1), "alike": one_for_all(1),
    }.items()},
    "row of one head": {"row": one_for_all(0)},
    "longer than there are": {"max_seqlen_q": 12, "max_seqlen_k": 18, "table": drawn(4, 18)},
    "other sequences": {"cu_seqlens_q": ends(0, 4, 10, 12), "cu_seqlens_k": ends(0, 4, 13, 18)},
    "fewer sequences": {"cu_seqlens_q": ends(0, 5, 12), "cu_seqlens_k": ends(0, 9, 18)},
    "more sequences": {"cu_seqlens_q": ends(0, 3, 7, 9, 12), "cu_seqlens_k": ends(0, 3, 9, 11, 18)},
    "ends apart": {"cu_seqlens_q": lambda tensor: tensor.repeat_interleave(2)[::2]},
    "a scale": {"scale": 0.4},
    "a scale below 0": {"scale": -0.4},
}  # fmt: skip


def packed_answer(module: ModuleType, given: dict[str, Any]) -> torch.Tensor:
    """By the formula, sequence by sequence."""
    found = []
    bounds = [list(zip(given[name], given[name][1:], strict=False)) for name in ("cu_seqlens_q", "cu_seqlens_k")]
    for (first, last), (first_k, last_k) in zip(*bounds, strict=True):
        q, k, v = given["q"][first:last], given["k"][first_k:last_k], given["v"][first_k:last_k]
        own = {
            "row": given["row"][None, :, first:last], "column": given["column"][None, :, first_k:last_k],
            "table": given["table"][:, : last_k - first_k],
        }  # fmt: skip
        batch = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        found.append(module.reference(*batch, **own, scale=given.get("scale"))[0].transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("change", PACKED_CHANGES)
def test_packed_sequences_that_are_others(served_module: ModuleType, change: str) -> None:
    given: dict[str, Any] = {
        "q": drawn(12, 4, 16), "k": drawn(18, 2, 16), "v": drawn(18, 2, 24), "row": drawn(4, 12),
        "column": drawn(4, 18), "table": drawn(4, 9), "max_seqlen_q": 7, "max_seqlen_k": 9,
        "cu_seqlens_q": ends(0, 7, 7, 12), "cu_seqlens_k": ends(0, 9, 12, 18),
    }  # fmt: skip
    changed = given | {
        name: each(given[name]) if callable(each) else each for name, each in PACKED_CHANGES[change].items()
    }
    for each in (given, changed):
        out = served_module.attention_varlen(**each, config=CONFIG)
        torch.testing.assert_close(out, packed_answer(served_module, each), rtol=1e-4, atol=1e-5)


# Of sequences of 30, 5 and 40 keys, with 2, 1 and 3 queries, in pages of 16.
PAGED_CHANGES: dict[str, dict[str, Any]] = {
    "q apart": {"q": apart(1)},
    "q twice as long": {"q": apart(0)},
    "q the other way round": {"q": turned(0, 1)},
    "q with gaps": {"q": turned(1, 2)},
    "q alike": {"q": one_for_all(1)},
    **{f"{name} {what}": {name: change} for name in ("k_cache", "v_cache") for what, change in {
        "of heads outside": turned(1, 2), "of slots apart": apart(2), "of pages apart": apart(1),
        "of heads apart": apart(3), "of heads alike": one_for_all(2), "of more pages": apart(0),
    }.items()},
    "a table apart": {"block_table": apart(1)},
    "a wider table": {"block_table": lambda table: torch.cat([table, table.new_full((3, 2), -7)], 1)},
    "other lengths": {"seq_lens": ends(31, 2, 48)},
    "other queries": {"cu_seqlens_q": ends(0, 1, 5, 6), "max_seqlen_q": 4},
    "fewer sequences": {
        "block_table": lambda table: table[:2], "seq_lens": ends(30, 5), "cu_seqlens_q": ends(0, 5, 6),
        "max_seqlen_q": 5, "column": lambda column: column[:2],
    },
    "no more keys than there are": {
        "max_seqlen_k": 40, "column": lambda column: column[..., :40], "table": lambda table: table[:, :40],
    },
    "more queries than there are": {"max_seqlen_q": 6},
    "row apart": {"row": apart(1)},
    "row of one head": {"row": one_for_all(0)},
    "column apart": {"column": apart(2)},
    "column of heads inside": {"column": turned(1, 2)},
    "column of one sequence": {"column": one_for_all(0)},
    "table the other way round": {"table": turned(0, 1)},
    "a scale": {"scale": 0.4},
    "a scale below 0": {"scale": -0.4},
    "an output of heads outside": {"out": torch.empty(4, 6, 24, device=DEVICE).transpose(0, 1)},
    "an output of tokens apart": {"out": torch.empty(12, 4, 24, device=DEVICE)[::2]},
    "the same bits in every batch": {"batch_invariant": True},
    "other tiles": {"config": "BM=16 BN=16 num_warps=2 num_stages=1"},
}  # fmt: skip


def paged_answer(module: ModuleType, given: dict[str, Any], k_scale: Any = 1.0, v_scale: Any = 1.0) -> torch.Tensor:
    """By the formula, sequence by sequence; the scales are those of each token."""
    found = []
    caches = [(given[name].float() * scale) for name, scale in (("k_cache", k_scale), ("v_cache", v_scale))]
    for b, (first, last) in enumerate(zip(given["cu_seqlens_q"], given["cu_seqlens_q"][1:], strict=False)):
        length = int(given["seq_lens"][b])
        pages = given["block_table"][b, : -(-length // 16)].long()
        k, v = (cache[pages].flatten(0, 1)[:length].transpose(0, 1)[None] for cache in caches)
        own = {
            "row": given["row"][None, :, first:last], "column": given["column"][b : b + 1, :, :length],
            "table": given["table"][:, :length],
        }  # fmt: skip
        q = given["q"][first:last].transpose(0, 1)[None]
        found.append(module.reference(q, k, v, **own, scale=given.get("scale"))[0].transpose(0, 1))
    return torch.cat(found)


def paged_call() -> dict[str, Any]:
    table = torch.tensor([[4, 2, -9], [0, 99, 3], [6, 1, 5]], dtype=torch.int32, device=DEVICE)
    return {
        "q": drawn(6, 4, 16), "k_cache": drawn(8, 16, 2, 16), "v_cache": drawn(8, 16, 2, 24), "block_table": table,
        "seq_lens": ends(30, 5, 40), "cu_seqlens_q": ends(0, 2, 3, 6), "max_seqlen_q": 3, "row": drawn(4, 6),
        "column": drawn(3, 4, 48), "table": drawn(4, 48),
    }  # fmt: skip


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("change", PAGED_CHANGES)
def test_a_paged_call_that_is_another(served_module: ModuleType, change: str, planned: bool) -> None:
    given = paged_call()
    changed = given | {
        name: each(given[name]) if callable(each) else each for name, each in PAGED_CHANGES[change].items()
    }
    if changed["block_table"].shape[1] == 5:
        changed |= {name: torch.cat([changed[name], changed[name][..., :32]], -1) for name in ("column", "table")}
    told = (
        "q", "k_cache", "block_table", "seq_lens", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "batch_invariant",
        "config",
    )  # fmt: skip
    for each in (given, changed):
        plan = None
        if planned:
            asked = {name: each[name] for name in told if name in each}
            plan = served_module.plan_paged(**asked, v_head_dim=24)
        out = served_module.attention_paged(**each, plan=plan)
        torch.testing.assert_close(out, paged_answer(served_module, each), rtol=1e-4, atol=1e-5)


SCALES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one": lambda scales: scales[0, 0, 0],
    "by head": lambda scales: scales[0, 0],
    "by head, apart": lambda scales: scales[0, 0].repeat_interleave(2)[::2],
    "by token": lambda scales: scales,
    "by token, heads outside": lambda scales: scales.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "by token, apart": apart(2),
    "by token, alike in a page": one_for_all(1),
}


@pytest.mark.parametrize("k_scale", [None, *SCALES])
@pytest.mark.parametrize("v_scale", [None, "by head", "by token"])
def test_scales_of_a_cache_in_any_form(served_module: ModuleType, k_scale: str | None, v_scale: str | None) -> None:
    """Also where those of keys are given in one form, and those of values in another or not at all."""
    given, scales = paged_call(), drawn(8, 16, 2).abs() * 0.03 + 0.01
    for name in ("k_cache", "v_cache"):
        given[name] = (given[name] * 40).to(torch.int8)
    named = {"k_scale": (k_scale, scales), "v_scale": (v_scale, scales.flip(0))}
    asked = {name: None if form is None else SCALES[form](each) for name, (form, each) in named.items()}
    meant = {name: 1.0 if each is None else each.expand(8, 16, 2)[..., None] for name, each in asked.items()}
    out = served_module.attention_paged(**given, **asked)
    torch.testing.assert_close(out, paged_answer(served_module, given, **meant), rtol=1e-4, atol=1e-5)
