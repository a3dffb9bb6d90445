"""The examples as modules."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def gpt(repository: Path) -> ModuleType:
    """examples/gpt.py."""
    spec = spec_from_file_location("gpt", repository / "examples" / "gpt.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Its dataclasses look for their module here.
    sys.modules["gpt"] = module
    spec.loader.exec_module(module)
    return module
