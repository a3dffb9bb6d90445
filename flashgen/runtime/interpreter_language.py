"""What `tl` means while Triton's interpreter runs a kernel, made once.

For each kernel, and for each function that a kernel calls, Triton looks through all of the language and wraps what it
finds, to take it away again after the kernel; and each call of what is wrapped goes through three functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import local
from typing import Any

import triton.language as tl

# Where a function has the modules of the language that it reads.
_MODULES = "_flashgen_modules"


class Language:
    """The patches of Triton's `interpreter`, and members of tensors and functions instead of its own."""

    def __init__(self, interpreter: Any, members: Mapping[str, Any], functions: Mapping[str, Any]) -> None:
        self._interpreter = interpreter
        self._own = [(tl.tensor, members), (tl, functions), (tl.core, functions)]
        self._patch = interpreter._patch_lang
        self._mine = _OfThread()
        # By modules: what of them and of what else is patched, each as owner, name and member.
        self._made: dict[frozenset[int], list[tuple[Any, str, Any]]] = {}

    def begin(self) -> None:
        """A kernel of this thread starts, with nothing patched."""
        self._mine.patched.clear()

    def patch(self, function: Any) -> Any:
        """For all functions that a kernel calls, `tl` is patched once, and `tl.core`; some read neither."""
        modules = function.__dict__.get(_MODULES)
        if modules is None:
            modules = frozenset(id(value) for value in function.__globals__.values() if value is tl or value is tl.core)
            setattr(function, _MODULES, modules)
        if modules <= self._mine.patched:
            return self._interpreter._LangPatchScope()
        known = self._made.get(modules)
        scope = self._patch(function) if known is None else self._again(known)
        if known is None:
            for owner, members in self._own:
                for name, member in members.items():
                    scope.set_attr(owner, name, member)
        # What is patched on top of patches is not all.
        if known is None and not self._mine.patched:
            self._made[modules] = [(owner, name, vars(owner)[name]) for owner, name, _ in scope._changes]
        self._mine.patched |= modules
        return scope

    def _again(self, known: list[tuple[Any, str, Any]]) -> Any:
        scope = self._interpreter._LangPatchScope()
        for owner, name, member in known:
            scope.set_attr(owner, name, member)
        return scope

    def patch_builtin(self, owner: Any, name: str, member: Any, _: Any, scope: Any) -> None:
        """A builtin of the language, which is told what it is called by: Triton's wrapper says no more."""
        inner, semantic = getattr(member, "__wrapped__", member), self._interpreter.interpreter_semantic

        def builtin(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return inner(*arguments, **named)

        scope.set_attr(owner, name, builtin)


class _OfThread(local):
    """The modules for which `tl` is patched while the thread's kernel runs."""

    def __init__(self) -> None:
        self.patched: set[int] = set()
