"""Schedules: lists from classes, plans that fit a call, and plans that do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from flashgen.runtime import Config, Plan, backward_pass, default_scheduled_config
from flashgen.runtime.interpreter import interpreted
from flashgen.runtime.schedule import check_plan, compact

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL, WIDE = Config(32, 32, 4, 1), Config(64, 32, 4, 1)
Q = torch.randn(2, 4, 70, 16, device=DEVICE)
K = torch.randn(2, 2, 100, 16, device=DEVICE)
DOC = (torch.arange(100, device=DEVICE) // 30).int().expand(2, 100).contiguous()


@given(
    rows=st.integers(1, 5).flatmap(
        lambda tiles: st.lists(st.lists(st.integers(0, 2), min_size=tiles, max_size=tiles), min_size=1, max_size=6)
    ),
    repeated=st.sampled_from([1, 7, 400]),
)
def test_lists_hold_the_mixed_tiles_from_the_front_and_the_full_ones_from_the_back(
    rows: list[list[int]], repeated: int
) -> None:
    interpreted()
    # 2000 tiles are more than the kernel takes at once.
    states = torch.tensor([row * repeated for row in rows], dtype=torch.int8, device=DEVICE)
    counts, tiles = compact(states[None, None])
    for row, (mixed, full, _), listed in zip(states.tolist(), counts[0, 0].tolist(), tiles[0, 0].tolist(), strict=True):
        assert listed[:mixed] == [i for i, state in enumerate(row) if state == 1]
        assert listed[::-1][:full] == [i for i, state in enumerate(row) if state == 2]


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=300))
def test_the_longest_rows_come_first(lengths: list[int]) -> None:
    interpreted()
    # 300 rows are more than the kernel ranks at once; half of a row's tiles are mixed.
    states = torch.tensor([[[2 - i % 2 if i < n else 0 for i in range(4)] for n in lengths]] * 2, dtype=torch.int8)
    counts, _ = compact(states[None].to(DEVICE))
    expected = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    assert counts[0, :, :, 2].tolist() == [expected, expected]


def test_a_plan_answers_later_calls(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    expected = module.attention(Q, K, K, doc=DOC, config=SMALL)
    plan = module.plan(Q, K, K, doc=DOC, config=SMALL)
    assert isinstance(plan, Plan)
    assert plan.config == SMALL
    # batch 2, the heads alike, 3 tiles of queries, 4 of keys, 4 bytes each.
    assert plan.nbytes == 4 * (2 * 3 * 4 + 2 * 3 * 3)
    for _ in range(2):
        assert torch.equal(module.attention(Q, K, K, doc=DOC, plan=plan), expected)
    # Other values, the same inputs and lengths.
    torch.testing.assert_close(
        module.attention(2 * Q, K, K, doc=DOC, plan=plan), module.reference(2 * Q, K, K, doc=DOC), rtol=1e-4, atol=1e-5
    )


def test_a_plan_goes_with_configs_of_its_tile_sizes(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    plan = module.plan(Q, K, K, doc=DOC, config=SMALL)
    out = module.attention(Q, K, K, doc=DOC, plan=plan, config=Config(32, 32, 8, 2))
    assert torch.equal(out, module.attention(Q, K, K, doc=DOC, plan=plan))
    with pytest.raises(ValueError, match=r"expected the plan's tile sizes, 32 x 32$"):
        module.attention(Q, K, K, doc=DOC, plan=plan, config=WIDE)


def gradients(
    module: ModuleType, plan: Plan | None, leaves: list[torch.Tensor], **options: object
) -> list[torch.Tensor]:
    out = module.attention(*leaves, doc=DOC, plan=plan, config=SMALL, **options)
    return list(torch.autograd.grad(out, leaves, torch.cos(out.detach())))


@pytest.mark.parametrize(
    "options",
    [
        {}, {"deterministic": True}, {"backward_config": {"backward_q": WIDE}},
        {"backward_config": {"backward_kv": Config(32, 32, 4, 1, fuse_dq=1)}},
        {"backward_config": {"backward_kv": Config(16, 64, 4, 1, fuse_dq=0)}},
    ],
    ids=str,
)  # fmt: skip
def test_a_plan_for_tensors_with_gradients_serves_the_backward_pass(
    options: dict[str, object], gallery_module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = gallery_module("document")
    leaves = [tensor.clone().requires_grad_() for tensor in (Q, K, K)]
    expected = gradients(module, None, leaves, **options)
    plan = module.plan(*leaves, doc=DOC, config=SMALL)
    made = []
    schedule = backward_pass.make_schedule
    monkeypatch.setattr(
        backward_pass, "make_schedule", lambda *given, **how: made.append(how) or schedule(*given, **how)
    )
    for one, other in zip(gradients(module, plan, leaves, **options), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    named = options.get("backward_config", {})
    fits = plan.backward.serves(named.get("backward_kv", plan.backward.config))
    assert ({"turned": True} in made) == (not fits)


@pytest.fixture
def sharded() -> Iterator[Callable[[torch.nn.Module], torch.nn.Module]]:
    """Shards a layer over this process alone, with parameters and inputs cast to bfloat16."""
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    mesh = distributed.init_device_mesh(DEVICE, (1,))
    yield lambda layer: fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    distributed.destroy_process_group()


class Planned(torch.nn.Linear):
    """Attention of a document mask behind a projection, by a plan that is made once for several layers."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(16, 16, device=DEVICE)
        self.attention = module.attention

    def forward(self, x: torch.Tensor, kv: torch.Tensor, plan: Plan) -> torch.Tensor:
        out: torch.Tensor = self.attention(super().forward(x), kv, kv, doc=DOC, plan=plan)
        return out


@pytest.mark.parametrize("config", [SMALL, None], ids=str)
def test_a_sharded_layer_takes_a_plan_among_what_it_casts(
    config: Config | None,
    gallery_module: Callable[[str], ModuleType],
    sharded: Callable[[torch.nn.Module], torch.nn.Module],
) -> None:
    module = gallery_module("document")
    layer = Planned(module)
    q, k = Q.bfloat16().requires_grad_(), K.bfloat16()
    plan = module.plan(q, k, k, doc=DOC, config=config)
    expected = deepcopy(layer).bfloat16()(q, k, plan)
    out = sharded(layer)(Q, K, plan)
    assert torch.equal(out, expected)
    out.float().sum().backward()
    assert layer.weight.grad is not None


def test_a_plan_has_no_part_for_a_backward_pass_that_will_not_be(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    leaf = Q.clone().requires_grad_()
    with torch.no_grad():
        plan = module.plan(leaf, K, K, doc=DOC, config=SMALL)
    assert plan.backward is None
    assert module.plan(leaf, K, K, doc=DOC, config=SMALL).nbytes > plan.nbytes
    # It serves one all the same.
    torch.testing.assert_close(
        torch.autograd.grad(module.attention(leaf, K, K, doc=DOC, plan=plan).sum(), leaf),
        torch.autograd.grad(module.attention(leaf, K, K, doc=DOC).sum(), leaf), rtol=1e-5, atol=1e-6,
    )  # fmt: skip


def test_a_plan_whose_backward_part_is_for_other_sizes_is_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    leaves = [tensor.clone().requires_grad_() for tensor in (Q, K, K)]
    plan = module.plan(*leaves, doc=DOC, config=SMALL)
    assert plan.backward is not None
    wrong = replace(plan, backward=replace(plan.backward, counts=plan.counts, tiles=plan.tiles[..., :1, :]))
    out = module.attention(*leaves, doc=DOC, plan=wrong)
    with pytest.raises(ValueError, match=r"^plan is for"):
        out.sum().backward()


def test_a_plan_for_other_sizes_is_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    plan = module.plan(Q, K, K, doc=DOC, config=SMALL)
    with pytest.raises(ValueError, match=r"^plan is for \(2, 1, 3, 4\) tiles .*; expected \(1, 1, 3, 4\)$"):
        module.attention(Q[:1], K[:1], K[:1], doc=DOC[:1], plan=plan)


@pytest.mark.parametrize(("q_len", "kv_len"), [(70, 99), (69, 100), (99, 70), (100, 100)])
def test_a_plan_for_other_lengths_is_refused_also_where_they_have_as_many_tiles(
    q_len: int, kv_len: int, gallery_module: Callable[[str], ModuleType]
) -> None:
    module = gallery_module("document")
    plan = module.plan(Q, K, K, doc=DOC, config=SMALL)
    q, k, doc = torch.cat([Q, Q], 2)[:, :, :q_len], K[:, :, :kv_len], DOC[:, :kv_len]
    with pytest.raises(ValueError, match=rf"^plan is for lengths \(70, 100\) .*; expected \({q_len}, {kv_len}\)$"):
        module.attention(q, k, k, doc=doc, plan=plan)


def test_a_plan_for_fewer_tokens_is_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    ends = torch.tensor([0, 70], dtype=torch.int32, device=DEVICE)
    tokens, keys = Q[0].transpose(0, 1), K[0, :, :70].transpose(0, 1)
    packed = (tokens, keys, keys, ends, ends, 70, 70)
    plan = module.plan_varlen(*packed, doc=DOC[0, :70], config=SMALL)
    assert module.attention_varlen(*packed, doc=DOC[0, :70], plan=plan).shape == tokens.shape
    with pytest.raises(ValueError, match=r"^plan is for lengths \(70, 70\) .*; expected \(69, 69\)$"):
        module.attention_varlen(
            *(x[:69] for x in packed[:3]), *[ends.clamp(max=69)] * 2, 69, 69, doc=DOC[0, :69], plan=plan
        )


def test_a_plan_on_another_device_is_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    plan = module.plan(Q, K, K, doc=DOC, config=SMALL)
    elsewhere = (plan.counts.to("meta"), plan.tiles.to("meta"))
    with pytest.raises(ValueError, match=r"^plan is on meta; expected q's device"):
        check_plan(*elsewhere, tuple(plan.tiles.shape), Q)


def test_a_plan_of_another_dtype_is_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    plan = module.plan(Q, K, K, doc=DOC, config=SMALL)
    with pytest.raises(TypeError, match=r"^plan has dtype torch\.int64; expected what plan\(\.\.\.\) returned"):
        module.attention(Q, K, K, doc=DOC, plan=replace(plan, counts=plan.counts.long()))


def test_a_plan_of_another_variant_is_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    document, dilated = gallery_module("document"), gallery_module("dilated")
    plan = dilated.plan(Q, K, K, config=SMALL)
    with pytest.raises(ValueError, match=r"^plan was made by dilated_\w+; expected one that document_\w+ has made$"):
        document.attention(Q, K, K, doc=DOC, plan=plan)
    ends = torch.tensor([0, 70], dtype=torch.int32, device=DEVICE)
    tokens, keys = Q[0].transpose(0, 1), K[0, :, :70].transpose(0, 1)
    packed = document.plan_varlen(tokens, keys, keys, ends, ends, 70, 70, doc=DOC[0, :70], config=SMALL)
    with pytest.raises(ValueError, match=r"^plan was made by document_\w+_packed; expected"):
        document.attention(Q, K, K, doc=DOC, plan=packed)


def test_what_is_no_plan_is_refused(gallery_module: Callable[[str], ModuleType]) -> None:
    with pytest.raises(TypeError, match=r"^plan is tuple; expected what plan\(\.\.\.\) returned$"):
        gallery_module("document").attention(Q, K, K, doc=DOC, plan=(1, 2))


@pytest.mark.parametrize("name", ["Plan", "PagedPlan"])
def test_a_plan_of_an_exported_file_is_refused_by_its_module(
    gallery_module: Callable[[str], ModuleType], name: str
) -> None:
    theirs = type(name, (), {"__module__": "exported"})()
    document = gallery_module("document")
    with pytest.raises(TypeError, match=rf"^plan is exported\.{name}; expected what plan\w*\(\.\.\.\) returned$"):
        if name == "Plan":
            document.attention(Q, K, K, doc=DOC, plan=theirs)
        else:
            cache = torch.randn(2, 16, 2, 16, device=DEVICE)
            table = torch.zeros(1, 1, dtype=torch.int32, device=DEVICE)
            document.attention_paged(Q[0].transpose(0, 1)[:1], cache, cache, table, table[0], doc=table, plan=theirs)


def test_a_variant_without_a_schedule_takes_no_plan(gallery_module: Callable[[str], ModuleType]) -> None:
    """So a caller of many variants may hand over what it has of each."""
    module, document = gallery_module("causal"), gallery_module("document")
    assert not hasattr(module, "plan")
    assert torch.equal(module.attention(Q, K, K, plan=None), module.attention(Q, K, K))
    ends = torch.tensor([0, 5], dtype=torch.int32)
    packed = (*(each[0].transpose(0, 1)[:5] for each in (Q, K, K)), ends, ends, 5, 5)
    assert torch.equal(module.attention_varlen(*packed, plan=None), module.attention_varlen(*packed))
    with pytest.raises(TypeError, match=r"^plan is Plan; expected None, since causal has no schedule$"):
        module.attention(Q, K, K, plan=document.plan(Q, K, K, doc=DOC))


def test_planning_checks_its_arguments(gallery_module: Callable[[str], ModuleType]) -> None:
    with pytest.raises(TypeError, match=r"^doc is list; expected a torch.Tensor$"):
        gallery_module("document").plan(Q, K, K, doc=[1])
    with pytest.raises(TypeError, match=r"^doc has dtype torch.float32; expected torch.int32"):
        gallery_module("document").plan(Q, K, K, doc=DOC.float())


def test_nothing_to_plan(gallery_module: Callable[[str], ModuleType]) -> None:
    module = gallery_module("document")
    plan = module.plan(Q[:, :, :0], K, K, doc=DOC, config=SMALL)
    assert module.attention(Q[:, :, :0], K, K, doc=DOC, plan=plan).shape == (2, 4, 0, 16)
    keyless = module.plan(Q, K[:, :, :0], K[:, :, :0], doc=DOC[:, :0], config=SMALL)
    assert not module.attention(Q, K[:, :, :0], K[:, :, :0], doc=DOC[:, :0], plan=keyless).any()


@pytest.mark.parametrize("capability", ["", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942"])
@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("head_dim", [16, 64, 128, 256])
def test_a_schedule_is_small_in_the_default_config(capability: str, dtype: str, itemsize: int, head_dim: int) -> None:
    config = default_scheduled_config(capability, dtype, head_dim, head_dim)
    assert 4 / (config.BM * config.BN * itemsize) < 0.002
