"""Dropout on a GPU: every gallery variant by portable and by Hopper kernels, graphs, compilation, what it costs."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from dropping import dropping, dropping_module
from gallery import NAMES
from torch.utils.checkpoint import checkpoint

from flashgen.bench.dropout import BOTH, passes
from flashgen.bench.timing import cuda_timer, interleave
from flashgen.codegen import uses_schedule
from flashgen.problems.calls import make_inputs
from flashgen.problems.problem import Problem
from flashgen.runtime import Config
from flashgen.verify import Case, cases_for, gradient_cases_for, run_case
from flashgen.verify.cases import Backward

pytestmark = pytest.mark.gpu

PORTABLE, KEYS = Config(64, 64, 4, 1), Config(32, 32, 4, 1, fuse_dq=0)


@pytest.fixture(scope="session")
def module_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    folder = tmp_path_factory.mktemp("dropout")
    return lambda name: dropping_module(name, folder)


def seed_of(number: int) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.int64, device="cuda")


@pytest.mark.parametrize("name", NAMES)
def test_the_quick_level_passes(module_of: Callable[[str], ModuleType], name: str) -> None:
    """By the configs that calls get: on Hopper, for 16-bit inputs of dense calls, its own kernels."""
    variant, module = dropping(name), module_of(name)
    scheduled = uses_schedule(variant)
    cases = [
        *cases_for(variant, "quick", gpu=True, scheduled=scheduled),
        *gradient_cases_for(variant, "quick", gpu=True, scheduled=scheduled),
    ]
    failed = [str(result) for case in cases if not (result := run_case(module, variant, case, "cuda")).ok]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_whole_tiles_and_rests(module_of: Callable[[str], ModuleType], name: str, head_dim: int) -> None:
    """Several tiles each way, at the head dimensions of each Hopper kernel; with and without a fused dQ."""
    variant, module = dropping(name), module_of(name)
    problem = Problem(2, 4, 2, 555, 700, head_dim, head_dim, "bfloat16")
    cases = [
        Case("forward", problem, seed=1),
        Case("gradients", problem, seed=0, backward=Backward()),
        Case("gradients, dq apart", problem, seed=1, backward=Backward(deterministic=True)),
        Case("portable", problem, PORTABLE, seed=1),
        Case("portable gradients", problem, PORTABLE, backward=Backward(kv=KEYS, q=Config(32, 32, 4, 1))),
    ]  # fmt: skip
    failed = [str(result) for case in cases if not (result := run_case(module, variant, case, "cuda")).ok]
    assert not failed, "\n".join(failed)


# Above one half pairs with other bits are dropped.
@pytest.mark.parametrize("p", [0.3, 0.5, 0.75, 0.99])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_all_kernels_keep_the_pairs_of_the_mask(
    module_of: Callable[[str], ModuleType], head_dim: int, dtype: torch.dtype, p: float
) -> None:
    """Bit for bit: out with the identity in v, and dv under one number of d_out a query."""
    module, length = module_of("full"), head_dim
    q = torch.randn(2, 4, 300, head_dim, device="cuda", dtype=dtype) * 0.1
    k = torch.randn(2, 2, length, head_dim, device="cuda", dtype=dtype) * 0.1
    v = torch.eye(length, device="cuda", dtype=dtype).expand(2, 2, -1, -1).contiguous().requires_grad_()
    seed = seed_of(5)
    kept = module.dropout_mask(q, k, dropout_p=p, dropout_seed=seed)
    for config in (None, PORTABLE):
        out = module.attention(q, k, v, dropout_p=p, dropout_seed=seed, config=config)
        assert torch.equal(out != 0, kept)
        # Query i of head 0 alone has a gradient, in column i % head_dim.
        d_out = torch.zeros_like(out)
        for i in (0, 8, 77, 299):
            d_out.zero_()[:, 0, i, 0] = 1
            (dv,) = torch.autograd.grad(out, v, d_out, retain_graph=True)
            assert torch.equal(dv[:, 0, :, 0] != 0, kept[:, 0, i])


@pytest.mark.parametrize("name", ["causal", "document"])
def test_a_graph_drops_others_on_each_replay(module_of: Callable[[str], ModuleType], name: str) -> None:
    variant, module = dropping(name), module_of(name)
    call = make_inputs(variant, Problem(1, 4, 2, 300, 300, 64, 64, "bfloat16"), "cuda")
    leaves = [tensor.detach().requires_grad_() for tensor in (call.q, call.k, call.v)]
    d_out = torch.randn_like(leaves[0])

    def step() -> tuple[torch.Tensor, ...]:
        out = module.attention(*leaves, **call.keywords, dropout_p=0.5)
        return (out.detach(), *torch.autograd.grad(out, leaves, d_out))

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    replays = []
    for _ in range(3):
        graph.replay()
        replays.append([each.clone() for each in found])
    assert not torch.equal(replays[0][0], replays[1][0])
    assert not torch.equal(replays[1][0], replays[2][0])
    for out, *gradients in replays:
        # dV of a pass says what the sum over keys of out says, if both drop the same: sum(d_out * out) = sum(v * dv).
        expected = (d_out.double() * out.double()).sum()
        torch.testing.assert_close((leaves[2].double() * gradients[2].double()).sum(), expected, rtol=2e-2, atol=2.0)
    torch.cuda.manual_seed(11)
    graph.replay()
    first = found[0].clone()
    torch.cuda.manual_seed(11)
    graph.replay()
    assert torch.equal(found[0], first)


def test_compilation_and_checkpointing(module_of: Callable[[str], ModuleType]) -> None:
    module = module_of("causal")
    leaves = [torch.randn(1, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]

    def attend(*given: torch.Tensor) -> torch.Tensor:
        return module.attention(*given, dropout_p=0.5, deterministic=True)

    def gradients(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(3)
        out = function(*leaves)
        return (out.detach(), *torch.autograd.grad(out.float().square().sum(), leaves))

    plain = gradients(attend)
    again = gradients(lambda *given: checkpoint(attend, *given, use_reentrant=False))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))
    compiled = torch.compile(attend, fullgraph=True)
    first = gradients(compiled)
    assert all(torch.equal(one, other) for one, other in zip(first, gradients(compiled), strict=True))
    assert not torch.equal(compiled(*leaves), first[0])


def test_long_rows_keep_their_share(module_of: Callable[[str], ModuleType]) -> None:
    """With equal scores and ones in v, each output is the share of the weights that is kept, by 1 / (1 - p)."""
    q = torch.zeros(1, 2, 512, 64, device="cuda", dtype=torch.bfloat16)
    k = torch.zeros(1, 2, 16384, 64, device="cuda", dtype=torch.bfloat16)
    out = module_of("full").attention(q, k, torch.ones_like(k), dropout_p=0.1).float()
    deviation = (0.1 / 0.9 / 16384) ** 0.5
    # 1024 rows, whose outputs are rounded to 8 bits.
    assert (out - 1).abs().max() < 5 * deviation + 2**-8


@pytest.mark.parametrize("problem", [
    Problem(2, 16, 16, 8192, 8192, 128, 128, "bfloat16"), Problem(2, 32, 32, 8192, 8192, 64, 64, "bfloat16"),
], ids=str)  # fmt: skip
def test_dropout_costs_a_quarter_at_most(module_of: Callable[[str], ModuleType], problem: Problem) -> None:
    variant, module = dropping("causal"), module_of("causal")
    call = make_inputs(variant, problem, "cuda")
    runs = {p: passes(module, call, p)[BOTH] for p in (0.0, 0.1)}
    found = interleave(runs, cuda_timer(), rounds=7)
    assert found[0.1].median_us <= 1.25 * found[0.0].median_us, {p: each.median_us for p, each in found.items()}
