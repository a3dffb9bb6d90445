"""The launchers that Triton 3.6 has the C compiler make, one for each signature, before a kernel's first launch.

Triton 3.9 has one for all kernels.
"""

from __future__ import annotations

import contextlib
import subprocess

from triton.backends.nvidia import driver
from triton.compiler import CompiledKernel


def make_launcher(compiled: CompiledKernel) -> None:
    """Leave the launcher of a kernel for NVIDIA's GPUs in Triton's cache, where the launch finds it.

    Where it cannot be made, without a driver or a C compiler, a launch says so.
    """
    if hasattr(driver, "make_launcher") and "cubin" in compiled.asm:
        with contextlib.suppress(AssertionError, OSError, RuntimeError, subprocess.CalledProcessError):
            driver.CudaLauncher(compiled.src, compiled.metadata)
