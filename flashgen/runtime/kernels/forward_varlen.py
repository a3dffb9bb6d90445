"""The portable forward kernel over packed sequences."""

from __future__ import annotations

from flashgen.runtime.kernels.forward import FORWARD_KERNEL
from flashgen.runtime.kernels.varlen import varlen_kernel

FORWARD_VARLEN_KERNEL = varlen_kernel(FORWARD_KERNEL)
