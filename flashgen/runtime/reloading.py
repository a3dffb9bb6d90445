"""Generated packages that are imported again, as by importlib.reload in a notebook, after another build."""

from __future__ import annotations

import sys


def forget_files(package: str) -> None:
    """Have a package's files imported again with it: reload runs `__init__.py` alone, beside the kernels as they were.

    Whoever has what they defined keeps that.
    """
    # The whole list at once: other threads may be importing.
    for name in [*sys.modules]:
        if name.startswith(f"{package}."):
            del sys.modules[name]
