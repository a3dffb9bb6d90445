"""`flashgen cache` and `flashgen list`: records as a user sees them."""

from __future__ import annotations

from pathlib import Path

from commands import RENDER_ONLY, Run

from flashgen.codegen import load_module
from flashgen.runtime.config import Config
from flashgen.runtime.records import Bucket, Key, Record
from flashgen.tuning.cache import write_record


def record(spec: str = "s", templates: str = "t") -> Record:
    bucket = Bucket(32, 1, 64, 64)
    key = Key("NVIDIA H200", "sm_90", "3.6", "band", "forward", "float32", 16, 16, bucket, spec, templates)
    return Record(key, Config(64, 32, 4, 2), 123.4, 0.01, 10)


def test_list_shows_what_is_rendered_and_tuned(run: Run) -> None:
    (before,) = run("list", "--json").documents
    run("build", "band", *RENDER_ONLY)
    write_record(record())
    (after,) = run("list", "--json").documents
    assert (before["module"], before["tuned"]) == (None, [])
    assert (after["module"], after["tuned"]) == ("generated/band", ["NVIDIA H200"])
    assert "A band." in run("list").out


def test_cache_lists_shows_ships_and_clears(run: Run) -> None:
    assert "no tuned config in" in run("cache", "ls").out
    write_record(record())
    assert "64x32 w4 s2" in run("cache", "ls", "--gpu", "*h200*").out
    assert run("cache", "ls", "--variant", "other", "--json").documents == []
    (shown,) = run("cache", "show", "band", "--json").documents
    assert shown["config"] == {"BM": 64, "BN": 32, "num_warps": 4, "num_stages": 2}
    assert "1 records are of kernels that are not in generated and were left out: band" in run("cache", "export").out
    run("build", "band", *RENDER_ONLY)
    kernels = load_module(Path("generated/band")).IDENTITY
    write_record(record(kernels.spec, kernels.templates["forward"]))
    (exported,) = run("cache", "export", "--json").documents
    assert [Path(path).is_file() for path in exported["written"]] == [True]
    assert exported["left_out"] == [record().key.name]
    assert run("cache", "clear", "--variant", "band", "--json").documents == [{"deleted": 2}]
    (left,) = run("cache", "ls", "--json").documents
    assert left["source"] == "shipped"


def test_records_that_are_not_there_are_named(run: Run) -> None:
    assert run("cache", "ls", "--variant", "other", "--gpu", "A*").out.startswith(
        "no tuned config of variant 'other' of gpu 'A*' in "
    )


def test_records_are_explained_for_one_form_of_call(run: Run) -> None:
    asked = ("--gpu", "NVIDIA H200", "--capability", "sm_90", "--json")
    documents = run("cache", "explain", "band", "--mode", "paged", *asked).documents
    assert {document["key"]["kernel"] for document in documents} == {"decode_paged"}
    # Of float32, which has portable kernels alone.
    packed = run("cache", "explain", "band", "--mode", "varlen", "--kernel", "backward", *asked).documents
    assert {document["key"]["kernel"] for document in packed} == {"backward_q", "backward_kv"}
    assert {document["key"]["bucket"]["tokens"] for document in packed} == {65536}
    assert all("backend" not in document["choice"]["config"] for document in packed)


def test_calls_of_a_form_that_the_spec_names_no_shape_of_have_usual_ones(run: Run) -> None:
    with Path("variants/band.yaml").open("a") as spec:
        spec.write("tune: {shapes: [{mode: paged, batch: 1, heads: 1, kv_len: 64}]}\n")
    asked = ("--gpu", "NVIDIA H200", "--capability", "sm_90", "--kernel", "forward", "--json")
    documents = run("cache", "explain", "band", "--mode", "dense", *asked).documents
    assert {document["problem"]["q_len"] for document in documents} == {2048, 8192}
    assert "--kernel forward was given for calls of the form paged" in run("cache", "explain", "band", *asked).err
