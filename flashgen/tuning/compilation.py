"""What a session asks its compilers for: ahead of the searches, and for one workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from flashgen.codegen.rehearsal import Wanted
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.registry import kernel_of
from flashgen.tuning.candidates import Candidates, Group, group
from flashgen.tuning.presets import LEAST_TRIALS
from flashgen.tuning.proofs import Proofs
from flashgen.tuning.prune import CompileRequest, Pruned, prune
from flashgen.tuning.tools import Tools
from flashgen.tuning.workloads import Workload


@dataclass(frozen=True)
class _Asked:
    """What is asked for of one kernel."""

    few: list[CompileRequest] = field(default_factory=list)
    rest: list[CompileRequest | Wanted] = field(default_factory=list)
    likely: list[CompileRequest] = field(default_factory=list)


class Compilation:
    """Compiles candidates, each once. With `forgiving`, what is only slow is not dropped."""

    def __init__(self, tools: Tools, candidates: Candidates, proofs: Proofs, forgiving: bool) -> None:
        self._tools, self._candidates, self._proofs, self._forgiving = tools, candidates, proofs, forgiving
        self._begun, self._likely = set[Group](), set[Group]()
        self._problems: dict[Group, Problem] = {}

    def prepare(self, workloads: Sequence[Workload]) -> None:
        """Have the compilers begin with what these workloads will ask for, kernel by kernel as they come, of each a few
        configs of all before the rest of any.

        What was fast in one dtype will be asked for in another of its size: that one begins when the first is done,
        but for a few that are likely to be tried first.
        """
        asked: dict[str, _Asked] = {}
        seen: set[Group] = set()
        for workload in workloads:
            own, waits = group(workload), bool(seen & set(self._candidates.siblings(workload)))
            begun = self._likely if waits else self._begun
            if own not in seen | begun:
                begun.add(own)
                of_kernel = asked.setdefault(own[0], _Asked())
                if waits:
                    of_kernel.likely.extend(self._requests(workload, self._candidates.usual(workload)))
                else:
                    requests = self._requests(workload, self._candidates.of(workload))
                    proofs = (self._proofs.needs(workload, each) for each in self._candidates.likely_winners(workload))
                    of_kernel.few.extend(requests[:LEAST_TRIALS])
                    # Proofs ask for what the requests of their configs have compiled by then.
                    of_kernel.rest.extend([*requests[LEAST_TRIALS:], *chain.from_iterable(proofs)])
            seen.add(own)
        self._tools.begin([each for one in asked.values() for each in (*one.few, *one.rest, *one.likely)])

    def prune(self, workload: Workload, candidates: Sequence[Config], seconds: float | None) -> Pruned:
        """Compile what no earlier workload has compiled; shapes hardly matter to the compiler, so most is known.

        What time did not suffice for is left to another run: a GPU that waits for its compiler measures little.
        """
        known = self._candidates.compiled(workload)
        asked = [config for config in candidates if config not in known]
        compiled = {config: kernel_of(workload.key.kernel, config).compiled(config) for config in asked}
        if asked:
            self._tools.prepare(workload.problem)
        answers = self._tools.compile(self._requests(workload, asked), seconds)
        known.update({config: answers[compiled[config]] for config in asked if compiled[config] in answers})
        begun = [config for config in candidates if config in known] or candidates
        return prune(begun, known, self._tools.device.capability, forgiving=self._forgiving)

    def _requests(self, workload: Workload, configs: Sequence[Config]) -> list[CompileRequest]:
        """On the problem of the group's first workload: what another one asks for has been compiled then."""
        target, problem = self._tools.device.capability, self._problems.setdefault(group(workload), workload.problem)
        compiled = dict.fromkeys(kernel_of(workload.key.kernel, config).compiled(config) for config in configs)
        return [CompileRequest(workload.key.kernel, problem, config, target) for config in compiled]
