"""Few queries over many keys, in the interpreter: every variant's decode kernel beside its reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gallery import NAMES, VARIANTS

from flashgen.codegen import generate, load_module
from flashgen.problems.problem import Problem
from flashgen.runtime import decoding
from flashgen.runtime.kernels import decode
from flashgen.spec import load
from flashgen.verify import Case, run_case

# Groups of 2, of 8 and of 1; one query and several; splits that end inside a tile; head dimensions of all kinds.
PROBLEMS = [
    Problem(2, 4, 2, 1, 700, 64, 64, "float32"),
    Problem(1, 8, 1, 5, 1500, 32, 32, "bfloat16"),
    Problem(1, 3, 3, 16, 513, 20, 40, "float16"),
    Problem(1, 32, 1, 3, 600, 16, 16, "float32"),
    Problem(1, 2, 1, 2, 600, 64, 20, "float32"),
    Problem(1, 2, 1, 1, 520, 512, 260, "bfloat16"),
]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that the decode launch has launched so far, by name."""
    found: list[str] = []
    relaunch = decode.relaunch

    def noted(kernel: object, *arguments: object, **named: object) -> None:
        found.append(kernel.fn.__name__)
        relaunch(kernel, *arguments, **named)

    monkeypatch.setattr(decode, "relaunch", noted)
    return found


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_few_queries_agree_with_the_reference(
    gallery_module: Callable[[str], ModuleType], launched: list[str], name: str, problem: Problem
) -> None:
    result = run_case(gallery_module(name), VARIANTS[name], Case("decode", problem, return_max=True), "cpu")
    assert result.ok, result
    assert launched[0] == "_decode"


@pytest.mark.parametrize("splits", [1, 2, 7])
def test_the_number_of_splits_changes_nothing(
    gallery_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, splits: int
) -> None:
    """More splits than tiles included, of which some see nothing."""
    monkeypatch.setattr(decode, "even_splits", lambda *_: splits)
    problem = Problem(1, 4, 2, 2, 530, 16, 16, "float32")
    for name in ("sliding_window", "sink", "relative_bias", "dilated"):
        result = run_case(gallery_module(name), VARIANTS[name], Case("decode", problem, return_max=True), "cpu")
        assert result.ok, (name, result)


def test_gradients_follow_from_what_decode_returns(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("causal")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, length, 16, requires_grad=True) for length in (3, 520, 520))
    found, wanted = (
        torch.autograd.grad(attention(q, k, v).square().sum(), (q, k, v))
        for attention in (module.attention, module.reference)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_splits_fill_the_gpu_evenly() -> None:
    assert decoding.even_splits(8, 2048, 264) == 33
    assert decoding.even_splits(128, 128, 264) == 2
    # One split keeps all busy, or there is nothing to split.
    assert decoding.even_splits(264, 64, 264) == 1
    assert decoding.even_splits(8, 1, 264) == 1


@pytest.mark.parametrize("kv_len", [542, 544, 546, 551])
def test_a_tile_may_begin_and_end_amid_the_heads_of_a_query(tmp_path: Path, kv_len: int) -> None:
    """Of 32 rows, where six heads share keys; its first and last query stand at either end of a tile of keys."""
    module = load_module(generate(load({"name": "near", "window": {"left": 6, "right": 0}}), tmp_path))
    random = torch.Generator().manual_seed(kv_len)
    q, k, v = (torch.randn(1, heads, n, 16, generator=random) for heads, n in ((6, 7), (1, kv_len), (1, kv_len)))
    away = torch.arange(kv_len - 7, kv_len)[:, None] - torch.arange(kv_len)
    scores = (q.double() @ k.double().mT / 4).masked_fill((away < 0) | (away > 6), -torch.inf)
    torch.testing.assert_close(
        module.attention(q, k, v).double(), scores.softmax(-1) @ v.double(), rtol=1e-5, atol=1e-5
    )
