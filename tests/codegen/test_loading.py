"""Packages are imported as they are on disk now."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path

import pytest
import torch

from flashgen.codegen import generate, load_module
from flashgen.errors import UsageError
from flashgen.files import write_if_changed
from flashgen.spec import load

CAUSAL = load({"name": "mine", "description": "causal", "causal": True})
WINDOW = load({"name": "mine", "description": "window", "window": {"left": 5, "right": 0}})
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("file", ["__init__.py", "kernel.py"])
def test_a_package_is_imported_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "mine"
    write_if_changed(path / "__init__.py", "from .kernel import ANSWER\n")
    for number in range(5):
        write_if_changed(path / file, f"ANSWER = {number}\n")
        # The same second and the same length: bytecode of the earlier text would pass for this one's.
        assert int(load_module(path).ANSWER) == number


def test_a_file_is_a_module_too(tmp_path: Path) -> None:
    write_if_changed(tmp_path / "alone.py", "ANSWER = 3\n")
    assert load_module(tmp_path / "alone.py").ANSWER == 3


def test_packages_imported_apart_stay_apart(tmp_path: Path) -> None:
    first = load_module(generate(CAUSAL, tmp_path / "one"))
    second = load_module(generate(WINDOW, tmp_path / "two"))
    assert first.__name__ != second.__name__
    assert sys.modules[first.__name__] is first
    assert first.IDENTITY.spec != second.IDENTITY.spec
    assert first._forward is not second._forward
    assert load_module(Path(str(first.__file__))).IDENTITY == first.IDENTITY


def test_every_name_of_a_package_s_kernels_is_in_its_namespace(tmp_path: Path) -> None:
    module = load_module(generate(CAUSAL, tmp_path))
    assert module.__name__.startswith("flashgen_generated.mine_")
    assert module._forward.fn.__module__ == f"{module.__name__}.forward"


def test_reload_has_the_kernels_of_another_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs `__init__.py` alone: attention went on by the kernels of the build before, beside the new formula."""
    monkeypatch.syspath_prepend(tmp_path)
    path = generate(CAUSAL, tmp_path / "rebuilt_variants")
    package = importlib.import_module(f"rebuilt_variants.{path.name}")
    q = torch.randn(1, 2, 20, 16, device=DEVICE)
    earlier, expected = package.attention, package.reference(q, q, q)
    generate(WINDOW, path.parent)
    importlib.reload(package)
    torch.testing.assert_close(package.attention(q, q, q), package.reference(q, q, q))
    torch.testing.assert_close(earlier(q, q, q), package.reference(q, q, q))
    assert not torch.allclose(package.reference(q, q, q), expected)


def test_torch_compile_tells_packages_of_one_name_apart(tmp_path: Path) -> None:
    """It finds modules by their names: it gave both layers the kernels of one."""
    modules = [load_module(generate(each, tmp_path / each.description)) for each in (CAUSAL, WINDOW)]
    q = torch.randn(1, 2, 20, 16, device=DEVICE)

    def layers(q: torch.Tensor) -> torch.Tensor:
        return torch.stack([each.attention(q, q, q) for each in modules])

    found = torch.compile(layers, fullgraph=True, backend="eager")(q)
    torch.testing.assert_close(found, torch.stack([each.reference(q, q, q) for each in modules]))


def test_functions_of_packages_of_one_name_are_pickled(tmp_path: Path) -> None:
    for each in (CAUSAL, WINDOW):
        module = load_module(generate(each, tmp_path))
        assert pickle.loads(pickle.dumps(module.attention)) is module.attention


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^no generated module at .*none; expected one made by `flashgen build`$"):
        load_module(tmp_path / "none")
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(UsageError, match=r"^no generated module at .*text\.txt"):
        load_module(tmp_path / "text.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"^no generated module at .*empty"):
        load_module(tmp_path / "empty")
