"""attention() and its gradients from several threads at once, their first calls too."""

import os
import signal
import threading

import pytest
import torch
import triton
import triton.language as tl
from side_by_side import forward_and_backward, side_by_side

THREADS = 8


def made(seed):
    """q, k and v of sizes that no other thread has: what they share cannot be right for two."""
    draw = torch.Generator().manual_seed(seed)
    q_len, kv_len = 17 + 3 * seed, 40 + 5 * seed
    return [
        torch.randn(1, heads, length, 16, generator=draw, requires_grad=True)
        for heads, length in ((2, q_len), (1, kv_len), (1, kv_len))
    ]


@pytest.mark.parametrize("variant", ["causal", "document"])
def test_threads_get_what_each_would_get_alone(gallery_module, variant):
    module = gallery_module(variant)

    def call(seed):
        tensors = made(seed)
        inputs = {"doc": torch.arange(tensors[1].shape[2])[None] // 9} if variant == "document" else {}
        inputs = {name: tensor.int() for name, tensor in inputs.items()}
        return forward_and_backward(lambda *args, **named: module.attention(*args, **inputs, **named), tensors)

    together = side_by_side([lambda seed=seed: call(seed) for seed in range(THREADS)])
    for seed, found in enumerate(together):
        for one, other in zip(found, call(seed), strict=True):
            assert torch.equal(one, other), seed


def test_variants_and_their_copies_may_run_side_by_side(gallery_module, tmp_path):
    """An exported file has a runtime of its own."""
    from flashgen.codegen import load_module
    from flashgen.codegen.export import export_module
    from flashgen.spec import load

    export_module(load({"name": "full", "head_dim": 16}), [], tmp_path / "alone.py")
    modules = [gallery_module("causal"), load_module(tmp_path / "alone.py"), gallery_module("alibi")]
    calls = [lambda seed=seed: forward_and_backward(modules[seed % 3].attention, made(seed)) for seed in range(6)]
    for found, call in zip(side_by_side(calls), calls, strict=True):
        for one, other in zip(found, call(), strict=True):
            assert torch.equal(one, other)


# A kernel that has begun, and one that may go on.
BEGUN, GO_ON = threading.Event(), threading.Event()


def wait():
    BEGUN.set()
    GO_ON.wait()


@triton.jit
def doubled(x):
    return x + x


@triton.jit
def kernel(x_ptr, WAITS: tl.constexpr):
    if WAITS:
        wait()
    tl.store(x_ptr, doubled(tl.load(x_ptr)))


def test_a_copy_may_come_while_a_kernel_runs(tmp_path):
    """The kernel's functions are read after it came, and those of a kernel that waits for it too."""
    from flashgen.codegen import load_module
    from flashgen.codegen.export import export_module
    from flashgen.runtime.interpreter import interpreted
    from flashgen.spec import load

    export_module(load({"name": "full", "head_dim": 16}), [], tmp_path / "later.py")
    assert interpreted()
    x, y = torch.ones(1), torch.ones(1)
    first = threading.Thread(target=lambda: kernel[(1,)](x, WAITS=True), daemon=True)
    first.start()
    BEGUN.wait()
    assert load_module(tmp_path / "later.py").interpreted()
    second = threading.Thread(target=lambda: kernel[(1,)](y, WAITS=False), daemon=True)
    second.start()
    second.join(0.5)
    GO_ON.set()
    for thread in (first, second):
        thread.join(30)
        assert not thread.is_alive()
    assert x == y == 2


def test_a_process_that_is_forked_while_kernels_run_runs_them_too(gallery_module):
    attend, tensors, is_over = gallery_module("causal").attention, made(2), threading.Event()
    attend(*tensors)

    def work():
        while not is_over.is_set():
            attend(*tensors)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    child = os.fork()
    if not child:
        # A child that waits for ever is ended by the system.
        signal.alarm(30)
        status = 1
        try:
            attend(*tensors)
            status = 0
        finally:
            os._exit(status)
    is_over.set()
    assert os.waitpid(child, 0)[1] == 0
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_a_backward_pass_and_forward_passes_at_once(gallery_module):
    attend = gallery_module("causal").attention
    tensors = made(3)
    alone = forward_and_backward(attend, tensors)
    out, lse = attend(*tensors, return_lse=True)
    loss = out.float().square().sum() + lse.sum()
    gradients, *outs = side_by_side([lambda: torch.autograd.grad(loss, tensors), *[lambda: attend(*tensors)] * 3])
    assert all(torch.equal(one, other) for one, other in zip(gradients, alone[2:], strict=True))
    assert all(torch.equal(other, alone[0]) for other in outs)


def test_a_module_may_be_imported_by_several_threads_at_once(gallery_module):
    from flashgen.codegen import load_module

    path = gallery_module("sliding_window").__file__
    modules = side_by_side([lambda: load_module(path)] * 4)
    alone = forward_and_backward(modules[0].attention, made(1))
    for module in modules[1:]:
        found = forward_and_backward(module.attention, made(1))
        assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))
