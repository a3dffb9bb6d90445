"""What flex_attention built is found on disk, by other processes too, and written anew where it came to harm."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flex_mods as mods
import pytest
import torch
from flex_beside_torch import by_torch

from flashgen.flex import flex_attention, kept, kernels
from flashgen.runtime.record_folders import cache_folder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = mods.BATCH, mods.HEADS, mods.LENGTH, 16
    return [torch.randn(shape, generator=generator).to(DEVICE) for _ in range(3)]


def test_what_was_built_is_found_on_disk(traces: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors()

    def eighth(score, b, h, q, k):
        return score * 0.125 + h

    first = flex_attention(q, k, v, eighth)
    (spec,) = Path(cache_folder(), "flex").glob("*/eighth.yaml")
    assert spec.read_text() == (
        "name: eighth\ndescription: FlexAttention with eighth.\nalign: top_left\nscore: score * 0.125 + h\n"
    )
    kernels.forget()
    monkeypatch.setattr(kept, "generate", None)
    assert torch.equal(flex_attention(q, k, v, eighth), first)
    assert len(traces) == 2


@pytest.mark.parametrize("other", [(9, 0.5), (40, -3.0)])
def test_other_numbers_find_it_on_disk(monkeypatch: pytest.MonkeyPatch, other: tuple[int, float]) -> None:
    q, k, v = tensors()

    def near(width: int, steep: float) -> Callable[..., Any]:
        def nearby(score, b, h, q, k):
            return torch.where((q - k).abs() < width, score * steep, -float("inf"))

        return nearby

    flex_attention(q, k, v, near(4, 2.0))
    kernels.forget()
    monkeypatch.setattr(kept, "generate", None)
    mod = near(*other)
    want = by_torch(mod, None)(q.double(), k.double(), v.double())
    torch.testing.assert_close(flex_attention(q, k, v, mod).double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["harmed.yaml", "harmed/__init__.py", "harmed/forward.py"])
def test_what_came_to_harm_on_disk_is_written_anew(name: str) -> None:
    q, k, v = tensors()

    def harmed(score, b, h, q, k):
        return score * 0.375 + h

    first = flex_attention(q, k, v, harmed)
    (file,) = Path(cache_folder(), "flex").glob(f"*/{name}")
    file.write_text("name: [")
    kernels.forget()
    assert torch.equal(flex_attention(q, k, v, harmed), first)


def test_processes_that_start_together_write_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    generate, writing, most = kept.generate, 0, 0

    def slow(*arguments: Any) -> Any:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        time.sleep(0.2)
        found = generate(*arguments)
        writing -= 1
        return found

    monkeypatch.setattr(kept, "generate", slow)
    spec = {"name": "started_together", "align": "top_left", "score": "score + q"}
    with ThreadPoolExecutor(3) as pool:
        modules = list(pool.map(kept.kept_module, [spec] * 3, ["flex"] * 3))
    assert most == 1
    assert all(callable(module.attention) for module in modules)


def a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = folder / "file"
    file.write_text("")
    return str(file)


def no_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return "~nobody_of_this_name/cache"


def full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """It is full when the package is being written, whose spec there was room for."""
    written = os.fsync

    def refused(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").startswith(str(folder)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(handle)

    monkeypatch.setattr(os, "fsync", refused)
    return str(folder)


@pytest.mark.parametrize("refusing", [a_file, no_home, full_disk], ids=lambda each: each.__name__)
def test_where_nothing_can_be_written_kernels_last_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: Callable[..., str]
) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", refusing(tmp_path, monkeypatch))
    kernels.forget()
    q, k, v = tensors()
    with pytest.warns(UserWarning, match="nothing can be kept in the cache"):
        out = flex_attention(q, k, v, mods.softcap)
    want = by_torch(mods.softcap, None)(q.double(), k.double(), v.double())
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-5)
