"""Everything that is asked of a variant, answered once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from flashgen.analysis.levels import COL, PAIR, level
from flashgen.analysis.packed import begin_of, has_room, stride_of_sums
from flashgen.analysis.registers import divides_keys, has_long_functions, has_lookups
from flashgen.analysis.uniform import Uniform, uniform_of
from flashgen.lang.bounds import KeyRange, conjuncts, key_range, row_range
from flashgen.lang.derivative import Gradients, LoadSite, gradients
from flashgen.lang.intervals import Ranges
from flashgen.lang.learned import Placement, placement
from flashgen.lang.linear import linear
from flashgen.lang.log2 import Logits, logits, slope
from flashgen.lang.monotone import increasing_in_q
from flashgen.lang.nodes import Expr, Gather, const, op
from flashgen.lang.tiles import TileTruth, tile_truth
from flashgen.lang.traversal import variables, walk
from flashgen.lang.variables import BATCH, LAST_KEY, B, Q, is_uniform
from flashgen.spec.variant import Input, Variant

# The share of tiles that are most of them: built-in configs are for what these take.
MOST_TILES = 0.75


@dataclass(frozen=True)
class Facts:
    """What follows from the expressions of a variant; each answer is worked out when it is first asked for."""

    variant: Variant

    @cached_property
    def ranges(self) -> Ranges:
        """What is known of the values that the expressions read."""
        dtypes = {i.name: i.dtype for i in self.variant.inputs}
        return Ranges(dtypes, frozenset(self.variant.dim_names), self.bottom_right)

    @property
    def bottom_right(self) -> bool:
        """Whether the last query stands at the last key."""
        return self.variant.align == "bottom_right"

    @cached_property
    def keys(self) -> KeyRange:
        """The keys that a query sees."""
        return key_range(self.variant.mask, self.ranges)

    @cached_property
    def rows(self) -> KeyRange:
        """The rows that see a key."""
        return row_range(self.variant.mask, self.bottom_right, self.ranges)

    @property
    def uses_schedule(self) -> bool:
        """Whether the mask says more than an interval of keys for each query, so that tiles are found by a kernel."""
        return not self.keys.closed

    @cached_property
    def schedule_pairs_up(self) -> bool:
        """Whether what a schedule is for depends on query and key together, and does not say, as padding does, of some
        queries and of some keys that they see nothing or are not seen."""
        return any({"q", "k"} <= variables(part) for part in conjuncts(self.keys.residual))

    @property
    def rows_scheduled(self) -> bool:
        """Whether the queries that see a key are no interval: a kernel that walks along them needs a schedule."""
        return not self.rows.closed

    @cached_property
    def longest_first(self) -> bool:
        """Whether later queries see more keys."""
        upper = self.keys.upper_bound
        return not self.uses_schedule and not self.keys.lower and upper is not None and increasing_in_q(upper) == 1

    @cached_property
    def is_window(self) -> bool:
        """Whether both ends of the range of keys move with the query."""
        ends = (self.keys.lower_bound, self.keys.upper_bound)
        return not self.uses_schedule and all(end is not None and increasing_in_q(end) == 1 for end in ends)

    @cached_property
    def ends_before_kv_len(self) -> bool:
        """Whether an upper bound of the mask alone keeps k below kv_len; the last query stands at kv_len - 1."""
        for bound in self.keys.upper:
            form = linear(bound)
            if self.bottom_right and form.terms.get(Q) == 1:
                form = form + linear(op("sub", LAST_KEY, Q))
            gap = form - linear(LAST_KEY)
            if not gap.terms and gap.constant <= 0:
                return True
        return False

    @cached_property
    def tile_truth(self) -> TileTruth:
        """What the corners of a tile say of the mask."""
        return tile_truth(self.variant.mask, self.ranges)

    @property
    def mask_by_batch(self) -> bool:
        """Whether the mask differs from one batch element to the next."""
        return "b" in variables(self.variant.mask)

    @property
    def mask_by_head(self) -> bool:
        """Whether it differs from one head to the next."""
        return bool(variables(self.variant.mask) & {"h", "kv_h"})

    @cached_property
    def counts_batch(self) -> bool:
        """Whether a batch element's result depends on its number, or on how many there are.

        Else b does nothing but read what is the element's own, along a dimension `batch`.
        """
        batches = {t.name: [dim.size is BATCH for dim in t.dims] for t in self.variant.inputs}
        sizes = [dim.size for t in self.variant.inputs for dim in t.dims if dim.size is not BATCH]
        roots = (self.variant.score, self.variant.mask)
        if any(sum(own) > 1 for own in batches.values()) or "batch" in variables(*roots, *sizes) or B in roots:
            return True
        for node in walk(*roots):
            own = batches[node.input] if isinstance(node, Gather) else [False] * len(node.children)
            if any((child is B) is not reads for child, reads in zip(node.children, own, strict=True)):
                return True
        return False

    @cached_property
    def mask_reads_keys(self) -> bool:
        """Whether the mask reads inputs of each key, such as doc[b, k]."""
        return any(isinstance(node, Gather) and level(node) == COL for node in walk(self.variant.mask))

    @cached_property
    def mask_of_positions(self) -> bool:
        """Whether the mask follows from positions alone, and no input is read along them."""
        if any({"q", "k"} & variables(node) for node in self.gathers):
            return False
        return variables(self.variant.mask) <= {"q", "k", "q_len", "kv_len"}

    @property
    def plain_mask(self) -> bool:
        """Whether all there is to the variant is a mask of positions that leaves each key an interval of queries."""
        bounded = not self.rows_scheduled and bool(self.rows.lower or self.rows.upper)
        return bounded and self.mask_of_positions and self.logits.scaled is not None

    @cached_property
    def logits(self) -> Logits:
        return logits(self.variant.score, self.variant.mask)

    @cached_property
    def uniform(self) -> Uniform | None:
        """Which tiles read inputs at one place, where their corners say so of some."""
        return uniform_of(self.variant, self.logits.pair, self.ranges)

    @cached_property
    def usual_logit(self) -> Expr:
        """The logit in most full tiles."""
        uniform, pair = self.uniform, self.logits.pair
        return pair if uniform is None or uniform.share < MOST_TILES else uniform.in_tile(pair)

    @cached_property
    def has_long_functions(self) -> bool:
        """Whether a function of many instructions is taken of each pair."""
        return has_long_functions(self.logits.pair)

    @cached_property
    def usually_has_long_functions(self) -> bool:
        """Whether in most full tiles a function of many instructions is taken of each pair."""
        return has_long_functions(self.usual_logit)

    @cached_property
    def usually_has_lookups(self) -> bool:
        """Whether in most full tiles each pair reads an element from anywhere, or is divided by what is no constant."""
        return has_lookups(self.usual_logit)

    @cached_property
    def mask_divides_keys(self) -> bool:
        """Whether the mask has quotients of each key, such as k // width of a runtime param."""
        return divides_keys(self.variant.mask)

    @property
    def logit_of_pairs(self) -> bool:
        """Whether the logit differs from pair to pair, so that it has the shape of a tile."""
        return level(self.logits.pair) == PAIR

    @cached_property
    def gradients(self) -> Gradients:
        """By the score and by each learned input."""
        return gradients(self.variant.score, [tensor.name for tensor in self.variant.inputs if tensor.grad])

    @cached_property
    def slope(self) -> Expr:
        """d score_out / d score, as a function of the dot product."""
        return slope(self.gradients.score, self.variant.mask)

    @property
    def nonlinear(self) -> bool:
        """Whether the slope differs from pair to pair, or from row to row."""
        return not is_uniform(self.slope)

    @cached_property
    def placements(self) -> tuple[Placement, ...]:
        """Where each gradient goes, for each place where a learned input is read, in the order of the inputs."""
        tensors = {tensor.name: tensor for tensor in self.variant.inputs}
        return tuple(
            _placement(site, tensors[name], self.ranges) for name, sites in self.gradients.sites for site in sites
        )

    @cached_property
    def gathers(self) -> tuple[Gather, ...]:
        """All that the score and the mask read of inputs."""
        return tuple(node for node in walk(self.variant.score, self.variant.mask) if isinstance(node, Gather))

    def sizes_of(self, read: Gather) -> list[Expr]:
        """The sizes of the input that is read."""
        return next([dim.size for dim in tensor.dims] for tensor in self.variant.inputs if tensor.name == read.input)

    @cached_property
    def gathers_of_pairs(self) -> tuple[Gather, ...]:
        """What is read for each pair."""
        return tuple(node for node in self.gathers if level(node) == PAIR)


def _placement(site: LoadSite, tensor: Input, ranges: Ranges) -> Placement:
    sizes = [dim.size for dim in tensor.dims]
    if not has_room(tensor):
        return placement(site, sizes, ranges)
    indices = [ranges.kept_inside(site.gather, axis, size) for axis, size in enumerate(sizes)]
    begin = begin_of(tensor)
    places = [begin if begin is not None and size is BATCH else i for i, size in zip(indices, sizes, strict=True)]
    strides = [stride_of_sums(tensor, axis) for axis in range(len(sizes))]
    if begin is None or sizes[-1] is not BATCH:
        strides[-1] = const(1)
    return placement(site, sizes, ranges, strides, places)


@lru_cache(maxsize=64)
def facts_of(variant: Variant) -> Facts:
    """The facts of a variant, one object for all that ask."""
    return Facts(variant)
