"""attention under autograd, torch.compile, autocast, checkpointing and what else torch wraps around a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from attending import BACKWARD, CONFIG, DEVICE, attend, drawn, launches, trainable
from data_parallel import train
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from flashgen.codegen import generate, load_module
from flashgen.runtime import strides
from flashgen.spec import load

Modules = Callable[[str], ModuleType]


def gradients(total: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(torch.autograd.grad(total, leaves))


def weighted(tensor: torch.Tensor) -> torch.Tensor:
    """A sum of which each term has a slope of its own."""
    return tensor.sin().sum()


def near(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> None:
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("used", ["out", "lse", "both"])
@pytest.mark.parametrize("name", ["causal", "relative_bias", "sink"])
def test_gradients_flow_through_out_and_lse(gallery_module: Modules, name: str, used: str) -> None:
    module = gallery_module(name)
    call, leaves = trainable(name, drawn(name))

    def loss(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return {"out": weighted(out), "lse": weighted(lse), "both": weighted(out) + weighted(lse)}[used]

    mine = loss(*attend(module, call))
    eager = loss(*module.reference(call.q, call.k, call.v, **call.keywords, return_lse=True))
    wanted = [x for x in leaves if used != "lse" or x is not call.v]
    near(gradients(mine, wanted), gradients(eager, wanted))


@pytest.mark.parametrize("name", ["causal", "sliding_window", "document"])
def test_a_loss_may_leave_out_rows_that_see_no_key(gallery_module: Modules, name: str) -> None:
    """What torch.where leaves out has a gradient of 0 times infinity, which is NaN: such rows have none."""
    module = gallery_module(name)
    call, leaves = trainable(name, drawn(name, q_len=27, kv_len=20))

    def loss(out: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return weighted(out) + torch.where(lse.isinf(), 0, lse.square()).sum()

    out, lse = attend(module, call)
    assert lse.isinf().any()
    eager = loss(*module.reference(call.q, call.k, call.v, **call.keywords, return_lse=True))
    near(gradients(loss(out, lse), leaves), gradients(eager, leaves))


@pytest.mark.parametrize(
    ("wanted", "kernel"),
    [("q", "_backward_q"), ("k", "_backward_kv"), ("v", "_backward_kv"), ("rel", "_backward_inputs")],
)
def test_what_asks_for_no_gradient_costs_none(gallery_module: Modules, wanted: str, kernel: str) -> None:
    module = gallery_module("relative_bias")
    call, leaves = trainable("relative_bias", drawn("relative_bias"))
    named = {"q": call.q, "k": call.k, "v": call.v, "rel": call.inputs["rel"]}
    every = dict(zip(named, gradients(weighted(attend(module, call)[0]), leaves), strict=True))
    for name, tensor in named.items():
        tensor.requires_grad_(name == wanted)
    out, _ = attend(module, call)
    with launches() as counts:
        weighted(out).backward()
    assert {name for name, tensor in named.items() if tensor.grad is not None} == {wanted}
    assert torch.equal(named[wanted].grad, every[wanted])  # type: ignore[arg-type]
    assert set(counts) - {"_delta"} == {kernel}


def test_nothing_is_kept_where_nothing_asks_for_it(gallery_module: Modules) -> None:
    module = gallery_module("causal")
    call, _ = trainable("causal", drawn("causal"))
    with torch.no_grad():
        assert attend(module, call)[0].grad_fn is None
    with torch.inference_mode():
        assert attend(module, call)[0].is_inference()


def test_slopes_by_default_have_no_gradient(gallery_module: Modules) -> None:
    module = gallery_module("alibi")
    call, _ = trainable("alibi", drawn("alibi"))
    out = module.attention(call.q, call.k, call.v, config=CONFIG, backward_config=BACKWARD)
    weighted(out).backward()
    eager = module.reference(call.q.detach().requires_grad_(), call.k, call.v)
    assert call.q.grad is not None and eager.shape == out.shape


def test_an_input_without_grad_true_gets_none_and_says_so(tmp_path: Path) -> None:
    strides.say_once.cache_clear()
    spec = {"name": "fixed", "inputs": {"t": {"shape": ["heads"], "dtype": "float32"}}, "score": "score + t[h] * k"}
    module = load_module(generate(load(spec), tmp_path))
    q = torch.randn(1, 2, 20, 16, device=DEVICE, requires_grad=True)
    t = torch.randn(2, device=DEVICE, requires_grad=True)
    with pytest.warns(UserWarning, match="^t requires a gradient and gets none; `grad: true` in the spec gives it one"):
        out = module.attention(q, q, q, t=t, config=CONFIG, backward_config=BACKWARD)
    out.sum().backward()
    assert t.grad is None and q.grad is not None


def test_a_second_derivative_is_refused(gallery_module: Modules) -> None:
    module = gallery_module("causal")
    call, leaves = trainable("causal", drawn("causal"))
    first = torch.autograd.grad(weighted(attend(module, call)[0]), leaves, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"has no second derivative; .* reference\(\)"):
        first[0].sum().backward()


def test_forward_mode_is_refused(gallery_module: Modules) -> None:
    module, call = gallery_module("causal"), drawn("causal")
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(call.q, call.q)
        with pytest.raises(NotImplementedError, match=r"no forward-mode derivative; .* reference\(\)"):
            module.attention(dual, call.k, call.v, config=CONFIG)


@pytest.mark.parametrize("order", ["forward of backward", "backward of forward"])
def test_forward_mode_around_another_transform_is_refused(gallery_module: Modules, order: str) -> None:
    module, call = gallery_module("causal"), drawn("causal")

    def total(q: torch.Tensor) -> torch.Tensor:
        return module.attention(q, call.k, call.v, config=CONFIG).sum()

    first, then = (torch.func.jacrev, torch.func.jacfwd)[:: 1 if order == "forward of backward" else -1]
    with pytest.raises(NotImplementedError, match=r"no forward-mode derivative; .* reference\(\)"):
        then(first(total))(call.q)


@pytest.mark.parametrize("name", ["alibi", "document"])
def test_other_lengths_are_not_compiled_again(gallery_module: Modules, name: str) -> None:
    torch.compiler.reset()
    module = gallery_module(name)

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        out, lse = module.attention(
            q * 2, k, v, return_lse=True, config=CONFIG, backward_config=BACKWARD, **given
        )  # fmt: skip
        return weighted(out) + weighted(lse)

    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    for index, (q_len, kv_len) in enumerate([(10, 13), (17, 20), (9, 32), (32, 34)]):
        call, leaves = trainable(name, drawn(name, q_len, kv_len))
        with torch._dynamo.config.patch(error_on_recompile=index > 0):
            mine = gradients(compiled(call.q, call.k, call.v, call.keywords), leaves)
        near(mine, gradients(layer(call.q, call.k, call.v, call.keywords), leaves))


def test_another_integer_param_is_not_compiled_again(gallery_module: Modules) -> None:
    torch.compiler.reset()
    module = gallery_module("prefix_lm")
    q = torch.randn(1, 2, 20, 16, device=DEVICE)
    layer = lambda prefix: module.attention(q, q, q, prefix=prefix)  # noqa: E731
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for index, prefix in enumerate(range(3, 15)):
        with torch._dynamo.config.patch(error_on_recompile=index > 1):
            torch.testing.assert_close(compiled(prefix), layer(prefix))


@pytest.mark.parametrize("name", ["causal", "document"])
def test_the_longest_lengths_may_come_from_a_tensor_that_is_compiled(gallery_module: Modules, name: str) -> None:
    torch.compiler.reset()
    module = gallery_module(name)
    ends = torch.tensor([0, 13, 20], dtype=torch.int32, device=DEVICE)
    inputs = {"doc": torch.zeros(20, dtype=torch.int32, device=DEVICE)} if name == "document" else {}

    def layer(q: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        longest = ends.diff().max().item()
        out: torch.Tensor = module.attention_varlen(q, q, q, ends, ends, longest, longest, **inputs)
        return out

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    q = torch.randn(20, 2, 16, device=DEVICE, requires_grad=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        near([compiled(q, ends)], [layer(q, ends)])
        near(*(gradients(weighted(each(q, ends)), [q]) for each in (compiled, layer)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["relative_bias", "document"])
def test_the_default_dtype_counts_for_nothing(gallery_module: Modules, name: str, dtype: torch.dtype) -> None:
    module = gallery_module(name)
    call, leaves = trainable(name, drawn(name))
    fused = {"backward_kv": f"{CONFIG} fuse_dq=1"}

    def found() -> list[torch.Tensor]:
        out, lse = attend(module, call, backward_config=fused)
        return [out, lse, *gradients(weighted(out) + weighted(lse), leaves)]

    right = found()
    torch.set_default_dtype(dtype)
    try:
        under = found()
    finally:
        torch.set_default_dtype(torch.float32)
    near(under, right)


@pytest.mark.parametrize("name", ["relative_bias", "sink", "document"])
def test_hooks_on_saved_tensors_may_give_another_layout(gallery_module: Modules, name: str) -> None:
    module = gallery_module(name)
    call, leaves = trainable(name, drawn(name))

    def apart(tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor, tensor], -1)[..., 0]

    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)

    right = gradients(weighted(attend(module, call)[0]), leaves)
    for unpack in (apart, shifted):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach(), unpack):
            out, _ = attend(module, call)
        near(gradients(weighted(out), leaves), right)


def test_a_plan_goes_through_torch_compile(gallery_module: Modules) -> None:
    torch.compiler.reset()
    module = gallery_module("document")
    call, leaves = trainable("document", drawn("document"))
    plan = module.plan(call.q, call.k, call.v, **call.keywords, config=CONFIG)
    layer = lambda: weighted(attend(module, call, plan=plan)[0])  # noqa: E731
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    near(gradients(compiled(), leaves), gradients(layer(), leaves))


def test_autocast_casts_q_k_and_v_alone(gallery_module: Modules) -> None:
    module = gallery_module("relative_bias")
    call, leaves = trainable("relative_bias", drawn("relative_bias"))
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        out, lse = attend(module, call)
        torch_out = torch.nn.functional.scaled_dot_product_attention(call.q, call.k, call.v[..., :16], enable_gqa=True)
    assert (out.dtype, lse.dtype) == (torch_out.dtype, torch.float32) == (torch.bfloat16, torch.float32)
    low = [x.to(torch.bfloat16) for x in (call.q, call.k, call.v)]
    given = module.attention(*low, **call.keywords, config=CONFIG, backward_config=BACKWARD)
    assert torch.equal(out, given)
    mine = gradients(weighted(out.float()), leaves)
    assert [x.dtype for x in mine] == [torch.float32] * 4
    assert all(torch.equal(a, b) for a, b in zip(mine, gradients(weighted(given.float()), leaves), strict=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_computes_the_same(gallery_module: Modules, reentrant: bool) -> None:
    module = gallery_module("causal")
    _, leaves = trainable("causal", drawn("causal"))
    layer = lambda q, k, v: module.attention(q, k, v, config=CONFIG, backward_config=BACKWARD)  # noqa: E731
    plain = gradients(weighted(layer(*leaves)), leaves)
    with launches() as counts:
        weighted(checkpoint(layer, *leaves, use_reentrant=reentrant)).backward()
    assert counts["_forward"] == 2
    assert all(torch.equal(a.grad, b) for a, b in zip(leaves, plain, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE])
def test_a_policy_of_selective_checkpointing_names_the_operator(
    gallery_module: Modules, policy: CheckpointPolicy
) -> None:
    module = gallery_module("causal")
    _, leaves = trainable("causal", drawn("causal"))

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return module.attention(q.sin(), k, v, config=CONFIG, backward_config=BACKWARD).cos()

    def choose(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return policy if op == module.OPERATOR.overload else CheckpointPolicy.PREFER_RECOMPUTE

    plain = gradients(weighted(layer(*leaves)), leaves)
    contexts = partial(create_selective_checkpoint_contexts, choose)
    with launches() as counts:
        out = checkpoint(layer, *leaves, use_reentrant=False, context_fn=contexts)
        weighted(out).backward()
    assert counts["_forward"] == (1 if policy == CheckpointPolicy.MUST_SAVE else 2)
    assert all(torch.equal(a.grad, b) for a, b in zip(leaves, plain, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["relative_bias", "sink"])
def test_transforms_of_torch_func_compute_the_same(gallery_module: Modules, name: str) -> None:
    module = gallery_module(name)
    call, leaves = trainable(name, drawn(name))
    learned = [key for key, tensor in call.inputs.items() if tensor.requires_grad]

    def loss(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        keywords = {**call.keywords, **dict(zip(learned, given, strict=True))}
        out, lse = module.attention(
            q, k, v, return_lse=True, config=CONFIG, backward_config=BACKWARD, **keywords
        )  # fmt: skip
        return weighted(out) + weighted(lse)

    plain = gradients(loss(*leaves), leaves)
    every = tuple(range(len(leaves)))
    inputs = [leaf.detach() for leaf in leaves]
    near(torch.func.grad(loss, every)(*inputs), plain)
    each = torch.func.vmap(torch.func.grad(loss, every))(*(torch.stack([x.cos(), x]) for x in inputs))
    near([both[1] for both in each], plain)
    with pytest.raises(NotImplementedError, match=r"has no second derivative; .* reference\(\)"):
        torch.func.jacrev(torch.func.grad(loss))(*inputs)


def test_data_parallel_processes_agree_with_one(gallery_module: Modules) -> None:
    train(str(gallery_module("alibi").__file__), world_size=2, device=DEVICE, backend="gloo")
