"""Every FlexAttention mod on a GPU, in 16 bits: as it is and through the YAML that is written of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
    from flex_mods import Mod, arguments

from flex_beside_torch import wrongs
from torch.nn.attention.flex_attention import BlockMask

from flashgen.flex import flex_attention

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("mod", **arguments())
def test_it_computes_what_torch_does(
    mod: Mod, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert wrongs(mod, tmp_path, 64, dtype, "cuda") == []


def test_a_graph_reads_listed_blocks_at_each_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server changes its lists in place; what a call before the capture made of them is not in the graph."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    listed, other = (torch.tensor([[each]], dtype=torch.int32, device="cuda") for each in ([[0], [1]], [[1], [0]]))
    ones = torch.ones(1, 1, 2, dtype=torch.int32, device="cuda")
    blocks = BlockMask.from_kv_blocks(ones, listed, seq_lengths=(256, 256), compute_q_blocks=False)
    q, k, v = (torch.randn(1, 2, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for _ in range(2):
        flex_attention(q, k, v, None, blocks)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = flex_attention(q, k, v, None, blocks)
    for lists in (listed.clone(), other):
        listed.copy_(lists)
        graph.replay()
        assert torch.equal(out, flex_attention(q, k, v, None, blocks))
