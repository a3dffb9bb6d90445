"""What `tl` means while Triton's interpreter runs a kernel, made once.

For each kernel, and for each function that a kernel calls, Triton looks through all of the language and wraps what it
finds; what it wraps for the kernel it takes away again after it. And each call of it goes through three functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import local
from types import SimpleNamespace
from typing import Any

import triton.language as tl

# What a function has that reads all of the language.
_READER = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
# What is patched: whose, its name, and what stands there instead.
Patches = list[tuple[Any, str, Any]]


class Language:
    """The patches of Triton's `interpreter`, and members of tensors and descriptors, and functions, of our own."""

    def __init__(
        self, interpreter: Any, members: Mapping[str, Any], functions: Mapping[str, Any],
        of_descriptors: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._interpreter = interpreter
        self._own = [
            (tl.tensor, members), (tl, functions), (tl.core, functions),
            (tl.core.tensor_descriptor_base, of_descriptors),
        ]  # fmt: skip
        self._patch = interpreter._patch_lang
        self._mine = _OfThread()
        self._made: Patches = []

    def begin(self) -> None:
        """A kernel of this thread starts, with nothing patched."""
        self._mine.patched = False

    def patch(self, function: Any) -> Any:
        """For a kernel and all functions that it calls once, whatever of the language they read.

        A kernel that was running before its interpreter was mended goes on as it began.
        """
        if self._mine.patched is None:
            return self._patch(function)
        scope = self._interpreter._LangPatchScope()
        if not self._mine.patched:
            self._mine.patched = True
            self._made = self._made or self._all()
            for owner, name, member in self._made:
                scope.set_attr(owner, name, member)
        return scope

    def _all(self) -> Patches:
        """What Triton patches, and what is patched besides."""
        scope = self._patch(_READER)
        for owner, members in self._own:
            for name, member in members.items():
                scope.set_attr(owner, name, member)
        found = [(owner, name, vars(owner)[name]) for owner, name, _ in scope._changes]
        scope.restore()
        return found

    def patch_builtin(self, owner: Any, name: str, member: Any, _: Any, scope: Any) -> None:
        """A builtin of the language, which is told what it is called by: Triton's wrapper says no more."""
        inner, semantic = getattr(member, "__wrapped__", member), self._interpreter.interpreter_semantic

        def builtin(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return inner(*arguments, **named)

        scope.set_attr(owner, name, builtin)


class _OfThread(local):
    """Whether the language is patched for the kernel that the thread runs; None where none has begun here."""

    def __init__(self) -> None:
        self.patched: bool | None = None
