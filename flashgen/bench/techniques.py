"""What the ablation compares: for each technique of the Hopper forward, a kernel with it and one without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flashgen.bench.plans import all_masked, all_tiles
from flashgen.codegen import default_of
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.kernels.forward_sm90 import FORWARD_SM90_KERNEL
from flashgen.runtime.schedule import Plan
from flashgen.spec.variant import Variant

# The GPUs whose kernel this is about.
CAPABILITY = FORWARD_SM90_KERNEL.capability
PLANS: Mapping[str, Callable[[Plan], Plan]] = {"all tiles": all_tiles, "all masked": all_masked}


@dataclass(frozen=True)
class Kernel:
    """A variant's kernel as built, with the built-in config, but for what is said here.

    `axes` replace values of that config, `config` the whole of it. `edit` is a name in EDITS, `plan` one in PLANS.
    """

    config: Config | None = None
    axes: tuple[tuple[str, int], ...] = ()
    approximate: bool = True
    edit: str = ""
    plan: str = ""

    def config_for(self, problem: Problem, variant: Variant) -> Config:
        built_in = default_of(variant, "forward")(CAPABILITY, problem.dtype, problem.head_dim, problem.v_head_dim)
        return self.config or Config.of(built_in.as_dict() | dict(self.axes))

    def label(self, problem: Problem, variant: Variant) -> str:
        """All that tells it from others of the same place."""
        changes = (self.edit, self.plan and f"plan with {self.plan}", "" if self.approximate else "approximate=false")
        return ", ".join([str(self.config_for(problem, variant)), *filter(None, changes)])


@dataclass(frozen=True)
class Place:
    """A variant of the gallery at one size, bfloat16."""

    variant: str
    batch: int
    heads: int
    length: int
    head_dim: int

    @property
    def problem(self) -> Problem:
        return Problem(
            self.batch, self.heads, self.heads, self.length, self.length, self.head_dim, self.head_dim, "bfloat16"
        )

    def __str__(self) -> str:
        return f"{self.variant}, D{self.head_dim}, S{self.length}"


@dataclass(frozen=True)
class Comparison:
    """A row of the table: what a technique brings in one place."""

    technique: str
    place: Place
    without: Kernel
    kernel: Kernel = Kernel()


FULL, FULL_SHORT = Place("full", 2, 16, 8192, 128), Place("full", 8, 16, 2048, 128)
CAUSAL, CAUSAL_SHORT = Place("causal", 2, 16, 8192, 128), Place("causal", 8, 16, 2048, 128)
FULL_64, CAUSAL_64 = Place("full", 2, 32, 8192, 64), Place("causal", 2, 32, 8192, 64)
CAUSAL_256 = Place("causal", 2, 8, 8192, 256)
WINDOW, DOCUMENTS = Place("sliding_window", 2, 16, 8192, 128), Place("document", 2, 16, 8192, 128)
ALIBI, SOFTCAP = Place("alibi", 2, 16, 8192, 128), Place("softcap", 2, 16, 8192, 128)

# The portable kernel with the tiles that suit it best.
PORTABLE = {64: Kernel(Config(64, 128, 4, 2)), 128: Kernel(Config(64, 64, 4, 3))}
TURNS, NO_TURNS = Kernel(axes=(("ping_pong", 1),)), Kernel(axes=(("ping_pong", 0),))


def _rows(technique: str, without: Kernel, *places: Place) -> tuple[Comparison, ...]:
    return tuple(Comparison(technique, place, without) for place in places)


COMPARISONS: tuple[Comparison, ...] = (
    *(
        Comparison("a warp that loads, groups of warps that compute", place, PORTABLE[place.head_dim])
        for place in (FULL, CAUSAL, FULL_64, WINDOW, DOCUMENTS)
    ),
    *_rows(
        "softmax beside the product P V",
        Kernel(edit="softmax after both products"), FULL, CAUSAL, FULL_64, SOFTCAP,
    ),
    *_rows(
        "the wait for V between the two products, not a tile ahead",
        Kernel(edit="V awaited a tile ahead"), FULL, CAUSAL_256,
    ),
    *_rows("two stages of K and V", Kernel(axes=(("num_stages", 1),)), FULL, FULL_64),
    *_rows("three consumers, not two", Kernel(axes=(("BM", 128),)), FULL_64),
    *(
        Comparison("consumers take turns at the tensor cores (`ping_pong`)", place, NO_TURNS, TURNS)
        for place in (FULL, FULL_64, CAUSAL_64, ALIBI, SOFTCAP)
    ),
    *_rows("row sums that meet after the last step", Kernel(edit="row sums meet in each step"), FULL_SHORT),
    *_rows("tiles that no query sees are skipped", Kernel(edit="causal, all tiles"), CAUSAL),
    *_rows("tiles that no query sees are skipped", Kernel(edit="window, all tiles"), WINDOW),
    *_rows("tiles that no query sees are skipped", Kernel(plan="all tiles"), DOCUMENTS),
    *_rows("no mask code in full tiles", Kernel(edit="causal, all masked"), CAUSAL),
    *_rows("no mask code in full tiles", Kernel(plan="all masked"), DOCUMENTS),
    *_rows(
        "programs that take tile after tile",
        Kernel(axes=(("persistent", 0),)), FULL, FULL_SHORT, CAUSAL, CAUSAL_SHORT,
    ),
    *_rows("the next tile from a counter, not in turn", Kernel(edit="tiles in turn"), CAUSAL, CAUSAL_SHORT, DOCUMENTS),
    *_rows("the longest tiles first", Kernel(edit="shortest tiles first"), CAUSAL, CAUSAL_SHORT),
    *_rows("as many heads at once as the L2 cache holds", Kernel(axes=(("all_heads", 1),)), CAUSAL),
    *_rows("tanh by the GPU's instruction (`approximate`)", Kernel(approximate=False), SOFTCAP),
)  # fmt: skip

PLACES: tuple[Place, ...] = tuple(dict.fromkeys(comparison.place for comparison in COMPARISONS))


def kernels_of(place: Place, variant: Variant) -> dict[str, Kernel]:
    """What is timed in a place, by label; the kernel as built comes first."""
    kernels = {Kernel().label(place.problem, variant): Kernel()}
    for comparison in COMPARISONS:
        if comparison.place == place:
            for kernel in (comparison.kernel, comparison.without):
                kernels.setdefault(kernel.label(place.problem, variant), kernel)
    return kernels
