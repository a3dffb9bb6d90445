"""Rendering: from a checked Variant to a Python module of Triton kernels on disk."""

from flashgen.codegen.render import identity, render
from flashgen.codegen.scheduled import default_of, scheduled_kernels, uses_schedule
from flashgen.codegen.sm90.learned import inputs_summed_by_key
from flashgen.codegen.write import generate, load_module, on_trial

__all__ = [
    "default_of",
    "generate",
    "identity",
    "inputs_summed_by_key",
    "load_module",
    "on_trial",
    "render",
    "scheduled_kernels",
    "uses_schedule",
]
