"""Each variant's operators under torch's own checks: schema, autograd, shapes of traced outputs, dynamic shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from attending import attend, drawn, trainable
from watched_calls import Watch, detached

# An operator takes what the inputs and the schedule of its variant ask for: nothing, numbers of heads, a learned table,
# tensors along keys with a plan. Those of the other variants are as one of these.
NAMES = ["causal", "alibi", "relative_bias", "document"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_torch_finds_nothing_wrong(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    module = gallery_module(name)
    # One tile a head: torch runs each operator a dozen times, and looks at dtypes, shapes and strides alone.
    call, _ = trainable(name, drawn(name, 10, 13))
    with Watch() as watch:
        out, lse = attend(module, call)
        (out.sum() + lse[lse.isfinite()].sum()).backward()
    (forward, taken), (backward, given) = watch.calls
    # A module that was imported before, by another test of this process, leaves these the names with a number.
    named, derived = (re.sub(r"_\d{1,3}$", "", each.name()) for each in (forward, backward))
    assert (forward, derived) == (module.OPERATOR.overload, f"{named}_backward")
    torch.library.opcheck(forward, taken)
    torch.library.opcheck(backward, detached(given))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_nor_with_packed_sequences(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("causal")
    q, k, v = (torch.randn(10, 2, 16, requires_grad=True) for _ in range(3))
    ends = torch.tensor([0, 3, 10], dtype=torch.int32)
    with Watch() as watch:
        out, lse = module.attention_varlen(q, k, v, ends, ends, 7, 7, return_lse=True)
        (out.sum() + lse.sum()).backward()
    (forward, taken), (backward, given) = watch.calls
    assert forward == module.VARLEN_OPERATOR.overload
    torch.library.opcheck(forward, taken)
    torch.library.opcheck(backward, detached(given))


def test_gradients_without_keys_lie_as_others_do(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("relative_bias")
    q = torch.randn(2, 10, 2, 16).transpose(1, 2).requires_grad_()
    packed = torch.randn(2, 10, 16).transpose(0, 1).requires_grad_()
    rel = torch.randn(129, 2).t().requires_grad_()
    ends = torch.tensor([0, 4, 10], dtype=torch.int32)
    with Watch() as watch:
        module.attention(q, q[:, :, :0], q[:, :, :0], rel=rel).sum().backward()
        module.attention_varlen(packed, packed[:0], packed[:0], ends, 0 * ends, 6, 1, rel=rel).sum().backward()
    assert len(watch.calls) == 4
    for operator, given in watch.calls:
        torch.library.opcheck(operator, detached(given), test_utils="test_faketensor")
