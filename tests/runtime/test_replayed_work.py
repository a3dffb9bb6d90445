"""What a layout decides is found out once: calls that repeat one made before do none of that work again."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any

import pytest
import torch

from flashgen.bench.unlaunched import calls_of, is_repeated, unlaunched
from flashgen.runtime import replay
from flashgen.runtime.replay import Replay
from flashgen.runtime.tracing import Tracer

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tensors of the CPU stand for those of a GPU")

Modules = Callable[[str], ModuleType]
# Calls until one is a replay, and one more.
FIRST = 4
# Whose functions find out what follows from how tensors lie.
OF_LAYOUTS = (
    "backward_pass", "call", "declared", "decoding", "decoding_paged", "descriptors", "described", "forward_pass",
    "kernels", "lookup", "own", "packed_sizes", "paged", "planning_paged", "streams",
)  # fmt: skip
OF_VIEWS = {"as_strided", "squeeze", "transpose", "unsqueeze", "view", "split"}
FORMS = ["forward", "forward+backward", "varlen", "varlen, forward+backward", "decode", "paged", "paged with a plan"]


@contextmanager
def watched() -> Iterator[list[str]]:
    """The functions of the runtime that are called within the block, and those of torch in C, by their names."""
    seen: list[str] = []

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith("flashgen.runtime."):
                seen.append(f"{module.removeprefix('flashgen.runtime.')}.{frame.f_code.co_name}")
        elif event == "c_call":
            seen.append(function.__name__)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(before)


@pytest.fixture
def calls(gallery_module: Modules) -> Iterator[dict[str, Callable[[], object]]]:
    """The calls that are timed without a GPU, none of them made yet."""
    with unlaunched():
        yield calls_of(gallery_module("causal"))


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_is_repeated_asks_nothing_that_its_layout_decides(
    calls: dict[str, Callable[[], object]], form: str
) -> None:
    call = calls[form]
    for _ in range(FIRST):
        kept = call()  # at the addresses of the last but one, from the third on
    with watched() as seen:
        kept = call()
    assert kept is not None and "replay.__call__" in seen
    new_addresses = "replay._handed" in seen
    again = [name for name in seen if name.split(".")[0] in OF_LAYOUTS]
    if new_addresses:
        again = [name for name in again if not name.startswith(("descriptors.", "described.", "streams."))]
    assert not again
    assert not OF_VIEWS & set(seen)


def test_packed_sequences_have_no_views_in_their_graph(
    calls: dict[str, Callable[[], object]], gallery_module: Modules
) -> None:
    q, k, v = (torch.randn(64, 2, 64).bfloat16().requires_grad_() for _ in range(3))
    ends = torch.tensor([0, 24, 64], dtype=torch.int32)
    for _ in range(FIRST):
        out, lse = gallery_module("causal").attention_varlen(q, k, v, ends, ends, 40, 40, return_lse=True)
        nodes = [node.name() for node, _ in out.grad_fn.next_functions if node is not None]
        assert nodes == ["torch::autograd::AccumulateGrad"] * 3
        assert not out._is_view() and not lse._is_view() and out.is_contiguous()


def test_new_addresses_ask_triton_alone(calls: dict[str, Callable[[], object]]) -> None:
    call = calls["paged with a plan"]
    for _ in range(FIRST):
        call()
    replay._handed.clear()
    with watched() as seen:
        call()
    # Not one by one for the arguments of a launch: as often as there are launches, two.
    often = Counter(name for name in seen if name.startswith(("replay.", "described.")) and "<" not in name)
    assert often["replay._handed"] == 1 and max(often.values()) == 2


def test_the_bench_says_whether_a_call_is_repeated(
    calls: dict[str, Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(FIRST):
        calls["varlen"]()
    assert is_repeated(calls["varlen"])
    monkeypatch.setattr(Replay, "is_ready", lambda self: False)
    assert not is_repeated(calls["varlen"])


def test_what_is_returned_whole_in_another_form_is_made_in_it() -> None:
    x = torch.zeros(2, 3, 4)
    with Tracer([x]) as tracer:
        turned, part, twice = (x.new_empty((4, 6)) for _ in range(3))
        results = tracer.results([turned.t(), part[:2], twice.t(), twice])
    assert not tracer.refused
    with unlaunched():
        made = Replay(tracer, [0], results, [x])([x])
    assert [each.shape for each in made] == [(6, 4), (2, 6), (6, 4), (4, 6)]
    assert [each.stride() for each in made] == [(1, 6), (6, 1), (1, 6), (6, 1)]
    assert [each._is_view() for each in made] == [False, True, True, False]
    assert made[2].data_ptr() == made[3].data_ptr()


def test_writing_a_call_down_loads_nothing_of_torch_compile() -> None:
    script = (
        "import sys, torch, warnings; warnings.simplefilter('ignore')\n"
        "from flashgen.runtime.tracing import Tracer\n"
        "with Tracer([]) as tracer: torch.empty(3)\n"
        "assert len(tracer.buffers) == 1\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
