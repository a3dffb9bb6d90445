"""The names that generated modules take of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from gallery import VARIANTS

from flashgen.codegen import generate, load_module


def test_a_package_of_another_version_says_that_it_must_be_built_again(tmp_path: Path) -> None:
    package = generate(VARIANTS["causal"], tmp_path)
    text = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(text.replace("runtime.default_plain_config", "runtime.default_older_config"))
    with pytest.raises(AttributeError, match=r"no attribute 'default_older_config'; .*build it again"):
        load_module(package)
