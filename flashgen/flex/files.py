"""Which files a mod's code is in."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

_FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__).parent), sysconfig.get_paths()["stdlib"])


def is_foreign(file: str) -> bool:
    """Whether a file has no code of a mod."""
    return file.startswith(_FOREIGN) or not Path(file).is_file()
