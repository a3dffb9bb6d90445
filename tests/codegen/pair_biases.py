"""Specs with biases of each pair, which lie in rows, and what a Hopper kernel that reads them must fit into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_compiler import Compile

from flashgen.codegen import default_of, generate
from flashgen.runtime.gpus import shared_limit
from flashgen.spec import load


def spec(*dtypes: str, score: str = "", **more: Any) -> dict[str, Any]:
    """A bias of each pair in each of the dtypes."""
    names = [f"t{number}" for number in range(len(dtypes))]
    inputs = {n: {"shape": ["heads", "q_len", "kv_len"], "dtype": d} for n, d in zip(names, dtypes, strict=True)}
    terms = "".join(f" + {name}[h, q, k]" for name in names)
    return {"name": "pairs", "inputs": inputs, "score": score or f"score{terms}", **more}


def with_mask(found: dict[str, Any], mask: str) -> dict[str, Any]:
    """The spec with this mask, "" for none, which may be one of `pad[b, k]`."""
    pad = {"pad": {"shape": ["batch", "kv_len"], "dtype": "bool"}} if "pad[" in mask else {}
    return {**found, "inputs": {**found["inputs"], **pad}, **({"mask": mask} if mask else {})}


def assert_fits(
    spec: dict[str, Any], family: str, head_dim: int, most_spilled: int, folder: Path, compiled: Compile
) -> None:
    """Its kernel of a family compiles for sm_90 with the built-in config, and spills no more bytes a thread."""
    found = load(spec)
    config = default_of(found, family)("sm_90", "bfloat16", head_dim, head_dim)
    assert config.backend == "hopper"
    result = compiled(generate(found, folder), family, "sm_90", "bfloat16", head_dim, head_dim, config)
    assert result.error is None
    assert not result.serialized_wgmma
    assert result.spills <= most_spilled
    assert result.shared <= shared_limit("sm_90")
