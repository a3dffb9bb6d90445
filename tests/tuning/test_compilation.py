"""In which order the compilers begin with what a session will ask for."""

from dataclasses import replace

from fake_tools import DEVICE, HALF, IDENTITY, LONG, SHORT, FakeTools, defaults, session, workload

from flashgen.runtime.defaults import default_config
from flashgen.runtime.registry import FAMILIES
from flashgen.tuning.presets import LEAST_TRIALS
from flashgen.tuning.workloads import workloads


def test_the_compilers_begin_with_a_few_of_each_and_end_with_what_is_likely(cache):
    tools = FakeTools()
    one = session(tools, cache, "default")
    narrow = replace(LONG, head_dim=64, v_head_dim=64)
    tasks = [workload(problem) for problem in (LONG, SHORT, narrow, HALF)]
    one.prepare(tasks)
    groups = [(request.problem.dtype, request.problem.head_dim) for request in tools.begun]
    few, rest = groups[: 2 * LEAST_TRIALS], groups[2 * LEAST_TRIALS :]
    wide, thin, half = ("bfloat16", 128), ("bfloat16", 64), ("float16", 128)
    assert few == [wide] * LEAST_TRIALS + [thin] * LEAST_TRIALS
    assert rest == sorted(rest, key=[wide, thin, half].index) and rest[-1] == half
    assert {request.problem for request in tools.begun} == {LONG, narrow, HALF}
    begun = len(tools.begun)
    one.prepare(tasks)
    assert len(tools.begun) == begun
    one.tune(tasks[0], None)
    one.prepare(tasks[3:])
    assert {request.problem for request in tools.begun[begun:]} == {HALF}


def test_compilers_prepare_the_proof_of_what_won_in_another_dtype_or_else_of_the_default(cache, monkeypatch):
    tools, rehearsed = FakeTools(), []
    monkeypatch.setattr(tools, "rehearse", lambda task, config: rehearsed.append((task.problem, config)) or [])
    one, usual = session(tools, cache, "default"), defaults("bfloat16")[0]
    one.prepare([workload(LONG)])
    assert rehearsed == [(LONG, usual)]
    winner = one.tune(workload(LONG), None).record.config
    assert winner != usual
    rehearsed.clear()
    narrow = replace(HALF, head_dim=64, v_head_dim=64)
    one.prepare([workload(HALF), workload(narrow)])
    assert rehearsed == [(HALF, winner), (narrow, default_config("sm_90", "float16", 64, 64))]


def test_another_shape_asks_for_what_was_asked_for_and_not_answered_in_time(cache, monkeypatch):
    tools, asked, everything = FakeTools(), [], FakeTools.compile

    def compile_a_few(requests, seconds):
        asked.append(requests)
        return everything(tools, requests[: None if seconds is None else 1], seconds)

    monkeypatch.setattr(tools, "compile", compile_a_few)
    one = session(tools, cache, "default")
    for problem in (LONG, SHORT):
        one.tune(workload(problem), 100.0)
    _, most, _, again = asked
    assert len(most) > len(again) > 0 and set(again) < set(most)


def test_the_compilers_are_done_with_one_kernel_before_they_begin_another(cache):
    tools = FakeTools()
    session(tools, cache, "default").prepare(workloads([LONG, SHORT, HALF], IDENTITY, DEVICE, FAMILIES))
    kernels = [request.kernel for request in tools.begun]
    assert kernels == sorted(kernels, key=["forward", "backward_q", "backward_kv"].index) and len(set(kernels)) == 3
