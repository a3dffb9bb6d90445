"""What the functions of a generated module that launch its kernels take and pass on for the variant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flashgen.codegen.texts import Kernels
from flashgen.spec.variant import Input, Variant


@dataclass(frozen=True)
class Launch:
    """The variant's part of a function that launches a kernel.

    `parameters` are those of the function, each with a comma in front, `dim_lines` statements that name the dimensions
    of inputs which it needs; `arguments` are what it passes for the kernel's own.
    """

    parameters: str
    dim_lines: tuple[str, ...]
    arguments: tuple[str, ...]


def launches(
    variant: Variant, kernels: Kernels, scheduled: Sequence[str], learned: Sequence[str]
) -> Mapping[str, Launch]:
    """The launch of each kernel, by the names that `Kernels` has for their views.

    `scheduled` are the names that a schedule is made from, `learned` the inputs that have gradients. The functions for
    dQ, dK and dV take the same.
    """
    names = own_names(variant)

    def launch(arguments: Sequence[str], reads: Iterable[str], further: Sequence[str] = ()) -> Launch:
        read = {*read_by(variant, tuple(reads)), *further}
        # A dimension is read off the input that binds it.
        read |= {t.name for t in variant.inputs for dim in t.dims if dim.binds in read}
        parameters = "".join(f", {name}" for name in names if name in read)
        return Launch(parameters, dim_lines(variant.inputs, read), _passed(variant, arguments))

    backward = {
        "backward_q": kernels.backward_q.arguments,
        "backward_q_sm90": kernels.backward_q_sm90.arguments,
        "backward_kv": kernels.backward_kv.arguments,
        "backward_kv_sm90": kernels.backward_kv_sm90.arguments,
    }
    reads = tuple(name for arguments in backward.values() for name in arguments)
    forward, delta = kernels.forward.arguments, kernels.delta.arguments
    inputs = kernels.backward_inputs.arguments if kernels.backward_inputs else ()
    schedule = kernels.schedule.arguments + kernels.schedule.sizes if kernels.schedule else ()
    return {
        "forward": launch(forward, forward, scheduled),
        "forward_sm90": launch(kernels.forward_sm90.consumer.arguments, forward, scheduled),
        "delta": launch(delta, delta),
        **{kernel: launch(arguments, reads, scheduled) for kernel, arguments in backward.items()},
        "backward_inputs": launch(inputs, inputs, (*scheduled, *learned)),
        "schedule": launch(schedule, (), scheduled),
    }


def own_names(variant: Variant) -> list[str]:
    """The variant's inputs and runtime params."""
    return [*(i.name for i in variant.inputs), *(p.name for p in variant.runtime_params)]


def read_by(variant: Variant, arguments: Sequence[str]) -> list[str]:
    """The names, of inputs, runtime params and dimensions, that a kernel with these arguments reads."""
    own = [n for n in own_names(variant) if {n, f"{n}_ptr"} & {*arguments}]
    return [*own, *(name for name in variant.dim_names if name in arguments)]


def dim_lines(tensors: Iterable[Input], used: Iterable[str]) -> tuple[str, ...]:
    """Statements that name the dimensions which these inputs bind, as far as they are used."""
    return tuple(
        f"{dim.binds} = {t.name}.shape[{axis}]"
        for t in tensors
        for axis, dim in enumerate(t.dims)
        if dim.binds is not None and dim.binds in used
    )


def _passed(variant: Variant, arguments: Sequence[str]) -> tuple[str, ...]:
    """What the launch passes for each argument of a kernel that is the variant's."""
    values = {"counts_ptr": "counts", "tiles_ptr": "tiles"}
    values |= dict.fromkeys(("num_k_tiles", "num_q_tiles"), "tiles.shape[-1]")
    values |= {name: f"call.sizes.{name}" for name in ("batch", "heads", "kv_heads", "head_dim")}
    for t in variant.inputs:
        values[f"{t.name}_ptr"] = t.name
        values |= {f"stride_{t.name}_{axis}": f"{t.name}.stride({axis})" for axis in range(len(t.dims))}
    values |= {name: name for name in (*(p.name for p in variant.runtime_params), *variant.dim_names)}
    return tuple(values[argument] for argument in arguments)
