"""A kernel of its own, registered by a test: forward in square tiles, for float32 and narrow heads.

Its template lies beside this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashgen import compiling
from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.kernels.forward import forward_view
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.kernel import Kernel, query_tiles
from flashgen.runtime.kernels.portable import key_bytes, portable_constants, portable_options
from flashgen.runtime.launching import relaunch
from flashgen.runtime.meanwhile import Relaunch
from flashgen.runtime.registry import register
from flashgen.runtime.variant import Variant

SQUARE_TEXT = KernelText(
    "forward_square",
    "out and lse, in square tiles",
    lambda views: replace(forward_view(views.facts), name="_forward_square"),
    folder=Path(__file__).parent,
)


def square(size: int, order: int = 0) -> Config:
    return Config(size, size, 4, 1, "square", order=order)


def _launch(
    variant: Variant, call: Call, config: Config, tensors: Mapping[str, Any], by: Relaunch = relaunch
) -> None:  # fmt: skip
    by(
        variant.kernels["forward_square"], (call.layout, call.own, config), tensors,
        lambda: SQUARE.setup(call, config, query_tiles(call, config)),
    )  # fmt: skip


SQUARE = Kernel(
    name="forward_square",
    family="forward",
    backend="square",
    function="_forward_square",
    serves="float32 with heads of at most 64",
    refuses=lambda capability, dtype, head_dim, v_head_dim: (
        "" if dtype == "float32" and max(head_dim, v_head_dim) <= 64 else "it takes float32 with heads of at most 64"
    ),
    domain={"BM": (16, 32, 64), "BN": (16, 32, 64), "num_warps": (4,), "num_stages": (1,), "order": (0, 1)},
    default=lambda form, *sizes: square(32),
    space=lambda task: [square(size, order) for size in (16, 32, 64) for order in (0, 1)],
    starts=(square(64),),
    tried_at_once={"order": 1},
    host_axes=("order",),
    shared_bytes=key_bytes,
    constants=portable_constants,
    options=portable_options,
    launch=_launch,
)


def compiler(path: str) -> Callable[[compiling.Job], Any]:
    """What compiles jobs in a process that knows the kernel."""
    register(SQUARE)
    return compiling.compiler(path)
