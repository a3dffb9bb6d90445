"""A kernel is compiled in a thread of its own, which ends with the block; what goes wrong there is left to launches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from flashgen.runtime import launching, meanwhile
from flashgen.runtime.kernels import schedule

X = torch.zeros(4)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Kernel:
    """As far as it is compiled: `compiler` is called then."""

    arg_names = ("x_ptr", "size", "BLOCK")
    fn = None
    __name__ = "_kernel"

    def __init__(self, compiler: Callable[[], object]) -> None:
        self.pre_run_hooks: list[object] = []
        self.compiler = compiler
        self.compiled: list[tuple[tuple[Any, ...], Mapping[str, Any], int]] = []

    def warmup(self, *arguments: Any, **options: Any) -> None:
        self.compiled.append((arguments, options, threading.get_ident()))
        self.compiler()

    def launched(self, by: meanwhile.Relaunch) -> None:
        setup = launching.Setup(3, {"size": 4}, {"BLOCK": 16}, {"num_warps": 1})
        by(self, ("key",), {"x_ptr": X}, lambda: setup)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda gpu: nullcontext())


def test_it_is_compiled_for_its_launch_while_the_block_runs() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def compiler() -> None:
        begun.set()
        assert go_on.wait(30)
        ended.set()

    kernel = Kernel(compiler)
    before = threading.active_count()
    with meanwhile.compiled_meanwhile(0, kernel.launched):
        assert begun.wait(30)
        assert not ended.is_set()
        go_on.set()
    assert ended.is_set()
    assert threading.active_count() == before
    ((arguments, options, thread),) = kernel.compiled
    assert arguments[0] is X and arguments[1:] == (4,)
    assert options == {"grid": (3,), "BLOCK": 16, "num_warps": 1, "enable_fp_fusion": True}
    assert thread != threading.get_ident()


def test_an_error_of_the_compiler_is_left_to_the_launch() -> None:
    kernel = Kernel(lambda: 1 / 0)
    with meanwhile.compiled_meanwhile(0, kernel.launched):
        pass
    assert len(kernel.compiled) == 1


def test_an_error_in_the_block_comes_through_when_the_thread_has_ended() -> None:
    begun = threading.Event()
    kernel = Kernel(begun.set)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError), meanwhile.compiled_meanwhile(0, kernel.launched):
        _ = 1 / 0
    assert begun.is_set()
    assert threading.active_count() == before


def test_a_kernel_with_hooks_is_left_alone() -> None:
    kernel = Kernel(lambda: None)
    kernel.pre_run_hooks.append(print)
    with meanwhile.compiled_meanwhile(0, kernel.launched):
        pass
    assert not kernel.compiled


def test_who_listens_to_the_compiler_hears_it_in_the_thread_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meanwhile, "launches_freely", lambda gpu: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.version, "hip", None)
    assert meanwhile.compiles_freely(0)
    for knobs, name in (
        (triton.knobs.runtime, "jit_cache_hook"), (triton.knobs.runtime, "jit_post_compile_hook"),
        (triton.knobs.compilation, "listener"),
    ):  # fmt: skip
        with monkeypatch.context() as now:
            now.setattr(knobs, name, lambda **_: None)
            assert not meanwhile.compiles_freely(0)
    for owner, name, value in (
        (torch.cuda, "is_current_stream_capturing", lambda: True), (torch.version, "hip", "7.0"),
        (meanwhile, "launches_freely", lambda gpu: False),
    ):  # fmt: skip
        with monkeypatch.context() as now:
            now.setattr(owner, name, value)
            assert not meanwhile.compiles_freely(0)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Mapping[str, Any]]]:
    """What would be compiled beside a schedule, were each launch of what makes it the first on a GPU."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    relaunch = launching.relaunch

    def for_the_first_time(kernel: Any, key: Any, given: Mapping[str, Any], setup: Callable[[], Any]) -> None:
        if (first := setup().first) is not None:
            first()
        relaunch(kernel, key, given, setup)

    def note(gpu: int, kernel: Any, given: Mapping[str, Any], setup: launching.Setup) -> None:
        arguments, _ = setup.arguments(kernel, given)
        found.append((kernel.fn.__name__, dict(zip(kernel.arg_names, arguments, strict=False))))

    monkeypatch.setattr(schedule, "relaunch", for_the_first_time)
    monkeypatch.setattr(schedule, "compiles_freely", lambda gpu: True)
    monkeypatch.setattr(meanwhile, "_compile", note)
    return found


def test_the_forward_kernel_is_compiled_beside_its_schedule(
    gallery_module: Callable[[str], ModuleType], compiled: list[tuple[str, Mapping[str, Any]]]
) -> None:
    module = gallery_module("document")
    q, k, v = (torch.randn(1, 2, 40, 16, device=DEVICE) for _ in range(3))
    doc = torch.arange(40, dtype=torch.int32, device=DEVICE)[None] // 9
    out = module.attention(q, k, v, doc=doc)
    torch.testing.assert_close(out, module.reference(q, k, v, doc=doc))
    name, given = compiled[0]
    assert name == "_forward"
    assert given["q_ptr"] is q
    assert {given[part].dtype for part in ("counts_ptr", "tiles_ptr")} == {torch.int32}


def test_so_it_is_not_where_there_is_a_plan(
    gallery_module: Callable[[str], ModuleType], compiled: list[tuple[str, Mapping[str, Any]]]
) -> None:
    module = gallery_module("document")
    q, k, v = (torch.randn(1, 2, 40, 16, device=DEVICE) for _ in range(3))
    doc = torch.arange(40, dtype=torch.int32, device=DEVICE)[None] // 9
    module.attention(q, k, v, doc=doc, plan=module.plan(q, k, v, doc=doc))
    assert not compiled


def test_what_comes_first_comes_before_a_first_launch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    class Launched(SimpleNamespace):
        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *arguments, **constants: done.append("launched")

    kernel = Launched(pre_run_hooks=[])
    launching._launch_here(kernel, 3, 0, (X,), {}, lambda: done.append("first"))
    assert done == ["first", "launched"]
    kernel.pre_run_hooks.append(print)
    launching._launch_here(kernel, 3, 0, (X,), {}, lambda: done.append("first"))
    assert done == ["first", "launched", "launched"]
