"""any, all and sum over a short axis, with gradients, against the same in torch."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from flashgen.codegen import generate, load_module
from flashgen.spec import load

BATCH, HEADS, LENGTH, HEAD_DIM, R = 2, 2, 40, 16, 5
CONFIG = "BM=32 BN=32 num_warps=4 num_stages=1"
BACKWARD = {"backward_kv": f"{CONFIG} fuse_dq=1", "backward_q": CONFIG}
SPEC = {
    "name": "short",
    "params": {"R": R, "top": 2},
    "inputs": {
        "qr": {"shape": ["batch", "heads", "q_len", "R"], "dtype": "float32", "grad": True},
        "kr": {"shape": ["batch", "kv_len", "R"], "dtype": "float32", "grad": True},
        "chosen": {"shape": ["batch", "heads", "(q_len + 7) // 8", "top"], "dtype": "int32"},
    },
    "score": "score + sum(i, R, qr[b, h, q, i] * kr[b, k, i])",
    "mask": "any(i, top, chosen[b, h, q // 8, i] == k // 8)",
}


def test_a_second_product_and_chosen_blocks(tmp_path: Path) -> None:
    module = load_module(generate(load(SPEC), tmp_path))
    random = torch.Generator().manual_seed(8)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    q, k, v = (normal(BATCH, HEADS, LENGTH, HEAD_DIM) for _ in range(3))
    qr, kr = normal(BATCH, HEADS, LENGTH, R), normal(BATCH, LENGTH, R)
    chosen = torch.randint(-1, 6, (BATCH, HEADS, LENGTH // 8, 2), generator=random, dtype=torch.int32)
    d_out = normal(BATCH, HEADS, LENGTH, HEAD_DIM)

    leaves = [t.clone().requires_grad_() for t in (q, k, v, qr, kr)]
    out = module.attention(
        *leaves[:3], qr=leaves[3], kr=leaves[4], chosen=chosen, config=CONFIG, backward_config=BACKWARD
    )
    found = [out, *torch.autograd.grad(out, leaves, d_out)]

    wide = [t.double().requires_grad_() for t in (q, k, v, qr, kr)]
    blocks = torch.arange(LENGTH) // 8
    shown = (chosen[:, :, blocks, None, :] == blocks[None, None, None, :, None]).any(-1)
    score = wide[0] @ wide[1].mT / math.sqrt(HEAD_DIM) + wide[3] @ wide[4][:, None].mT
    weights = score.masked_fill(~shown, -1e300).softmax(-1).masked_fill(~shown, 0.0)
    expected = [weights @ wide[2], *torch.autograd.grad(weights @ wide[2], wide, d_out.double())]
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=1e-4, atol=1e-5)
