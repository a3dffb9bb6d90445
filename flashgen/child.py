"""What a process that flashgen starts runs first: `python child.py PARENT WHAT ...`, as `processes.command` says.

Nothing is imported from the working folder, where a file may have the name of any module, and the process ends with
the one that started it, however that ends. WHAT is a module that runs as `python -m` runs it, "module:function", or
"exec", whose arguments are a command of another kind.
"""

from __future__ import annotations

import os
import sys

# prctl's, of <linux/prctl.h>.
PR_SET_PDEATHSIG = 1
# How often a system without it is asked who the parent is.
WATCH_SECONDS = 0.1


def main() -> None:
    """`argv` holds the parent's process id, 0 for whoever it is, and what to run."""
    _trust_no_folder()
    parent, what, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    end_with(parent or os.getppid())
    if what == "exec":
        os.execvp(arguments[0], arguments)
    _load_package()
    sys.argv = [what, *arguments]
    if ":" in what:
        from pkgutil import resolve_name

        sys.exit(resolve_name(what)())
    from runpy import run_module

    run_module(what, run_name="__main__", alter_sys=True)


def end_with(parent: int) -> None:
    """End this process when that one ends, its parent: at once on Linux, elsewhere a moment later.

    Linux takes the end of the thread that started a process for that of its parent: see `processes.start`.
    """
    told = _is_told()
    if os.getppid() != parent:  # It has ended before it could be told.
        os._exit(1)
    if not told:
        from threading import Thread

        Thread(target=_watch, args=(parent,), daemon=True).start()


def _is_told() -> bool:
    """Whether the kernel will end this process."""
    if sys.platform != "linux":
        return False
    import ctypes
    from signal import SIGKILL

    return ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(SIGKILL), 0, 0, 0) == 0


def _watch(parent: int) -> None:
    from time import sleep

    while os.getppid() == parent:
        sleep(WATCH_SECONDS)
    os._exit(1)


def trusted_path() -> list[str]:
    """`sys.path` without the working folder, which `python -m` and an interactive Python put there.

    It stays where PYTHONPATH names it in full.
    """
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    return [entry for entry in sys.path if os.path.isabs(entry) and (entry in named or not _is_working_folder(entry))]


def _is_working_folder(entry: str) -> bool:
    try:
        return os.path.samefile(entry, os.curdir)
    except OSError:  # There is no such folder, or the working folder has been removed.
        return False


def _trust_no_folder() -> None:
    """Python 3.10, which knows no PYTHONSAFEPATH, puts this file's folder first: what is in it is of this package."""
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [entry for entry in trusted_path() if os.path.realpath(entry) != here]


def _load_package() -> None:
    """This very flashgen, wherever it is: its folder need not be among those that modules are found in."""
    from importlib.util import module_from_spec, spec_from_file_location

    here = os.path.dirname(os.path.abspath(__file__))
    spec = spec_from_file_location("flashgen", os.path.join(here, "__init__.py"), submodule_search_locations=[here])
    assert spec is not None and spec.loader is not None
    sys.modules["flashgen"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["flashgen"])


if __name__ == "__main__":
    main()
