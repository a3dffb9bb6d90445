"""Whether configs of one kernel compute the same, at the very size that they are timed at.

A proof holds a kernel against its formula at sizes where the formula fits into memory. What goes wrong only beyond
those, or only now and then, shows where finalists that must agree do not: then the many are right, not the one.

Two right kernels differ by how they round. Of a row, one query's or one key's, that is a small number of unit roundoffs
u of the dtype (of float32 far more than one: a formula may amplify the rounding of its scores) times what the row adds
up in the Euclidean norm. For out and dV that is the row itself, for rows of V are drawn at random. dS cancels: a row of
dQ or dK may be 0 where what it adds up is not. That is then, by the norms of rows of random tensors,

    of dQ: scale |k| |d_out_i| |out_i| / sqrt(v_head_dim)        of dK: scale |q| |v_j| |dV_j| / sqrt(v_head_dim)

as |out_i| / |v| and |dV_j| / |d_out| are the norms of the weights. ROUNDOFFS of them are allowed, several times what
two right kernels need. A tile of m keys that is left out, walked twice or read too early changes a row of n by
sqrt(m / n): more than that, also in bfloat16, for 64 keys of 16384.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from flashgen.runtime.config import Config

ROUNDOFFS = 16
LEAST_ROUNDOFF = 6e-5
# What underflows, as a share of the largest row and of its roundoff; and how far lse may be off.
UNDERFLOW, LSE = 1e-3, 1e-3


@dataclass(frozen=True)
class Result:
    """What a kernel wrote, and the norms of what each row of it adds up beside itself, where it cancels."""

    tensor: torch.Tensor
    beside: torch.Tensor | None = None


Results = Mapping[str, Result]


def outliers(configs: Sequence[Config], run: Callable[[Config], Results], arbiter: Config) -> dict[Config, str]:
    """The configs whose results are not those of the most, with what differs.

    Where they differ `arbiter`, another config, has a voice too. Where no two agree nobody is believed; between as many
    those with the arbiter are.
    """
    groups = _groups(configs, run)
    if len(groups) > 1 and arbiter not in configs:
        groups = _groups([*configs, arbiter], run)
    if len(groups) == 1:
        return {}
    most = max(len(group.members) for group in groups)
    largest = [group for group in groups if len(group.members) == most > 1]
    right = next((group for group in largest if len(largest) == 1 or arbiter in group.members), None)
    found = {config: group.why for group in groups if group is not right for config in group.members}
    return {config: found[config] for config in configs if config in found}


@dataclass
class _Group:
    """Configs that agree with the first of them, and how that differs from the first of all."""

    results: Results
    members: list[Config]
    why: str


def _groups(configs: Sequence[Config], run: Callable[[Config], Results]) -> list[_Group]:
    groups: list[_Group] = []
    for config in configs:
        results = run(config)
        differing = [difference(results, group.results) for group in groups]
        agreeing = next((group for group, why in zip(groups, differing, strict=True) if not why), None)
        if agreeing is None:
            groups.append(_Group(results, [config], differing[0] if differing else ""))
        else:
            agreeing.members.append(config)
    if len(groups) > 1:
        groups[0].why = groups[1].why
    return groups


def difference(one: Results, other: Results) -> str:
    """What of two kernels' results differs by more than they may round; empty where nothing does.

    NaN differs from all, infinity from any other number.
    """
    for name in one:
        if name in other:
            limit = _lse_limit if name == "lse" else _row_limit
            found = _beyond(name, one[name], other[name], limit)
            if found:
                return found
    return ""


def _beyond(name: str, one: Result, other: Result, limit: Callable[[Result, Result], torch.Tensor]) -> str:
    theirs, ours = one.tensor, other.tensor
    # What is infinite in both, as minus infinity of a row that sees no key, is itself.
    apart = torch.where(theirs == ours, 0.0, theirs.float() - ours.float())
    apart = apart.abs() if name == "lse" else apart.norm(dim=-1)
    allowed = limit(one, other)
    # A row with an infinite number in it, or one too large for its norm, is allowed as much.
    wrong = ~(apart <= allowed) | apart.isinf()
    if not bool(wrong.any()):
        return ""
    share = torch.where(wrong, apart / allowed, 0.0).nan_to_num(math.inf, math.inf)
    place = [int(n) for n in torch.unravel_index(share.argmax(), share.shape)]
    what = f"{apart[tuple(place)].item():.3g} where rounding explains {allowed[tuple(place)].item():.3g}"
    return f"{name} differs in {int(wrong.sum())} rows, at [batch, head, row] {place} by {what}"


def _row_limit(one: Result, other: Result) -> torch.Tensor:
    """By rows, in the Euclidean norm."""
    roundoff = max(torch.finfo(one.tensor.dtype).eps / 2, LEAST_ROUNDOFF)
    norms = (one.tensor.float().norm(dim=-1) + other.tensor.float().norm(dim=-1)) / 2
    adds_up = norms if one.beside is None else norms + one.beside
    return ROUNDOFFS * roundoff * (adds_up + UNDERFLOW * adds_up.nan_to_num(0.0, 0.0).amax())


def _lse_limit(one: Result, other: Result) -> torch.Tensor:
    return LSE * (1 + other.tensor.abs().nan_to_num(0.0, 0.0, 0.0))


def norms(tensor: torch.Tensor) -> torch.Tensor:
    """Of each row, in float32."""
    return tensor.float().norm(dim=-1)


def beside_dq(k: torch.Tensor, d_out: torch.Tensor, out: torch.Tensor, scale: float) -> torch.Tensor:
    """What rows of dQ add up before it cancels, [batch, heads, q_len]; the module's head says why."""
    return abs(scale) * norms(k).amax() * norms(d_out) * norms(out) / math.sqrt(out.shape[-1])


def beside_dk(q: torch.Tensor, v: torch.Tensor, dv: torch.Tensor, scale: float) -> torch.Tensor:
    """What rows of dK add up before it cancels, [batch, kv_heads, kv_len]."""
    return abs(scale) * norms(q).amax() * norms(v) * norms(dv) / math.sqrt(dv.shape[-1])
