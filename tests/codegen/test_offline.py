"""Gallery modules become code for GPUs that are not at hand, in the built-in config, within their shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import triton
from gallery import NAMES, VARIANTS
from offline_compiler import Compile
from packages import change

from flashgen.codegen import default_of, generate, offline
from flashgen.codegen.offline import Resources
from flashgen.compiling import Job, compile_all, compiler, jobs_for
from flashgen.errors import UsageError
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.runtime.defaults import built_in
from flashgen.runtime.gpus import GPUS, shared_limit
from flashgen.runtime.kernels.kernel import Task
from flashgen.runtime.registry import FAMILIES, TUNED, checked, kernel_of
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.tuning.worker import Worker

TARGETS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942")
HEAD_DIMS = (64, 128)
# Bytes a thread: a tenth of its 255 registers of 4 bytes; more where a mixed tile reads its mask, or each its bias,
# through a tile of addresses.
A_TENTH = 104
FEW_SPILLS = {"block_sparse": 500, "relative_bias": 180}
# The fastest on a GPU is the default there, whatever it spills outside its loop.
FASTEST = {("backward_kv", "sm_100", 128)}

# Launches: a kernel, its config, and a problem with what may make it another kernel to Triton.
PACKED = Problem(3, 4, 2, 256, 256, 64, 64, "bfloat16", "varlen", min_len=33)
LAUNCHED = [
    ("forward", Config(64, 64, 4, 3), Problem(1, 4, 4, 256, 256, 64, 64, "bfloat16")),
    ("forward", Config(128, 64, 4, 2, "hopper", ping_pong=1), Problem(2, 4, 2, 512, 512, 128, 128, "float16")),
    ("backward_q", Config(64, 32, 8, 2), Problem(1, 4, 2, 512, 1024, 128, 64, "float16")),
    ("backward_q", Config(128, 64, 4, 2, "hopper", ping_pong=0), Problem(2, 4, 2, 512, 512, 192, 128, "float16")),
    ("backward_kv", Config(32, 128, 8, 1, fuse_dq=0), Problem(2, 16, 16, 4096, 4096, 64, 64, "bfloat16")),
    (
        "backward_kv",
        Config(64, 128, 4, 2, "hopper", fuse_dq=1, delay_dq=0),
        Problem(1, 4, 2, 512, 768, 128, 128, "bfloat16"),
    ),
    (
        "backward_kv",
        Config(64, 64, 4, 2, "hopper", fuse_dq=0, delay_dq=0),
        Problem(1, 4, 2, 512, 768, 192, 128, "bfloat16"),
    ),
    ("forward", Config(64, 64, 4, 2), PACKED),
    ("backward_q", Config(64, 32, 8, 2), Problem(3, 4, 4, 200, 200, 64, 64, "float16", "varlen", min_len=1)),
    ("backward_kv", Config(32, 64, 4, 1, fuse_dq=0), PACKED),
    ("backward_kv", Config(64, 64, 4, 2, fuse_dq=1), PACKED),
]

# Each variant once, each target at least twice, both head dims and two kernels for each target.
SOME = [
    (name, TARGETS[place % 7], HEAD_DIMS[(place // 7) % 2], FAMILIES[place % 3])
    for name, place in zip([*NAMES, NAMES[0]], range(14), strict=True)
]
# Of what takes the same way through the compiler each variant has one in turn; the Hopper kernels have tests of theirs.
ALIKE = ("sm_80", "sm_86", "sm_89", "sm_120")
APART = ("sm_100", "gfx942")


def some_of(name: str, targets: Sequence[str], dtype: str, head_dims: tuple[int, ...]) -> tuple[Variant, list[Job]]:
    """A job for each target, with a kernel and a head dim in turn, in the built-in configs."""
    variant = replace(VARIANTS[name], dtypes=(dtype,), head_dims=head_dims)
    turn = NAMES.index(name)
    wanted = {
        (target, FAMILIES[(turn + place) % 3], head_dims[(turn // 3 + place) % len(head_dims)])
        for place, target in enumerate(targets)
    }
    jobs = [job for job in jobs_for(variant, targets) if (job.target, job.kernel, job.head_dim) in wanted]
    assert len(jobs) == len(targets)
    return variant, jobs


def all_fit(variant: Variant, jobs: Sequence[Job], folder: Path, compiled: Compile) -> list[tuple[Job, Resources]]:
    module = generate(variant, folder)
    found = [(j, compiled(module, j.kernel, j.target, j.dtype, j.head_dim, j.v_head_dim, j.config)) for j in jobs]
    for job, each in found:
        fits(each, job.target)
    return found


def fits(found: Resources, target: str) -> None:
    assert found.error is None, found
    assert found.shared is not None
    assert 0 < found.shared <= shared_limit(target)
    assert found.registers
    assert found.lost_negations == 0


@pytest.mark.parametrize(("name", "target", "head_dim", "kernel"), SOME, ids=str)
def test_a_variant_for_a_target(
    name: str, target: str, head_dim: int, kernel: str, tmp_path: Path, compiled: Compile
) -> None:
    variant = replace(VARIANTS[name], dtypes=("bfloat16",), head_dims=(head_dim,))
    (job,) = (job for job in jobs_for(variant, [target]) if job.kernel == kernel)
    all_fit(variant, [job], tmp_path, compiled)


@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_each_variant_for_targets_of_each_kind(name: str, tmp_path: Path, compiled: Compile) -> None:
    turn = NAMES.index(name)
    targets = ALIKE[turn % len(ALIKE)], APART[turn % len(APART)]
    found = all_fit(*some_of(name, targets, "bfloat16", HEAD_DIMS), tmp_path, compiled)
    limit = FEW_SPILLS.get(name, A_TENTH)
    judged = [(job, each.spills) for job, each in found if (job.kernel, job.target, job.head_dim) not in FASTEST]
    assert [(job, spills) for job, spills in judged if (spills or 0) > limit] == []


@pytest.mark.matrix
@pytest.mark.parametrize(("dtype", "targets"), [("float16", TARGETS[1::2]), ("float32", TARGETS[::2])])
def test_other_dtypes_and_head_dims(dtype: str, targets: Sequence[str], tmp_path: Path, compiled: Compile) -> None:
    all_fit(*some_of("gemma2", targets, dtype, (16, 80, 256)), tmp_path, compiled)


@pytest.mark.parametrize("along", ["q", "k"])
def test_a_derivative_may_vary_along_queries_or_keys_alone(along: str, tmp_path: Path, compiled: Compile) -> None:
    table = {"t": {"shape": ["heads", "kv_len"], "dtype": "float32"}}
    spec = {"name": f"factor_{along}", "causal": True, "inputs": table, "score": f"score * t[h, {along}]"}
    variant = load({**spec, "dtype": "bfloat16", "head_dim": 64})
    # Both backends, each with one of the kernels that read the derivative.
    kernels = {("sm_80", "backward_q"), ("sm_90", "backward_kv")}
    jobs = [job for job in jobs_for(variant, ["sm_80", "sm_90"]) if (job.target, job.kernel) in kernels]
    all_fit(variant, jobs, tmp_path, compiled)


def test_much_that_is_read_for_each_pair_leaves_room_for_the_tiles(tmp_path: Path, compiled: Compile) -> None:
    table = {"wide": {"shape": ["n"], "dtype": "int64"}}
    spec = {"name": "table_of_pairs", "inputs": table, "score": "score * wide[abs(q - k)]", "mask": "(q ^ k) % 7 != 3"}
    variant = load({**spec, "dtype": "float16", "head_dim": 41})
    all_fit(variant, jobs_for(variant, ["sm_90"]), tmp_path, compiled)


@pytest.mark.parametrize(
    ("kernel", "config"),
    [
        ("backward_inputs", Config(64, 64, 4, 1)),
        ("backward_kv", Config(64, 128, 4, 2, "hopper", fuse_dq=1, delay_dq=0)),
    ],
)
def test_strides_of_gradients_may_be_one(kernel: str, config: Config, tmp_path: Path, compiled: Compile) -> None:
    """Which Triton compiles in as a number. So they are where dimensions have the size 1."""
    shapes = {"t": ["batch", "kv_len", "n"], "u": ["batch", "q_len", 1]}
    inputs = {name: {"shape": shape, "dtype": "float32", "grad": True} for name, shape in shapes.items()}
    spec = {"name": "thin", "inputs": inputs, "score": "score + t[b, k, q % n] + u[b, q, 0]"}
    ones = dict.fromkeys((f"stride_{name}_{axis}_sums" for name in "tu" for axis in (0, 1)), 1)
    path = generate(load(spec), tmp_path)
    found = compiled(path, kernel, "sm_90", "bfloat16", 64, 64, config, False, (), True, False, {}, ones)
    assert found.error is None


@pytest.mark.parametrize("constants", [{"dropout_seed_ptr": None}, {}], ids=["no seed", "a seed"])
@pytest.mark.parametrize(
    ("kernel", "dtype", "config"),
    [
        ("forward", "bfloat16", Config(128, 128, 4, 2, "hopper", ping_pong=1)),
        ("backward_q", "bfloat16", Config(64, 64, 4, 1)),
        ("backward_kv", "float32", Config(16, 32, 8, 1, fuse_dq=0)),
    ],
)
def test_dropout_with_a_seed_and_without(
    kernel: str, dtype: str, config: Config, constants: dict[str, None], tmp_path: Path, compiled: Compile
) -> None:
    spec = {"name": "drops", "dropout": 0.1, "block_sparse": {"block_q": 128, "block_kv": 128}}
    path = generate(load(spec), tmp_path)
    found = compiled(path, kernel, "sm_90", dtype, 40, 40, config, False, (), False, False, {}, constants)
    assert found.error is None


def test_the_jobs_of_a_variant() -> None:
    variant = load({"name": "mine", "head_dim": [32, 80], "dtype": ["float32", "bfloat16"]})
    jobs = jobs_for(variant, ["sm_90", "gfx942"])
    forward = [j for j in jobs if j.kernel == "forward"]
    assert [(j.target, j.dtype, j.head_dim, j.v_head_dim) for j in forward] == [
        (target, "float32", d, d) for target in ("sm_90", "gfx942") for d in (32, 80)
    ]
    for j in jobs:
        default = default_of(variant, j.ready_for or j.kernel)
        assert j.config == default(j.target, j.dtype, j.head_dim, j.v_head_dim)
    with pytest.raises(UsageError, match=r"^no target 'sm_42'; expected one of sm_80, "):
        jobs_for(variant, ["sm_42"])


@pytest.mark.parametrize(
    ("mask", "apart"),
    [("k <= q", {"backward_pairs"}), ("(q ^ k) % 3 != 1", {"schedule"})],
    ids=["an element for each pair", "scheduled"],
)
def test_all_kernels_of_a_variant_are_compiled(mask: str, apart: set[str], tmp_path: Path, compiled: Compile) -> None:
    table = {"t": {"shape": ["heads", "q_len", "kv_len"], "dtype": "bfloat16", "grad": True}}
    variant = load({"name": "mine", "inputs": table, "score": "score + t[h, q, k]", "mask": mask, "head_dim": 64})
    jobs = jobs_for(variant, ["sm_90"])
    known = {*TUNED, "backward_inputs", "delta"} | apart
    assert {job.kernel for job in jobs} == known and len(jobs) == len(known)
    of_its_own = [job for job in jobs if job.kernel in {"decode", "decode_paged", "delta", "backward_inputs"} | apart]
    all_fit(variant, of_its_own, tmp_path, compiled)


@pytest.mark.parametrize("target", ["h100", "sm_9", "gfx", "sm_90a", "cuda"])
def test_a_target_that_does_not_exist(target: str) -> None:
    with pytest.raises(UsageError, match=f"^no target '{target}'; expected one such as sm_80 or gfx942$"):
        offline.gpu_target(target)


def test_a_kernel_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    large = Job("sm_120", "forward", "bfloat16", 256, 256, Config(64, 128, 8, 2))
    (found,) = compile_all(generate(load({"name": "mine"}), tmp_path), [large])
    assert found.shared is not None
    assert found.error == f"needs {found.shared} bytes of shared memory, sm_120 has {99 * 1024}"


def test_what_the_compiler_complains_of_is_an_error(tmp_path: Path) -> None:
    path = generate(load({"name": "mine"}), tmp_path)
    change(path, ("row0 = tile * BM", "row0 = tile * nothing"))
    (found,) = compile_all(path, [Job("sm_90", "forward", "bfloat16", 64, 64, Config(64, 64, 4, 1))])
    assert "nothing is not defined" in (found.error or "")


def test_the_complaint_is_what_is_wrong_not_where_it_was_called_from(tmp_path: Path) -> None:
    path = generate(load({"name": "mine"}), tmp_path)
    change(path, ("start = (num_tiles - 1 - i) * BN", "start = (num_tiles - 1 - nothing) * BN"))
    config = Config(128, 64, 4, 2, "hopper", ping_pong=0)
    (found,) = compile_all(path, [Job("sm_90", "forward", "bfloat16", 64, 64, config)])
    assert "nothing is not defined" in (found.error or "")


@pytest.mark.parametrize("is_serialized", [False, True])
def test_what_the_assembler_serialized_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_serialized: bool
) -> None:
    found = Resources(255, 2384, 4096, is_serialized, 1.0)
    monkeypatch.setattr(offline, "compile_kernel", lambda *given, **named: found)
    job = Job("sm_90", "forward", "bfloat16", 128, 128, Config(128, 128, 4, 2))
    assert compiler(str(tmp_path))(job).serialized_wgmma is is_serialized


def test_what_triton_has_in_its_cache_takes_what_it_took_when_it_was_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    relative_bias = VARIANTS["relative_bias"]
    # One that spills: how many bytes depends on the assembler's flags.
    job = Job("sm_100", "forward", "bfloat16", 64, 64, Config(64, 64, 4, 3))
    with Worker("flashgen.compiling:compiler", str(generate(relative_bias, tmp_path))) as worker:
        first, second = (replace(worker.ask(job, 120.0), seconds=0.0) for _ in range(2))
    assert first == second
    assert first.spills or triton.__version__.startswith("3.6.")


@pytest.mark.parametrize("name", ["document", "block_sparse", "relative_bias"])
def test_what_is_compiled_is_what_a_call_asks_for(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    path = str(generate(variant, tmp_path))
    with Worker("launch_keys:make", path, variant) as worker:
        for kernel, config, problem in LAUNCHED:
            asked, missing = worker.ask((kernel, problem, config), 120.0)
            assert asked[-1] == kernel_of(kernel, config).function
            assert missing == []


REHEARSED = [
    (Problem(2, 4, 2, 83, 109, 40, 40, "float32"), Config(32, 32, 4, 1), {}),
    (Problem(1, 4, 2, 128, 128, 64, 64, "bfloat16"), Config(128, 64, 4, 2, "hopper", ping_pong=0), {
        "backward_kv": Config(128, 128, 4, 2, "hopper", fuse_dq=1, delay_dq=0)
    }),
    (Problem(1, 1, 1, 1, 1, 64, 64, "float16"), Config(64, 64, 4, 3), {
        "backward_kv": Config(32, 64, 4, 2, fuse_dq=0), "backward_q": Config(64, 32, 4, 2)
    }),
]  # fmt: skip


@pytest.mark.parametrize("name", ["causal", "document"])
def test_a_rehearsal_notes_what_the_calls_ask_for(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    with Worker("launch_keys:rehearse", str(generate(variant, tmp_path)), variant) as worker:
        for request in REHEARSED:
            rehearsed, made, asked = worker.ask(request, 120.0)
            assert rehearsed == [] and len(set(made)) == len(made) >= 3
            assert set(asked) == set(made)


CAPABILITIES = ["", *GPUS, "sm_75", "gfx1100"]


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("kernel", FAMILIES)
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_there_is_a_default_for_every_call(capability: str, dtype: str, kernel: str, scheduled: bool) -> None:
    default = built_in(kernel, scheduled)
    for head_dim, v_head_dim in product((1, 16, 64, 65, 80, 128, 129, 256, 257, 512), repeat=2):
        config = default(capability, dtype, head_dim, v_head_dim)
        assert checked(kernel, config)
        task = Task(kernel, capability, dtype, head_dim, v_head_dim, 8192, 8192, scheduled)
        assert kernel_of(kernel, config).shared_bytes(config, task) <= shared_limit(capability)
        turned = default(capability, dtype, v_head_dim, head_dim)
        assert turned == config or turned.backend != config.backend
