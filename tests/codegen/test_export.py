"""A module as one file: it computes the same, carries its records, and needs torch and triton alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import astuple, replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from gallery import VARIANTS

from flashgen.codegen import load_module
from flashgen.codegen.export import bundle, export_module
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime.config import Config
from flashgen.runtime.records import Bucket, Device, Key, Record
from flashgen.spec import load
from flashgen.spec.variant import Variant
from flashgen.verify import Case, PagedCase, run_case
from flashgen.verify.cases import Backward

PROBLEM = Problem(1, 4, 2, 33, 47, 16, 16, "float32")
DEVICE = Device("NVIDIA H200", "sm_90", "3.6")
BUCKET = Bucket(32, 1, 64, 64)
ALONE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("flashgen", "jinja2", "pydantic", "optuna"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
for name in [name for name in sys.modules if name.split(".")[0] in ("jinja2", "pydantic", "optuna")]:
    del sys.modules[name]
import torch
del sys.meta_path[0]
sys.meta_path.insert(0, Refuse())
import alone
q = torch.randn(1, 2, 20, 16)
print((alone.attention(q, q, q) - alone.reference(q, q, q)).abs().max().item())
"""


def exported(variant: Variant, folder: Path, records: tuple[Record, ...] = ()) -> ModuleType:
    return load_module(export_module(variant, records, folder / f"{variant.name}_alone.py").path)


# A file carries what its kernels use: plain ones, those of inputs with a default or none, learned ones, a schedule.
DIFFERENT = ("causal", "sink", "alibi", "gemma2", "relative_bias", "document", "prefix_lm")


@pytest.mark.parametrize("name", DIFFERENT)
def test_it_computes_what_the_reference_does(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    module = exported(variant, tmp_path)
    text = Path(str(module.__file__)).read_text()
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(text))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [str(node.module)]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - sys.stdlib_module_names <= {"torch", "triton", "numpy"}
    call = make_inputs(variant, PROBLEM)
    out = module.attention(call.q, call.k, call.v, **call.keywords, config=module.Config(32, 32, 4, 1))
    torch.testing.assert_close(out, module.reference(call.q, call.k, call.v, **call.keywords), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["document", "relative_bias"])
def test_it_serves_packed_sequences_and_paged_caches(name: str, tmp_path: Path) -> None:
    """A mask that needs a schedule and reads a packed input, and an input that is learned."""
    variant = VARIANTS[name]
    module = exported(variant, tmp_path)
    lengths = ((33, 33), (1, 1), (20, 47))
    problem = Problem(len(lengths), 4, 2, 33, 47, 16, 16, "float32")
    result = run_case(module, variant, Case("packed", problem, lengths=lengths, return_max=True), "cpu")
    assert result.ok, result
    backward = Case("packed, backward", problem, lengths=lengths, backward=Backward(deterministic=True))
    result = run_case(module, variant, backward, "cpu")
    assert result.ok, result
    paged = PagedCase("paged", (33, 20, 47), (1, 3, 20), head_dim=16, v_head_dim=32, dtype="float32", planned=True)
    result = run_case(module, variant, paged, "cpu")
    assert result.ok, result


def test_it_has_what_serving_needs_beside_attention(tmp_path: Path) -> None:
    module = exported(load({"name": "served", "causal": True}), tmp_path)
    caches = torch.zeros(2, 2, 16, 2, 8, dtype=torch.int8)
    k, v = torch.randn(2, 20, 2, 8, generator=torch.Generator().manual_seed(1)).round()
    slots = torch.arange(31, 11, -1)
    module.store_kv(k, v, *caches, slots)
    for stored, given in zip(caches.flatten(1, 2), (k, v), strict=True):
        assert torch.equal(stored[slots].float(), given)
    outs, lses = torch.ones(2, 1, 2, 3, 8), torch.zeros(2, 1, 2, 3)
    assert torch.equal(module.merge_states(outs, lses)[0], outs[0])
    with pytest.raises(ValueError, match="seq_lens has shape"):
        module.check(k, caches[0], torch.zeros(2, 1, dtype=torch.int32), torch.tensor([3]))
    with pytest.raises(ValueError, match="cu_seqlens_k has shape"):
        module.check_varlen(k, k, torch.tensor([0, 20]), torch.tensor([0]), 20, 20)


def test_it_runs_where_flashgen_cannot_be_imported(tmp_path: Path) -> None:
    export_module(load({"name": "alone", "causal": True}), (), tmp_path / "alone.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-5


def record(module: ModuleType, spec: str | None = None) -> Record:
    identity = module.IDENTITY
    key = Key(
        DEVICE.gpu, DEVICE.capability, DEVICE.triton, identity.variant, "forward", "float16", 64, 64, BUCKET,
        spec or identity.spec, identity.templates["forward"],
    )  # fmt: skip
    return Record(key, Config(128, 32, 8, 3), 12.5, 0.01, 20)


def test_it_carries_the_records_of_its_own_kernel_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    variant = load({"name": "plain"})
    bare = exported(variant, tmp_path)
    own = record(bare)
    packed = replace(own, key=replace(own.key, bucket=replace(BUCKET, tokens=512)), config=Config(64, 32, 4, 2))
    records = (own, packed, record(bare, spec="0" * 12))
    done = export_module(variant, records, tmp_path / "tuned.py")
    assert done.records == 2
    module = load_module(done.path)
    device = module.Device(*astuple(DEVICE))
    choice = module.VARIANT.configs["forward"].find(device, "float16", 64, 64, module.Bucket(*astuple(BUCKET)))
    assert (choice.config, choice.source) == (module.Config(128, 32, 8, 3), "shipped")
    with pytest.warns(module.RecordWarning, match="no record for"):
        near = module.VARIANT.configs["forward"].find(device, "float16", 64, 64, module.Bucket(64, 1, 64, 64))
    assert (near.config, near.source) == (choice.config, "nearest")
    there = module.Bucket(*astuple(packed.key.bucket))
    choice = module.VARLEN.configs["forward"].find(device, "float16", 64, 64, there)
    assert (choice.config, choice.source) == (module.Config(64, 32, 4, 2), "shipped")


def test_it_says_what_it_is_and_what_is_for_callers(tmp_path: Path) -> None:
    spec = tmp_path / "my spec.yaml"
    spec.write_text("name: mine\ndescription: Mine alone.\ncausal: true\n")
    module = load_module(export_module(load(spec), (), tmp_path / "mine.py").path)
    assert module.__doc__ is not None
    title, *said = module.__doc__.splitlines()
    assert title == "Mine alone." and "Beside this file:" not in said
    assert f"    flashgen export '{spec}' -o mine.py" in said
    assert "forget_files" not in Path(str(module.__file__)).read_text()  # It has no files beside it.
    doors = {"attention", "attention_varlen", "attention_paged", "plan_paged", "reference", "OPERATOR"}
    beside = {"store_kv", "merge_states", "check", "check_varlen", "Config", "RecordWarning"}
    assert doors | beside <= {*module.__all__}
    assert "attend" not in module.__all__ and all(hasattr(module, name) for name in module.__all__)


def test_copies_in_one_process_share_an_operator(tmp_path: Path) -> None:
    variant = load({"name": "twice", "softcap": 7.0})
    first, second = exported(variant, tmp_path / "a"), exported(variant, tmp_path / "b")
    q = torch.randn(1, 2, 20, 16)
    assert first.attention(q, q, q).equal(second.attention(q, q, q))


def test_its_configs_are_those_of_all_others(tmp_path: Path) -> None:
    """Each file has a class of its own: one file's configs were none to another, nor to the package."""
    one, other = (exported(VARIANTS[name], tmp_path) for name in ("causal", "full"))
    q = torch.randn(1, 2, 20, 16, device="cuda" if torch.cuda.is_available() else "cpu")
    for config in (one.Config(16, 16, 4, 1), Config(16, 16, 4, 1)):
        out = other.attention(q, q, q, config=config)
        torch.testing.assert_close(out, other.reference(q, q, q))
    with pytest.raises(TypeError, match="config is 3"):
        other.attention(q, q, q, config=3)


def test_each_of_several_files_plans_for_its_own_variant(tmp_path: Path) -> None:
    """Through torch's dispatcher, as torch.compile and a profiler do it."""
    specs = ({"name": "one", "causal": True}, {"name": "other", "window": {"left": 3}})
    q, cache = torch.randn(2, 2, 16), torch.randn(4, 16, 2, 16)
    table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    lengths = torch.tensor([20, 7], dtype=torch.int32)
    for module in [exported(load(spec), tmp_path) for spec in specs]:

        def step(module: ModuleType = module) -> torch.Tensor:
            plan = module.plan_paged(q, cache, table, lengths)
            out: torch.Tensor = module.attention_paged(q, cache, cache, table, lengths, plan=plan)
            return out

        torch.compiler.reset()
        assert torch.equal(torch.compile(step, fullgraph=True, backend="aot_eager")(), step())


def test_a_name_that_two_modules_define_is_refused() -> None:
    with pytest.raises(AssertionError, match="Config is defined in config and in the generated module"):
        bundle({"__init__.py": "from flashgen import runtime\n\nruntime.Config\n\nConfig = 3\n"}, [])
