"""Where tuned records lie: the user's own, and those that are shipped beside kernels."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flashgen.runtime.record_files import warn_once


class NoCacheFolder(OSError):
    """There is no folder for the user's records: nobody has named one, and the user has no home."""


def cache_folder() -> Path:
    """`FLASHGEN_CACHE_DIR`, else the platform's cache folder (the same as `platformdirs.user_cache_dir` names).

    NoCacheFolder where that is below the home of a user who has none.
    """
    try:
        return _cache_folder()
    except RuntimeError as error:
        raise NoCacheFolder(
            f"there is no folder for the cache: {str(error).rstrip('.')}; name one in FLASHGEN_CACHE_DIR, in full"
        ) from error


def _cache_folder() -> Path:
    chosen = os.environ.get("FLASHGEN_CACHE_DIR", "").strip()
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA", "").strip()
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "flashgen" / "flashgen" / "Cache"
    xdg = os.environ.get("XDG_CACHE_HOME", "").strip()
    if xdg and os.path.isabs(xdg):
        return Path(xdg) / "flashgen"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "flashgen"


def user_root() -> Path:
    """The folder of the user's own records, which has one for each variant."""
    return cache_folder() / "tuned"


def shipped_root(module_file: str | os.PathLike[str]) -> Path:
    """The folder of the records that are shipped with a package, by the path of its `__init__.py`."""
    return shipped_in(Path(module_file).parent)


def shipped_in(package: Path) -> Path:
    """The folder of the records that are shipped with a package, by the package's path."""
    return package / "tuned"


def record_folders(variant: str, shipped: Path) -> dict[str, Path]:
    """The folders in which a variant's records are looked for, by the name of the source, in this order."""
    try:
        return {"user cache": user_root() / variant, "shipped": shipped}
    except NoCacheFolder as error:
        warn_once(("no cache folder",), str(error))
        return {"shipped": shipped}
