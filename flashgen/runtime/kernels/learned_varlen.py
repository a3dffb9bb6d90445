"""The portable kernel that makes the gradients of learned inputs, over packed sequences."""

from __future__ import annotations

from flashgen.runtime.kernels.learned import LEARNED_KERNEL
from flashgen.runtime.kernels.varlen import varlen_kernel

LEARNED_VARLEN_KERNEL = varlen_kernel(LEARNED_KERNEL)
