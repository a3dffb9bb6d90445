"""Launching the decode kernels: how keys are split over the GPU, and the merge of what the splits found."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from flashgen.runtime.arguments import Sizes
from flashgen.runtime.call import Call
from flashgen.runtime.config import Config
from flashgen.runtime.device.merge import merge_splits
from flashgen.runtime.kernels.decode import CHUNK, DECODE_KERNEL
from flashgen.runtime.launching import Rest, relaunch
from flashgen.runtime.lookup import current_device

# More queries are the forward kernel's, whose tiles they fill; so are fewer keys, which one program walks in no time.
MOST_QUERIES = 16
FEWEST_KEYS = 512
# Programs that a processor of a GPU runs at once.
_AT_ONCE = 2
# What the interpreter is taken for: so few that sequences of a test are split.
_INTERPRETED = 8
# Splits that the merge of a row reads at a time.
_MERGED = 16


def few_queries(sizes: Sizes) -> bool:
    """Whether a dense call is for the decode kernel."""
    return 1 <= sizes.q_len <= MOST_QUERIES and sizes.kv_len >= FEWEST_KEYS


def default_decode_config(dtype: torch.dtype, gpu: int, sizes: Sizes) -> Config:
    """The built-in config for tensors of this dtype on this GPU; -1 is the interpreter."""
    capability = current_device(gpu).capability if gpu >= 0 else "the interpreter"
    return DECODE_KERNEL.default("", capability, str(dtype).removeprefix("torch."), sizes.head_dim, sizes.v_head_dim)


def row_tile(config: Config, rows: int) -> int:
    """The rows of a tile: as many as there are of a KV head, up to a config's, and 16 at least."""
    return min(config.BM, max(16, 1 << (rows - 1).bit_length()))


@lru_cache(maxsize=64)
def programs_at_once(gpu: int) -> int:
    """How many programs a GPU is kept busy by; -1 is the interpreter."""
    if gpu < 0:
        return _INTERPRETED
    return _AT_ONCE * torch.cuda.get_device_properties(gpu).multi_processor_count


@lru_cache(maxsize=1024)
def even_splits(programs: int, key_tiles: int, at_once: int) -> int:
    """Into how many splits to cut `key_tiles` tiles of keys that each of so many programs would walk alone.

    The fewest for which the GPU is done soonest, when it runs `at_once` programs at a time and each takes as long as
    its tiles, and one more to begin and end with.
    """
    most = max(1, min(key_tiles, 2 * at_once // max(programs, 1)))

    def time_of(splits: int) -> int:
        return -(-programs * splits // at_once) * (-(-key_tiles // splits) + 1)

    return min(range(1, most + 1), key=time_of)


class Partials(NamedTuple):
    """What splits leave for the merge, float32: acc [items, kv_heads, BM, V_HEAD_DIM], the others without columns."""

    acc: torch.Tensor
    m: torch.Tensor
    l: torch.Tensor  # noqa: E741 - as kernels call it
    shift: torch.Tensor | None

    @classmethod
    def room(cls, like: torch.Tensor, rows: int, width: int, shifted: bool) -> Partials:
        """Room for so many rows, not yet written; `shifted`: their logits lack something."""
        sums = torch.empty((rows, width + (3 if shifted else 2)), dtype=torch.float32, device=like.device).view(-1)
        acc, *others = sums.split([rows * width, *[rows] * (3 if shifted else 2)])
        return cls(acc, others[0], others[1], others[2] if shifted else None)

    @property
    def named(self) -> dict[str, torch.Tensor | None]:
        return {"acc_ptr": self.acc, "m_ptr": self.m, "l_ptr": self.l, "shift_ptr": self.shift}


def own_arguments(own: Mapping[str, Any]) -> dict[str, Any]:
    """A variant's inputs, params and dimensions by the names of a kernel's arguments."""
    values: dict[str, Any] = {}
    for name, value in own.items():
        if isinstance(value, torch.Tensor):
            values[f"{name}_ptr"] = value
            values |= {f"stride_{name}_{axis}": stride for axis, stride in enumerate(value.stride())}
        else:
            values[name] = value
    return values


def run(
    kernel: Any, key: tuple[Hashable, ...], programs: int, values: Mapping[str, Any], constants: Mapping[str, Any]
) -> None:
    """Launch a decode kernel, its arguments bound by their names.

    `key` stands for all numbers from the strides of q on, which are looked at once.
    """
    first, rest = _parted(tuple(kernel.arg_names))
    if "CHUNK" in rest:
        constants = {**constants, "CHUNK": CHUNK}
    relaunch(
        kernel, key, *[values[name] for name in first],
        rest=lambda: Rest(programs, *[values[name] for name in rest if name in values], **constants),
    )  # fmt: skip


@lru_cache(maxsize=1024)
def _parted(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments of a kernel before the strides of q, and the others."""
    place = next(i for i, name in enumerate(names) if name in ("stride_qb", "stride_qm"))
    return names[:place], names[place:]


def launch_decode(
    kernel: Any, call: Call, results: Sequence[torch.Tensor], own: Mapping[str, Any], span: int | None = None
) -> None:
    """Run `_decode` and the merge: write out and lse, and the residue where it is a third result.

    `own` are the variant's inputs, runtime params and dimensions by name; `span` is how many keys a query sees at most.
    """
    s, q = call.layout.sizes, call.q
    out, lse, *residue = results
    config = default_decode_config(q.dtype, q.get_device(), s)
    rows = s.q_len * (s.heads // s.kv_heads)
    BM = row_tile(config, rows)
    tiles = s.batch * -(-rows // BM)
    keys = s.kv_len if span is None else min(s.kv_len, span + s.q_len)
    splits = even_splits(tiles * s.kv_heads, -(-keys // config.BN), programs_at_once(q.get_device()))
    programs = tiles * splits * s.kv_heads
    V_HEAD_DIM = call.layout.V_HEAD_DIM
    parts = Partials.room(q, programs * BM if splits > 1 else 0, V_HEAD_DIM, "shift_ptr" in kernel.arg_names)
    values = {
        "q_ptr": q, "k_ptr": call.k, "v_ptr": call.v, "out_ptr": out, "lse_ptr": lse,
        "residue_ptr": residue[0] if residue else None, **parts.named, **own_arguments(own),
        "scale": call.scale, "batch": s.batch, "heads": s.heads, "kv_heads": s.kv_heads, "q_len": s.q_len,
        "kv_len": s.kv_len, "head_dim": s.head_dim, "v_head_dim": s.v_head_dim, "num_splits": splits,
        **dict(zip(_STRIDES, call.strides, strict=True)),
    }  # fmt: skip
    constants = {"BM": BM, "BN": config.BN, "HEAD_DIM": call.layout.HEAD_DIM, "V_HEAD_DIM": V_HEAD_DIM}
    run(kernel, (call.layout, config), programs, values, {**constants, **DECODE_KERNEL.options(config)})
    if splits > 1:
        heads, length = s.heads, s.q_len
        strides = (heads * length * s.v_head_dim, length * s.v_head_dim, s.v_head_dim, heads * length, length, 1)
        merge_partials(
            call.layout, results, parts, own.get("sinks"), (None, None, None), tiles * s.kv_heads, strides,
            (s.batch, 0, heads, s.kv_heads, length, s.v_head_dim, tiles // s.batch, splits), BM, rows, V_HEAD_DIM,
            natural=bool(residue),
        )  # fmt: skip


_STRIDES = tuple(
    f"stride_{tensor}{axis}" for tensor, axes in (("q", "bhm"), ("k", "bhn"), ("v", "bhn")) for axis in axes
)


def merge_partials(
    layout: Hashable, results: Sequence[torch.Tensor], partials: Partials, sinks: torch.Tensor | None,
    plan: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None], tiles: int, strides: tuple[int, ...],
    sizes: tuple[int, ...], BM: int, rows: int, V_HEAD_DIM: int, natural: bool,
) -> None:  # fmt: skip
    """Merge the splits of `tiles` tiles of BM rows each, a few rows a program where there are many.

    `strides` and `sizes` are the kernel's, which follow from the `layout` of a call with the number of splits.
    """
    out, lse, *residue = results
    per_program = 1 if rows <= 64 else 16
    relaunch(
        merge_splits, (layout, tiles, strides, sizes, BM),
        out, lse, residue[0] if residue else None, *partials, sinks, *plan,
        rest=lambda: Rest(
            tiles * (BM // per_program), strides, sizes,
            BM=BM, ROWS=per_program, SPLITS=_MERGED, V_HEAD_DIM=V_HEAD_DIM, NATURAL=natural, num_warps=2,
        ),
    )  # fmt: skip
