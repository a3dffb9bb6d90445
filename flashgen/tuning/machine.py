"""The GPU at hand and the software around it, as records note them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

import torch

import flashgen
from flashgen.codegen.assembler import assembler
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.runtime.lookup import current_device
from flashgen.runtime.records import Device
from flashgen.tuning.clocks import query


def gpus_at_hand(indices: Sequence[int] | None) -> tuple[list[int], Device]:
    """The GPUs to tune on, all of them for None, and their model.

    EnvironmentProblem where there is none, or not all that are asked for; UsageError where their models differ.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wanted = list(dict.fromkeys(range(count) if indices is None else indices))
    missing = [index for index in wanted if index >= count]
    if missing or not wanted:
        found = f"{count} GPUs that torch can use" if count else "no GPU that torch can use"
        asked = f", asked for GPU {missing[0]}" if missing else ""
        raise EnvironmentProblem(
            f"nothing can be tuned here: found {found}{asked}; "
            "run `flashgen tune` on a machine with the GPU that the kernels are for, "
            "or use records made there (`flashgen cache export`)"
        )
    return wanted, one_model({index: current_device(index) for index in wanted})


def one_model(devices: Mapping[int, Device]) -> Device:
    """What all these GPUs are; UsageError where they differ, for what is fast on one model is not on another."""
    models = list(dict.fromkeys(devices.values()))
    if len(models) > 1:
        found = ", ".join(f"GPU {index} is {device.gpu}" for index, device in devices.items())
        raise UsageError(f"{found}; expected GPUs of one model: tune each model by a command of its own")
    return models[0]


def versions(index: int) -> dict[str, str]:
    """The versions of triton, torch, flashgen, CUDA or ROCm, its assembler, and the driver (where nvidia-smi tells it).

    Of the assembler also whether it is another one than Triton's own, named by a variable.
    """
    # Of flashgen that of these sources, installed or not.
    found = {"triton": version("triton"), "torch": version("torch"), "flashgen": flashgen.__version__}
    found["toolkit"] = f"cuda {torch.version.cuda}" if torch.version.cuda else f"rocm {torch.version.hip}"
    ptxas = assembler(current_device(index).capability)
    found |= {"ptxas": str(ptxas)} if ptxas else {}
    driver = query(index, ["driver_version"])
    return found | ({"driver": driver["driver_version"]} if driver else {})
