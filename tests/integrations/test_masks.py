"""Compact masks say what transformers' own say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

masking = pytest.importorskip("transformers.masking_utils")

from flashgen.errors import ModelError  # noqa: E402
from flashgen.integrations.masks import form_of, interface_mask  # noqa: E402

BATCH, LENGTH = 3, 90
PACKED = torch.tensor([[*range(50), *range(40)], [*range(1), *range(89)], [*range(90)]])


def packed(inner: Callable[..., Any]) -> Callable[..., Any]:
    """As create_causal_mask does it; older versions of transformers have one function for both steps, or one step."""
    sequences = masking.find_packed_sequence_indices(PACKED)
    if hasattr(masking, "packed_sequence_compatibility_function"):
        return masking.packed_sequence_compatibility_function(inner, PACKED, sequences)
    own = inner
    if hasattr(masking, "remap_positions_for_packed_sequence"):
        own = masking.remap_positions_for_packed_sequence(inner, PACKED)
    return masking.and_masks(own, masking.packed_sequence_mask_function(sequences))


PATTERNS = {
    "causal": masking.causal_mask_function,
    "full": masking.bidirectional_mask_function,
    "sliding": masking.sliding_window_causal_mask_function(7),
    "both sides": masking.sliding_window_bidirectional_mask_function(65),
    "chunked": masking.chunked_causal_mask_function(16, torch.tensor([0, 5, 20])),
    "packed": packed(masking.causal_mask_function),
    "packed sliding": packed(masking.sliding_window_causal_mask_function(7)),
}


def padding(kind: str) -> torch.Tensor | None:
    seen = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    if kind == "left":
        seen[1, :20] = False
    elif kind == "right":
        seen[2, -20:] = False
    elif kind == "inside":
        seen[0, 30:40] = False
    return None if kind == "none" else seen


def whole(mask: torch.Tensor, q_length: int, kv_length: int) -> torch.Tensor:
    """The matrix that a mask of rows stands for."""
    k = torch.arange(kv_length)
    first, last = mask[:, 0, :q_length, :1], mask[:, 0, :q_length, 1:2]
    seen = (k >= first) & (k <= last)
    form = form_of(mask, q_length, kv_length)
    assert form in ("rows", "rows_and_keys")
    return seen & mask[:, 0, None, :kv_length, 2].bool() if form == "rows_and_keys" else seen


def arguments(pattern: str, kind: str, q_length: int = LENGTH, **others: Any) -> dict[str, Any]:
    lengths = {"batch_size": BATCH, "q_length": q_length, "kv_length": LENGTH, "q_offset": LENGTH - q_length}
    own = {"mask_function": PATTERNS[pattern], "attention_mask": padding(kind), "allow_is_causal_skip": False}
    return {**lengths, **own, "allow_is_bidirectional_skip": True, **others}


@pytest.mark.parametrize("kind", ["none", "left", "right", "inside"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_rows_are_those_of_the_matrix(pattern: str, kind: str) -> None:
    # A tensor stands for what a static cache says: that rows are wanted, not a matrix.
    given = arguments(pattern, kind, q_offset=torch.tensor(0), allow_is_causal_skip=True)
    found = interface_mask(**given)
    if found is None:
        assert (pattern, kind) == ("full", "none")
        return
    shown = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    expected = masking.sdpa_mask(**{**given, **shown})
    assert torch.equal(whole(found, LENGTH, LENGTH), expected[:, 0])
    assert found.numel() <= BATCH * 3 * LENGTH


@pytest.mark.parametrize("kind", ["left", "right"])
def test_a_sequence_of_padding_alone_has_no_keys(kind: str) -> None:
    # As where a prompt is read in parts, and one of them is all padding.
    given = arguments("sliding", kind)
    given["attention_mask"][0] = False
    found = interface_mask(**given)
    assert form_of(found, LENGTH, LENGTH) == "rows"
    assert torch.equal(whole(found, LENGTH, LENGTH), masking.sdpa_mask(**given)[:, 0])


@pytest.mark.parametrize("pattern", ["causal", "sliding", "chunked"])
def test_few_queries_stand_at_their_offset(pattern: str) -> None:
    given = arguments(pattern, "left", 4, kv_length=70, kv_offset=20)
    found = interface_mask(**{**given, "allow_is_causal_skip": True}, local_size=7)
    assert torch.equal(whole(found, 4, 70), masking.sdpa_mask(**given)[:, 0])


@pytest.mark.parametrize("kind", ["none", "left"])
def test_some_of_the_queries_are_taken_as_of_a_matrix(kind: str) -> None:
    given = arguments("sliding", kind)
    found = interface_mask(**given)[:, :, -5:, :]
    expected = masking.sdpa_mask(**{**given, "allow_is_bidirectional_skip": False})
    assert torch.equal(whole(found, 5, LENGTH), expected[:, 0, -5:])


def test_a_model_that_asks_for_a_matrix_gets_it() -> None:
    for q_length in (LENGTH, 1):
        found = interface_mask(**arguments("causal", "left", q_length))
        assert torch.equal(found, masking.sdpa_mask(**arguments("causal", "left", q_length)))


def test_integers_that_a_model_has_changed_are_refused() -> None:
    found = interface_mask(**arguments("sliding", "inside"))
    for changed in (found[:, :, -3:, :], found[..., :2][:, :, :40], torch.cat((found, found), -1)):
        with pytest.raises(ModelError, match="takes masks for matrices"):
            form_of(changed, 90, LENGTH)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_torch_compile_makes_the_same_rows(pattern: str) -> None:
    given = arguments(pattern, "inside", q_offset=torch.tensor(0), allow_is_causal_skip=True)
    compiled = torch.compile(interface_mask, fullgraph=True, backend="eager")(**given)
    assert torch.equal(whole(compiled, LENGTH, LENGTH), whole(interface_mask(**given), LENGTH, LENGTH))


def test_plain_masks_are_none() -> None:
    given = arguments("causal", "none", allow_is_causal_skip=True)
    assert interface_mask(**given) is None
    assert interface_mask(**given | {"attention_mask": torch.ones(BATCH, LENGTH, dtype=torch.bool)}) is None
    assert interface_mask(**arguments("sliding", "none", allow_is_causal_skip=True), local_size=7) is not None


def test_a_window_hides_nothing_of_the_keys_that_its_cache_kept_for_one_query() -> None:
    lengths = {"batch_size": 2, "q_length": 1, "kv_length": 7, "q_offset": 50, "kv_offset": 44}
    window, chunk = masking.sliding_window_causal_mask_function, masking.chunked_causal_mask_function
    assert interface_mask(**lengths, mask_function=window(7), local_size=7) is None
    # Of the chunk that begins with key 49 there are two.
    for own, size in ((window(6), 6), (chunk(7, torch.zeros(2, dtype=torch.int64)), 7)):
        found = interface_mask(**lengths, mask_function=own, local_size=size)
        expected = masking.sdpa_mask(**lengths, mask_function=own, allow_is_causal_skip=False)
        assert torch.equal(whole(found, 1, 7), expected[:, 0])


def test_a_union_with_another_mask_is_a_matrix() -> None:
    either = masking.or_masks(masking.causal_mask_function, lambda b, h, q, k: k % 7 == 0)
    given = arguments("causal", "left", mask_function=either)
    found = interface_mask(**given)
    assert found.dtype == torch.bool
    assert torch.equal(found, masking.sdpa_mask(**given))


@pytest.mark.parametrize("compiles", [False, True], ids=["", "compiled"])
@pytest.mark.parametrize("window", [None, 7])
def test_a_union_within_documents_is_a_matrix(window: int | None, compiles: bool) -> None:
    # Two images with words between them, which are one block, as transformers joins them to what is packed.
    blocks = torch.full((BATCH, LENGTH), -1)
    blocks[:, 3:6], blocks[:, 11:15] = 0, 0

    def block(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (blocks[b, q] == blocks[b, k]) & (blocks[b, q] >= 0)

    def made() -> torch.Tensor | None:
        own = masking.sliding_window_causal_mask_function(window) if window else masking.causal_mask_function
        documents = masking.packed_sequence_mask_function(masking.find_packed_sequence_indices(PACKED))
        either = masking.and_masks(masking.or_masks(own, block), documents)
        return interface_mask(**arguments("causal", "none", mask_function=either))

    found = torch.compile(made, fullgraph=True, backend="eager")() if compiles else made()
    assert found is not None
    assert found.dtype == torch.bool
    k = torch.arange(LENGTH)
    q = k[:, None]
    causal = (k <= q) & (k > q - (window or LENGTH))
    image = blocks[0] == 0
    documents = masking.find_packed_sequence_indices(PACKED)
    expected = (causal | (image & image[:, None])) & (documents[:, :, None] == documents[:, None])
    assert torch.equal(found[:, 0], expected)
