"""Attention by the definition: what a case's call should give, in any precision, with gradients by autograd.

Scores are evaluated for visible pairs alone, in one row of numbers: what is hidden cannot contribute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from flashgen.verify.soak.case import Case
from flashgen.verify.soak.dropout import kept
from flashgen.verify.soak.formula import Formula, size

Tensor = torch.Tensor


class Oracle:
    """Answers as a generated module's `reference` does, for the budgets of `flashgen.verify`.

    `rough`: tanh of 16-bit inputs may be that of the GPU's instruction, and what is not the truth has it.
    `fast`: so are exp, log and powers, whatever the inputs.
    `noise` moves the scaled products by about so much, relatively or absolutely, always by the same numbers.
    `drops`: weights are dropped where the case says so.
    """

    def __init__(
        self, case: Case, rough: bool = False, noise: float = 0.0, fast: bool = False, drops: bool = True
    ) -> None:
        self.case, self.rough, self.noise, self.fast = case, rough, noise, fast
        self.drops = drops and case.dropout_p > 0
        self.score, self.masks, self.lets = written(case)

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, /, *, scale: float | None = None, return_lse: bool = False, **others: Any
    ) -> Any:
        """out, or out and lse, computed in float64 where q is float64, else scores and softmax in float32."""
        case, group = self.case, self.case.heads // self.case.kv_heads
        wide = torch.promote_types(q.dtype, torch.float32)
        scale = 1 / math.sqrt(case.head_dim) if scale is None else scale
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        product = (q @ k.transpose(-1, -2)).to(wide) * scale
        if self.noise:
            generator = torch.Generator("cpu").manual_seed(case.values)
            draws = torch.randn(product.shape, generator=generator, device="cpu")
            product = product + self.noise * (1 + product.abs()) * draws.to(product)
        visible = self.visible(others, q.device)
        scores = self._scores(product, visible, others)
        if bool((hidden := scores.detach() == -math.inf).any()):
            # As if masked: with no gradient, where that of the formula would be 0 times infinity.
            visible = visible.masked_scatter(visible, ~hidden)
            scores = self._scores(product, visible, others)
        score = torch.full_like(product, -math.inf).masked_scatter(visible, scores)
        # Nothing is said of rows whose largest score is finite, and more than float32 holds.
        largest = score.detach().amax(-1, keepdim=True) if score.shape[-1] else score.detach().new_zeros(())
        beyond = largest.isfinite() & (largest.abs() > torch.finfo(torch.float32).max)
        score = torch.where(beyond, math.nan, score)
        sinks = others["sinks"].to(wide)[None, :, None, None] if "sink" in case.spec else None
        out, lse = softmax(score, v, sinks, self._factors(q.device) if self.drops else None)
        return (out, lse) if return_lse else out

    def _factors(self, device: torch.device) -> Tensor:
        """What dropout multiplies each weight with."""
        case, p = self.case, self.case.dropout_p
        return kept(case.values, p, case.batch, case.heads, case.q_len, case.kv_len).to(device).double() / (1 - p)

    def visible(self, others: Mapping[str, Any], device: torch.device) -> Tensor:
        """Which pairs are visible, bool [batch, heads, q_len, kv_len]."""
        case = self.case
        b, h, q, k = (torch.arange(n, device=device) for n in (case.batch, case.heads, case.q_len, case.kv_len))
        places = (b[:, None, None, None], h[None, :, None, None], self._position(q)[:, None], k[None, :])
        formula = self._formula(places, None, others, torch.float64)
        whole = torch.ones((), dtype=torch.bool, device=device)
        with torch.no_grad():
            for mask in self.masks:
                whole = whole & formula.evaluate(mask)
        return whole.expand(case.batch, case.heads, case.q_len, case.kv_len)

    def _scores(self, product: Tensor, visible: Tensor, others: Mapping[str, Any]) -> Tensor:
        """The scores of the visible pairs, one after the other."""
        b, h, q, k = visible.nonzero(as_tuple=True)
        formula = self._formula((b, h, self._position(q), k), product[visible], others, product.dtype)
        found = formula.floating(self.score)
        return found.expand(b.shape)

    def _formula(
        self, places: tuple[Tensor, ...], score: Tensor | None, others: Mapping[str, Any], dtype: torch.dtype
    ) -> Formula:
        b, h, q, k = places
        device = b.device
        kv_h = h // (self.case.heads // self.case.kv_heads)
        names = {"b": b, "h": h, "kv_h": kv_h, "q": q, "k": k}
        names |= {name: torch.tensor(value, device=device) for name, value in self.case.sizes.items()}
        for name, form in self.case.spec.get("params", {}).items():
            value = others[name] if name in others else form["value"] if isinstance(form, dict) else form
            dtype_of = torch.float64 if isinstance(value, float) else None
            names[name] = torch.tensor(value, dtype=dtype_of, device=device)
        if score is not None:
            names["score"] = score
        inputs = {name: value for name, value in others.items() if isinstance(value, Tensor)}
        rough = self.rough and dtype != torch.float64
        if score is not None:
            names["score"] = self._sugared(Formula(names, inputs, {}, dtype, rough, device, self.fast))
        return Formula(names, inputs, self.lets, dtype, rough, device, self.fast)

    def _sugared(self, formula: Formula) -> Tensor:
        """The score as the sugar leaves it."""
        spec = self.case.spec
        score = formula.names["score"]
        if "bias" in spec:
            score = score - formula.floating("slopes[h] * abs(q - k)")
        if "softcap" in spec:
            cap = formula.floating(str(spec["softcap"]))
            inner = Formula({"x": score / cap}, {}, {}, formula.dtype, formula.rough, formula.device)
            return cap * inner.evaluate("tanh(x)")
        return score

    def _position(self, row: Tensor) -> Tensor:
        case = self.case
        return row if case.spec.get("align") == "top_left" else row + (case.kv_len - case.q_len)


def written(case: Case) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """The spec's score, what its sugar for masks and its mask say, and its lets, as texts."""
    spec, masks = case.spec, []
    if spec.get("causal"):
        masks.append("k <= q")
    window = spec.get("window", {})
    if "left" in window:
        masks.append(f"k >= q - ({window['left']})")
    if "right" in window:
        masks.append(f"k <= q + ({window['right']})")
    if "block_sparse" in spec:
        blocks = spec["block_sparse"]
        row = "q" if spec.get("align") == "top_left" else "(q - kv_len + q_len)"
        masks.append(f"block_mask[b, h, {row} // {blocks['block_q']}, k // {blocks['block_kv']}]")
    if "mask" in spec:
        masks.append(str(spec["mask"]))
    return (
        str(spec.get("score", "score")),
        tuple(masks),
        {name: str(text) for name, text in spec.get("let", {}).items()},
    )


def input_forms(case: Case) -> dict[str, tuple[tuple[int, ...], str, bool]]:
    """Shape, dtype and whether there is a gradient, of each input of a case, those of its sugar included."""
    sizes = case.sizes | _integers(case)
    found = {}
    for name, form in case.spec.get("inputs", {}).items():
        shape = tuple(size(extent, sizes) for extent in form["shape"])
        found[name] = (shape, form["dtype"], bool(form.get("grad")))
    if "bias" in case.spec:
        found["slopes"] = ((case.heads,), "float32", True)
    if "sink" in case.spec:
        found["sinks"] = ((case.heads,), "float32", True)
    if "block_sparse" in case.spec:
        blocks = case.spec["block_sparse"]
        tiles = (-(-case.q_len // blocks["block_q"]), -(-case.kv_len // blocks["block_kv"]))
        first = (1, 1) if case.broadcast else (case.batch, case.heads)
        found["block_mask"] = ((*first, *tiles), "bool", False)
    return found


def _integers(case: Case) -> dict[str, int]:
    """The int params of a case, by name."""
    forms = {n: f["value"] if isinstance(f, dict) else f for n, f in case.spec.get("params", {}).items()}
    return {name: int(value) for name, value in (forms | dict(case.params)).items() if isinstance(value, int)}


def softmax(score: Tensor, v: Tensor, sinks: Tensor | None, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """out and lse of scores where minus infinity hides a pair. A row that sees none gives 0 and minus infinity.

    `factors` multiply the weights that values get.
    """
    empty = (score == -math.inf).all(-1, keepdim=True)
    top = score.amax(-1, keepdim=True).masked_fill(empty, 0.0)
    top = top if sinks is None else torch.maximum(top, sinks)
    top = top.detach()
    weights = torch.exp(score - top)
    total = weights.sum(-1, keepdim=True)
    total = total if sinks is None else total + torch.exp(sinks - top)
    total = torch.where(empty, 1.0, total)
    mixed = weights / total if factors is None else weights / total * factors.to(weights.dtype)
    out = mixed.to(v.dtype) @ v
    lse = (top + total.log()).masked_fill(empty, -math.inf)
    return out, lse[..., 0]


def paper_slopes(heads: int) -> list[float]:
    """ALiBi's (arXiv:2108.12409, section 3): of the power of two below, then every other one of that above."""
    below = 2 ** math.floor(math.log2(heads))
    first = [2.0 ** (-8.0 * (i + 1) / below) for i in range(below)]
    return first + [2.0 ** (-4.0 * (2 * i + 1) / below) for i in range(heads - below)]
