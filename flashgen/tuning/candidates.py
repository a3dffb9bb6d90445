"""Which configs of a workload are compiled and tried, and which of them first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flashgen.runtime.config import Config
from flashgen.runtime.defaults import Default, portable_default
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.kernels.portable import ITEMSIZE
from flashgen.runtime.lookup import neighbours
from flashgen.runtime.registry import kernel_of
from flashgen.runtime.usable_records import read_record
from flashgen.tuning.presets import LEAST_TRIALS, Preset
from flashgen.tuning.prune import Compiled, prune
from flashgen.tuning.space import Space, distance, search_space
from flashgen.tuning.trial import Trial
from flashgen.tuning.worker import RequestFailed
from flashgen.tuning.workloads import Workload

# A backend that is not in use is searched where one of its configs takes at most so many times as long as the fastest.
NEAR = 1.25

# What compiles alike: kernel, dtype, head_dim, v_head_dim. Lengths hardly matter to the compiler. A kernel whose cache
# has a dtype of its own is another one, and so is one of packed sequences.
Group = tuple[str, str, int, int]


class _Told(NamedTuple):
    """This run's last winners, and the configs of records, the nearest first."""

    winners: list[Config]
    near: list[Config]


class Candidates:
    """Chooses for one workload after another; what it is told of one helps the next.

    `scheduled` are the kernels that walk a schedule of tiles, `default` gives a kernel's built-in default, also that
    for packed sequences, `folders` are those of the variant's records. `exact`: float32 is multiplied as such.
    """

    def __init__(
        self, preset: Preset, folders: Sequence[Path], scheduled: frozenset[str],
        default: Callable[[str, bool], Default], exact: bool = True,
    ) -> None:  # fmt: skip
        self._preset, self._folders, self._scheduled, self._default = preset, folders, scheduled, default
        self._exact = exact
        # What was chosen of a space, what the compiler said of it, the rankings of the searches, and the winners
        # whatever the dtype.
        self._chosen: dict[tuple[Group, frozenset[Config]], list[Config]] = {}
        self._compiled: dict[Group, dict[Config, Compiled | RequestFailed]] = {}
        self._rankings: dict[Group, list[Sequence[Config]]] = {}
        self._winners: dict[tuple[str, int, int], list[Config]] = {}
        self._near: dict[tuple[str, int, int], set[str]] = {}
        self._fastest: dict[tuple[str, int, int], Config] = {}

    def compiled(self, workload: Workload) -> dict[Config, Compiled | RequestFailed]:
        """What the compiler said of the configs of a workload's group, to be added to."""
        return self._compiled.setdefault(group(workload), {})

    def ranked(self, workload: Workload, configs: Sequence[Config]) -> None:
        """The configs that a search timed, the fastest first."""
        self._rankings.setdefault(group(workload), []).append(configs)

    def timed(self, workload: Workload, ranking: Sequence[Trial]) -> None:
        """What a search has timed so far, the fastest first: which backend comes first, and which are near enough to
        be searched."""
        times = [(trial.timing.median_us, trial.config.backend) for trial in ranking if trial.timing is not None]
        near = {backend for time_us, backend in times if time_us <= NEAR * times[0][0]}
        self._near.setdefault(_kernel(workload), set()).update(near)
        self._fastest.update({_kernel(workload): trial.config for trial in ranking[:1]})

    def won(self, workload: Workload, config: Config) -> None:
        """A config that was the fastest of a search, or has a record; said twice in a row it counts once."""
        winners = self._winners.setdefault(_kernel(workload), [])
        winners += [config] if winners[-1:] != [config] else []

    def space(self, workload: Workload) -> Space:
        key, problem = workload.key, workload.problem
        return search_space(
            Task(
                key.kernel, key.capability, key.dtype, key.head_dim, key.v_head_dim, problem.q_len, problem.kv_len,
                key.kernel in self._scheduled, problem.heads // problem.kv_heads, problem.packed,
                self._exact and key.dtype == "float32",
            )
        )  # fmt: skip

    def of(self, workload: Workload) -> list[Config]:
        """The configs to compile, those to begin with first.

        A limited search takes what another shape with the same space took, or what was fast in another dtype of this
        size: the compiler tells these hardly apart. The defaults are always tried, also where the space leaves configs
        like them out: a record must not be worse. Of a backend that is not in use a limited search takes the default
        alone until that comes near.
        """
        effort, told = self._preset.of(workload.key.kernel), self._told(workload)
        space = self._searched(workload, told)
        own, fastest = (group(workload), frozenset(space)), self._fastest.get(_kernel(workload))
        if effort.candidates is not None and own in self._chosen and self._compiled.get(own[0]):
            return _nearest(self._chosen[own], self._first(workload, told), None, fastest)
        fast = [ranking for other in self.siblings(workload) for ranking in self._rankings.get(other, ())]
        if effort.trials is not None and fast:
            best = [*self._early(workload, told), *(c for ranking in fast for c in ranking[: effort.passed_on])]
            promising = [config for config in dict.fromkeys(best) if config in space]
            tried = {*promising, *self._dropped_elsewhere(workload)}
            more = [config for config in self._usual(workload, told) if config not in tried]
            self._chosen[own] = [*promising, *more[: max(0, LEAST_TRIALS - len(promising))]]
        else:
            self._chosen[own] = _nearest(space, self._first(workload, told), effort.candidates, fastest)
        return self._chosen[own]

    def usual(self, workload: Workload) -> list[Config]:
        """What is tried whatever is fast in other dtypes: the defaults, records, and what is near them."""
        return self._usual(workload, self._told(workload))

    def _usual(self, workload: Workload, told: _Told) -> list[Config]:
        told = told._replace(winners=[])
        return _nearest(self._searched(workload, told), self._early(workload, told), LEAST_TRIALS, None)

    def _dropped_elsewhere(self, workload: Workload) -> Iterator[Config]:
        """What is not worth a launch in another dtype of this size, as its compilation says."""
        for other in self.siblings(workload):
            known = self._compiled.get(other, {})
            yield from known.keys() - set(prune(known, known, workload.key.capability).kept)

    def _searched(self, workload: Workload, told: _Told) -> list[Config]:
        """The defaults and the space, of a limited search as far as it is of backends that are in use or near."""
        defaults, configs = self._defaults(workload), self.space(workload).configs
        if self._preset.candidates is None:
            return list(dict.fromkeys([*defaults, *configs]))
        known = {config.backend for config in (*told.winners, *told.near)}
        near = {defaults[0].backend, *known, *self._near.get(_kernel(workload), ())}
        return list(dict.fromkeys([*defaults, *(config for config in configs if config.backend in near)]))

    def siblings(self, workload: Workload) -> list[Group]:
        """The groups of this kernel in other dtypes of this size; none where the search has no limit."""
        if self._preset.candidates is None:
            return []
        kernel, dtype, *dims = group(workload)
        others = [other for other in ITEMSIZE if other != dtype and ITEMSIZE[other] == ITEMSIZE[dtype]]
        return [(kernel, other, dims[0], dims[1]) for other in others]

    def likely_winners(self, workload: Workload) -> list[Config]:
        """This run's last winners for other dtypes and shapes, or else what calls take now."""
        told = self._told(workload)
        return told.winners or [*told.near[:1], *self._defaults(workload)][:1]

    def first(self, workload: Workload) -> list[Config]:
        """Where to begin: with what is known, then the usual shapes of the kernel in use.

        Of another backend its default alone: only where that is fast is it worth more.
        """
        return self._first(workload, self._told(workload))

    def _first(self, workload: Workload, told: _Told) -> list[Config]:
        early = self._early(workload, told)
        return list(dict.fromkeys([*early, *kernel_of(workload.key.kernel, early[0]).starts]))

    def _early(self, workload: Workload, told: _Told) -> list[Config]:
        """The built-in default, also with what its kernel wants tried at once. Then this run's winners for other
        dtypes and shapes, neighbours' records, and in between the default of the other kernel."""
        here, *others = self._defaults(workload)
        at_once = kernel_of(workload.key.kernel, here).tried_at_once
        varied = [here.but(**{axis: value}) for axis, value in at_once.items()]
        return list(dict.fromkeys([here, *varied, *told.winners, *told.near[:1], *others, *told.near[1:]]))

    def _told(self, workload: Workload) -> _Told:
        own = [record for folder in self._folders if (record := read_record(folder, workload.key)) is not None]
        near = [record.config for record in own + neighbours(workload.key, self._folders)[:4]]
        return _Told(self._winners.get(_kernel(workload), [])[-2:], near)

    def _defaults(self, workload: Workload) -> list[Config]:
        """The built-in config of the kernel in use, then that of the one that serves every call."""
        key, scheduled = workload.key, workload.key.kernel in self._scheduled
        sizes = (key.capability, key.dtype, key.head_dim, key.v_head_dim)
        in_use = self._default(key.kernel, key.bucket.packed)(*sizes, key.bucket)
        return list(dict.fromkeys([in_use, portable_default(key.kernel, scheduled, *sizes)]))


def group(workload: Workload) -> Group:
    key = workload.key
    apart = "packed" if key.bucket.packed else key.bucket.cache
    return f"{key.kernel} {apart}" if apart else key.kernel, key.dtype, key.head_dim, key.v_head_dim


def _kernel(workload: Workload) -> tuple[str, int, int]:
    """What configs are fast for whatever the dtype."""
    kernel, _, head_dim, v_head_dim = group(workload)
    return kernel, head_dim, v_head_dim


def _nearest(
    space: Sequence[Config], first: Sequence[Config], count: int | None, fastest: Config | None
) -> list[Config]:
    """The configs of `first`, then those nearest to any of them.

    Those of the backend of the fastest that is known, or else of the first one's, come before others.
    """
    anchors = [config for config in first if config in set(space)]
    lead = (fastest or anchors[0]).backend
    steps = {config: min(distance(config, anchor) for anchor in anchors) for config in space}
    strange = {config: config.backend != lead for config in space}
    rest = sorted(set(space) - set(anchors), key=lambda config: (strange[config], steps[config], str(config)))
    return [*anchors, *rest][:count]
