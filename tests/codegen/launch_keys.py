"""Which kernels a call asks Triton for, and which the offline compiler makes: in a process that interprets nothing."""

from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import triton.compiler
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend
from triton.runtime import driver

from flashgen.codegen import load_module, offline
from flashgen.codegen.rehearsal import rehearsal
from flashgen.problems.calls import make_inputs
from flashgen.problems.packed import make_packed
from flashgen.runtime import call as calls
from flashgen.runtime import choosing, launching
from flashgen.runtime.kernels import backward_kv_sm90, forward_sm90, sm90_keys, sm90_queries
from flashgen.runtime.registry import kernel_of
from flashgen.tuning.compiler import compiler
from flashgen.tuning.launches import Launches, PackedLaunches
from flashgen.tuning.prune import CompileRequest

TARGET = GPUTarget("cuda", 90, 32)


class Driver:
    """Of a GPU that is not there."""

    def get_current_target(self):
        return TARGET

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


# The kernels that Triton is asked for: name, and what it is compiled from and for.
asked = []
# What stays replaced as long as the process runs.
kept = []


def pretend():
    """From now on launches ask for their kernels, which takes no GPU, and the compiler makes none."""

    def record(source, target=None, options=None, _env_vars=None):
        backend = make_backend(target)
        parsed = backend.parse_options(dict(options or {}, **source.parse_options()))
        asked.append((source.fn.__name__, source.hash(), parsed.hash()))
        return SimpleNamespace(asm={"amdgcn": ""}, metadata=SimpleNamespace(shared=0, num_warps=4))

    def ask(kernel, programs, arguments, constants):
        kernel.warmup(*arguments, grid=(programs,), **constants)

    driver.set_active(Driver())
    triton.compiler.compile = triton.compile = offline.triton.compile = record
    replaced = launching.replaced(ask)
    replaced.__enter__()
    kept.append(replaced)
    for module in (forward_sm90, backward_kv_sm90):
        module.tile_counter = lambda call: torch.zeros(2, dtype=torch.int32)
    calls.interpreted = lambda: True
    choosing._capability = lambda call: "sm_90"
    for module in (forward_sm90, backward_kv_sm90, sm90_keys, sm90_queries):
        module.multiprocessors = lambda gpu: 132
    torch.set_num_threads(1)


def make(module_path, variant):
    """For (kernel, problem, config): the names of kernels that a launch asks for, and of those the missing ones."""
    pretend()
    module = load_module(Path(module_path))
    compile_one = compiler(module_path, variant)

    def answer(request):
        kernel, problem, config = request
        asked.clear()
        if problem.packed:
            launches = PackedLaunches(module, variant, make_packed(variant, problem))
        else:
            launches = Launches(module, variant, make_inputs(variant, problem))
        launched = launches.of(kernel, config)
        if kernel != "forward":
            asked.clear()  # of the forward pass that went before
        launched()
        wanted = [key for key in asked if key[0] in (kernel_of(kernel, config).function, "_classify")]
        asked.clear()
        found = compile_one(CompileRequest(kernel, problem, config, "sm_90"))
        assert found.error is None, found.error
        return [key[0] for key in wanted], [key[0] for key in wanted if key not in asked]

    return answer


def rehearse(module_path, variant):
    """For (problem, config, backward_config): the kernels that a call with gradients asks for in a rehearsal, those
    that are made of what it notes, and those that the call asks for afterwards."""
    pretend()
    path = Path(module_path)
    module = load_module(path)

    def answer(request):
        problem, config, backward_config = request
        call = make_inputs(variant, problem)
        leaves = [tensor.requires_grad_() for tensor in (call.q, call.k, call.v)]

        def run():
            out = module.attention(*leaves, **call.keywords, config=config, backward_config=backward_config)
            torch.autograd.grad(out.sum(), leaves)

        asked.clear()
        with rehearsal(module, "sm_90") as wanted:
            run()
        rehearsed = list(asked)
        asked.clear()
        errors = [offline.compile_wanted(path, each).error for each in wanted]
        assert errors == [None] * len(wanted), errors
        made = list(asked)
        asked.clear()
        run()
        return rehearsed, made, list(asked)

    return answer
