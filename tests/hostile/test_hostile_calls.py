"""Calls of attention() with something wrong in each argument: an error that names it, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from flashgen.runtime import Config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# batch 2, 4 heads over 2, 10 queries, 12 keys, head_dim 16.
Q, K, V = (torch.ones(shape, device=DEVICE) for shape in ((2, 4, 10, 16), (2, 2, 12, 16), (2, 2, 12, 16)))
OWN: dict[str, dict[str, Any]] = {
    "causal": {},
    "alibi": {"slopes": torch.ones(4, device=DEVICE)},
    "document": {"doc": torch.zeros(2, 12, dtype=torch.int32, device=DEVICE)},
    "relative_bias": {"rel": torch.ones(4, 129, device=DEVICE)},
    "sink": {"sinks": torch.ones(4, device=DEVICE)},
    "block_sparse": {"block_mask": torch.ones(2, 4, 1, 1, dtype=torch.bool, device=DEVICE)},
    "prefix_lm": {"prefix": 3},
}


class NoTensor:
    """Looks like a tensor."""

    shape, dtype, device, ndim = (2, 4, 10, 16), torch.float32, torch.device("cpu"), 4


# What no argument takes that is a tensor.
OBJECTS: dict[str, Any] = {
    "nothing": None, "a number": 1.0, "a text": "q", "a list": [1.0], "a numpy array": Q.cpu().numpy(),
    "a type": torch.Tensor, "what looks like one": NoTensor(), "bytes": b"q", "a set": {1},
}  # fmt: skip

# Of q, k and v: what becomes of it.
TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of int8": lambda x: x.to(torch.int8),
    "of int64": lambda x: x.long(),
    "of bool": lambda x: x.bool(),
    "of float64": lambda x: x.double(),
    "complex": lambda x: x.to(torch.complex64),
    "of another float dtype": lambda x: x.half(),
    "of float8": lambda x: x.to(torch.float8_e4m3fn),
    "quantised": lambda x: torch.quantize_per_tensor(x.cpu(), 0.1, 0, torch.qint8),
    "sparse": lambda x: x.to_sparse(),
    "nested": lambda x: torch.nested.nested_tensor([x[0], x[1]]),
    "on another device": lambda x: x.to("meta"),
    "of rank 3": lambda x: x[0],
    "of rank 5": lambda x: x[None],
    "of rank 0": lambda x: x.sum(),
    "of rank 1": lambda x: x.flatten(),
    "without heads": lambda x: x[:, :0],
    "without a head_dim": lambda x: x[..., :0],
    "of another head_dim": lambda x: x[..., :8],
    "of a wide head_dim": lambda x: x[..., :1].expand(-1, -1, -1, 600),
    "of three heads": lambda x: x[:, :1].expand(-1, 3, -1, -1),
    "of three batches": lambda x: x[:1].expand(3, -1, -1, -1),
    "transposed": lambda x: x.transpose(1, 2),
    "too long": lambda x: x[:, :, :1].expand(-1, -1, 2**24, -1),
}
# What is right of one after all: v may have another head_dim, q another number of heads.
RIGHT = {("v", "of another head_dim"), ("q", "without heads"), ("q", "transposed")}

# Of an input.
INPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "complex": lambda x: x.to(torch.complex64),
    "on another device": lambda x: x.to("meta"),
    "of one rank more": lambda x: x[None],
    "of rank 0": lambda x: x.flatten()[0],
    "empty": lambda x: x[:0],
    "longer": lambda x: torch.cat([x, x], -1),
    "shorter": lambda x: x[..., :-1],
    "sparse": lambda x: x.to_sparse(),
}  # fmt: skip

CONFIGS: dict[str, Any] = {
    "a number": 3, "a list": [64, 64], "a text": "fast", "an empty text": "", "a mapping of something else": {"a": 1},
    "an empty mapping": {}, "too few": {"BM": 64, "BN": 64}, "a text of too few": "BM=64 BN=64",
    "a size that is no power": {"BM": 48, "BN": 64, "num_warps": 4, "num_stages": 1},
    "a size of zero": {"BM": 0, "BN": 64, "num_warps": 4, "num_stages": 1},
    "a negative size": {"BM": -64, "BN": 64, "num_warps": 4, "num_stages": 1},
    "a huge size": {"BM": 2**40, "BN": 64, "num_warps": 4, "num_stages": 1},
    "a fraction": {"BM": 64.0, "BN": 64, "num_warps": 4, "num_stages": 1},
    "a bool": {"BM": 64, "BN": 64, "num_warps": True, "num_stages": 1},
    "no size": {"BM": None, "BN": 64, "num_warps": 4, "num_stages": 1},
    "no stages": {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 0},
    "many stages": {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 99},
    "three warps": {"BM": 64, "BN": 64, "num_warps": 3, "num_stages": 1},
    "an unknown backend": {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 1, "backend": "abacus"},
    "an axis of another kernel": {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 1, "fuse_dq": 1},
    "the text of another kernel": "BM=64 BN=64 num_warps=4 num_stages=1 fuse_dq=1",
    "a text with something else": "BM=64 BN=64 num_warps=4 num_stages=1; import os",
    "a text with other digits": "BM=６４ BN=64 num_warps=4 num_stages=x",
}  # fmt: skip

OPTIONS: dict[str, dict[str, Any]] = {
    "scale": {"NaN": math.nan, "inf": math.inf, "-inf": -math.inf, "1e39": 1e39, "a huge int": 10**5000, "a text": "1",
              "a bool": True, "a tensor": torch.tensor(1.0), "a list": [1.0], "complex": 1j},
    "deterministic": {"a number": 1, "a text": "yes", "a list": []},
    "backward_config": {"a number": 3, "a text": "fast", "a list": [],
                        "another kernel": {"forward": Config(32, 32, 4, 1)},
                        "no config": {"backward_q": 3}, "a wrong config": {"backward_kv": {"BM": 3}}},
    "return_lse ": {"an unknown keyword": True}, "slope": {"an unknown keyword": 1}, "mask": {"an unknown keyword": Q},
    "attn_mask": {"an unknown keyword": Q}, "is_causal": {"an unknown keyword": True},
    "plan": {"a number": 3, "a text": "plan", "a tuple": (Q, Q)},
}  # fmt: skip


def refuses(module: ModuleType, name: str, **arguments: Any) -> None:
    """That the call is refused with ValueError or TypeError, and the message names the argument and is short."""
    with pytest.raises((ValueError, TypeError)) as caught:
        module.attention(**arguments)
    assert type(caught.value) in (ValueError, TypeError)
    assert name.strip() in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("what", OBJECTS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_what_is_no_tensor(gallery_module: Callable[[str], ModuleType], name: str, what: str) -> None:
    refuses(gallery_module("causal"), f"{name} is ", **({"q": Q, "k": K, "v": V} | {name: OBJECTS[what]}))


@pytest.mark.parametrize("what", TENSORS)
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_a_tensor_of_another_kind(gallery_module: Callable[[str], ModuleType], name: str, what: str) -> None:
    given = {"q": Q, "k": K, "v": V}
    given[name] = TENSORS[what](given[name])
    if (name, what) in RIGHT:
        assert gallery_module("causal").attention(**given).shape == (*given["q"].shape[:3], given["v"].shape[3])
    else:
        with pytest.raises((ValueError, TypeError), match=r"\b[qkv] "):
            gallery_module("causal").attention(**given)


@pytest.mark.parametrize("what", [*INPUTS, *OBJECTS])
@pytest.mark.parametrize("variant", [variant for variant in OWN if variant not in ("causal", "prefix_lm")])
def test_an_input_of_another_kind(gallery_module: Callable[[str], ModuleType], variant: str, what: str) -> None:
    ((name, tensor),) = OWN[variant].items()
    wrong = INPUTS[what](tensor) if what in INPUTS else OBJECTS[what]
    if (variant, what) == ("alibi", "nothing"):
        assert gallery_module(variant).attention(Q, K, V, slopes=None).shape == Q.shape
    else:
        refuses(gallery_module(variant), name, q=Q, k=K, v=V, **{name: wrong})


@pytest.mark.parametrize("variant", [variant for variant in OWN if variant not in ("causal", "prefix_lm", "alibi")])
def test_an_input_that_is_missing(gallery_module: Callable[[str], ModuleType], variant: str) -> None:
    refuses(gallery_module(variant), next(iter(OWN[variant])), q=Q, k=K, v=V)


@pytest.mark.parametrize(
    "value",
    [2.5, True, "3", None, [3], math.nan, 2**31, -(2**31) - 1, 10**5000, Q],
    ids=lambda value: type(value).__name__,
)
def test_a_param_of_another_kind(gallery_module: Callable[[str], ModuleType], value: Any) -> None:
    refuses(gallery_module("prefix_lm"), "prefix", q=Q, k=K, v=V, prefix=value)


@pytest.mark.parametrize("what", CONFIGS)
@pytest.mark.parametrize("option", ["config", "backward_config"])
def test_a_config_that_is_none(gallery_module: Callable[[str], ModuleType], option: str, what: str) -> None:
    if (option == "backward_config" and "axis" in what) or "text of another" in what:
        pytest.skip("it is one of the backward kernels")
    given = CONFIGS[what] if option == "config" else {"backward_q": CONFIGS[what]}
    refuses(gallery_module("causal"), "config", q=Q, k=K, v=V, **{option: given})


@pytest.mark.parametrize(
    ("option", "what"), [(option, what) for option, values in OPTIONS.items() for what in values], ids=lambda text: text
)
def test_an_option_of_another_kind(gallery_module: Callable[[str], ModuleType], option: str, what: str) -> None:
    name = "config" if option == "backward_config" else option
    refuses(gallery_module("causal"), name, q=Q, k=K, v=V, **{option: OPTIONS[option][what]})


@pytest.mark.parametrize("what", ["a number", "a text", "a mapping", "of another shape", "of another module", "of one"])
def test_a_plan_of_something_else(gallery_module: Callable[[str], ModuleType], what: str) -> None:
    module, doc = gallery_module("document"), OWN["document"]["doc"]
    blocks = gallery_module("block_sparse")
    plans: dict[str, Callable[[], Any]] = {
        "a number": lambda: 3,
        "a text": lambda: "plan",
        "a mapping": lambda: {"counts": Q, "tiles": Q},
        "of another shape": lambda: module.plan(*(x.repeat(1, 1, 40, 1) for x in (Q, K, V)), doc=doc.repeat(1, 40)),
        "of another module": lambda: blocks.plan(Q[:, :, :1], K, V, **OWN["block_sparse"]),
        "of one": lambda: module.plan(Q[:1], K[:1], V[:1], doc=doc[:1]),
    }
    refuses(module, "plan", q=Q, k=K, v=V, doc=doc, plan=plans[what]())
