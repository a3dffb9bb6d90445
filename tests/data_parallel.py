"""A data-parallel step of training, each process with its share of the batch.

    python data_parallel.py MODULE RANK WORLD_SIZE PORT DEVICE BACKEND

is one of the processes: it fails unless the gradients that all agree on are those of the whole batch.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch.distributed import destroy_process_group, init_process_group

from flashgen.codegen import load_module

HEADS, DIM, LENGTH = 2, 16, 24
CONFIG = "BM=16 BN=16 num_warps=4 num_stages=1"
BACKWARD = {"backward_kv": f"{CONFIG} fuse_dq=0", "backward_q": CONFIG}


def train(path: str, world_size: int, device: str, backend: str) -> None:
    """Run the processes of a step of the module at `path`, a variant of ALiBi; AssertionError where one fails."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    # The checkout before what the caller's environment has.
    paths = [str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, path, str(rank), str(world_size), port, device, backend],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(world_size)
    ]  # fmt: skip
    try:
        outputs = [worker.communicate(timeout=180)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * world_size, "\n".join(outputs)


class Layer(torch.nn.Module):
    """Projections around attention with a learned slope for each head."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__()
        self.module = module
        self.qkv = torch.nn.Linear(HEADS * DIM, 3 * HEADS * DIM)
        self.slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, DIM)).permute(2, 0, 3, 1, 4)
        return self.module.attention(q, k, v, slopes=self.slopes, config=CONFIG, backward_config=BACKWARD)


def step(path: str, rank: int, world_size: int, port: str, device: str, backend: str) -> None:
    """One process."""
    where = torch.device(device, rank % torch.cuda.device_count()) if device == "cuda" else torch.device(device)
    init_process_group(backend, f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    layer = Layer(load_module(Path(path))).to(where)
    batch = torch.randn(world_size, LENGTH, HEADS * DIM).to(where)
    parallel = torch.nn.parallel.DistributedDataParallel(layer)
    parallel(batch[rank : rank + 1]).square().mean().backward()
    shared = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    layer.zero_grad()
    layer(batch).square().mean().backward()
    for mine, whole in zip(shared, layer.parameters(), strict=True):
        torch.testing.assert_close(mine, whole.grad, rtol=1e-4, atol=1e-6)
    destroy_process_group()


if __name__ == "__main__":
    step(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
