"""Which files a mod's code is in."""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

_FOREIGN = tuple(Path(file).parent for file in (torch.__file__, np.__file__, __file__))
_PATHS = sysconfig.get_paths()
# Where Python is installed for all, packages lie in a folder of its own library.
_LIBRARY, _INSTALLED = Path(_PATHS["stdlib"]), (Path(_PATHS["purelib"]), Path(_PATHS["platlib"]))


@lru_cache(maxsize=4096)
def is_foreign(file: str) -> bool:
    """Whether a file has no code of a mod: one of Python's own, of torch's, or none at all, as of a prompt."""
    path = Path(file)
    if _lies_in(path, *_FOREIGN) or not path.is_file():
        return True
    return _lies_in(path, _LIBRARY) and not _lies_in(path, *_INSTALLED)


def _lies_in(path: Path, *folders: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
