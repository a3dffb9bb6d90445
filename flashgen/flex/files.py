"""Which files a mod's code is in."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import torch

_FOREIGN = (
    *(str(Path(file).parent) for file in (torch.__file__, np.__file__, __file__)),
    sysconfig.get_paths()["stdlib"],
)


def is_foreign(file: str) -> bool:
    """Whether a file has no code of a mod."""
    return file.startswith(_FOREIGN) or not Path(file).is_file()
