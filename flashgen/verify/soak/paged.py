"""A case whose keys are in a cache of pages, proven as `flashgen verify` proves: each sequence beside its formula."""

from __future__ import annotations

from random import Random
from types import ModuleType

from flashgen.problems.calls import Call, Own
from flashgen.spec import load
from flashgen.spec.modes import CACHES
from flashgen.verify.paged import prove_paged
from flashgen.verify.paged_cases import PagedCase
from flashgen.verify.soak.case import Case
from flashgen.verify.soak.verdicts import Finding, finding_or_void

PAGE = 16
_CACHES = ("", "", *CACHES)
_SCALES = ("one", "head", "token")


def paged_finding(case: Case, call: Call, module: ModuleType, device: str) -> Finding:
    """What comes of it; inputs and params are those of `call`, which has a sequence in each batch element."""
    random = Random(case.values)
    cache = random.choice(_CACHES)
    proof = PagedCase(
        "paged", tuple(kv_len for _, kv_len in case.lengths), tuple(q_len for q_len, _ in case.lengths),
        case.heads, case.kv_heads, case.head_dim, case.v_head_dim, PAGE, case.dtype, cache,
        random.choice(_SCALES) if cache else "none", by_head=random.random() < 0.5, planned=case.planned,
        batch_invariant=case.deterministic, seed=case.values,
    )  # fmt: skip
    own = Own(dict(call.inputs), dict(call.params))
    return finding_or_void(prove_paged(module, load(dict(case.spec)), proof, device, own))
