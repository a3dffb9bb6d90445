"""A kernel to compile offline for a kind of call: the types and the constants of its arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from flashgen.codegen.words import mangled_name
from flashgen.runtime.config import Config
from flashgen.runtime.kernels.delta import delta_kernel
from flashgen.runtime.kernels.kernel import HelperKernel, Kernel
from flashgen.runtime.kernels.schedule import schedules
from flashgen.runtime.registry import kernel_of
from flashgen.runtime.sizes import DENSE

_TRITON_TYPES = {
    "bool": "u1", "int8": "i8", "uint8": "u8", "int16": "i16", "int32": "i32", "int64": "i64",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "int": "i32", "float": "fp32",
}  # fmt: skip
_POINTERS = {
    "lse_ptr": "*fp32",
    "max_ptr": "*fp32",
    "residue_ptr": "*fp32",
    "counter_ptr": "*i32",
    "order_ptr": "*i32",
    "sums_ptr": "*fp32",
    "delta_ptr": "*fp32",
    "d_lse_ptr": "*fp32",
    "row_lse_ptr": "*fp32",
    "tile_lse_ptr": "*fp32",
    "counts_ptr": "*i32",
    "tiles_ptr": "*i32",
    "states_ptr": "*i8",
    "dropout_seed_ptr": "*i64",
    **dict.fromkeys(("acc_ptr", "m_ptr", "l_ptr", "shift_ptr", "k_scale_ptr", "v_scale_ptr"), "*fp32"),
    **dict.fromkeys(("items_ptr", "count_ptr", "block_table_ptr", "seq_lens_ptr"), "*i32"),
    **dict.fromkeys(("cu_seqlens_q_ptr", "cu_seqlens_k_ptr"), "*i32"),
}
# Those of the dtype of q.
_TENSORS = ("q_ptr", "k_ptr", "v_ptr", "out_ptr", "d_out_ptr", "dq_ptr", "dk_ptr", "dv_ptr", "scaled_ptr")
# What makes ready for another kernel has tiles by the config of that, and none of its own.
READY_FOR = {"schedule": "forward", "delta": "backward_kv"}


@dataclass(frozen=True)
class Compilation:
    """A family's kernel, such as "forward", in one config, for calls of a dtype and head dimensions; or one of
    READY_FOR, in the config of the other.

    `target` is a capability such as "sm_80", or an AMD architecture such as "gfx942". `grouped`: several query heads
    share those of keys. `odd` are the strides of inputs, "rel 0" for the first of `rel`, that are no multiple of 16.
    `learned`: gradients of learned inputs are added up beside its own, if it can. `largest`: it writes the largest
    logits.
    `types` and `constants` are those of arguments that are others than the kernel's record says. `packed`: the
    sequences are.
    """

    kernel: str
    target: str
    dtype: str
    head_dim: int
    v_head_dim: int
    config: Config
    grouped: bool = False
    odd: Collection[str] = ()
    learned: bool = False
    largest: bool = False
    types: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, int | None] = field(default_factory=dict)
    packed: bool = False

    @property
    def record(self) -> Kernel:
        """The family's kernel whose config this is."""
        return kernel_of(READY_FOR.get(self.kernel, self.kernel), self.config, self.packed)

    @property
    def makes_ready(self) -> HelperKernel | None:
        """The kernel, where it is one that makes ready for another."""
        if self.kernel == "delta":
            return delta_kernel(self.config, self.head_dim, self.v_head_dim, self.packed)
        return schedules(self.config)[0] if self.kernel == "schedule" else None

    @property
    def unaligned(self) -> set[str]:
        """The integers that are no multiple of 16 among those that are most often."""
        strides = {f"stride_{mangled_name(name)}_{axis}" for name, axis in map(str.split, self.odd)}
        dims = (("head_dim", self.head_dim), ("v_head_dim", self.v_head_dim))
        return strides | {name for name, dim in dims if dim % 16}

    @property
    def helper_constants(self) -> dict[str, int | None]:
        """Those of the kernels that a launch needs beside it. No sums of dQ are cleared."""
        return {**({} if self.packed else DENSE), "dq_sums_ptr": None, **self.constants}

    def types_of(self, own: Mapping[str, str]) -> dict[str, str]:
        """The types of arguments by their names; what is left is an int32. `own` are those of the variant's."""
        types = {"scale": "fp32", "dropout_p": "fp32"}
        for name, kind in own.items():
            types[f"{mangled_name(name)}_ptr"] = "*" + _TRITON_TYPES[kind]
            types[mangled_name(name)] = _TRITON_TYPES[kind]
        types |= _POINTERS | dict.fromkeys(_TENSORS, "*" + _TRITON_TYPES[self.dtype])
        dims = (self.head_dim, self.v_head_dim)
        return {
            **types, **self.record.types(getattr(torch, self.dtype), self.config, *dims, self.grouped, self.packed),
            **self.types,
        }  # fmt: skip

    def constants_of(self, sums: Collection[str]) -> dict[str, int | None]:
        """The compile-time arguments, and None for what is not there. `sums` are those for gradients of inputs."""
        record = self.record
        dense = {} if self.packed or not record.packs else DENSE
        constants = {**record.constants(self.config, self.head_dim, self.v_head_dim), **dense, **self.constants}
        constants = {name: value for name, value in constants.items() if name not in self.types}
        # Of packed sequences that is left to the kernel for these gradients alone.
        added = (self.learned or not record.tuned) and not (self.packed and record.sums_inputs)
        constants |= {"LEARNED": added, **({} if added else dict.fromkeys(sums))}
        return constants if self.largest else {**constants, "max_ptr": None}
