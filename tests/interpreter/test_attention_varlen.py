"""Attention over packed sequences, in the interpreter: each as its reference has it, whatever lies beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from gallery import NAMES, VARIANTS
from packed_batch import make_packed, packed_case

from flashgen.codegen import generate, load_module
from flashgen.runtime import Config
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.verify import Case, run_case
from flashgen.verify.cases import Backward

# No queries, no keys, neither, one, about a tile, several tiles; fewer queries than keys, as many, and more.
RAGGED = ((0, 0), (1, 1), (15, 17), (16, 16), (17, 15), (100, 1), (1, 100), (0, 20), (20, 0), (40, 33))
# Queries and keys behind the last sequence.
REST = (110, 30)
TILE = Config(16, 16, 4, 1)
PLAIN = Backward(kv=Config(16, 16, 4, 1, fuse_dq=0), q=TILE)
FUSED = Backward(kv=Config(16, 16, 4, 1, fuse_dq=1), q=TILE)

Gallery = Callable[[str], ModuleType]


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """New memory holds NaN, so that what reads more than was written is found out."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def assert_proven(module: ModuleType, variant: Variant, case: Case) -> None:
    result = run_case(module, variant, case, "cpu")
    assert result.ok, result


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_takes_ragged_sequences(gallery_module: Gallery, name: str, dtype: str) -> None:
    case = replace(packed_case("ragged", RAGGED, dtype=dtype), config=TILE, rest=REST)
    assert_proven(gallery_module(name), VARIANTS[name], case)


@pytest.mark.parametrize("backward", [PLAIN, FUSED], ids=["plain", "fused"])
@pytest.mark.parametrize("name", NAMES)
def test_every_variant_has_gradients(gallery_module: Gallery, name: str, backward: Backward) -> None:
    case = replace(packed_case("gradients", RAGGED), config=TILE, backward=backward, rest=REST)
    assert_proven(gallery_module(name), VARIANTS[name], case)


@pytest.mark.parametrize("sizes", [
    {"heads": 3, "kv_heads": 3, "head_dim": 20, "v_head_dim": 24},
    {"heads": 6, "kv_heads": 2, "head_dim": 8, "v_head_dim": 100},
    {"heads": 2, "kv_heads": 1, "head_dim": 1, "v_head_dim": 1, "dtype": "float16"},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("backward", [None, replace(PLAIN, d_out="transposed")], ids=["forward", "gradients"])
def test_head_dimensions_and_groups(gallery_module: Gallery, sizes: dict[str, Any], backward: Backward | None) -> None:
    case = replace(packed_case("sizes", ((7, 40), (33, 20)), **sizes), config=TILE, backward=backward)
    assert_proven(gallery_module("alibi"), VARIANTS["alibi"], case)


SPECS = {
    "along queries": {
        "score": "score + bias[b, q - (kv_len - q_len)] + column[b, h, k]",
        "mask": "(k <= q) | (on[b, q - (kv_len - q_len)] > 3)",
        "inputs": {
            "bias": {"shape": ["batch", "q_len"], "dtype": "float32", "grad": True},
            "column": {"shape": ["batch", "heads", "kv_len"], "dtype": "float32", "grad": True},
            "on": {"shape": ["batch", "q_len"], "dtype": "int32"},
        },
    },
    "elsewhere in its sequence": {
        "score": "score + near[b, k + 3] * far[b, abs(q - k)]",
        "inputs": {
            "near": {"shape": ["batch", "kv_len"], "dtype": "float32", "grad": True},
            "far": {"shape": ["batch", "kv_len"], "dtype": "float32"},
        },
    },
    "of the longest lengths": {
        "score": "score + table[h, k] + pairs[b, h, q - (kv_len - q_len), k]",
        "inputs": {
            "table": {"shape": ["heads", "kv_len"], "dtype": "float32", "grad": True},
            "pairs": {"shape": ["batch", "heads", "q_len", "kv_len"], "dtype": "float32", "grad": True},
        },
    },
    "by the batch": {
        "mask": "(k < limit[b]) | (k == q)",
        "inputs": {"limit": {"shape": ["batch"], "dtype": "int32"}},
    },
    "by the head": {"mask": "(k % (h + 2) == 0) | (abs(q - k) < 3)"},
    "at the top": {
        "align": "top_left",
        "mask": "(k <= q) & (k >= q - W)",
        "params": {"W": {"value": 9, "runtime": True}},
    },
    "huge scores": {"score": "score * 1e6 + q * 3.0e5", "mask": "k <= q + 2"},
    "a sink": {"sink": "learned", "causal": True, "bias": "alibi"},
}  # fmt: skip


@pytest.mark.parametrize("backward", [None, PLAIN, replace(PLAIN, deterministic=True)], ids=["out", "loose", "exact"])
@pytest.mark.parametrize("name", SPECS)
def test_inputs_masks_and_alignments(tmp_path: Path, name: str, backward: Backward | None) -> None:
    variant = load({"name": "mine", **SPECS[name]})
    module = load_module(generate(variant, tmp_path))
    lengths = ((20, 20), (0, 5), (1, 37), (35, 18), (4, 0), (16, 33))
    assert_proven(module, variant, replace(packed_case(name, lengths), config=TILE, backward=backward))


@pytest.mark.parametrize("name", ["document", "dilated"])
def test_a_plan_serves_many_calls(gallery_module: Gallery, name: str) -> None:
    case = replace(packed_case("planned", RAGGED), config=TILE, planned=True)
    assert_proven(gallery_module(name), VARIANTS[name], case)
    assert_proven(gallery_module(name), VARIANTS[name], replace(case, backward=PLAIN))


def test_what_lies_behind_the_last_sequence_is_nothing(gallery_module: Gallery) -> None:
    """Buffers of a graph are as long as its longest batch."""
    module, packed = gallery_module("causal"), make_packed(((20, 30), (7, 9)))
    q, k, v = (torch.cat([each, torch.full_like(each[:40], torch.nan)]) for each in packed.tensors)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    out, lse = module.attention_varlen(*leaves, *packed.ends, *packed.longest, return_lse=True)
    wanted = module.attention_varlen(*packed.arguments, return_lse=True)
    assert torch.equal(out[:27], wanted[0])
    assert torch.equal(lse[:, :27], wanted[1])
    assert torch.all(out[27:] == 0)
    assert torch.all(lse[:, 27:] == -torch.inf)
    for gradient, used in zip(torch.autograd.grad(out.sum(), leaves), (27, 39, 39), strict=True):
        assert torch.all(gradient[used:] == 0)
        assert gradient.isfinite().all()


def test_what_comes_back_to_rows_behind_the_last_sequence_reaches_no_gradient(gallery_module: Gallery) -> None:
    """As from a norm of their zeros."""
    module, packed = gallery_module("sink"), make_packed(((20, 30), (7, 9)))
    q, k, v = (torch.cat([each, torch.full_like(each[:40], torch.nan)]) for each in packed.tensors)
    sinks = torch.linspace(-1, 1, q.shape[1])

    def gradients(behind: float) -> tuple[torch.Tensor, ...]:
        leaves = [each.clone().requires_grad_() for each in (q, k, v, sinks)]
        out = module.attention_varlen(*leaves[:3], *packed.ends, *packed.longest, sinks=leaves[3])
        d_out = torch.ones_like(out)
        d_out[27:] = behind
        return torch.autograd.grad(out, leaves, d_out)

    for found, wanted in zip(gradients(torch.nan), gradients(0.0), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("ends", [[0, 20, 10, 50], [0, 20, 10**9, 50], [0, 20, -(10**9), 50], [0, 20, 30, 10**9]])
@pytest.mark.parametrize("name", ["causal", "document"])
def test_wrong_ends_do_no_harm_to_other_sequences(gallery_module: Gallery, name: str, ends: list[int]) -> None:
    module, packed = gallery_module(name), make_packed(((20, 20), (10, 10), (20, 20)))
    keywords = {"doc": torch.arange(50, dtype=torch.int32) // 7} if name == "document" else {}
    wanted = module.attention_varlen(*packed.arguments, **keywords)
    wrong = torch.tensor(ends, dtype=torch.int32)
    leaves = [each.clone().requires_grad_() for each in packed.tensors]
    out = module.attention_varlen(*leaves, wrong, wrong, *packed.longest, **keywords)
    # Where ends fall, the sequence behind them writes to rows before.
    untouched = 10 if ends[2] == 10 else 0 if ends[2] < 0 else 20
    assert torch.equal(out[:untouched], wanted[:untouched])
    torch.autograd.grad(out.sum(), leaves)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(1, 30, 4, 16)}, "q has shape .*; expected 3 dimensions"),
        ({"q": torch.zeros(30, 4, 8)}, "k has shape .*; expected .* q's 8"),
        ({"q": torch.zeros(30, 3, 16)}, "q has 3 heads and k has 2"),
        ({"v": torch.zeros(29, 2, 16)}, "v has shape .*; expected .* k's total_k 40"),
        ({"k": torch.zeros(40, 2, 16, dtype=torch.float16)}, "k has dtype torch.float16"),
        ({"cu_seqlens_q": torch.zeros(3, dtype=torch.int64)}, "cu_seqlens_q is torch.int64"),
        ({"cu_seqlens_k": torch.zeros(4, dtype=torch.int32)}, "cu_seqlens_k has shape"),
        ({"cu_seqlens_k": [0, 3]}, "cu_seqlens_k is list"),
        ({"max_seqlen_q": 0}, "max_seqlen_q is 0; expected 1 to"),
        ({"max_seqlen_k": 2.0}, "max_seqlen_k is 2.0; expected an int"),
        ({"config": {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 1, "backend": "sm_90"}}, "config"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(gallery_module: Gallery, change: dict[str, Any], message: str) -> None:
    packed = make_packed(((10, 25), (20, 15)))
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
    arguments = {**dict(zip(names, packed.arguments, strict=True)), **change}
    with pytest.raises((TypeError, ValueError), match=message):
        gallery_module("causal").attention_varlen(**arguments)


def test_an_input_of_the_wrong_length_is_refused_by_name(gallery_module: Gallery) -> None:
    packed = make_packed(((10, 25), (20, 15)))
    with pytest.raises(ValueError, match=r"doc has shape \(2, 25\); expected \[total_k\], here \(40,\)"):
        gallery_module("document").attention_varlen(*packed.arguments, doc=torch.zeros(2, 25, dtype=torch.int32))


def test_strides_of_any_kind(gallery_module: Gallery) -> None:
    """Heads before tokens, and the parts of one projection."""
    module, packed = gallery_module("causal"), make_packed(((10, 10), (20, 20)), kv_heads=4)
    wanted = module.attention_varlen(*packed.arguments)
    by_head = (each.transpose(0, 1).contiguous().transpose(0, 1) for each in packed.tensors)
    assert torch.equal(module.attention_varlen(*by_head, *packed.ends, *packed.longest), wanted)
    together = torch.stack(packed.tensors, 1)
    assert torch.equal(module.attention_varlen(*together.unbind(1), *packed.ends, *packed.longest), wanted)
    assert wanted.is_contiguous()


def test_a_jagged_tensor_is_a_packed_batch(gallery_module: Gallery) -> None:
    attend = gallery_module("causal").attention_varlen
    packed = [torch.randn(length, 2, 16) for length in (5, 1, 23)]
    jagged = torch.nested.nested_tensor(packed, layout=torch.jagged, requires_grad=True)
    plain = torch.cat(packed).requires_grad_()
    ends = torch.tensor([0, 5, 6, 29], dtype=torch.int32)
    out = attend(*[jagged.values()] * 3, *[jagged.offsets().int()] * 2, 23, 23)
    expected = attend(plain, plain, plain, ends, ends, 23, 23)
    assert torch.equal(out, expected)
    torch.nested.nested_tensor_from_jagged(out, jagged.offsets()).values().square().sum().backward()
    expected.square().sum().backward()
    assert jagged.grad is not None and plain.grad is not None
    assert torch.equal(jagged.grad.values(), plain.grad)


def test_it_is_one_operator_to_a_compiler_whatever_the_lengths(gallery_module: Gallery) -> None:
    module = gallery_module("relative_bias")
    rel = torch.randn(4, 129, requires_grad=True)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *where: Any) -> torch.Tensor:
        return module.attention_varlen(q * 1.5, k, v, *where, rel=rel).sin()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for lengths in (((10, 25), (20, 15)), ((3, 3), (40, 61), (0, 5))):
        packed = make_packed(lengths)
        leaves = [each.requires_grad_() for each in packed.tensors]
        found, wanted = (each(*leaves, *packed.ends, *packed.longest) for each in (compiled, step))
        torch.testing.assert_close(found, wanted)
        given = [torch.autograd.grad(out.sum(), [*leaves, rel]) for out in (found, wanted)]
        for one, other in zip(*given, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()


def test_autocast_casts_as_that_of_attention_does(gallery_module: Gallery) -> None:
    packed = make_packed(((10, 25), (20, 15)))
    with torch.autocast("cpu", torch.bfloat16):
        assert gallery_module("causal").attention_varlen(*packed.arguments).dtype == torch.bfloat16
