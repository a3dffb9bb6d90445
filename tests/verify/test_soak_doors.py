"""A few draws of the soak by other doors than a plain call: an exported file, torch.compile, opcheck, torch.func."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from watched_calls import Watch, detached

import flashgen
from flashgen.codegen.export import export_module
from flashgen.codegen.loading import load_module
from flashgen.spec import load
from flashgen.verify.soak.draw import draw
from flashgen.verify.soak.tensors import call_of

# Learned inputs, runtime params, dropout, schedules, and names that other code has too.
SEED, INDICES = 913, (21, 34)
LONGEST = 16
Results = list[torch.Tensor]


class Drawn:
    """A spec that was drawn, its module, and a call of few pairs: q, k, v and learned inputs by name, and the rest."""

    def __init__(self, index: int, folder: Path) -> None:
        case = draw(SEED, index)
        case = replace(case, q_len=min(case.q_len, LONGEST), kv_len=min(case.kv_len, LONGEST), shared=False)
        spec = {**case.spec, "name": f"drawn_{index}"}
        self.variant = load(spec)
        self.module = flashgen.build(spec, out=str(folder), verify=False, compile=False, tune=False)
        call = call_of(case, "cpu")
        learned = {t.name for t in self.variant.inputs if t.grad}
        self.leaves = {"q": call.q, "k": call.k, "v": call.v} | {name: call.inputs[name] for name in learned}
        dropping = {"dropout_seed": torch.tensor(7)} if self.variant.dropout else {}
        self.rest = {name: each for name, each in call.keywords.items() if name not in learned}
        self.rest |= {"scale": case.scale, "deterministic": True, **dropping}


def attend(
    module: ModuleType, tensors: Mapping[str, torch.Tensor], rest: Mapping[str, Any]
) -> tuple[torch.Tensor, ...]:
    q, k, v, *learned = tensors
    own = {name: tensors[name] for name in learned}
    found: tuple[torch.Tensor, ...] = module.attention(
        tensors[q], tensors[k], tensors[v], **own, **rest, return_lse=True
    )
    return found


def loss_of(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    return out.float().sin().sum() + torch.where(lse.isfinite(), lse, 0.0).sum()


def results(attention: Any, drawn: Drawn) -> Results:
    """out, lse and the gradients of all that learns."""
    leaves = {name: each.detach().clone().requires_grad_() for name, each in drawn.leaves.items()}
    out, lse = attention(leaves, drawn.rest)
    return [out.detach(), lse.detach(), *torch.autograd.grad(loss_of(out, lse), list(leaves.values()))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("index", INDICES)
def test_a_draw_is_the_same_by_every_door(index: int, tmp_path: Path) -> None:
    drawn = Drawn(index, tmp_path)
    module, rest = drawn.module, drawn.rest
    known = results(lambda leaves, rest: attend(module, leaves, rest), drawn)

    alone = tmp_path / f"alone_{index}.py"
    export_module(drawn.variant, [], alone)
    other = load_module(alone)
    exact: dict[str, Any] = {"rtol": 0, "atol": 0, "equal_nan": True}
    torch.testing.assert_close(results(lambda leaves, rest: attend(other, leaves, rest), drawn), known, **exact)

    compiled = torch.compile(lambda leaves: attend(module, leaves, rest), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(results(lambda leaves, _: compiled(leaves), drawn), known, **exact)

    with Watch() as watch:
        results(lambda leaves, rest: attend(module, leaves, rest), drawn)
    assert len(watch.calls) == 2
    for overload, arguments in watch.calls:
        torch.library.opcheck(overload, detached(arguments), test_utils=("test_schema", "test_faketensor"))

    both = {name: torch.stack([each, each.flip(0)], 1) for name, each in drawn.leaves.items()}

    def gradients(tensors: Mapping[str, torch.Tensor]) -> Any:
        return torch.func.grad(lambda leaves: loss_of(*attend(module, leaves, rest)))(tensors)

    mapped = torch.func.vmap(gradients, in_dims=1, randomness="same")(both)
    for number in range(2):
        own = gradients({name: each.select(1, number) for name, each in both.items()})
        for name, each in own.items():
            torch.testing.assert_close(mapped[name][number], each, rtol=2e-2, atol=2e-2, equal_nan=True)
