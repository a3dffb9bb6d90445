"""Training on a GPU: memory of the backward pass, and a small GPT beside eager attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

import flashgen
from flashgen.bench.peers import peers
from flashgen.lang.log2 import logits
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.spec import load

ROOT = Path(__file__).parent.parent.parent
SPECS = [ROOT / "variants/causal.yaml", ROOT / "variants/alibi.yaml", ROOT / "examples/local_softcap.yaml"]

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["full", "causal", "alibi", "relative_bias", "sink", "document"])
def test_the_backward_pass_needs_little_more_than_its_results(
    gallery_module: Callable[[str], ModuleType], name: str
) -> None:
    length, module, variant = 131072, gallery_module(name), VARIANTS[name]
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    call = make_inputs(variant, Problem(1, 8, 8, length, length, 128, 128, "bfloat16"), "cuda")
    learned = [tensor.name for tensor in variant.inputs if tensor.grad]
    leaves = [call.q, call.k, call.v, *(call.inputs[name] for name in learned)]
    for leaf in leaves:
        leaf.requires_grad_()
    out = module.attention(call.q, call.k, call.v, **call.keywords)
    d_out = torch.randn_like(out)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    gradients = torch.autograd.grad(out, leaves, d_out)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    statistics = 2 * 4 * 8 * length  # lse and delta
    # Where scores may be huge, what lse has lost, and d_out scaled by it.
    statistics += 4 * 8 * length + d_out.nbytes if logits(variant.score, variant.mask).natural else 0
    needed = sum(t.nbytes for t in (*leaves, out, d_out, *gradients, *call.inputs.values())) + statistics
    assert peak <= 1.3 * needed, f"{peak / 2**20:.0f} MiB at the peak, {needed / 2**20:.0f} MiB for what must be there"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_gpt_trains_as_with_eager_attention(gpt: ModuleType, tmp_path: Path, path: Path) -> None:
    module = flashgen.build(path, out=tmp_path, verify=False, compile=False, tune=False)
    comparison = gpt.compare(module, gpt.Settings())
    print(comparison)
    assert comparison.agree, str(comparison)
    assert len(comparison.generated.losses) == 200
    assert comparison.generated.losses[-1] < 0.6 * comparison.generated.losses[0]
    assert comparison.generated.peak_mib < comparison.eager.peak_mib


def test_others_train_as_eager_attention_does(gpt: ModuleType, gallery_module: Callable[[str], ModuleType]) -> None:
    settings, variant = gpt.Settings(layers=1, steps=3), load(ROOT / "variants/causal.yaml")
    eager = gpt.train(gallery_module("causal").reference, gpt.corpus(), settings)
    found = peers(variant, settings.problem, "cuda")
    assert list(found) == ["FlexAttention", "torch cuDNN"]
    for attend in found.values():
        run = gpt.train(attend, gpt.corpus(), settings)
        torch.testing.assert_close(run.losses, eager.losses, rtol=torch.finfo(settings.dtype).eps, atol=0.0)
