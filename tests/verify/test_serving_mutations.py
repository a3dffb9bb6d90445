"""The proof of paged attention can fail: a kernel with one mistake is caught, whatever the mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
from gallery import VARIANTS
from mutants import rendered
from packages import changed

import flashgen.runtime.device.merge as merge
from flashgen.codegen import generate, load_module, write_package
from flashgen.runtime import decoding
from flashgen.spec import load
from flashgen.verify import PagedCase, cases_for, paged_cases_for, run_case


@dataclass(frozen=True)
class Mutation:
    """A mistake: in the module of a variant, or in that of the merge, a text is replaced by another."""

    name: str
    variant: str
    old: str
    new: str
    in_merge: bool = False


MUTATIONS = [
    Mutation("the page table read off by one", "full", "page_of(pages_ptr, tl", "page_of(pages_ptr + 1, tl"),
    Mutation("pages looked up two tiles ahead", "full", "at = start + BN +", "at = start + 2 * BN +"),
    Mutation("the place in a page read off by one", "full", "+ place * stride_vn", "+ (15 - place) * stride_vn"),
    Mutation("what stands behind the end read", "full", "tl.minimum(at, kv_len - 1)", "at"),
    Mutation("the scale of keys applied twice", "full", "qk *= k_factor[:, None]",
             "qk *= (k_factor * k_factor)[:, None]"),
    Mutation("no scale of values", "full", "acc *= tl.load(v_scale_ptr", "acc *= 0.0 + 0 * tl.load(v_scale_ptr"),
    Mutation("one head for all rows of a tile", "alibi", "h = head[:, None]",
             "h = (head * 0 + kv_h * group)[:, None]"),
    Mutation("the queries of another sequence", "full", "(begin_q + query)", "(begin_q * 0 + query)"),
    Mutation("a split left out", "causal", "split_start = split * per_split", "split_start = split * per_split + BN"),
    Mutation("one sequence's length for all", "causal", "tl.load(seq_lens_ptr + b)", "tl.load(seq_lens_ptr + 0 * b)"),
    Mutation("a split dropped in the merge", "causal", "inside = start + splits < num_splits",
             "inside = start + splits < num_splits - 1", in_merge=True),
    Mutation("splits added without their maxima", "causal", "weights = exp_of(m_each - m_new, NATURAL)",
             "weights = tl.where(inside, 1.0, 0.0)", in_merge=True),
    Mutation("the sink added once for each split", "sink", "sink = tl.load(sinks_ptr + h)",
             "sink = tl.load(sinks_ptr + h) + 1.0986 * num_splits", in_merge=True),
    Mutation("the row shift left out", "alibi", "shift = tl.load(shift_ptr", "shift = 0 * tl.load(shift_ptr",
             in_merge=True),
]  # fmt: skip


CASES = [
    PagedCase("several queries", (100, 17, 230), (3, 1, 2), head_dim=16, v_head_dim=16, dtype="float32", seed=1),
    PagedCase("float8", (70, 40), head_dim=16, v_head_dim=16, dtype="float32", cache="float8_e4m3fn", scales="head"),
]


def is_proven(module: ModuleType, name: str) -> bool:
    """Whether ragged batches, one with a cache of 8 bits, come out right."""
    return all(run_case(module, VARIANTS[name], case, "cpu").ok for case in CASES)


@pytest.mark.parametrize("name", ["full", "causal", "alibi", "sink"])
def test_without_a_mistake_it_is_proven(gallery_module: Callable[[str], ModuleType], name: str) -> None:
    assert is_proven(gallery_module(name), name)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_a_mistake_is_caught(
    mutation: Mutation, gallery_module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = mutation.old, mutation.new
    if mutation.in_merge:
        path = tmp_path / "merge.py"
        path.write_text(changed({"merge": Path(merge.__file__).read_text()}, change)["merge"])
        monkeypatch.setattr(decoding, "merge_splits", load_module(path).merge_splits)
        module = gallery_module(mutation.variant)
    else:
        right, file = rendered(VARIANTS[mutation.variant]), "decode_paged.py"
        write_package(tmp_path / mutation.variant, {**right, **changed({file: right[file]}, change)})
        module = load_module(tmp_path / mutation.variant)
    assert not is_proven(module, mutation.variant)


def test_the_quick_level_has_several_tiles_of_rows(tmp_path: Path) -> None:
    variant, right = VARIANTS["causal"], rendered(VARIANTS["causal"])
    change = "rows = tile * BM + tl.arange(0, BM)\n    in_range", "rows = tl.arange(0, BM)\n    in_range"
    write_package(tmp_path / "causal", {**right, **changed({"decode_paged.py": right["decode_paged.py"]}, change)})
    module = load_module(tmp_path / "causal")
    assert not all(run_case(module, variant, case, "cpu").ok for case in paged_cases_for(variant, "quick"))


@pytest.mark.parametrize("file", ["decode.py", "decode_paged.py"])
def test_a_chunk_of_keys_left_out_is_caught(file: str, tmp_path: Path) -> None:
    kept = {"kept": {"shape": ["batch", "kv_len"], "dtype": "bool"}}
    variant = load({"name": "padding", "inputs": kept, "mask": "kept[b, k]"})
    right, walk = rendered(variant), "tl.range(split_start, split_end, CHUNK * BN)"
    change = walk, walk.replace("split_end", "tl.minimum(split_start + 1, split_end)")
    write_package(tmp_path / "padding", {**right, **changed({file: right[file]}, change)})
    cases = cases_for(variant, "quick", gpu=False, scheduled=True), paged_cases_for(variant, "quick")
    (case,) = (each for each in cases[file == "decode_paged.py"] if each.name.endswith("keys in chunks"))
    assert not run_case(load_module(tmp_path / "padding"), variant, case, "cpu").ok
    assert run_case(load_module(generate(variant, tmp_path / "right")), variant, case, "cpu").ok


@pytest.mark.parametrize("file", ["decode.py", "decode_paged.py"])
def test_a_window_that_ends_too_early_is_caught(file: str, tmp_path: Path) -> None:
    """However long it is: keys beyond it are among those of few queries too."""
    variant = VARIANTS["sliding_window"]
    right, change = rendered(variant), ("r = q - 1023", "r = q - 923")
    write_package(tmp_path / "narrow", {**right, **changed({file: right[file]}, change)})
    cases = cases_for(variant, "quick", gpu=False, scheduled=False), paged_cases_for(variant, "quick")
    name = "paged, reach 1023" if file == "decode_paged.py" else "decode, reach 1023"
    (case,) = (each for each in cases[file == "decode_paged.py"] if each.name == name)
    assert not run_case(load_module(tmp_path / "narrow"), variant, case, "cpu").ok
    assert run_case(load_module(generate(variant, tmp_path / "right")), variant, case, "cpu").ok


@pytest.mark.parametrize("file", ["decode.py", "decode_paged.py"])
def test_a_param_that_is_baked_in_is_caught(file: str, tmp_path: Path) -> None:
    params = {"W": {"value": 30, "runtime": True}, "steep": {"value": 0.5, "runtime": True}}
    variant = load({"name": "near", "params": params, "score": "score * steep", "mask": "(k <= q) & (q - k < W)"})
    right, begin = rendered(variant), "    group = heads // kv_heads\n"
    name = "paged, other params" if file == "decode_paged.py" else "decode, other params"
    cases = cases_for(variant, "quick", gpu=False, scheduled=False), paged_cases_for(variant, "quick")
    (case,) = (each for each in cases[file == "decode_paged.py"] if each.name == name)
    assert run_case(load_module(generate(variant, tmp_path / "right")), variant, case, "cpu").ok
    for baked in ("W = 30", "steep = 0.5"):
        package = tmp_path / baked[0]
        write_package(package, {**right, **changed({file: right[file]}, (begin, f"{begin}    {baked}\n"))})
        assert not run_case(load_module(package), variant, case, "cpu").ok
