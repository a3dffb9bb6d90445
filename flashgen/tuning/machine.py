"""The GPU at hand and the software around it, as records note them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import torch

from flashgen.errors import EnvironmentProblem
from flashgen.runtime.lookup import current_device
from flashgen.runtime.records import Device

# Fields of nvidia-smi, and the name under which a record has them.
STATE_FIELDS = {
    "clocks.sm": "sm_mhz",
    "clocks.max.sm": "sm_max_mhz",
    "clocks.mem": "memory_mhz",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
}


def gpu_at_hand(index: int) -> Device:
    """The GPU to tune on; EnvironmentProblem where there is none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        found = f"{count} GPUs that torch can use" if count else "no GPU that torch can use"
        raise EnvironmentProblem(
            f"nothing can be tuned here: found {found}, asked for GPU {index}; "
            "run `flashgen tune` on a machine with the GPU that the kernels are for, "
            "or use records made there (`flashgen cache export`)"
        )
    return current_device(index)


def versions(index: int) -> dict[str, str]:
    """The versions of triton, torch, flashgen, CUDA or ROCm, and the driver (where nvidia-smi tells it)."""
    names = ("triton", "torch", "flashgen")
    found = {name: _package_version(name) for name in names}
    found["toolkit"] = f"cuda {torch.version.cuda}" if torch.version.cuda else f"rocm {torch.version.hip}"
    driver = _query(index, ["driver_version"])
    return found | ({"driver": driver["driver_version"]} if driver else {})


def gpu_state(index: int) -> dict[str, float]:
    """Clocks, power and temperature now; empty where nvidia-smi is missing."""
    state = {}
    for field, text in _query(index, list(STATE_FIELDS)).items():
        try:
            state[STATE_FIELDS[field]] = float(text)
        except ValueError:  # "[N/A]"
            continue
    return state


def _package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _query(index: int, fields: list[str]) -> Mapping[str, str]:
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    which = f"GPU-{uuid}" if uuid else str(index)
    command = ["nvidia-smi", "-i", which, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, (part.strip() for part in done.stdout.strip().split(",")), strict=False))
