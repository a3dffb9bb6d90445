"""Bad calls, each with the message that it must give, and odd calls that must work."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.runtime import Config, arguments, strides
from flashgen.runtime.call import Layout, prepare
from flashgen.runtime.sizes import Sizes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = Config(32, 32, 4, 1)

# batch 2, 4 heads over 2, 10 queries, 12 keys, head_dim 16, v_head_dim 24.
Q, K, V = (torch.randn(shape, device=DEVICE) for shape in ((2, 4, 10, 16), (2, 2, 12, 16), (2, 2, 12, 24)))
RAGGED = torch.nested.nested_tensor([Q[0, 0], Q[0, 1, :5]], layout=torch.jagged)
FIT = "expected [batch, kv_heads, kv_len, head_dim] with"

# id: (changed arguments of causal.attention, the exception, its message)
CALLS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "q is a list": ({"q": [1.0]}, TypeError, "q is list; expected a torch.Tensor"),
    "k is None": ({"k": None}, TypeError, "k is NoneType; expected a torch.Tensor"),
    "q is nested": (
        {"q": RAGGED},
        TypeError,
        "q is a nested tensor; expected a strided one, as values() of a jagged one is, which attention_varlen takes "
        "beside its offsets().int()",
    ),
    "q is sparse": ({"q": Q.to_sparse()}, TypeError, "q is a sparse_coo tensor; expected a strided one"),
    "q has 3 dimensions": (
        {"q": Q[0]},
        ValueError,
        "q has shape (4, 10, 16); expected 4 dimensions, [batch, heads, length, head_dim]",
    ),
    "float64": ({"q": Q.double()}, TypeError, "q has dtype torch.float64; expected float16, bfloat16 or float32"),
    "integers": ({"k": K.int()}, TypeError, "k has dtype torch.int32; expected float16, bfloat16 or float32"),
    "two dtypes": ({"v": V.half()}, TypeError, "v has dtype torch.float16; expected q's, torch.float32"),
    "another batch": (
        {"k": K[[0, 1, 0]]},
        ValueError,
        f"k has shape (3, 2, 12, 16); {FIT} q's batch 2 and head_dim 16",
    ),
    "another head_dim": (
        {"k": K[..., :8]},
        ValueError,
        f"k has shape (2, 2, 12, 8); {FIT} q's batch 2 and head_dim 16",
    ),
    "another kv_len": (
        {"v": V[:, :, :11]},
        ValueError,
        "v has shape (2, 2, 11, 24); expected [batch, kv_heads, kv_len, v_head_dim] with k's batch 2, kv_heads 2 and "
        "kv_len 12",
    ),
    "heads that do not divide": (
        {"q": Q[:, :3]},
        ValueError,
        "q has 3 heads and k has 2; expected a multiple of k's",
    ),
    "no kv heads": (
        {"k": K[:, :0], "v": V[:, :0]},
        ValueError,
        "q has 4 heads and k has 0; expected a multiple of k's",
    ),
    "head_dim 0": ({"q": Q[..., :0], "k": K[..., :0]}, ValueError, "q has head_dim 0; expected 1 to 512"),
    "v_head_dim 513": ({"v": V[..., :1].expand(-1, -1, -1, 513)}, ValueError, "v has head_dim 513; expected 1 to 512"),
    "scale is nan": ({"scale": math.nan}, ValueError, "scale is nan; expected a finite number"),
    "scale is inf": ({"scale": math.inf}, ValueError, "scale is inf; expected a finite number"),
    "scale is beyond float32": ({"scale": 1e39}, ValueError, "scale is 1e+39; expected a finite number"),
    "scale is text": ({"scale": "1"}, TypeError, "scale is str; expected a float"),
    "scale is a tensor": ({"scale": torch.tensor(1.0)}, TypeError, "scale is Tensor; expected a float"),
    "config of other names": (
        {"config": {"BM": 64}},
        TypeError,
        "config is {'BM': 64}; expected a Config or a mapping of BM, BN, num_warps, num_stages and its kernel's axes",
    ),
    "config of an odd size": (
        {"config": {"BM": 48, "BN": 32, "num_warps": 4, "num_stages": 1}},
        ValueError,
        "config BM is 48; expected 8, 16, 32, 64, 128 or 256",
    ),
    "config of text": (
        {"config": {"BM": 64, "BN": 32, "num_warps": "4", "num_stages": 1}},
        TypeError,
        "config num_warps is '4'; expected an int",
    ),
    "config of many warps": (
        {"config": {"BM": 64, "BN": 32, "num_warps": 3, "num_stages": 1}},
        ValueError,
        "config num_warps is 3; expected 1, 2, 4, 8 or 16",
    ),
    "config without stages": (
        {"config": {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 0}},
        ValueError,
        "config num_stages is 0; expected 1 to 8",
    ),
}

DOC = torch.zeros(2, 12, dtype=torch.int32, device=DEVICE)
BLOCKS = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=DEVICE)
DIMS = "[batch|1, heads|1, (q_len + 127) // 128, (kv_len + 127) // 128]"

# id: (variant, its own arguments, the exception, its message)
INPUTS: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "a list": ("document", {"doc": [[0]]}, TypeError, "doc is list; expected a torch.Tensor"),
    "none": (
        "document",
        {"doc": None},
        TypeError,
        "doc is NoneType; expected a torch.Tensor of shape [batch, kv_len] and dtype torch.int32",
    ),
    "dtype": ("document", {"doc": DOC.float()}, TypeError, "doc has dtype torch.float32; expected torch.int32"),
    "size": (
        "document",
        {"doc": DOC[:, :11]},
        ValueError,
        "doc has shape (2, 11); expected [batch, kv_len], here (2, 12)",
    ),
    "size 1 is no broadcast": (
        "document",
        {"doc": DOC[:1]},
        ValueError,
        "doc has shape (1, 12); expected [batch, kv_len], here (2, 12)",
    ),
    "dimensions": (
        "document",
        {"doc": DOC[0]},
        ValueError,
        "doc has shape (12,); expected [batch, kv_len], here (2, 12)",
    ),
    "slopes": (
        "alibi",
        {"slopes": torch.ones(2, device=DEVICE)},
        ValueError,
        "slopes has shape (2,); expected [heads], here (4,)",
    ),
    "blocks": (
        "block_sparse",
        {"block_mask": BLOCKS.expand(1, 1, 1, 2)},
        ValueError,
        f"block_mask has shape (1, 1, 1, 2); expected {DIMS}, here (2, 4, 1, 1)",
    ),
    "a float for an int": ("prefix_lm", {"prefix": 2.5}, TypeError, "prefix is 2.5; expected an int"),
    "a bool for an int": ("prefix_lm", {"prefix": True}, TypeError, "prefix is True; expected an int"),
    "a long int": ("prefix_lm", {"prefix": 2**31}, ValueError, "prefix is 2147483648; expected an int of 32 bits"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_says_what_came_and_what_fits(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    changed, exception, message = CALLS[name]
    with pytest.raises(exception) as caught:
        gallery_module("causal").attention(**({"q": Q, "k": K, "v": V} | changed))
    assert str(caught.value) == message


@pytest.mark.parametrize("name", INPUTS)
def test_a_bad_input_says_what_came_and_what_fits(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    variant, own, exception, message = INPUTS[name]
    with pytest.raises(exception) as caught:
        gallery_module(variant).attention(Q, K, V, **own)
    assert str(caught.value) == message


# What kernels alone cannot do, and what is no argument of a reference.
OF_KERNELS = {"float64", "head_dim 0", "v_head_dim 513"} | {name for name in CALLS if name.startswith("config")}


@pytest.mark.parametrize("name", [name for name in CALLS if name not in OF_KERNELS])
def test_the_reference_refuses_the_same_calls(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    changed, exception, message = CALLS[name]
    with pytest.raises(exception) as caught:
        gallery_module("causal").reference(**({"q": Q, "k": K, "v": V} | changed))
    assert str(caught.value) == message.replace("bfloat16 or float32", "bfloat16, float32 or float64")


@pytest.mark.parametrize("name", INPUTS)
def test_the_reference_refuses_the_same_inputs(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    variant, own, exception, message = INPUTS[name]
    with pytest.raises(exception) as caught:
        gallery_module(variant).reference(Q, K, V, **own)
    assert str(caught.value) == message


def test_the_reference_takes_wider_floats_and_wider_heads(gallery_module: Callable[[str], ModuleType]) -> None:
    q, k, v = (tensor[..., :1].double().expand(-1, -1, -1, 520) for tensor in (Q, K, V))
    slopes = torch.ones(4, dtype=torch.float64, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = gallery_module("alibi").reference(q, k, v, slopes=torch.stack([slopes, slopes], -1)[:, 0])
        assert gallery_module("alibi").reference(q, k[:1], v[:1]).shape == out.shape
    assert (out.dtype, out.shape) == (torch.float64, q.shape)


def test_arguments_that_do_not_exist_or_are_missing(gallery_module: Callable[[str], ModuleType]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'slope'"):
        gallery_module("alibi").attention(Q, K, V, slope=1)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'doc'"):
        gallery_module("document").attention(Q, K, V)


def test_a_number_beyond_floats_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^cap is an int of 1329 bits; expected a number within a float's range$"):
        arguments.check_scalar("cap", 10**400, float)


def test_tensors_must_share_a_device() -> None:
    with pytest.raises(ValueError, match=r"^v is on meta; expected q's device, (cpu|cuda:0)$"):
        prepare(Q, K, V.to("meta"), None)
    with pytest.raises(ValueError, match=r"^doc is on meta; expected q's device, (cpu|cuda:0)$"):
        arguments.check_input("doc", DOC.to("meta"), "[batch, kv_len]", (2, 12), torch.int32, Q)


def test_a_length_beyond_what_kernels_count_is_refused() -> None:
    long = torch.empty(1, 1, 1, 16, device="meta").expand(1, 1, 2**24, 16)
    short = torch.empty(1, 1, 1, 16, device="meta")
    with pytest.raises(ValueError, match=r"^k has length 16777216; expected at most 16777215$"):
        prepare(short, long, long, None)


def test_tensors_elsewhere_than_on_a_gpu_are_refused() -> None:
    meta = [tensor.to("meta") for tensor in (Q, K, V)]
    if DEVICE == "cuda":
        with pytest.raises(ValueError, match="q is on meta; expected a CUDA device"):
            prepare(*meta, None)
    else:
        assert prepare(*meta, None).sizes == Sizes(2, 4, 2, 10, 12, 16, 24)


def strided(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, every second element of a wider tensor."""
    wide = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), math.nan)
    wide[..., ::2] = tensor
    return wide[..., ::2]


def test_a_last_dimension_with_gaps_is_copied_and_said_once(gallery_module: Callable[[str], ModuleType]) -> None:
    strides.say_once.cache_clear()
    attention = gallery_module("causal").attention
    expected = attention(Q, K, V, config=SMALL)
    with pytest.warns(UserWarning, match="^k is not contiguous in its last dimension; it is copied on each call$"):
        out = attention(Q, strided(K), V, config=SMALL)
    assert torch.equal(out, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert torch.equal(attention(Q, strided(K), V, config=SMALL), expected)


@pytest.mark.parametrize("head_dim", [15, 16])
def test_rows_that_are_not_aligned_are_copied(gallery_module: Callable[[str], ModuleType], head_dim: int) -> None:
    module = gallery_module("causal")
    q, k, v = (torch.randn(1, 2, 9, head_dim + 1, device=DEVICE)[..., 1:] for _ in range(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = module.attention(q, k, v, config=SMALL)
    torch.testing.assert_close(out, module.reference(q, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["causal", "alibi", "softcap"])
@pytest.mark.parametrize("scale", [0.0, -0.0, -0.5, 3, 1e-30, 1e-44])
def test_any_finite_scale(gallery_module: Callable[[str], ModuleType], name: str, scale: float) -> None:
    module = gallery_module(name)
    out, lse = module.attention(Q, K, V, scale=scale, return_lse=True, config=SMALL)
    expected, expected_lse = module.reference(Q.double(), K.double(), V.double(), scale=scale, return_lse=True)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["full", "causal", "sink", "document", "relative_bias"])
@pytest.mark.parametrize("empty", ["queries", "keys", "batch"])
def test_nothing_to_do_is_done(gallery_module: Callable[[str], ModuleType], name: str, empty: str) -> None:
    batch, q_len, kv_len = (0 if empty == what else size for what, size in (("batch", 2), ("queries", 5), ("keys", 6)))
    q, k = (torch.randn(batch, 2, length, 16, device=DEVICE) for length in (q_len, kv_len))
    own = {
        "document": {"doc": torch.zeros(batch, kv_len, dtype=torch.int32, device=DEVICE)},
        "sink": {"sinks": torch.ones(2, device=DEVICE)},
        "relative_bias": {"rel": torch.ones(2, 129, device=DEVICE)},
    }
    out, lse = gallery_module(name).attention(q, k, k, **own.get(name, {}), return_lse=True, config=SMALL)
    assert out.shape == q.shape
    assert not out.any()
    assert (lse == -math.inf).all()


def test_torch_compile_takes_a_call_whole(gallery_module: Callable[[str], ModuleType]) -> None:
    torch.compiler.reset()
    attention = gallery_module("alibi").attention
    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, scale=0.3, config=SMALL), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(Q, K, V), attention(Q, K, V, scale=0.3, config=SMALL))


def test_torch_compile_has_nothing_to_say_of_a_config(gallery_module: Callable[[str], ModuleType]) -> None:
    torch.compiler.reset()
    attention = gallery_module("causal").attention
    text = str(SMALL)
    compiled = torch.compile(lambda *given: attention(*given, config=text), fullgraph=True, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compiled(Q, K, V)
    assert torch.equal(found, attention(Q, K, V, config=text))


def test_calls_that_are_alike_share_a_layout() -> None:
    def layout(scale: float | None = None, **other: torch.Tensor) -> Layout:
        return prepare(**{"q": Q, "k": K, "v": V, **other}, scale=scale).layout

    assert layout() is layout(q=torch.empty_like(Q), k=K.clone(), v=torch.zeros_like(V))
    others = [
        layout(scale=0.5), layout(q=Q[:, :, :9]), layout(q=Q.transpose(1, 2).contiguous().transpose(1, 2)),
        layout(q=Q.half(), k=K.half(), v=V.half()), layout(k=torch.zeros(2 * 2 * 12 * 16 + 1)[1:].view(K.shape)),
    ]  # fmt: skip
    assert len({id(each) for each in [layout(), *others]}) == 6


def test_what_is_copied_shares_a_layout_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first, second = (prepare(Q.mT.contiguous().mT, K, V, None) for _ in range(2))
    assert first.layout is second.layout and first.layout.copies
    assert first.q is not second.q and first.q.is_contiguous()
    negated = [prepare(Q, K, V, -0.5) for _ in range(2)]
    assert negated[0].layout is negated[1].layout and negated[1].layout.scale == 0.5
    assert torch.equal(negated[1].q, -Q)
