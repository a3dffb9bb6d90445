"""The gradients of one case: a loss drawn for it, the kernels' answer in poisoned memory, and the verdict."""

from __future__ import annotations

import math
from typing import Any

import torch

from flashgen.problems.calls import Call
from flashgen.problems.packed import Module
from flashgen.spec.variant import Variant
from flashgen.verify.budget import Verdict
from flashgen.verify.case import Backward, Case
from flashgen.verify.eager_gradients import Loss, gradients_of, leaves_of
from flashgen.verify.gradient_budget import judge_gradients
from flashgen.verify.poison import poisoned
from flashgen.verify.uncancelled import as_rounded


def prove_gradients(module: Module, variant: Variant, case: Case, backward: Backward, call: Call) -> Verdict:
    """Gradients of q, k, v and every learned input of the call, against those of the formula."""
    loss = draw_loss(variant, case, backward, call)
    found = _poisoned_gradients(module, case, backward, call, loss)
    if backward.deterministic:
        again = _poisoned_gradients(module, case, backward, call, loss)
        differing = [name for name in found if not torch.equal(found[name], again[name])]
        if differing:
            return Verdict(math.inf, 0.0, False, f"d_{differing[0]} differs between two deterministic runs")
    return judge_gradients(found, call, loss, as_rounded(module.reference, variant), case.scale)


def launch_gradients(module: Module, variant: Variant, case: Case, backward: Backward, call: Call) -> None:
    """Launch what proving the case's gradients launches."""
    _poisoned_gradients(module, case, backward, call, draw_loss(variant, case, backward, call))


def draw_loss(variant: Variant, case: Case, backward: Backward, call: Call) -> Loss:
    """Standard normal gradients of out, and of lse where the case has them; the seed decides."""
    generator = torch.Generator(call.q.device).manual_seed(case.seed)
    batch, heads, q_len = call.q.shape[:3]
    v_head_dim = call.v.shape[3]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=call.q.device)

    if backward.d_out == "expanded":
        d_out = normal(1).to(call.q.dtype).expand(batch, heads, q_len, v_head_dim)
    elif backward.d_out == "transposed":
        d_out = normal(batch, heads, v_head_dim, q_len).to(call.q.dtype).mT
    else:
        d_out = normal(batch, heads, q_len, v_head_dim).to(call.q.dtype)
    learned = tuple(tensor.name for tensor in variant.inputs if tensor.grad and tensor.name in call.inputs)
    return Loss(d_out, normal(batch, heads, q_len) if backward.lse else None, learned)


def _poisoned_gradients(
    module: Module, case: Case, backward: Backward, call: Call, loss: Loss
) -> dict[str, torch.Tensor]:
    leaves = leaves_of(call, loss)
    keywords: dict[str, Any] = {**call.keywords, **{name: leaves[name] for name in loss.learned}}
    chosen = {"backward_kv": backward.kv, "backward_q": backward.q}
    with poisoned():
        if case.planned:
            keywords["plan"] = module.plan(leaves["q"], leaves["k"], leaves["v"], **keywords, config=case.config)
        outputs = module.attention(
            leaves["q"], leaves["k"], leaves["v"], **keywords, scale=case.scale, return_lse=True, config=case.config,
            backward_config={name: config for name, config in chosen.items() if config is not None} or None,
            deterministic=backward.deterministic,
        )  # fmt: skip
        return gradients_of(outputs, leaves, loss)
