"""A program that reads one element beside a guarded tensor of eight: `reader_beside.py AT_END PLACE`."""

import sys

import torch
import triton
import triton.language as tl

from flashgen.verify.soak.guarded import guarded


@triton.jit
def read(from_ptr, to_ptr, place):
    tl.store(to_ptr, tl.load(from_ptr + place))


if __name__ == "__main__":
    at_end, place = map(int, sys.argv[1:])
    tensor = guarded(torch.arange(8.0, device="cuda"), bool(at_end))
    to = torch.zeros(1, device="cuda")
    read[(1,)](tensor, to, place)
    print(to.item())
