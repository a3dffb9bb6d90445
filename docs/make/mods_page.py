"""FlexAttention's mods and the specs that they amount to, side by side, from the tests of `flashgen.flex`."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from flashgen.flex import to_spec
from flashgen.flex.text import yaml_of

# Mods of tests/flex_mods.py that are functions of their own.
SHOWN = (
    "causal", "sliding_window", "document", "natten", "big_bird", "alibi", "softcap", "relative", "bucketed", "gemma2",
    "swin", "t5_bidirectional",
)  # fmt: skip


def page() -> str:
    """The page: for each mod its Python beside the YAML that `flashgen convert` writes."""
    sys.path.insert(0, "tests")
    import flex_mods

    by_name = {mod.name: mod for mod in flex_mods.MODS}
    return "\n".join(
        [
            "# Mods and specs side by side\n",
            "Made from `tests/flex_mods.py`, whose 80 mods are each held against FlexAttention in float64, called as",
            "they are and through the YAML that `flashgen convert` writes. Captured tensors become inputs, captured",
            "numbers params. Both ways render the same kernels.\n",
            *(part for name in SHOWN for part in pair(by_name[name])),
        ]
    ).replace("80 mods", f"{len(flex_mods.MODS)} mods")


def pair(mod: Any) -> Iterator[str]:
    functions = [each for each in (mod.score, mod.mask) if each is not None]
    spec, *_ = to_spec(mod.score, mod.mask, name=mod.name)
    python = "\n\n".join(source(each) for each in functions)
    yield f'## {mod.name}\n\n<div class="pair" markdown>\n'
    yield f"```python\n{python}```\n\n```yaml\n{yaml_of(spec)}```\n\n</div>\n"


def source(function: Callable[..., Any]) -> str:
    return textwrap.dedent(inspect.getsource(function))
