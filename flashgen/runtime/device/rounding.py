"""How a kernel is compiled whose numbers another kernel must find again to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Jitted = TypeVar("Jitted", bound=Callable[..., Any])


def without_fma(function: Jitted) -> Jitted:
    """Below @jit: the kernel's products and sums are rounded one by one, and never joined in fused multiply-adds.

    Which of them a compiler joins differs from kernel to kernel, and a score of 1e9 is rounded by up to 32.
    """
    function.without_fma = True  # type: ignore[attr-defined]
    return function


def compiled_with(kernel: Any) -> dict[str, Any]:
    """The options of a launch that a kernel itself asks for; by name, as Triton's own default is about to change."""
    return {"enable_fp_fusion": not getattr(kernel.fn, "without_fma", False)}
