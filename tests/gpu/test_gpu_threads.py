"""attention() and its gradients from several threads at once on a GPU: on one stream, on many, beside a capture.

What threads share is in flashgen/runtime: dictionaries of what was found for a call (call, launching, described,
lookup, alibi), and memory by stream (streams), which launches of one stream use in their order. First calls race here:
each test has modules that nobody has called, whose kernels are compiled by whichever thread comes first.
"""

import threading
from itertools import cycle

import pytest
import torch
from gallery import VARIANTS
from side_by_side import forward_and_backward, side_by_side

from flashgen.codegen import generate, load_module
from flashgen.runtime import launching

pytestmark = pytest.mark.gpu

THREADS, ROUNDS = 8, 20
CALLED = ("causal", "alibi", "document", "softcap")
HEAD_DIMS = (64, 128)


@pytest.fixture
def untouched(tmp_path, monkeypatch):
    """Modules of some variants that have launched nothing yet, in a process that has forgotten what it launched."""
    for known in (launching._found, launching._known):
        monkeypatch.setattr(launching, "_found" if known is launching._found else "_known", {})
    return [load_module(generate(VARIANTS[name], tmp_path)) for name in CALLED]


def made(variant, seed):
    """Arguments of sizes that each thread has for itself."""
    draw = torch.Generator("cuda").manual_seed(seed)
    length, head_dim = 300 + 37 * seed, HEAD_DIMS[seed % 2]
    tensors = [
        torch.randn(1, heads, length, head_dim, generator=draw, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for heads in (4, 2, 2)
    ]
    inputs = (
        {"doc": torch.arange(length, device="cuda", dtype=torch.int32)[None] // 64} if variant == "document" else {}
    )
    return tensors, inputs


def calls_of(modules, deterministic=True):
    def call(place):
        module, variant = modules[place % len(modules)], CALLED[place % len(modules)]
        tensors, inputs = made(variant, place)

        def attend(*args, **named):
            return module.attention(*args, **inputs, **named, deterministic=deterministic)

        return lambda: forward_and_backward(attend, tensors)

    return [call(place) for place in range(THREADS)]


def same(found, expected):
    torch.cuda.synchronize()
    for place, (ones, others) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(ones, others, strict=True):
            assert torch.equal(one, other), place


def test_first_calls_race_on_one_stream(untouched):
    calls = calls_of(untouched)
    torch.cuda.synchronize()
    together = side_by_side(calls)
    same(together, [call() for call in calls])


def test_first_calls_race_on_streams_of_their_own(untouched):
    calls = calls_of(untouched)
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()

    def on(stream, call):
        with torch.cuda.stream(stream):
            found = call()
            stream.synchronize()
            return found

    together = side_by_side([lambda s=s, c=c: on(s, c) for s, c in zip(streams, calls, strict=True)])
    same(together, [call() for call in calls])


def test_many_rounds_of_warm_calls_on_shared_streams(untouched):
    """Two streams for eight threads: what is kept by stream is in use by four threads."""
    calls = calls_of(untouched)
    expected = [call() for call in calls]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()

    def rounds(stream, call):
        with torch.cuda.stream(stream):
            for _ in range(ROUNDS):
                found = call()
            stream.synchronize()
            return found

    together = side_by_side([lambda s=s, c=c: rounds(s, c) for s, c in zip(cycle(streams), calls, strict=False)])
    same(together, expected)


def test_a_graph_is_captured_beside_calls_of_other_threads(untouched):
    calls = calls_of(untouched)
    expected = [call() for call in calls]
    tensors, _ = made("causal", 0)
    attend = untouched[0].attention
    stop = threading.Event()

    def capture():
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        try:
            with torch.no_grad(), torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                out = attend(*tensors)
        finally:
            stop.set()
        graph.replay()
        torch.cuda.synchronize()
        return [out]

    def others(place):
        while not stop.is_set():
            found = calls[place]()
        return found

    captured, *found = side_by_side([capture, *[lambda place=place: others(place) for place in range(1, 4)]])
    same([captured], [[expected[0][0]]])
    same(found, expected[1:4])
