"""The portable kernel that makes dQ, over packed sequences."""

from __future__ import annotations

from flashgen.runtime.kernels.backward_q import BACKWARD_Q_KERNEL
from flashgen.runtime.kernels.varlen import varlen_kernel

BACKWARD_Q_VARLEN_KERNEL = varlen_kernel(BACKWARD_Q_KERNEL)
