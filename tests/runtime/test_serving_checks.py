"""A scheduler's numbers, checked on the host."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flashgen.runtime.serving import check, check_varlen


def test_check_says_all_that_is_wrong() -> None:
    q, k_cache = torch.zeros(5, 4, 16), torch.zeros(8, 16, 2, 16)
    table = torch.tensor([[0, 1], [7, 99]], dtype=torch.int32)
    lengths = torch.tensor([32, 16], dtype=torch.int32)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    check(q, k_cache, table, lengths, cu_seqlens_q=starts, max_seqlen_q=3)
    with pytest.raises(ValueError, match=r"block_table\[1, 1\] is 99; expected 0 to 7"):
        check(q, k_cache, table, torch.tensor([32, 17]), cu_seqlens_q=starts, max_seqlen_q=3)
    with pytest.raises(ValueError, match=r"seq_lens\[0\] is 33; expected 0 to 32; .* sequence 0 has -1 queries"):
        check(q, k_cache, table, torch.tensor([33, 0]), cu_seqlens_q=torch.tensor([1, 0, 4]), max_seqlen_q=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_table": [[0, -1], [7, 99]]}, r"block_table\[0, 1\] is -1; expected 0 to 7"),
        ({"block_table": [[8, 1], [7, 99]]}, r"block_table\[0, 0\] is 8; expected 0 to 7"),
        ({"seq_lens": [32, -1]}, r"seq_lens\[1\] is -1; expected 0 to 32"),
        ({"seq_lens": [20, 16], "max_seqlen_k": 19}, r"seq_lens\[0\] is 20; expected 0 to 19"),
        ({"max_seqlen_q": 2}, "sequence 1 has 3 queries; expected 0 to max_seqlen_q, 2"),
        ({"cu_seqlens_q": [1, 2, 5]}, r"cu_seqlens_q\[0\] is 1; expected 0"),
        ({"cu_seqlens_q": [0, 2, 4]}, r"cu_seqlens_q\[2\] is 4; expected 5, the number of queries"),
    ],
)
def test_check_says_which_number_is_wrong(change: dict[str, Any], message: str) -> None:
    numbers = {"block_table": [[0, 1], [7, 99]], "seq_lens": [32, 16], "cu_seqlens_q": [0, 2, 5], "max_seqlen_q": 3}
    given = {
        name: torch.tensor(value, dtype=torch.int32) if isinstance(value, list) else value
        for name, value in {**numbers, **change}.items()
    }
    with pytest.raises(ValueError, match=f"^{message}$"):
        check(torch.zeros(5, 4, 16), torch.zeros(8, 16, 2, 16), **given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens_k": [0, 1, 6]}, "sequence 1 has 5 keys; expected 0 to max_seqlen_k, 4"),
        (
            {"cu_seqlens_k": [0, 4, 3]},
            r"cu_seqlens_k\[2\] is 3; expected 6, the number of keys; sequence 1 has -1 keys; .*",
        ),
        ({"cu_seqlens_q": [0, 5, 5]}, "sequence 0 has 5 queries; expected 0 to max_seqlen_q, 3"),
        ({"cu_seqlens_k": [2, 2, 6]}, r"cu_seqlens_k\[0\] is 2; expected 0"),
    ],
)
def test_check_varlen_says_which_number_is_wrong(change: dict[str, list[int]], message: str) -> None:
    ends = {"cu_seqlens_q": [0, 2, 5], "cu_seqlens_k": [0, 2, 6]}
    q, k, longest = torch.zeros(5, 4, 16), torch.zeros(6, 4, 16), {"max_seqlen_q": 3, "max_seqlen_k": 4}
    check_varlen(q, k, **{name: torch.tensor(value) for name, value in ends.items()}, **longest)
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_varlen(q, k, **{name: torch.tensor(value) for name, value in {**ends, **change}.items()}, **longest)


def test_check_says_what_has_not_a_number_for_each_sequence() -> None:
    q, k_cache, table = torch.zeros(5, 4, 16), torch.zeros(8, 16, 2, 16), torch.zeros(2, 2, dtype=torch.int32)
    lengths = torch.tensor([3, 4], dtype=torch.int32)
    with pytest.raises(ValueError, match="q has 5 queries and block_table 2 sequences; expected as many"):
        check(q, k_cache, table, lengths)
    with pytest.raises(
        ValueError, match=r"seq_lens has shape \(3,\); expected \[2\], as block_table is of 2 sequences"
    ):
        check(q, k_cache, table, torch.tensor([3, 4, 5]), cu_seqlens_q=torch.tensor([0, 2, 5]), max_seqlen_q=3)
    with pytest.raises(ValueError, match=r"cu_seqlens_q has shape \(2,\); expected \[3\]"):
        check(q, k_cache, table, lengths, cu_seqlens_q=torch.tensor([0, 5]), max_seqlen_q=5)
    with pytest.raises(ValueError, match=r"block_table has shape \(2,\); expected \[batch, max_blocks\]"):
        check(q, k_cache, table[0], lengths)
    with pytest.raises(ValueError, match=r"cu_seqlens_k has shape \(2,\); expected \[3\], as cu_seqlens_q is of 2"):
        check_varlen(q, q, torch.tensor([0, 2, 5]), torch.tensor([0, 5]), 5, 5)
    with pytest.raises(ValueError, match=r"cu_seqlens_q has shape \(0,\); expected \[1\]"):
        check_varlen(q, q, torch.zeros(0), torch.zeros(0), 5, 5)


NUMBERS = torch.tensor([0, 2], dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": None}, "q is NoneType; expected a torch.Tensor"),
        ({"q": torch.zeros(())}, r"q has shape \(\); expected \[total_q, \.\.\.\]"),
        ({"k_cache": torch.zeros(16)}, r"k_cache has shape \(16,\); expected \[num_blocks, block_size, kv_heads"),
        ({"block_table": [[0], [1]]}, "block_table is list; expected a torch.Tensor"),
        ({"block_table": torch.zeros(2, 1)}, "block_table is torch.float32; expected int32"),
        ({"seq_lens": (3, 4)}, "seq_lens is tuple; expected a torch.Tensor"),
        ({"seq_lens": torch.tensor([3.0, math.nan])}, "seq_lens is torch.float32; expected int32"),
        ({"cu_seqlens_q": [0, 1, 2]}, "cu_seqlens_q is list; expected a torch.Tensor"),
        ({"max_seqlen_q": "3"}, "max_seqlen_q is str; expected an int"),
        ({"max_seqlen_k": torch.tensor(3)}, "max_seqlen_k is Tensor; expected an int"),
        ({"max_seqlen_q": 0}, "^max_seqlen_q is 0; expected 1 to 16777215$"),
        ({"max_seqlen_k": -5}, "^max_seqlen_k is -5; expected 1 to 16777215$"),
        ({"max_seqlen_k": 2**24}, "^max_seqlen_k is 16777216; expected 1 to 16777215$"),
        (
            {"block_table": torch.zeros(2, 0).int()},
            r"block_table has shape \(2, 0\); expected .* max_blocks at least 1",
        ),
        (
            {"k_cache": torch.zeros(8, 0, 2, 16)},
            r"k_cache has shape \(8, 0, 2, 16\); expected \[num_blocks, block_size",
        ),
        (
            {"block_table": torch.zeros(2, 1).int().to_sparse()},
            "block_table is a sparse_coo tensor; expected a strided",
        ),
        ({"seq_lens": NUMBERS.to("meta")}, "seq_lens is on meta; expected a tensor that has its numbers"),
    ],
)
def test_check_says_what_is_no_number_by_name(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "q": torch.zeros(2, 4, 16), "k_cache": torch.zeros(8, 16, 2, 16),
        "block_table": torch.zeros(2, 1, dtype=torch.int32), "seq_lens": NUMBERS,
    }  # fmt: skip
    check(**given)
    with pytest.raises((TypeError, ValueError), match=message):
        check(**{**given, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 3}, "k is int; expected a torch.Tensor"),
        ({"q": torch.zeros(())}, r"q has shape \(\); expected \[total_q, \.\.\.\]"),
        ({"cu_seqlens_q": None}, "cu_seqlens_q is NoneType; expected a torch.Tensor"),
        ({"cu_seqlens_k": [0, 2]}, "cu_seqlens_k is list; expected a torch.Tensor"),
        ({"cu_seqlens_k": torch.tensor([0.0, 2.0])}, "cu_seqlens_k is torch.float32; expected int32"),
        ({"max_seqlen_k": None}, "max_seqlen_k is NoneType; expected an int"),
        ({"max_seqlen_q": 0}, "^max_seqlen_q is 0; expected 1 to 16777215$"),
        ({"max_seqlen_k": 2**24}, "^max_seqlen_k is 16777216; expected 1 to 16777215$"),
        ({"cu_seqlens_k": NUMBERS.to("meta")}, "cu_seqlens_k is on meta; expected a tensor that has its numbers"),
    ],
)
def test_check_varlen_says_what_is_no_number_by_name(change: dict[str, Any], message: str) -> None:
    tokens, longest = torch.zeros(2, 4, 16), {"max_seqlen_q": 2, "max_seqlen_k": 2}
    given = {"q": tokens, "k": tokens, "cu_seqlens_q": NUMBERS, "cu_seqlens_k": NUMBERS, **longest}
    check_varlen(**given)
    with pytest.raises((TypeError, ValueError), match=message):
        check_varlen(**{**given, **change})
