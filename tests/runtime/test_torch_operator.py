from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch

from flashgen.codegen import load_module
from flashgen.runtime import Config
from flashgen.runtime.torch_operator import operator

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_an_operator_runs_and_is_traced() -> None:
    double = operator(
        "test_double",
        "(Tensor x, float? by) -> Tensor",
        lambda x, by: x * (by or 2),
        lambda x, by: x.new_empty(x.shape),
    )
    x = torch.ones(3)
    assert double(x, None).tolist() == [2.0, 2.0, 2.0]
    assert double(x, 3.0).tolist() == [3.0, 3.0, 3.0]
    assert double(torch.ones(5, device="meta"), None).shape == (5,)


def test_registering_a_name_again_leaves_the_first_as_it_was() -> None:
    fake = lambda x: x.new_empty(x.shape)  # noqa: E731
    first = operator("test_again", "(Tensor x) -> Tensor", lambda x: x + 1, fake)
    second = operator("test_again", "(Tensor x) -> Tensor", lambda x: x + 2, fake)
    assert second(torch.zeros(1)).item() == 2.0
    assert first(torch.zeros(1)).item() == 1.0


def test_a_name_is_shared_by_operators_of_one_signature() -> None:
    """One of another is of a file that another flashgen exported: torch would call it with the wrong arguments."""
    x = torch.ones(2, device="meta")  # goes through torch's dispatcher
    shape = lambda x: x.new_empty(x.shape)  # noqa: E731
    first = operator("test_shared", "(Tensor x) -> Tensor", torch.clone, shape, shared=True)
    same = operator("test_shared", "(Tensor x) -> Tensor", torch.clone, shape, shared=True)
    other = operator("test_shared", "(Tensor x, int by) -> Tensor", torch.mul, lambda x, by: shape(x), shared=True)
    again = operator("test_shared", "(Tensor x, int by) -> Tensor", torch.mul, lambda x, by: shape(x), shared=True)
    assert first.overload is same.overload and other.overload is again.overload
    assert first(x).shape == other(x, 3).shape == (2,)


def test_a_module_may_be_imported_again(gallery_module: Callable[[str], ModuleType]) -> None:
    first = gallery_module("causal")
    again = load_module(str(first.__file__))  # type: ignore[arg-type]
    q = torch.randn(1, 2, 20, 16, device=DEVICE)
    config = Config(32, 32, 4, 1)
    assert torch.equal(first.attention(q, q, q, config=config), again.attention(q, q, q, config=config))
