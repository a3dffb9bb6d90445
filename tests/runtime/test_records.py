"""Records and their lookup, through the public doors: JSON text, folders and warnings."""

import errno
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.runtime import lookup as found_by
from flashgen.runtime import record_files
from flashgen.runtime.config import Config
from flashgen.runtime.identity import Identity
from flashgen.runtime.lookup import Lookup, lookup
from flashgen.runtime.record_files import RecordWarning, table_path
from flashgen.runtime.record_folders import cache_folder
from flashgen.runtime.record_table import parse, to_text
from flashgen.runtime.records import Bucket, Device, Key, Record
from flashgen.runtime.usable_records import read_record, usable_in

DEFAULT = Config(BM=32, BN=32, num_warps=4, num_stages=1)
TUNED = Config(BM=128, BN=64, num_warps=8, num_stages=3)
OTHER = Config(BM=64, BN=64, num_warps=4, num_stages=2)
KEY = Key(
    gpu="NVIDIA H200", capability="sm_90", triton="3.6", variant="alibi", kernel="forward", dtype="bfloat16",
    head_dim=128, v_head_dim=128, bucket=Bucket.of(32, 1, 8192, 8192), spec="0123456789ab", templates="ba9876543210",
)  # fmt: skip
RECORD = Record(
    KEY, TUNED, 812.5, 0.004, 40, {"crashed": 1}, {"shared memory": 7}, {"triton": "3.6.0"}, {"sm_mhz": 1980.0},
    "2025-01-01T00:00:00+00:00",
)  # fmt: skip

sizes = st.integers(1, 1 << 20)
buckets = st.builds(Bucket.of, sizes, sizes, sizes, sizes)


def store(folder: Path, *records: Record) -> Path:
    """The file in which they are now, beside those that were there."""
    path = table_path(folder, records[0].key.gpu)
    folder.mkdir(parents=True, exist_ok=True)
    present = parse(path.read_text()) if path.exists() else ()
    path.write_text(to_text([*present, *records]))
    return path


def answer(key: Key, roots: dict[str, Path], spec: str = "SPEC") -> tuple[Config, str]:
    choice = lookup(key, roots, lambda bucket: DEFAULT, spec)
    return choice.config, choice.source


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each test is a process that has warned of nothing yet."""
    monkeypatch.setattr(record_files, "_reported", set())
    found_by.forget()


@given(buckets)
def test_a_bucket_reads_back_from_its_text(bucket):
    assert Bucket.parse(str(bucket)) == bucket


@given(sizes)
def test_a_bucket_rounds_each_size_up_by_less_than_a_factor_of_two(size):
    bucket = Bucket.of(size, size, size, size)
    assert size <= bucket.q_len < 2 * size
    assert Bucket.of(bucket.q_len, bucket.q_len, bucket.q_len, bucket.q_len) == bucket
    assert bucket.batch_heads == bucket.group == bucket.q_len == bucket.kv_len


@given(buckets, buckets, buckets)
def test_distance_is_a_metric(one, two, three):
    assert (one.distance(two) == 0) == (one == two)
    assert one.distance(two) == two.distance(one)
    assert one.distance(three) <= one.distance(two) + two.distance(three)


# A key of each other GPU, Triton and so on, as far as records of one file may differ.
CHANGES = {
    "gpu": "NVIDIA-H200", "capability": "sm_80", "triton": "3.7", "variant": "causal", "kernel": "backward_q",
    "dtype": "float16", "head_dim": 64, "v_head_dim": 64, "bucket": Bucket.of(32, 1, 4096, 8192), "spec": "x",
    "templates": "x",
}  # fmt: skip


@pytest.mark.parametrize("count", range(len(CHANGES) + 1))
def test_a_table_reads_back_from_its_text_in_whatever_order(count):
    others = [replace(RECORD, key=replace(KEY, **{name: value})) for name, value in list(CHANGES.items())[:count]]
    text = to_text([RECORD, *others])
    assert set(map(str, parse(text))) == {str(record) for record in (RECORD, *others)}
    assert to_text([*reversed(others), RECORD]) == text == to_text(parse(text))


def test_a_table_has_a_line_a_record_and_says_once_what_they_share():
    other = replace(RECORD, key=replace(KEY, bucket=Bucket.of(1, 1, 64, 64)), median_us=7.25, note="a tie", failed={})
    lines = to_text([RECORD, other]).splitlines()
    records = [line for line in lines if '"bucket": ' in line]
    assert len(records) == 2 and records[0].index('"median_us"') == records[1].index('"median_us"')
    for shared in ("NVIDIA H200", "sm_90", '"triton": "3.6.0"', KEY.spec, KEY.templates):
        assert len([line for line in lines if shared in line]) == 1
    assert '"note"' not in records[1] and '"failed"' not in records[0]


def test_every_part_of_the_key_is_in_its_name():
    changes = {**CHANGES, "gpu": "NVIDIA H100"}
    changes.pop("capability")
    names = {replace(KEY, **{name: value}).name for name, value in changes.items()} | {KEY.name}
    assert len(names) == len(changes) + 1


def test_cache_folder_follows_the_variable_then_the_platform(monkeypatch, tmp_path):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("FLASHGEN_CACHE_DIR")
    for xdg in (str(tmp_path), "", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        assert cache_folder() == Path(platformdirs.user_cache_dir("flashgen"))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path(platformdirs.user_cache_dir("flashgen"))


# ---- the order of lookup ------------------------------------------------------------------------------------------


def test_exact_records_win_the_users_own_first_without_a_warning(tmp_path):
    roots = {"user cache": tmp_path / "user", "shipped": tmp_path / "shipped"}
    store(roots["shipped"], replace(RECORD, config=OTHER))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer(KEY, roots) == (OTHER, "shipped")
        store(roots["user cache"], RECORD)
        assert answer(KEY, roots) == (TUNED, "user cache")


def test_a_bucket_that_calls_for_other_tiles_is_not_near(tmp_path):
    wide = replace(DEFAULT, BN=2 * DEFAULT.BN)
    roots = {"user cache": tmp_path}
    store(tmp_path, replace(RECORD, key=replace(KEY, bucket=replace(KEY.bucket, kv_len=2 * KEY.bucket.kv_len))))

    def by_keys(bucket):
        return DEFAULT if bucket.kv_len <= KEY.bucket.kv_len else wide

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert lookup(KEY, roots, by_keys).config == DEFAULT
        assert lookup(KEY, roots, lambda bucket: DEFAULT).config == TUNED


def test_the_nearest_bucket_of_the_same_gpu_is_next(tmp_path):
    roots = {"user cache": tmp_path / "user", "shipped": tmp_path / "shipped"}
    far, near = Bucket.of(32, 1, 1024, 1024), Bucket.of(32, 1, 4096, 8192)
    store(roots["user cache"], replace(RECORD, key=replace(KEY, bucket=far), config=OTHER))
    store(roots["shipped"], replace(RECORD, key=replace(KEY, bucket=near), config=TUNED))
    store(roots["shipped"], replace(RECORD, key=replace(KEY, gpu="NVIDIA H100"), config=OTHER))
    with pytest.warns(RecordWarning, match=f"{near} on NVIDIA H200") as seen:
        assert answer(KEY, roots) == (TUNED, "nearest")
        assert answer(KEY, roots) == (TUNED, "nearest")
    assert len(seen) == 1


def test_another_gpu_of_the_same_capability_is_next(tmp_path):
    store(tmp_path, replace(RECORD, key=replace(KEY, gpu="NVIDIA A100", capability="sm_80"), config=OTHER))
    store(tmp_path, replace(RECORD, key=replace(KEY, gpu="NVIDIA H100 PCIe"), config=TUNED))
    with pytest.warns(RecordWarning, match="H100 PCIe"):
        assert answer(KEY, {"user cache": tmp_path}) == (TUNED, "same capability")


@pytest.mark.parametrize(
    "change",
    [
        {"spec": "another"},
        {"templates": "another"},
        {"triton": "3.7"},
        {"dtype": "float16"},
        {"head_dim": 64},
        {"v_head_dim": 64},
        {"kernel": "backward_q"},
        {"variant": "causal"},
        {"gpu": "NVIDIA A100", "capability": "sm_80"},
    ],
)
def test_a_record_for_another_kernel_compiler_or_capability_is_never_applied(tmp_path, change):
    store(tmp_path, replace(RECORD, key=replace(KEY, **change)))
    with pytest.warns(RecordWarning, match=r"alibi forward bfloat16 .* bh32-g1-q8192-k8192 on NVIDIA H200") as seen:
        for _ in range(3):
            assert answer(KEY, {"user cache": tmp_path}, "my/alibi.yaml") == (DEFAULT, "default")
    assert len(seen) == 1
    assert "flashgen tune my/alibi.yaml" in str(seen[0].message)


def test_the_command_that_mends_it_can_be_pasted(tmp_path):
    with pytest.warns(RecordWarning, match=r"`flashgen tune 'my specs/\$x\.yaml'` finds the best config"):
        answer(KEY, {"user cache": tmp_path}, "my specs/$x.yaml")


@pytest.mark.parametrize(
    ("out", "option"),
    [("generated", ""), ("my kernels", " --out 'my kernels'"), (".", " --out ."), ("../elsewhere", " --out {out}")],
)
def test_the_command_that_mends_it_is_for_the_folder_of_the_module(tmp_path, monkeypatch, out, option):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    place = Path(os.path.normpath(tmp_path / "here" / out))
    with pytest.warns(RecordWarning) as seen:
        answer(KEY, {"shipped": place / "alibi" / "tuned"})
    assert f"`flashgen tune SPEC{option.format(out=place)}` finds" in str(seen[0].message)


def test_a_spec_that_is_no_file_has_no_command(tmp_path):
    with pytest.warns(RecordWarning, match=r"; `flashgen\.build` of its spec finds the best config for it") as seen:
        answer(KEY, {"shipped": tmp_path / "alibi" / "tuned"}, "<dict>")
    assert "flashgen tune" not in str(seen[0].message)


@pytest.mark.parametrize(
    ("kernel", "bucket", "command"),
    [
        ("forward", "bh32-g1-q8192-k8192", "flashgen tune SPEC"),
        ("forward", "bh512-g1-q4096-k4096-t65536", "flashgen tune SPEC --mode varlen"),
        ("decode", "bh32-g4-q1-k8192", "flashgen tune SPEC --mode decode"),
        ("decode_paged", "bh32-g4-q1-k8192", "flashgen tune SPEC --mode paged"),
    ],
)
def test_the_command_that_mends_it_tunes_this_form_of_call(tmp_path, kernel, bucket, command):
    with pytest.warns(RecordWarning, match=rf"`{command}` finds the best config for it, with --shape where"):
        answer(replace(KEY, kernel=kernel, bucket=Bucket.parse(bucket)), {"user cache": tmp_path})


def test_records_as_an_earlier_flashgen_wrote_them_are_named_once(tmp_path):
    for root in (tmp_path / "cache" / "tuned", tmp_path / "generated" / "tuned"):
        old = root / "nvidia-h200" / "alibi" / "forward-bfloat16.json"
        old.parent.mkdir(parents=True)
        old.write_text("{}")
    folders = {"user cache": tmp_path / "cache/tuned/alibi", "shipped": tmp_path / "generated/alibi/tuned"}
    with pytest.warns(RecordWarning, match="in the form of an earlier flashgen") as seen:
        for _ in range(2):
            assert answer(KEY, folders) == (DEFAULT, "default")
    assert [str(w.message).split()[0] for w in seen if "of an earlier flashgen" in str(w.message)] == [
        str(tmp_path / "cache" / "tuned"),
        str(tmp_path / "generated" / "tuned"),
    ]
    assert old.read_text() == "{}"


# ---- damage -------------------------------------------------------------------------------------------------------


TEXT = to_text([RECORD])


def fields(**changes):
    table = json.loads(TEXT)
    return json.dumps({**table, "records": [{**table["records"][0], **changes}]}).encode()


DAMAGE = {
    "empty": b"",
    "truncated": TEXT.encode()[:200],
    "binary": bytes(range(256)),
    "nested": b"[" * 100_000,
    "list": b"[]",
    "missing field": b'{"format": 2}',
    "config of nonsense": fields(config="BM=7 BN=64 num_warps=4 num_stages=2"),
    "negative config": fields(config="BM=-64 BN=64 num_warps=4 num_stages=2"),
    "config with a field too many": fields(config="BM=64 BN=64 num_warps=4 num_stages=2 BK=1"),
    "config that is text": fields(config="fast"),
    "median NaN": fields(median_us=float("nan")),
    "median null": fields(median_us=None),
    "tried a float": fields(tried=1.5),
    "bucket of nonsense": fields(bucket="big"),
    "a format that is no number": TEXT.replace('"format": 2', '"format": "2"').encode(),
    "an older format": TEXT.replace('"format": 2', '"format": 1').encode(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_reported_once_set_aside_and_survived(tmp_path, damage):
    path = store(tmp_path, RECORD)
    path.write_bytes(DAMAGE[damage])
    with pytest.warns(RecordWarning) as seen:
        assert lookup(KEY, {"user cache": tmp_path}, lambda bucket: DEFAULT).source == "default"
        assert lookup(KEY, {"user cache": tmp_path}, lambda bucket: DEFAULT).source == "default"
    assert len([w for w in seen if str(path) in str(w.message)]) == 1
    assert not path.exists()
    assert path.with_name(path.name + ".damaged").read_bytes() == DAMAGE[damage]


def test_what_was_set_aside_before_is_kept(tmp_path):
    damage = [b"{", b"[1", b"{}}"]
    for content in damage:
        path = store(tmp_path, RECORD)
        path.write_bytes(content)
        with pytest.warns(RecordWarning, match="set aside as"):
            assert read_record(tmp_path, KEY) is None
    asides = [path.with_name(f"{path.name}{end}") for end in (".damaged", ".2.damaged", ".3.damaged")]
    assert [aside.read_bytes() for aside in asides] == damage


def test_a_folder_in_a_table_s_place_is_survived(tmp_path):
    table_path(tmp_path, KEY.gpu).mkdir()
    with pytest.warns(RecordWarning, match="cannot be read"):
        assert read_record(tmp_path, KEY) is None


def test_damage_that_cannot_be_set_aside_is_skipped(tmp_path, monkeypatch):
    path = store(tmp_path, RECORD)
    path.write_text("{")

    def refused(source, target):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))

    monkeypatch.setattr(os, "replace", refused)
    with pytest.warns(RecordWarning, match="skipped") as seen:
        assert read_record(tmp_path, KEY) is None
        assert read_record(tmp_path, KEY) is None
    assert len(seen) == 1 and [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_table_without_permission_is_survived(tmp_path):
    path = store(tmp_path, RECORD)
    path.chmod(0)
    with pytest.warns(RecordWarning, match="Permission"):
        assert read_record(tmp_path, KEY) is None


def test_damage_beside_good_tables_does_not_hide_them(tmp_path):
    store(tmp_path, RECORD)
    bad = store(tmp_path, replace(RECORD, key=replace(KEY, gpu="NVIDIA H100")))
    bad.write_text("{")
    with pytest.warns(RecordWarning):
        assert usable_in(tmp_path) == [RECORD]


# ---- the module's own lookup --------------------------------------------------------------------------------------


def test_a_module_remembers_a_bucket_until_told_to_forget(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(found_by, "current_device", lambda index: Device(KEY.gpu, KEY.capability, KEY.triton))
    identity = Identity("alibi", KEY.spec, {"forward": KEY.templates}, "variants/alibi.yaml", {})
    find = Lookup(identity, "forward", lambda *_: DEFAULT, tmp_path / "shipped")
    with pytest.warns(RecordWarning):
        assert find(0, "torch.bfloat16", 128, 128, 32, 1, 8000, 8000).source == "default"
    store(tmp_path / "tuned" / "alibi", RECORD)
    assert find(0, "torch.bfloat16", 128, 128, 30, 1, 8192, 8000).source == "default"
    found_by.forget()
    choice = find(0, "torch.bfloat16", 128, 128, 30, 1, 8192, 8000)
    assert (choice.config, choice.source) == (TUNED, "user cache")
    assert find(0, "torch.bfloat16", 128, 128, 32, 1, 8191, 8192) is choice


def test_a_module_asks_again_for_each_size_that_a_bucket_tells_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(found_by, "current_device", lambda index: Device(KEY.gpu, KEY.capability, KEY.triton))
    identity = Identity("alibi", KEY.spec, {"decode_paged": KEY.templates}, "variants/alibi.yaml", {})
    buckets = []

    def default(capability, dtype, head_dim, v_head_dim, bucket):
        buckets.append(bucket)
        return DEFAULT

    find = Lookup(identity, "decode_paged", default, tmp_path / "shipped")
    sizes = {"batch_heads": 64, "group": 4, "q_len": 2, "kv_len": 4096, "block_size": 16, "cache": "", "tokens": 0}
    others = {**dict.fromkeys(("batch_heads", "group", "q_len", "kv_len", "tokens"), 9000), "block_size": 64}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for change in ({}, *({name: other} for name, other in others.items()), {"cache": "int8"}):
            asked = sizes | change
            find(0, "torch.bfloat16", 128, 128, **asked)
            assert buckets[-1] == Bucket.of(**asked)


def test_a_module_asks_again_for_each_kernel_that_is_compiled(tmp_path, monkeypatch):
    """By what it is asked for beside a bucket, of dense sequences and of packed ones with one token."""
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    gpus = [KEY.gpu, "NVIDIA A100"]
    monkeypatch.setattr(found_by, "current_device", lambda index: Device(gpus[index], KEY.capability, KEY.triton))
    identity = Identity(
        "alibi", KEY.spec, dict.fromkeys(("forward", "decode"), KEY.templates), "variants/alibi.yaml", {}
    )
    asked = []

    def default(*given):
        asked.append(given)
        return DEFAULT

    sizes = {"index": 0, "dtype": "torch.bfloat16", "head_dim": 128, "v_head_dim": 128, "tokens": 0}
    finds = [Lookup(identity, kernel, default, tmp_path / "shipped") for kernel in ("forward", "decode")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for change in (
            {}, {"index": 1}, {"dtype": "torch.float16"}, {"head_dim": 64}, {"v_head_dim": 64}, {"tokens": 1}
        ):  # fmt: skip
            for find in finds:
                number = len(asked)
                find(**sizes | change, batch_heads=64, group=4, q_len=2, kv_len=4096)
                assert len(asked) > number, change
