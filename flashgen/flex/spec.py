"""From traced mods to a spec: what is hidden becomes the mask, what is shared a let, what is captured an argument."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake

from flashgen.errors import ModError, SpecError, UnreadError
from flashgen.flex.agreement import agree
from flashgen.flex.alike import replaced
from flashgen.flex.aside import aside, unwrapped
from flashgen.flex.captures import capture
from flashgen.flex.derived import Derivation
from flashgen.flex.hidden import apart, conjuncts, is_test
from flashgen.flex.lets import named
from flashgen.flex.mods import Mod, Mods, is_causal, place_of, trace_mods
from flashgen.flex.parts import Way, name_of
from flashgen.flex.values import AXIS, NOWHERE, Value, literal, where
from flashgen.flex.vocabulary import Vocabulary
from flashgen.lang.nodes import Type
from flashgen.lang.syntax import Index, Name, Operation, Syntax, pieces
from flashgen.lang.written import written
from flashgen.runtime.dispatch import asks_for_gradient, is_transformed
from flashgen.spec import load
from flashgen.spec.variant import Variant


@dataclass(frozen=True)
class Meaning:
    """A spec, and whence its arguments come: `tensors` and `numbers` are the captured values by their names in it,
    `places` what is where among the values that `capture` finds, `ways` how to get there, `fixed` the numbers that the
    spec holds for, `sized` the tensors for whose sizes it does, `constants` other values that it holds for, as in Mods.

    `derived` are inputs that are made of captured values, by name, and how, as one would write it; `derivation` makes
    them, and has their places behind those of captured values. Among the tensors they are as they come out now.
    `unread` are captured tensors of whose elements nothing is left: their gradients are zeros.
    """

    spec: dict[str, Any]
    tensors: Mapping[str, torch.Tensor]
    numbers: Mapping[str, int | float]
    places: Mapping[str, int]
    ways: Sequence[tuple[int, Way]]
    fixed: tuple[int, ...]
    sized: tuple[int, ...]
    constants: Sequence[tuple[int, Way, Any]]
    derived: Mapping[str, str]
    derivation: Derivation
    unread: tuple[int, ...]


def to_spec(
    score_mod: Mod | None, mask_mod: Mod | None = None, *, name: str = "flex", many_queries: bool = False
) -> tuple[dict[str, Any], dict[str, torch.Tensor], dict[str, int | float]]:
    """FlexAttention's mods as a spec for `flashgen.build`, and what they capture: the tensors and numbers by name.

    score_mod(score, b, h, q_idx, kv_idx) and mask_mod(b, h, q_idx, kv_idx) are those of torch's flex_attention; None
    leaves the scores as they are, or hides nothing. Tensors are inputs, with gradients where they require them; finite
    numbers are runtime params, unless a mod decides by them. What torch makes of captured tensors alone, as
    `bias.t()`, is an input too: the tensor is what comes out now. `many_queries`: there may be more queries than keys.
    Raises ModError, a ValueError that names the line of the mod, for what the language does not have.
    """
    found = meaning(score_mod, mask_mod, name, many_queries)
    if found.derived and is_transformed():
        raise ModError(
            place_of(score_mod or mask_mod),
            f"{', '.join(found.derived)}: made of captured tensors within a transform of torch.func, where to_spec has "
            "no value of them; expected a call outside of it",
        )
    return found.spec, dict(found.tensors), dict(found.numbers)


def meaning(
    score_mod: Mod | None, mask_mod: Mod | None, name: str, many_queries: bool, names: Vocabulary | None = None
) -> Meaning:
    """`to_spec` with what a call needs to find its arguments again; `names` as `capture` has them.

    A mod may do other things with a tensor than with the number that it stands for: `2 ** -n`, `scales.get(n)`,
    `isinstance(n, int)`. Then the spec holds for the numbers as they are.
    """
    names = capture(score_mod, mask_mod).names if names is None else names
    with aside():
        general, special = (_attempt(score_mod, mask_mod, name, many_queries, names, stay) for stay in (False, True))
        if isinstance(general, ModError):
            if isinstance(special, ModError):
                raise special
            return special[0]
        if isinstance(special, ModError) or (agree(general[1], special[1]) and _make_the_same(general[0], special[0])):
            return general[0]
        return special[0]


def _make_the_same(one: Meaning, other: Meaning) -> bool:
    """Whether the tensors that are made of captured values are known to be the same in both, as these are now."""
    return one.derived.keys() == other.derived.keys() and all(
        _are_close(one.tensors[name], other.tensors[name]) for name in one.derived
    )


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    # Nothing is known of what has no data.
    return not (one.is_meta or is_fake(one)) and torch.allclose(one.double(), other.double(), equal_nan=True)


def _attempt(
    score_mod: Mod | None,
    mask_mod: Mod | None,
    name: str,
    many_queries: bool,
    names: Vocabulary,
    numbers_stay: bool,
) -> tuple[Meaning, Variant] | ModError:
    """What the mods mean with tensors, or themselves, in the place of numbers; or why they mean nothing."""
    try:
        mods = trace_mods(score_mod, mask_mod, names, numbers_stay)
        unread: set[str] = set()
        while True:
            found = _meaning(score_mod, mask_mod, mods, name, many_queries, unread)
            try:
                return found, load(found.spec)
            except UnreadError as error:
                unread.add(error.name)
    except ModError as error:
        return error
    except SpecError as error:
        return ModError(place_of(score_mod or mask_mod), f"its spec is not accepted: {error}")


def _meaning(
    score_mod: Mod | None, mask_mod: Mod | None, mods: Mods, name: str, many_queries: bool, unread: Collection[str]
) -> Meaning:
    score, masks = _expressions(mods)
    roots = _without(unread, [score, *masks], mods)
    lets, (score, *masks) = named(roots, _local(mods), {AXIS, *mods.names})
    read = [*lets.values(), score, *masks]
    used = {piece.id for each in read for piece in pieces(each) if isinstance(piece, Name)}
    spec: dict[str, Any] = {"name": name, "description": _description(score_mod, mask_mod), "align": "top_left"}
    if any(map(is_causal, masks)):
        spec["causal"] = True
    params = {each: _param(each, value, mods) for each, value in mods.numbers.items() if each in used}
    indices = _indices(read)
    derived = [each for each in mods.deriving.inputs if each in indices or each in used]
    derivation = mods.derivation(derived)
    tensors = {**mods.tensors, **dict(zip(derived, _derived(derivation, mods), strict=True))}
    tensors = {
        each: tensor for each, tensor in tensors.items() if each in indices or (each in used and not tensor.ndim)
    }
    sizes = {**mods.sizes, **{each.name: each.sizes for each in mods.deriving.inputs.values()}}
    inputs = {
        each: _input(tensor, sizes[each], indices.get(each, []), many_queries) for each, tensor in tensors.items()
    }
    rest = [mask for mask in masks if not is_causal(mask)]
    spec |= {
        key: each
        for key, each in {
            "params": params,
            "inputs": inputs,
            "let": {each: written(syntax) for each, syntax in lets.items()},
            "score": "" if _is_plain(score) else written(score),
            "mask": _joined(rest),
        }.items()
        if each
    }
    numbers = {each: value for each, value in mods.numbers.items() if each in params and each not in mods.fixed}
    fixed, sized = (tuple(sorted(mods.places[each] for each in names)) for names in (mods.fixed, mods.sized(derived)))
    places = {**mods.places, **{each: len(mods.ways) + number for number, each in enumerate(derived)}}
    texts = {each: mods.deriving.text(each) for each in derived}
    return Meaning(
        spec, tensors, numbers, places, mods.ways, fixed, sized, mods.constants, texts, derivation,
        mods.learned_by(unread),
    )  # fmt: skip


def _derived(derivation: Derivation, mods: Mods) -> list[torch.Tensor]:
    """The derived inputs as captured values have them now; of what torch.func maps, as the first has them."""
    values = [unwrapped(mods.captured[name]) for name in mods.places]
    device = next((each.device for each in mods.tensors.values()), torch.device("cpu"))
    with torch.enable_grad():
        return derivation.of(values, device)


def _without(unread: Collection[str], roots: list[Syntax], mods: Mods) -> list[Syntax]:
    """The expressions with anything in the place of what nothing is left of."""

    def other(syntax: Syntax) -> Syntax | None:
        read = syntax.input if isinstance(syntax, Index) else syntax.id if isinstance(syntax, Name) else ""
        return _one(read, mods) if read in unread else None

    return replaced(roots, other) if unread else roots


def _one(name: str, mods: Mods) -> Syntax:
    """A number of the type that an input's elements have, or a param."""
    inputs = mods.deriving.inputs
    dtype = inputs[name].stand_in.dtype if name in inputs else torch.as_tensor(mods.captured[name]).dtype
    one = torch.ones((), dtype=dtype).item()
    return literal(one).syntax


def _description(*mods: Any) -> str:
    """What the first mod says of itself, else what the mods are called."""
    given = [mod for mod in mods if mod is not None]
    said = inspect.getdoc(given[0]) if given and inspect.isroutine(given[0]) else None
    if said and given[0].__module__.partition(".")[0] != "torch":
        return " ".join(said.partition("\n\n")[0].split())
    names = [name_of(mod) for mod in given]
    return f"FlexAttention with {' and '.join(names) or 'no mod'}."


def _expressions(mods: Mods) -> tuple[Syntax, list[Syntax]]:
    """The score and the masks that are joined."""
    score: Syntax = Name(NOWHERE, "score")
    masks: list[Syntax] = []
    if mods.score is not None:
        score, tests = apart(_as_score(mods.score.result))
        masks += [each for test in tests for each in conjuncts(test)]
        if is_test(score, _tests(mods)):
            score = _as_score(Value(score, Type.FLOAT, Type.BOOL))
    if mods.mask is not None:
        masks += conjuncts(mods.mask.result.cast(Type.BOOL).syntax)
    return score, masks


def _tests(mods: Mods) -> set[str]:
    """The captured values that are true or false."""
    tensors = {each.name: each.stand_in for each in mods.deriving.inputs.values()} | dict(mods.tensors)
    tests = {name for name, tensor in tensors.items() if tensor.dtype == torch.bool}
    return tests | {name for name, value in mods.numbers.items() if isinstance(value, bool)}


def _as_score(value: Value) -> Syntax:
    if value.held is Type.BOOL:
        return where(value, literal(1.0), literal(0.0)).syntax
    return value.syntax


def _local(mods: Mods) -> dict[int, str]:
    found = [each.local for each in (mods.score, mods.mask) if each is not None]
    return {key: name for local in found for key, name in local.items()}


def _is_plain(score: Syntax) -> bool:
    return isinstance(score, Name) and score.id == "score"


def _joined(masks: Sequence[Syntax]) -> str:
    whole: Syntax | None = None
    for mask in masks:
        whole = mask if whole is None else Operation(NOWHERE, "&", (whole, mask))
    return "" if whole is None else written(whole)


def _param(name: str, value: int | float, mods: Mods) -> Any:
    return value if name in mods.fixed else {"value": value, "runtime": True}


def _indices(read: Collection[Syntax]) -> dict[str, list[tuple[Syntax, ...]]]:
    """How each input is indexed."""
    found: dict[str, list[tuple[Syntax, ...]]] = {}
    for syntax in read:
        for piece in pieces(syntax):
            if isinstance(piece, Index):
                found.setdefault(piece.input, []).append(piece.indices)
    return found


def _input(
    tensor: torch.Tensor, sizes: Sequence[str], indices: list[tuple[Syntax, ...]], many_queries: bool
) -> dict[str, Any]:
    places = [[each[axis] for each in indices] for axis in range(tensor.ndim)]
    shape = [
        length if _is_row(each) else _size(own, each, many_queries)
        for length, own, each in zip(tensor.shape, sizes, places, strict=True)
    ]
    dtype = str(tensor.dtype).removeprefix("torch.")
    grad = {"grad": True} if asks_for_gradient(tensor) else {}
    return {"shape": shape, "dtype": "float32" if dtype == "float64" else dtype, **grad}


def _is_row(indices: list[Syntax]) -> bool:
    """Whether a dimension is one that sums and the like go over."""
    return all(isinstance(index, Name) and index.id == AXIS for index in indices)


def _size(own: str, indices: list[Syntax], many_queries: bool) -> str:
    """The length of a dimension: that of the positions that index it, or one of its own."""
    named = {index.id if isinstance(index, Name) else "" for index in indices}
    if named == {"q", "k"}:
        return "q_len" if many_queries else "kv_len"
    lengths = {"b": "batch", "h": "heads", "q": "q_len", "k": "kv_len"}
    return lengths.get(next(iter(named)), own) if len(named) == 1 else own
