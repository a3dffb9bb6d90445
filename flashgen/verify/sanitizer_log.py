"""What a log of compute-sanitizer says: whether a run was clean, and where not."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from flashgen.runtime import device
from flashgen.runtime.registry import REGISTRY

KERNELS = "kernels: "
DEVICE = Path(*device.__path__)
# Python 3.11 counts the depth of all threads that parse as one, and stumbles over the sum.
_PARSING = Lock()


def judge(log: str, status: int, tool: str, sources: Mapping[str, str]) -> tuple[bool, str]:
    """Whether a run was clean, and its summary: what the tool counted, or why it did not.

    `tool` is "" for a run without one, whose summary is the names of its kernels. `sources` are the texts of the files
    whose lines the log names.
    """
    lines = [line.removeprefix("=========").strip() for line in log.splitlines() if line.strip(" =")]
    kernels = [line.removeprefix(KERNELS) for line in lines if line.startswith(KERNELS)]
    summaries = [line for line in lines if re.match(r"(ERROR|RACECHECK) SUMMARY:", line)]
    if kernels and not tool and status == 0:
        return True, kernels[0]
    if kernels and summaries:
        found = races(lines, sources)
        # The functions whose accesses mbarriers or warp_specialize order, which racecheck does not follow.
        ordered = {name for kernel in REGISTRY for name in kernel.barriers}
        hazards = re.search(r"SUMMARY: (\d+) hazards", summaries[0])
        unexplained = [race for race in found if not ordered.issuperset(race)]
        if hazards and int(hazards[1]) and int(hazards[1]) == len(found) and not unexplained:
            return status == 0, f"{summaries[0]}, all where mbarriers or warp_specialize hand over"
        clean = status == 0 and all(re.search(r"SUMMARY: 0 (errors|hazards)", line) for line in summaries)
        return clean, "; ".join([*summaries, *_places(unexplained)])
    complaints = [line for line in lines if re.match(r"\w*Error\b", line)]
    return False, f"status {status}: {(complaints or lines or ['no output'])[-1]}"


def races(lines: Sequence[str], sources: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The functions of these files, or of the device, whose accesses are in each reported race, "" for one that is not
    known.
    """
    of_device = {path.name: path.read_text(encoding="utf-8") for path in DEVICE.rglob("*.py")}
    spans = {
        (file, number): node.name
        for file, source in {**of_device, **sources}.items()
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.FunctionDef)
        for number in range(min(_lines(node)), (node.end_lineno or node.lineno) + 1)
    }
    found: list[tuple[str, ...]] = []
    for line in lines:
        accesses = re.findall(r"access at \S+ in (?:\S*/)?(\S+?):(\d+)", line)
        if line.startswith("Error: Race reported"):
            found.append(())
        if found:
            found[-1] += tuple(spans.get((file, int(number)), "") for file, number in accesses)
    # A race of nothing that is known is one of something unknown.
    return [race or ("",) for race in found]


def _lines(function: ast.FunctionDef) -> list[int]:
    """Where it begins, and its decorators."""
    return [function.lineno, *(decorator.lineno for decorator in function.decorator_list)]


def parsed(source: str) -> ast.Module:
    """The syntax of a module, for one thread at a time."""
    with _PARSING:
        return ast.parse(source)


def _places(found: Sequence[tuple[str, ...]]) -> list[str]:
    """Races by the functions that take part, the most frequent first."""
    counts = Counter(" and ".join(name or "elsewhere" for name in dict.fromkeys(race)) for race in found)
    return [f"{count} in {names}" for names, count in counts.most_common(3)]
