"""Packed sequences: kernels that serve them too compile for every kind of GPU, the others say nothing of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from dropping import dropping
from gallery import NAMES, VARIANTS

from flashgen.codegen import generate, render
from flashgen.runtime.registry import REGISTRY, kernels_of
from flashgen.spec.variant import Variant

if TYPE_CHECKING:
    from offline_compiler import Compile

FAMILIES = ("forward", "backward_q", "backward_kv", "backward_inputs")


@pytest.mark.matrix
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942"])
@pytest.mark.parametrize("name", NAMES)
def test_each_variant_compiles(name: str, target: str, tmp_path: Path, compiled: Compile) -> None:
    compile_all(VARIANTS[name], target, (128, 128), tmp_path, compiled)


@pytest.mark.matrix
@pytest.mark.parametrize("constants", [{"dropout_seed_ptr": None}, {}], ids=["no seed", "a seed"])
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (256, 256)], ids=str)
@pytest.mark.parametrize("name", ["causal", "softcap", "block_sparse", "relative_bias"])
def test_dropout_compiles_for_hopper(
    name: str, dims: tuple[int, int], constants: dict[str, None], tmp_path: Path, compiled: Compile
) -> None:
    compile_all(dropping(name), "sm_90", dims, tmp_path, compiled, constants)


def compile_all(
    variant: Variant, target: str, dims: tuple[int, int], folder: Path, compiled: Compile,
    constants: Mapping[str, None] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Each kernel that serves packed sequences, in its built-in config."""
    place, fixed = generate(variant, folder), dict(constants)
    form = "scheduled" if (place / "schedule.py").exists() else ""
    for kernel in (each for family in FAMILIES for each in kernels_of(family, packed=True)):
        file = kernel.family if kernel.backend == "portable" else kernel.name
        if (place / f"{file}.py").exists() and not kernel.refuses(target, "bfloat16", *dims):
            config = kernel.default(form, target, "bfloat16", *dims)
            found = compiled(
                place, kernel.family, target, "bfloat16", *dims, config, True, (), True, False, {}, fixed, True
            )
            assert found.error is None, (kernel.name, found)
            assert kernel.backend == "portable" or not found.serialized_wgmma, kernel.name


@pytest.mark.parametrize("name", NAMES)
def test_kernels_that_serve_dense_sequences_alone_say_nothing_of_packed_ones(name: str) -> None:
    alone = [f"{kernel.name}.py" for kernel in REGISTRY if kernel.mode == "dense" and not kernel.packs]
    texts = render(VARIANTS[name])
    for name in alone:
        if text := texts.get(name):
            assert "cu_seqlens" not in text, name
