"""Rendering: from a checked Variant to a package of Triton kernels on disk."""

from flashgen.codegen.default_configs import default_of
from flashgen.codegen.loading import load_module
from flashgen.codegen.render import identity, kernels_of_variant, render
from flashgen.codegen.scheduled import scheduled_kernels, uses_schedule
from flashgen.codegen.sm90.learned import inputs_summed_by_key
from flashgen.codegen.write import generate, on_trial, write_package

__all__ = [
    "default_of",
    "generate",
    "identity",
    "inputs_summed_by_key",
    "kernels_of_variant",
    "load_module",
    "on_trial",
    "render",
    "scheduled_kernels",
    "uses_schedule",
    "write_package",
]
