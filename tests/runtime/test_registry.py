"""Which kernel serves a call, and whose a config is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashgen.codegen.registry import TEXTS
from flashgen.runtime.config import Config
from flashgen.runtime.registry import (
    FAMILIES,
    REGISTRY,
    backends,
    kernel_of,
    kernels_of,
    register,
    serving,
    unregister,
)

SIZES = [
    (capability, dtype, head_dim, v_head_dim)
    for capability in ("", "sm_80", "sm_90", "gfx942", "sm_999")
    for dtype in ("float16", "bfloat16", "float32")
    for head_dim in (1, 64, 100, 128, 256, 257, 512)
    for v_head_dim in (8, 65, 192)
]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_begins_with_a_kernel_that_serves_every_call(family: str) -> None:
    first = kernels_of(family)[0]
    assert not any(first.refuses(*sizes) for sizes in SIZES)
    assert all(kernel.refuses("sm_80", "float16", 64, 64) for kernel in kernels_of(family)[1:])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["", "plain", "masked", "scheduled", "by key", "pairs", "dropout", "packed"])
def test_what_serves_a_call_has_a_config_for_it_that_is_its_own(family: str, form: str) -> None:
    for sizes in SIZES:
        kernel = serving(family, *sizes)
        config = kernel.default(form, *sizes)
        assert kernel_of(family, config) is kernel
        assert not kernel.misfit(config, *sizes[2:])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_widest_heads_are_left_to_the_portable_kernels(family: str) -> None:
    for sizes in (("sm_90", "bfloat16", 512, 512), ("sm_90", "float16", 128, 264)):
        assert serving(family, *sizes) is kernels_of(family)[0]
        for kernel in kernels_of(family)[1:]:
            assert kernel.refuses(*sizes) == f"it takes head dimensions up to 256, this is {sizes[2:][-1]}"


def test_what_is_registered_last_is_taken_first() -> None:
    mine = replace(
        kernels_of("forward")[0], name="mine", backend="mine", default=lambda *_: Config(16, 16, 1, 1, "mine")
    )
    before = [*REGISTRY], backends()
    register(mine)
    try:
        assert serving("forward", "sm_80", "float16", 64, 64) is mine
        assert kernel_of("forward", Config(16, 16, 1, 1, "mine")) is mine
        with pytest.raises(ValueError, match="'mine' is registered already"):
            register(mine)
    finally:
        unregister(mine)
    assert ([*REGISTRY], backends()) == before
    with pytest.raises(ValueError, match="config backend is 'mine'; expected portable or hopper, as forward has it"):
        kernel_of("forward", Config(16, 16, 1, 1, "mine"))


def test_each_launches_a_function_of_some_text_by_the_name_that_this_has() -> None:
    launched = {pair for text in TEXTS for pair in text.functions}
    assert {(kernel.name, kernel.function) for kernel in REGISTRY} <= launched


def test_names_are_those_of_their_modules() -> None:
    for kernel in REGISTRY:
        module = __import__(f"flashgen.runtime.kernels.{kernel.name}", fromlist=["*"])
        assert kernel in vars(module).values()
