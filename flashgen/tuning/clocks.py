"""How a GPU's clocks ran while it was measured, and what held them back."""

from __future__ import annotations

import statistics
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch

# Fields of nvidia-smi, and the name under which a record has them.
FIELDS = {
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "sm_max_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
}
# A set of bits, with its name in the record; its field was called otherwise before driver 535.
LIMITS = "limits"
LIMIT_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
IDLE = 0x1
REASONS = {
    0x4: "the power cap",
    0x8: "a hardware slowdown",
    0x20: "the temperature (software)",
    0x40: "the temperature (hardware)",
    0x80: "the power brake",
}
SAMPLE_MS = 100
# Of whatever unit: more than any GPU has.
MOST = 1e15
# A reason counts where at least this share of the samples has it; a clock is slow below this share of its maximum.
OFTEN, SLOW = 0.25, 0.9


class Observation:
    """What nvidia-smi said of some GPUs at work. `state` is empty where it said nothing."""

    def __init__(self) -> None:
        self._samples: list[dict[str, float]] = []

    def add(self, line: str, names: Sequence[str]) -> None:
        """Take in a line of its output; what is no quantity, as "[N/A]", is left out."""
        sample = {}
        for name, text in zip(names, line.split(","), strict=False):
            with suppress(ValueError):
                value = float(int(text, 16)) if "0x" in text else float(text)
                if 0 <= value < MOST:
                    sample[name] = value
        if sample:
            self._samples.append(sample)

    @property
    def state(self) -> Mapping[str, float]:
        """The medians while the GPU was busy, and in "limits" the bits that were often set."""
        busy = [s for s in self._samples if not int(s.get(LIMITS, 0)) & IDLE] or self._samples
        found: dict[str, list[float]] = {}
        for name, value in ((name, value) for sample in busy for name, value in sample.items()):
            found.setdefault(name, []).append(value)
        limits = [int(value) for value in found.pop(LIMITS, [])]
        state = {name: round(statistics.median(values), 2) for name, values in found.items()}
        often = [bit for bit in REASONS if sum(1 for each in limits if each & bit) > OFTEN * len(limits)]
        return state | ({LIMITS: float(sum(often))} if limits else {})


def throttling(state: Mapping[str, float]) -> str:
    """How the clocks were held back, in words; empty where they were not."""
    limits = int(state.get(LIMITS, 0))
    reasons = [text for bit, text in REASONS.items() if limits & bit]
    clock, most = state.get("sm_mhz"), state.get("sm_max_mhz")
    slow = clock is not None and most is not None and clock < SLOW * most
    if not reasons and not slow:
        return ""
    held = f", held back by {' and '.join(reasons)}" if reasons else ""
    return f"the clock ran at {clock:.0f} of {most:.0f} MHz{held}" if clock and most else held.removeprefix(", ")


class Sampler:
    """Samples GPUs from `start` to `close`; without nvidia-smi nothing is seen."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._indices = indices
        self._observations: list[Observation] = []
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._closing = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        while self._thread.is_alive():
            if self._process is not None:
                self._process.terminate()
            self._thread.join(0.05)

    @contextmanager
    def observed(self) -> Iterator[Observation]:
        """What is sampled within the block."""
        observation = Observation()
        self._observations.append(observation)
        try:
            yield observation
        finally:
            self._observations.remove(observation)

    def _run(self) -> None:
        limits = next((field for field in LIMIT_FIELDS if query(self._indices[0], [field])), None)
        fields = {**FIELDS, **({limits: LIMITS} if limits else {})}
        command = [*_command(self._indices, list(fields)), "-lms", str(SAMPLE_MS)]
        if self._closing.is_set():
            return
        try:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return
        for line in self._process.stdout or ():
            for observation in tuple(self._observations):
                observation.add(line, list(fields.values()))
        self._process.wait()


@contextmanager
def observed(indices: Sequence[int]) -> Iterator[Observation]:
    """Sample these GPUs within the block."""
    sampler = Sampler(indices)
    sampler.start()
    try:
        with sampler.observed() as observation:
            yield observation
    finally:
        sampler.close()


def query(index: int, fields: list[str]) -> Mapping[str, str]:
    """What nvidia-smi says now; empty where it is missing or does not know a field."""
    try:
        done = subprocess.run(_command([index], fields), capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    # Warnings, as of an infoROM that is corrupted, come on the same stream, below.
    first, _, _ = done.stdout.strip().partition("\n")
    return dict(zip(fields, (part.strip() for part in first.split(",")), strict=False))


def _command(indices: Sequence[int], fields: list[str]) -> list[str]:
    uuids = {index: getattr(torch.cuda.get_device_properties(index), "uuid", None) for index in indices}
    which = ",".join(f"GPU-{uuid}" if uuid else str(index) for index, uuid in uuids.items())
    return ["nvidia-smi", "-i", which, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
