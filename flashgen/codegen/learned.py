"""What templates/learned.py.jinja needs to know: how a kernel adds up the gradients of learned inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flashgen.analysis.facts import Facts
from flashgen.codegen.pairs import Function, named_apart
from flashgen.codegen.words import words
from flashgen.emit.fragments import Fragment
from flashgen.emit.prologue import Prologue
from flashgen.emit.torch import emit
from flashgen.lang.derivative import LoadSite
from flashgen.lang.fold import fold
from flashgen.lang.learned import Group, Own, Placement, Sharing, steps_with_each
from flashgen.lang.log2 import of_qk, slope
from flashgen.lang.magnitudes import is_finite
from flashgen.lang.nodes import TRUE, Expr, Gather, const
from flashgen.lang.show import show
from flashgen.lang.traversal import inputs, substitute, variables
from flashgen.lang.variables import BEGIN_K, BEGIN_Q, is_uniform
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class SiteView:
    """One place where a learned input is read. Every string is Triton text.

    `gradient` is that of the pairs of a tile, from `ds_out`; it gets the name `value` where it is not that itself.
    `sums` names the row sums of what is added after the loop. `offset` is the element's number, after
    `offset_lines`; for DIAGONAL it reads the keys `along`. Where the function `uniform` says so, all pairs of a tile
    share the element at `corner`, after `corner_lines`. `writes` is "store" or "turns" where each pair has its own
    element if the constexpr `way` is true; "" elsewhere. On the host, `apart` is the condition for that,
    without a result where there is none to ask, and `shared_by` the axis, "batch" or "heads", whose programs take
    turns. `may_lack`: the kernel that owns pairs may have added it up, and left the others.
    """

    name: str
    input: str
    read: str
    pointer: str
    sharing: str
    gradient: str
    value: str
    sums: str
    offset: str
    offset_lines: tuple[str, ...]
    uniform: Function | None
    corner: str
    corner_lines: tuple[str, ...]
    writes: str
    way: str
    apart: Fragment
    shared_by: str
    may_lack: bool = False


@dataclass(frozen=True)
class LearnedView:
    """All places. `functions` are the helpers of this variant, `epilogue` statements between the loop and the sums.

    `pointers` and `ways` are the arguments that the kernel has for them; `reads` all names that the text reads.
    `by_key`: a kernel for dK and dV may add up what is one sum for all pairs or for those of a tile; `rest` is what it
    leaves to this kernel. `loads` counts the values that are read for each pair.
    """

    sites: tuple[SiteView, ...]
    functions: tuple[Function, ...]
    epilogue: tuple[str, ...]
    pointers: tuple[str, ...]
    ways: tuple[str, ...]
    reads: frozenset[str]
    by_key: bool
    loads: int

    @property
    def rest(self) -> tuple[SiteView, ...]:
        return tuple(site for site in self.sites if self.by_key and site.uniform is not None)

    @property
    def several_launches(self) -> bool:
        return any(site.shared_by for site in self.sites)

    @property
    def k_first(self) -> bool:
        return "k_first" in self.reads

    @property
    def k_last(self) -> bool:
        return "k_last" in self.reads


@dataclass(frozen=True)
class Owned:
    """The places of which each pair has an element, and who has elements of their own: each of the `told_apart` of "b"
    and "h", and each of the groups."""

    places: tuple[Placement, ...]
    told_apart: frozenset[str]
    groups: tuple[Group, ...]


def learned_inputs(variant: Variant) -> tuple[str, ...]:
    """The inputs whose gradients are sums over pairs: all that have one but the sinks."""
    return tuple(t.name for t in variant.inputs if t.grad and not (variant.sink and t.name == "sinks"))


def learned_view(facts: Facts, prologue: Prologue) -> LearnedView:
    """Work the texts out, for a kernel that owns queries; what they need before the loop goes to its prologue."""
    texts = SiteTexts(facts.variant, prologue)
    owned = owned_pairs(facts)
    lacking = () if owned is None or owned.places == facts.placements else owned.places
    sites = tuple(replace(texts.site(each), may_lack=each in lacking) for each in facts.placements)
    return LearnedView(
        sites,
        tuple(texts.functions),
        texts.epilogue.lines,
        tuple(site.pointer for site in sites),
        tuple(site.way for site in sites if site.way),
        frozenset(texts.reads | prologue.reads),
        by_key=summed_by_key(facts),
        loads=len(facts.gathers_of_pairs),
    )


def summed_by_key(facts: Facts) -> bool:
    """Whether a kernel for dK and dV that can adds these gradients up, but for tiles of more than one element.

    It has ds_out, if that is ds or a multiple, and walks along the same tiles, if these need no schedule.
    """
    found = facts.placements
    walks = not facts.uses_schedule and not facts.rows_scheduled and not any(each.strides for each in found)
    whole = all(each.sharing is Sharing.ALL for each in found)
    return bool(found) and walks and not facts.nonlinear and (whole or all(_shares_by_place(each) for each in found))


def owned_pairs(facts: Facts) -> Owned | None:
    """What a kernel that owns tiles of pairs adds up; None where it can't.

    That is where each pair has elements, all who share them share all of its head, the same at each place. Dropout and
    masks that a schedule is for are left to the kernel that walks along with them.
    """
    places = tuple(each for each in facts.placements if each.own is not None)
    owns = {(each.own.told_apart, each.own.groups) for each in places if each.own is not None}
    if len(owns) != 1 or facts.schedule_pairs_up or facts.variant.dropout is not None:
        return None
    ((told_apart, groups),) = owns
    numbers = {group.number: const(0) for group in groups}
    read = variables(*(substitute(each.offset, numbers) for each in places))
    # A score is another one for each who shares.
    fixed = told_apart | ({"kv_h"} if "h" in told_apart else set()) | ({"score"} if told_apart == {"b", "h"} else set())
    others = read & {"b", "h", "kv_h", "score", *variables(BEGIN_Q, BEGIN_K)} - fixed
    return None if others else Owned(places, told_apart, groups)


def _shares_by_place(found: Placement) -> bool:
    """Whether it follows from a tile's place alone that its pairs share an element, and which."""
    if found.uniform is None or steps_with_each(found.site.gather):
        return False
    return not inputs(found.uniform) | inputs(found.corner)


class SiteTexts:
    """Writes what the kernel needs for each place. `known` are functions of other kernels."""

    def __init__(self, variant: Variant, prologue: Prologue, known: Sequence[Function] = ()) -> None:
        self._variant, self._prologue, self._known = variant, prologue, known
        self.epilogue = prologue.fork()
        self.functions: list[Function] = []
        self.reads: set[str] = set()
        # Names of values in the loop. A name that two branches of an if give, or one inside and one before it, has to
        # have one type.
        self._inside: set[str] = set()
        scalars = [*(param.name for param in variant.runtime_params), *variant.dim_names]
        taken = [*(tensor.name for tensor in variant.inputs), *scalars, *(name for name, _ in variant.lets)]
        self._names = {*taken, *words()}

    def site(self, found: Placement) -> SiteView:
        name = self.name(found.site.gather)
        gradient = self.gradient(name, found.site)
        lines, offset = self._offset(name, found)
        uniform, corner_lines, corner = self._uniform(name, found)
        writes, way = _own(name, found.own)
        return SiteView(
            name=name,
            input=found.site.gather.input,
            read=show(found.site.gather, self._variant.lets),
            pointer=f"{name}_ptr",
            sharing=found.sharing.name,
            gradient=gradient,
            value="ds_out" if gradient == "ds_out" else name,
            sums=f"{name}_sums" if found.sharing in (Sharing.ALL, Sharing.ROW) else "",
            offset=offset,
            offset_lines=lines,
            uniform=uniform,
            corner=corner,
            corner_lines=corner_lines,
            writes=writes,
            way=way,
            apart=_condition(found.own),
            shared_by="" if found.own is None else found.own.shared_by,
        )

    def name(self, read: Gather) -> str:
        """What the gradient at a place is called."""
        name, number = f"d_{read.input}", 2
        while any(
            f"{name}{end}" in self._names
            for end in ("", "_ptr", "_sums", "_split", "_apart", "_in_turns", "_at", "_shared")
        ):
            name, number = f"d_{read.input}_{number}", number + 1
        self._names.add(name)
        return name

    def gradient(self, name: str, site: LoadSite, suffix: str = "") -> str:
        """The gradient of the pairs of a tile, from ds_out; a function for it gets the suffix."""
        derivative = fold(slope(site.derivative, self._variant.mask))
        if derivative is const(1.0):
            return "ds_out"
        if derivative is const(-1.0):
            return "-ds_out"
        if is_uniform(derivative):
            factor = self._prologue.name(derivative) if derivative.children else self._prologue.inline(derivative)
            return _product(derivative, factor)
        body = self._prologue.body(derivative)
        self.reads |= {*body.reads}
        function = self._function(f"_{name}{suffix}", body, f"{show(site.derivative, self._variant.lets)}.")
        return _product(derivative, function.call)

    def _function(self, name: str, body: Fragment, formula: str) -> Function:
        function = named_apart(Function(name, body, formula), self._known, "_by_pair")
        self.functions.append(function)
        return function

    def _offset(self, name: str, found: Placement) -> tuple[tuple[str, ...], str]:
        if found.sharing in (Sharing.ALL, Sharing.ROW):
            text = self.epilogue.inline(found.offset)
            self.reads |= self.epilogue.reads
            return (), text
        if found.by_distance is not None:
            body = self._prologue.body(found.by_distance)
            self.reads |= {*body.reads} - {"k"}
            read = show(found.site.gather, self._variant.lets)
            function = self._function(f"_{name}_at", body, f"The element {read}, for queries at q_first.")
            return (), function.call_with({"k": "along"})
        body = self._inlined(of_qk(found.offset))
        return body.lines, body.results[0]

    def _uniform(self, name: str, found: Placement) -> tuple[Function | None, tuple[str, ...], str]:
        if found.uniform is None:
            return None, (), ""
        body = self._prologue.body(found.uniform)
        read = show(found.site.gather, self._variant.lets)
        function = self._function(
            f"_{name}_is_one", body, f"Whether all pairs of a tile read the same element, {read}."
        )
        self.reads |= {*body.reads}
        corner = self._inlined(found.corner)
        return function, corner.lines, corner.results[0]

    def _inlined(self, root: Expr) -> Fragment:
        """Statements in the loop."""
        body = self._prologue.body(root, inlined=True, hidden=self._inside)
        self.reads |= {*body.reads}
        self._inside |= {*body.defines}
        return body


def _condition(own: Own | None) -> Fragment:
    return Fragment() if own is None or own.when is TRUE else emit([own.when], inlined=True)


def _own(name: str, own: Own | None) -> tuple[str, str]:
    """`writes` and `way` of a site."""
    if own is None:
        return "", ""
    if own.shared_by:
        return "turns", f"{name}_in_turns".upper()
    return "store", f"{name}_apart".upper()


def _product(derivative: Expr, text: str) -> str:
    """ds_out times the derivative of this text; a hidden pair may lie where that is infinite."""
    return f"ds_out * {text}" if is_finite(derivative) else f"tl.where(ds_out == 0.0, 0.0, ds_out * {text})"
