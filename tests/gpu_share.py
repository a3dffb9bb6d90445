"""Which GPU a worker of pytest-xdist works on."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

import torch


def take_gpu(environment: MutableMapping[str, str] = os.environ, gpus: int | None = None) -> None:
    """Worker number n gets GPU n, counted round and round, as its first; it still sees the others, behind it.

    By CUDA_VISIBLE_DEVICES, for child processes too, before anything asks CUDA: torch counts `gpus` without it.
    """
    worker = environment.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker.isdigit():
        count = torch.cuda.device_count() if gpus is None else gpus
        visible = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        visible = visible if visible != [""] else [str(gpu) for gpu in range(count)]
        if len(visible) > 1:
            first = int(worker) % len(visible)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(visible[first:] + visible[:first])
