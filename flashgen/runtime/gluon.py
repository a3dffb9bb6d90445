"""Where versions of Gluon, Triton's language of layouts and barriers, differ."""

from __future__ import annotations

from triton.experimental.gluon.language.nvidia.hopper import tma

# Global memory to shared memory by TMA, by its name before and after Triton 3.7.
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
# The way back.
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
