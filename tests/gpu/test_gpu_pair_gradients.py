"""Gradients of learned inputs of which each pair has an element, on a GPU: beside the formula in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pair_gradients import BESIDE, OF_HEADS, SPECS, beside_rounded_out, gradients, made, spec

from flashgen.codegen import generate, load_module
from flashgen.spec import load

pytestmark = pytest.mark.gpu

# Tiles that are ragged, aligned ones with long runs, many that share few elements.
SIZES = [(2, 4, 2, 200, 333), (3, 8, 8, 1024, 1024), (64, 2, 1, 65, 130)]


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", SPECS)
def test_they_are_those_of_the_formula(name: str, head_dim: int, tmp_path: Path) -> None:
    module = load_module(generate(load(SPECS[name]), tmp_path))
    for sizes in SIZES:
        call = made(SPECS[name], sizes, head_dim, "bfloat16", "cuda")
        found, wanted = gradients(module.attention, call), beside_rounded_out(module, call)
        for each, gradient in found.items():
            # Products of 16 bits are exact in float32, and so is all that is made of them but for its last bits.
            error = gradient.double() - wanted[each]
            assert float(error.norm() / wanted[each].norm()) < 2**-16, f"{sizes}, {each}"
            assert float(error.abs().max() / wanted[each].abs().max()) < 2**-15, f"{sizes}, {each}"
        again = gradients(module.attention, call)
        assert all(torch.equal(found[each], again[each]) for each in found)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", BESIDE)
def test_those_beside_others_are(name: str, deterministic: bool, tmp_path: Path) -> None:
    module = load_module(generate(load(BESIDE[name]), tmp_path))
    for sizes in SIZES:
        call = made(BESIDE[name], sizes, 64, "bfloat16", "cuda")
        wanted = beside_rounded_out(module, call)
        for each, gradient in gradients(module.attention, call, deterministic=deterministic).items():
            error = gradient.double() - wanted[each]
            assert float(error.norm() / wanted[each].norm()) < 2**-16, f"{sizes}, {each}"


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_those_of_16_bits_in_wide_tiles(causal: bool, head_dim: int, tmp_path: Path) -> None:
    found = spec("score + t[h, q, k]", *OF_HEADS, dtype="bfloat16", causal=causal)
    module = load_module(generate(load(found), tmp_path))
    for sizes in SIZES:
        call = made(found, sizes, head_dim, "bfloat16", "cuda")
        gradient = gradients(module.attention, call)["t"]
        wanted = gradients(module.reference, call, double=True)["t"]
        assert float((gradient.double() - wanted).norm() / wanted.norm()) < 2**-7
