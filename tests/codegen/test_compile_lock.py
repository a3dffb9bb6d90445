"""Of processes that compile the same kernel at once the first compiles it."""

import threading
from types import SimpleNamespace

import pytest
import triton

from flashgen.codegen.compile_lock import compile_lock
from flashgen.codegen.offline import gpu_target

TARGET = gpu_target("sm_90")


def source(text: str) -> SimpleNamespace:
    return SimpleNamespace(hash=lambda: text, parse_options=dict)


def test_the_same_kernel_waits_and_another_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "cache"))
    entered = []

    def compile_too(text, options):
        with compile_lock(source(text), TARGET, options):
            entered.append((text, options["num_warps"]))

    with compile_lock(source("a"), TARGET, {"num_warps": 4}):
        asked = [("b", 4), ("a", 8), ("a", 4)]
        threads = [threading.Thread(target=compile_too, args=(text, {"num_warps": n})) for text, n in asked]
        for thread in threads:
            thread.start()
        for thread in threads[:2]:
            thread.join(30)
        assert sorted(entered) == [("a", 8), ("b", 4)] and threads[2].is_alive()
    threads[2].join(30)
    assert entered[2:] == [("a", 4)]
    assert not list((tmp_path / "cache").iterdir())


def test_a_compilation_that_fails_leaves_no_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    with pytest.raises(ZeroDivisionError), compile_lock(source("a"), TARGET, {}):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())


def test_a_cache_that_cannot_be_locked_is_no_reason_not_to_compile(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path / "file"))
    with compile_lock(source("a"), TARGET, {}):
        entered = True
    assert entered


def test_options_that_are_triton_s_own_make_no_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    names = []
    for options in ({"num_warps": 4}, {"num_warps": 4, "num_ctas": 1}):
        with compile_lock(source("a"), TARGET, options):
            names += [path.name for path in tmp_path.iterdir()]
    assert len(names) == 2 and len(set(names)) == 1
