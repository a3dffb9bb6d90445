"""Mods in a file of Python as the text of a spec that a person then owns."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from flashgen.errors import UsageError
from flashgen.flex.kernels import variant_name
from flashgen.flex.spec import meaning
from flashgen.flex.text import yaml_of
from flashgen.printable import in_short, on_one_line

_LONG = 200
_COMMENTS = {
    "align": "FlexAttention counts queries from 0, also where there are fewer than keys; a decoder has bottom_right.",
    "params": "Numbers that the mod reads: arguments of attention(), with their values of today.",
}


def converted(mod: str, mask: str | None = None) -> str:
    """The YAML of the mod at `FILE.py:NAME`, and of a mask at another one.

    A mod with four arguments is a mask itself. Raises UsageError where there is no such mod, ModError where it cannot
    be traced.
    """
    first = _found(mod)
    score, masks = (None, [first]) if _is_mask(first) else (first, [])
    masks += [_found_mask(mask)] if mask is not None else []
    found = meaning(score, _all_of(masks), variant_name(first), many_queries=False)
    head = on_one_line(f"{mod}{f', with the mask {mask}' if mask else ''}")
    comments = {**_COMMENTS, **({"inputs": _said(found.derived)} if found.derived else {})}
    return yaml_of(found.spec, comments, head=f"By flashgen convert, from {head}.")


def _said(derived: Mapping[str, str]) -> str:
    """How inputs come of what is captured."""
    lines = (f"  {name}: {in_short(text, _LONG)}" for name, text in derived.items())
    return "\n# ".join(["Made by torch of what the mod captures, and to be passed as it is then:", *lines])


def _is_mask(mod: Any) -> bool:
    return _needed(mod) == 4


def _needed(mod: Any) -> int:
    """How many arguments a mod must be given."""
    given = inspect.signature(mod).parameters.values()
    return sum(each.default is inspect.Parameter.empty for each in given)


def _found_mask(place: str) -> Any:
    mod = _found(place)
    if _needed(mod) == 5:
        raise UsageError(f"{place} takes five arguments, as a score_mod does; expected a mask_mod, of b, h, q and k")
    return mod


def _all_of(masks: list[Any]) -> Any:
    from torch.nn.attention.flex_attention import and_masks

    return and_masks(*masks) if len(masks) > 1 else next(iter(masks), None)


def _found(place: str) -> Any:
    file, _, name = place.rpartition(":")
    if not file or not name:
        raise UsageError(f"{place!r} names no mod; expected FILE.py:NAME")
    found: Any = _imported(Path(file))
    for part in name.split("."):
        if not hasattr(found, part):
            near = ", ".join(each for each, value in vars(found).items() if inspect.isfunction(value))
            raise UsageError(f"{file} has no {name!r}; expected one of {near or 'its functions, of which it has none'}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name!r} of {file} is of type {type(found).__name__}; expected a score_mod or a mask_mod")
    return found


def _imported(file: Path) -> ModuleType:
    """The file as a module, which may import its neighbours as a script does."""
    if file.suffix != ".py" or not file.is_file():
        found = f"{str(file)!r} is no file of Python" if file.exists() else f"no file {str(file)!r}"
        raise UsageError(f"{found}; expected the path of one, such as mods.py")
    # Beside a module of this name that is another file.
    names = (file.stem, f"{file.stem}_converted")
    for known in map(sys.modules.get, names):
        if known is not None and getattr(known, "__file__", None) == str(file.resolve()):
            return known
    name = names[file.stem in sys.modules]
    spec = importlib.util.spec_from_file_location(name, file.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    # Where dataclasses, for one, look for it while it runs.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise UsageError(f"{file} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module
