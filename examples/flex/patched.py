"""Run a script that knows torch's FlexAttention alone with generated attention.

    python examples/flex/patched.py SCRIPT [ARGUMENT ...]

The scripts beside this file run by themselves too, with torch's own.
"""

from __future__ import annotations

import runpy
import sys

import torch.nn.attention.flex_attention

import flashgen.flex

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: patched.py SCRIPT [ARGUMENT ...]")
    torch.nn.attention.flex_attention.flex_attention = flashgen.flex.flex_attention
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
