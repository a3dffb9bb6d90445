"""A case whose sequences are packed, proven as `flashgen verify` proves: each beside the formula of it alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType

from flashgen.problems.calls import Call
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.spec import load
from flashgen.verify import cases
from flashgen.verify.run import prove_call
from flashgen.verify.soak.case import Case
from flashgen.verify.soak.verdicts import Finding, finding_or_void


def packed_finding(case: Case, call: Call, module: ModuleType, configs: Mapping[str, str]) -> Finding:
    """What comes of the forward and the backward pass; `call` has a sequence in each batch element."""
    variant = load(dict(case.spec))
    planned = case.planned and hasattr(module, "plan")
    findings = []
    for proof in _proofs(case, planned, {kernel: Config.parse(config) for kernel, config in configs.items()}):
        finding = finding_or_void(prove_call(module, variant, proof, call))
        if finding.kind == "void":
            return finding
        findings.append(finding)
    return max(findings, key=lambda finding: (finding.failed, finding.share))


def _proofs(case: Case, planned: bool, configs: Mapping[str, Config]) -> list[cases.Case]:
    heads, dims = (case.heads, case.kv_heads), (case.head_dim, case.v_head_dim)
    problem = Problem(case.batch, *heads, case.q_len, case.kv_len, *dims, case.dtype)
    forward = cases.Case(
        "packed", problem, configs.get("forward"), scale=case.scale, planned=planned, seed=case.values,
        lengths=case.lengths, rest=case.rest,
    )  # fmt: skip
    if case.d_out == "none":
        return [forward]
    keys, queries = configs.get("backward_kv"), configs.get("backward_q")
    backward = cases.Backward(case.d_out, case.d_lse, case.deterministic, keys, queries)
    return [forward, replace(forward, backward=backward)]
