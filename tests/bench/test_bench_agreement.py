"""What is timed agrees, out and gradients; a candidate that does not is named."""

from __future__ import annotations

import torch

from flashgen.bench.agreement import disagreement, disagreements, gradient_disagreement
from flashgen.bench.passes import BACKWARD, FORWARD


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
    return scores.softmax(-1) @ v


def test_outputs_agree_within_rounding_and_not_with_another_mask_or_nan() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 256, 32) for _ in range(3))
    causal = torch.ones(256, 256, dtype=torch.bool).tril()
    exact = attention(q, k, v, causal)
    rounded = attention(*(x.bfloat16() for x in (q, k, v)), causal)
    again = attention(*(x.bfloat16().float() for x in (q, k, v)), causal).bfloat16()
    assert disagreement(rounded, again, v.bfloat16()) is None
    off_by_one = attention(q, k, v, causal.roll(1, 1) | causal)
    assert disagreement(off_by_one, exact, v) is not None
    poisoned = exact.clone()
    poisoned[0, 1, 7, 3] = torch.nan
    assert "nan" in str(disagreement(poisoned, exact, v))


def test_a_candidate_that_disagrees_is_named_and_not_timed() -> None:
    v = torch.ones(1, 1, 4, 4)

    others = {"flashgen": v, "good": v + 1e-8, "bad": v + 1, "nan": torch.full_like(v, torch.nan)}
    ready = {name: (lambda out=out: (out,)) for name, out in others.items()}
    assert set(disagreements(ready, "flashgen", FORWARD, v, ("q", "k", "v"))) == {"bad", "nan"}
    assert set(ready) == {"flashgen", "good"}


def test_gradients_agree_within_rounding_and_not_with_another_mask_or_nan() -> None:
    torch.manual_seed(0)
    causal = torch.ones(256, 256, dtype=torch.bool).tril()
    q, k, v, d_out = (torch.randn(1, 2, 256, 32).bfloat16() for _ in range(4))

    def gradients(dtype: torch.dtype, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = [tensor.detach().to(dtype).requires_grad_() for tensor in (q, k, v)]
        found = torch.autograd.grad(attention(*given, mask), given, d_out.to(dtype))
        return tuple(gradient.bfloat16() for gradient in found)

    exact, rounded = gradients(torch.float32, causal), gradients(torch.bfloat16, causal)
    # One more key in a single row.
    other = causal.clone()
    other[3, 4] = True
    wrong = gradients(torch.float32, other)
    for right, close, far in zip(exact, rounded, wrong, strict=True):
        assert gradient_disagreement("q", close, right, v) is None
        assert "its gradient of q differs" in str(gradient_disagreement("q", far, right, v))
    ready = {"flashgen": lambda: exact, "good": lambda: rounded, "bad": lambda: wrong}
    ready["nan"] = lambda: (*exact[:2], exact[2] * torch.nan)
    notes = disagreements(ready, "flashgen", BACKWARD, v, ("q", "k", "v"))
    assert set(notes) == {"bad", "nan"} and "gradient of v differs" in notes["nan"]
