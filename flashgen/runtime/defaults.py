"""The built-in configs, for a GPU and shape without a record: a family's kernel that serves the call says them.

A generated module names the one that suits its variant. Each takes a capability such as "sm_80" or "gfx942", "" for
a GPU that is not known, a dtype, head_dim and v_head_dim, and may be told the bucket of sizes that it is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from flashgen.runtime.config import PORTABLE, Config
from flashgen.runtime.records import Bucket
from flashgen.runtime.registry import kernels_of, serving

# A built-in default by capability, dtype, head_dim and v_head_dim, and `bucket=` where it is known.
Default = Callable[..., Config]


@dataclass(frozen=True)
class DefaultOfForm:
    """The defaults of a family for a form of variant, as `Kernel` knows these."""

    family: str
    form: str = ""

    def __call__(
        self, capability: str, dtype: str, head_dim: int, v_head_dim: int, bucket: Bucket | None = None,
        pair_bytes: int = 0,
    ) -> Config:  # fmt: skip
        sizes = (capability, dtype, head_dim, v_head_dim)
        kernel = serving(self.family, *sizes, form=self.form)
        config = kernel.default(self.form, *sizes)
        if bucket is None:
            return config
        return kernel.suited(config, bucket, pair_bytes, *sizes)


@cache
def packed_default(family: str, scheduled: bool, dense: Default | None = None) -> Default:
    """The defaults of a family for packed sequences, by the same kernel as those of `dense` ones."""
    form = dense.form if isinstance(dense, DefaultOfForm) else ""

    def default(
        capability: str, dtype: str, head_dim: int, v_head_dim: int, bucket: Bucket | None = None
    ) -> Config:  # fmt: skip
        sizes = (capability, dtype, head_dim, v_head_dim)
        kernel = serving(family, *sizes, packed=True, form=form)
        return kernel.default("scheduled" if scheduled else "packed", *sizes)

    return default


@cache
def beside_pairs(default: Default, pair_bytes: int) -> Default:
    """The default where so many bytes are read for each pair, which take a place in the pipeline too.

    AMD's compiler has no pipeline for masks of what is read in it: their bits would go through shared memory.
    """

    def fitting(
        capability: str, dtype: str, head_dim: int, v_head_dim: int, bucket: Bucket | None = None
    ) -> Config:  # fmt: skip
        config = default(capability, dtype, head_dim, v_head_dim, bucket, pair_bytes)
        return config.but(num_stages=1) if capability.startswith("gfx") else config

    return fitting


@cache
def unpipelined(default: Default) -> Default:
    """The default without a pipeline where a portable kernel serves: of a variant that reads much for each pair."""

    def lean(
        capability: str, dtype: str, head_dim: int, v_head_dim: int, bucket: Bucket | None = None
    ) -> Config:  # fmt: skip
        config = default(capability, dtype, head_dim, v_head_dim, bucket)
        return config.but(num_stages=1) if config.backend == PORTABLE else config

    return lean


default_config = DefaultOfForm("forward")
# For scores that are the scaled dot products, all visible or up to a key that rises with the query, without dropout.
default_plain_config = DefaultOfForm("forward", "plain")
# For a variant with a schedule.
default_scheduled_config = DefaultOfForm("forward", "scheduled")
# The same where the mask reads inputs of each key, or divides each.
default_by_key_config = DefaultOfForm("forward", "by key")

# Where beside a mask each pair reads an element from anywhere, or is divided.
default_lookups_config = DefaultOfForm("forward", "lookups")
# Where something is read for each pair in rows, and tiles may be wide.
default_pairs_config = DefaultOfForm("forward", "pairs")
# Where a function of many instructions is taken of each pair.
default_functions_config = DefaultOfForm("forward", "functions")

default_backward_kv_config = DefaultOfForm("backward_kv")
# For a causal mask or a window alone.
default_masked_backward_kv_config = DefaultOfForm("backward_kv", "masked")
# Where something is read for each pair.
default_pairs_backward_kv_config = DefaultOfForm("backward_kv", "pairs")
# With dropout.
default_dropout_backward_kv_config = DefaultOfForm("backward_kv", "dropout")
default_scheduled_backward_kv_config = DefaultOfForm("backward_kv", "scheduled")

default_backward_q_config = DefaultOfForm("backward_q")
default_scheduled_backward_q_config = DefaultOfForm("backward_q", "scheduled")

default_decode_config = DefaultOfForm("decode")
default_decode_paged_config = DefaultOfForm("decode_paged")


def built_in(family: str, scheduled: bool, packed: bool = False) -> Default:
    """The defaults of a family by its name, or those for packed sequences."""
    if packed:
        return packed_default(family, scheduled)
    return DefaultOfForm(family, "scheduled" if scheduled else "")


def portable_default(
    family: str, scheduled: bool, capability: str, dtype: str, head_dim: int, v_head_dim: int
) -> Config:  # fmt: skip
    """The default of the kernel that serves every call, also where another one is the default."""
    form = "scheduled" if scheduled else ""
    return kernels_of(family)[0].default(form, capability, dtype, head_dim, v_head_dim)
