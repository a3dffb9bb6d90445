"""The batches that attention over a paged cache is proven on: one table for each level."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashgen.codegen import uses_schedule
from flashgen.problems.elements import has_elements
from flashgen.problems.paged import room
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec.variant import Variant
from flashgen.verify.params import Params, all_others
from flashgen.verify.reach import lengths_past

# Sequences without a key, with one, with a page but one slot, a page, a page and one slot, and longer ones.
RAGGED = (0, 1, 15, 16, 17, 100, 1000)
# More queries than keys, none, one and several.
SEVERAL = (1, 3, 1, 20, 0, 5, 2)


@dataclass(frozen=True)
class PagedCase:
    """One call of attention_paged() to prove: sequences of `kv_lens` keys, one query each or `q_lens`.

    `dtype` is that of q, `cache` that of the caches, "" for q's; `scales` as `make_batch` has them. `by_head`: the
    heads of a page lie one after the other. `planned` passes a plan made by plan_paged(). What no sequence has is
    garbage. None for a config: what the module chooses. `params` replaces values of runtime params.
    """

    name: str
    kv_lens: tuple[int, ...] = RAGGED
    q_lens: tuple[int, ...] | None = None
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    v_head_dim: int = 64
    block_size: int = 16
    dtype: str = "bfloat16"
    cache: str = ""
    scales: str = "none"
    by_head: bool = False
    planned: bool = False
    batch_invariant: bool = False
    config: Config | None = None
    seed: int = 0
    params: Params = ()

    @property
    def problem(self) -> Problem:
        """The sizes that inputs have: those of the whole batch, at the longest lengths."""
        q_len, kv_len = max(self.q_lens or (1,)), room(self.kv_lens, self.block_size)
        heads = self.heads, self.kv_heads
        return Problem(len(self.kv_lens), *heads, q_len, kv_len, self.head_dim, self.v_head_dim, self.dtype)


_FEW = (0, 70, 17, 40)

_QUICK = (
    PagedCase("paged, ragged", dtype="float32", head_dim=16, v_head_dim=16),
    # 20 queries of 4 heads are more rows than a tile has.
    PagedCase("paged, several queries", q_lens=SEVERAL, heads=8, dtype="float16", block_size=48, planned=True),
    PagedCase("paged, float8", _FEW, (2, 3, 1, 1), cache="float8_e4m3fn", scales="head"),
)

# Where the mask has no limits keys are walked in chunks, of which a split of fixed length has more than one here.
_IN_CHUNKS = PagedCase("paged, keys in chunks", (1100, 40), None, 2, 1, 16, 16, dtype="float32", batch_invariant=True)

# Cache dtypes, scales, layouts, groups and head dimensions.
_FULL = (
    PagedCase(
        "paged, float8_e4m3fn", RAGGED, SEVERAL, dtype="float16", cache="float8_e4m3fn", scales="token", by_head=True
    ),
    PagedCase("paged, float8_e5m2", _FEW, cache="float8_e5m2", scales="one", planned=True),
    PagedCase("paged, float8_e5m2, token", _FEW, (3, 90, 1, 2), dtype="float16", cache="float8_e5m2", scales="token"),
    PagedCase("paged, int8", RAGGED, SEVERAL, cache="int8", scales="head", block_size=64),
    PagedCase("paged, int8, token", _FEW, dtype="float32", cache="int8", scales="token", head_dim=24, v_head_dim=40),
    PagedCase("paged, float8, no scale", _FEW, dtype="float16", cache="float8_e4m3fn", by_head=True),
    PagedCase("paged, one head each", RAGGED, SEVERAL, 3, 3, 40, 72, by_head=True),
    PagedCase("paged, a group of 20", RAGGED, None, 20, 1, 20, 24, block_size=32, dtype="float16"),
    PagedCase("paged, a chunk of a prompt", (200, 7, 90), (150, 1, 70), planned=True),
    PagedCase("paged, batch_invariant", (3000, 17, 2048), (2, 1, 4), batch_invariant=True, planned=True),
)


def paged_cases_for(variant: Variant, level: str, capability: str = "") -> tuple[PagedCase, ...]:
    """The cases of a level whose inputs have elements, for a GPU such as "sm_80" or, "", the interpreter."""
    own = (replace(_IN_CHUNKS, seed=1),) if uses_schedule(variant) else ()
    cases = (*_cases(level, capability), *own, *_reach(variant), *_params(variant))
    return tuple(case for case in cases if has_elements(variant, case.problem, dict(case.params)))


def _reach(variant: Variant) -> list[PagedCase]:
    """Sequences past the largest integer of the expressions and shapes, where the others have not as many tokens."""
    return [
        PagedCase(f"paged, {name}", (kv_len, 40), (q_len, 1), 2, 1, 16, 16, dtype="float32", seed=2)
        for name, (q_len, kv_len) in lengths_past(variant, 3).items()
        if kv_len > max(RAGGED) or q_len > max(SEVERAL)
    ]


def _params(variant: Variant) -> list[PagedCase]:
    """Runtime params at other values than those in the spec."""
    case = PagedCase("paged, other params", (200, 17, 70), (2, 1, 1), 4, 2, 16, 16, dtype="float32", seed=3)
    others = all_others(variant, case.problem)
    return [replace(case, params=others)] if others else []


def _cases(level: str, capability: str) -> tuple[PagedCase, ...]:
    cases = (*_QUICK, *(_FULL if level == "full" else ()))
    seeded = (replace(case, seed=seed) for seed, case in enumerate(cases))
    # Triton has no float8_e4m3fn below sm_89.
    lacks = capability in ("sm_80", "sm_86", "sm_87")
    return tuple(case for case in seeded if not (lacks and case.cache == "float8_e4m3fn"))
