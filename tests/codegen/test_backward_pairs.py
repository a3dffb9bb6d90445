"""The kernel for the gradients of learned inputs by the pair: which variants have it, its text, and that it fits."""

from __future__ import annotations

from pathlib import Path

import pytest
from offline_compiler import Compile
from pair_biases import spec

from flashgen.codegen import generate, render
from flashgen.runtime.gpus import shared_limit
from flashgen.runtime.kernels.backward_pairs import BACKWARD_PAIRS_KERNEL, for_bytes
from flashgen.spec import load


def learned(*dtypes: str, score: str = "", **more: object) -> dict[str, object]:
    found = spec(*dtypes, score=score, **more)
    found["inputs"] = {name: {**tensor, "grad": True} for name, tensor in found["inputs"].items()}
    return found


# What a `Compilation` has behind its config: nothing grouped or odd, learned inputs, no largest logits.
ADDED = (False, (), True, False)
# Bytes a thread that may be spilled: with Triton 3.6, where it was measured, up to 4, with 3.9 up to 216.
FEW_BYTES = 216
DOCUMENTS = {"doc": {"shape": ["batch", "kv_len"], "dtype": "int32"}}


@pytest.mark.parametrize(
    "more",
    [
        {"score": "score + t0[h, min(q, k), k]"},  # pairs share elements
        {"score": "score + t0[min(h, 2), q, k]"},  # heads share some, others do not
        {"dropout": 0.1},
    ],
    ids=["shared by pairs", "shared by some heads", "dropout"],
)
def test_others_do_not_have_it(more: dict[str, object]) -> None:
    assert "backward_pairs.py" not in render(load(learned("float32", **more)))


@pytest.mark.parametrize(
    ("mask", "skips"),
    [
        ("doc[b, q] == doc[b, k]", True),
        ("(doc[b, k] > 0) & (doc[b, q] == doc[b, k])", True),
        ("doc[b, k] > 0", False),  # whole queries and keys are left out
        ("(doc[b, q] > 0) & (doc[b, k] > 0) & (k <= q)", False),
        ("not ((doc[b, q] < 1) or (doc[b, k] < 1))", False),
    ],
)
def test_a_mask_that_leaves_tiles_out_skips_them_by_a_schedule(mask: str, skips: bool) -> None:
    found = learned("float32", mask=mask)
    found["inputs"] = {**found["inputs"], **DOCUMENTS}  # type: ignore[dict-item]
    files = render(load(found))
    assert "schedule.py" in files
    assert ("backward_pairs.py" not in files) == skips


@pytest.mark.parametrize("shape", [["heads", "q_len", "kv_len"], ["batch", "heads", "q_len", "kv_len"]], ids=str)
def test_what_no_sharer_changes_stands_in_front_of_the_loop(shape: list[str]) -> None:
    read = ", ".join({"batch": "b", "heads": "h", "q_len": "q", "kv_len": "k"}[size] for size in shape)
    found = learned("float32", score=f"score + t0[{read}]")
    found["inputs"]["t0"]["shape"] = shape  # type: ignore[index]
    text = render(load(found))["backward_pairs.py"]
    loop = text.index("tl.range(")
    assert text.index("t0_base = ") < loop
    assert ("sharer" in text) == ("batch" not in shape)


@pytest.mark.matrix
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("dtype", "stored"), [("bfloat16", "*bf16"), ("bfloat16", "*fp32"), ("float32", "*fp32")])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_it_fits(dtype: str, stored: str, head_dim: int, causal: bool, tmp_path: Path, compiled: Compile) -> None:
    """With what is read of a bias, and written, in the pipeline too."""
    package = generate(load(learned(dtype, causal=causal)), tmp_path)
    config = BACKWARD_PAIRS_KERNEL.default("", "sm_90", "bfloat16", head_dim, head_dim)
    config = for_bytes(config, 2 if stored == "*bf16" else 4)
    sizes = ("sm_90", "bfloat16", head_dim, head_dim, config)
    result = compiled(package, "backward_pairs", *sizes, *ADDED, {"d_t0_ptr": stored})
    assert result.error is None
    assert not result.serialized_wgmma
    assert result.spills <= FEW_BYTES
    assert result.shared <= shared_limit("sm_90")


@pytest.mark.matrix
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_100", "gfx942"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_it_compiles_for_other_gpus(target: str, dtype: str, tmp_path: Path, compiled: Compile) -> None:
    package = generate(load(learned("float32")), tmp_path)
    config = for_bytes(BACKWARD_PAIRS_KERNEL.default("", target, dtype, 64, 64), 4)
    result = compiled(package, "backward_pairs", target, dtype, 64, 64, config, *ADDED)
    assert result.error is None
    assert result.shared <= shared_limit(target)
