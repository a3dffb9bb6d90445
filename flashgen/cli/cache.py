"""`flashgen cache`: the tuned configs of this machine."""

from __future__ import annotations

from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashgen.choices import check_choice
from flashgen.cli.failure import guarded
from flashgen.cli.kernels import KERNEL_CHOICES, KernelChoice, check_kernels, chosen_kernels
from flashgen.cli.options import DEFAULT_OUT, Json, Out, Spec
from flashgen.cli.output import Output, tile_text
from flashgen.cli.shapes import Dtypes, Modes, Shapes, chosen_dtypes, chosen_modes, chosen_shapes
from flashgen.cli.specs import read
from flashgen.errors import EnvironmentProblem, UsageError
from flashgen.spec.modes import shapes_of

if TYPE_CHECKING:
    from flashgen.tuning.stored import Stored

cache = typer.Typer(help="The tuned configs: list, show, explain, clear, ship.", no_args_is_help=True)

Variant = Annotated[str | None, typer.Option("--variant", metavar="PATTERN", help="Only records of these variants.")]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="PATTERN", help="Only records of these GPU models.")]


@cache.command("ls")
@guarded
def ls(variant: Variant = None, gpu: Gpu = None, out: Out = DEFAULT_OUT, json: Json = False) -> None:
    """List the records in the user's cache and beside the modules. Patterns are those of a shell: '*H200*'."""
    output = Output.choose(json)
    stored = records(out, variant, gpu)
    for entry in stored:
        output.document({"source": entry.source, "path": entry.path, **as_document(entry)})
    if not stored:
        of = "".join(f" of {name} {pattern!r}" for name, pattern in filters(variant, gpu).items())
        output.line(f"no tuned config{of} in {' or '.join(places(out))}")
        return
    rows = []
    for entry in stored:
        key, config = entry.record.key, entry.record.config
        dims = str(key.head_dim) if key.head_dim == key.v_head_dim else f"{key.head_dim}x{key.v_head_dim}"
        time = f"{entry.record.median_us:.1f}"
        what = [key.variant, key.kernel, key.gpu, key.triton, key.dtype, dims, key.bucket]
        rows.append([*what, tile_text(config), time, entry.source])
    output.table(["variant", "kernel", "gpu", "triton", "dtype", "head_dim", "shape", "config", "us", "source"], rows)


@cache.command("show")
@guarded
def show(
    record: Annotated[str, typer.Argument(metavar="TEXT", help="A text that the name of one record contains.")],
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> None:
    """Show one record whole. It has the config, how it was measured, and under which versions and clocks."""
    from flashgen.tuning.stored import find_record

    output = Output.choose(json)
    entry = find_record(record, folders(out))
    output.line(f"{entry.record.key.name} in {entry.path} ({entry.source})", style="bold")
    output.line(dumps(entry.record.as_dict(), indent=2))
    output.document({"source": entry.source, "path": entry.path, **as_document(entry)})


@cache.command("explain")
@guarded
def explain(
    spec: Spec,
    shape: Shapes = None,
    dtype: Dtypes = None,
    mode: Modes = None,
    kernel: KernelChoice = "all",
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="For this GPU model, not the one here.")
    ] = None,
    capability: Annotated[
        str | None, typer.Option("--capability", metavar="TARGET", help="Its capability, for example sm_80.")
    ] = None,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> None:
    """Say which record a call would use. Of each earlier source it says, field by field, why it has none."""
    check_choice("--kernel", kernel, KERNEL_CHOICES)
    output, modes = Output.choose(json), chosen_modes(mode)
    shapes, dtypes = chosen_shapes(shape, modes), chosen_dtypes(dtype)
    variant = read(spec, output)
    check_kernels(kernel, shapes or shapes_of(variant, modes))
    # What is wrong with the input is said before torch is imported.
    from flashgen.explain.sources import device_named, traced
    from flashgen.tuning.workloads import problems

    asked = problems(variant, shapes, dtypes, modes)
    for found in traced(variant, out, asked, device_named(gpu, capability), chosen_kernels(kernel)):
        what = f"{found.key.kernel}, {found.problem}: {tile_text(found.choice.config)} from {found.choice.source}"
        output.line(what, style="bold")
        for step in found.steps:
            output.line(f"  {'used' if step.used else 'miss'}  {step.source}: {step.text}")
            for difference in step.differences:
                output.line(f"          {difference}")
        output.document(found)


@cache.command("clear")
@guarded
def clear(
    variant: Variant = None,
    gpu: Gpu = None,
    everything: Annotated[bool, typer.Option("--all", help="All of the user's cache: records and studies.")] = False,
    json: Json = False,
) -> None:
    """Delete records from the user's cache. With --all studies too; what is shipped beside modules stays."""
    if not (variant or gpu or everything):
        raise UsageError("cache clear was given nothing to clear; expected --variant, --gpu or --all")
    if everything and (variant or gpu):
        raise UsageError("cache clear was given --all with --variant or --gpu; expected one or the other")
    from flashgen.tuning.cache import clear_records

    gone = clear_records(**filters(variant, gpu))
    output = Output.choose(json)
    output.line(f"{gone} records deleted")
    output.document({"deleted": gone})


@cache.command("export")
@guarded
def export(variant: Variant = None, gpu: Gpu = None, out: Out = DEFAULT_OUT, json: Json = False) -> None:
    """Copy records of the user's cache beside their kernels. From there they are shipped."""
    from flashgen.runtime.usable_records import usable
    from flashgen.tuning.cache import export_records
    from flashgen.tuning.stored import list_records

    output = Output.choose(json)
    exported = export_records(list_records(None, usable, **filters(variant, gpu)), out)
    for path in exported.paths:
        output.line(str(path))
    output.line(f"{len(exported.copied)} records in {len(exported.paths)} files beside the kernels in {out}")
    if exported.left_out:
        names = ", ".join(sorted({record.key.variant for record in exported.left_out}))
        output.line(f"{len(exported.left_out)} records are of kernels that are not in {out} and were left out: {names}")
    output.document({"written": exported.paths, "left_out": [record.key.name for record in exported.left_out]})


def folders(out: Path) -> list[tuple[str, Path]]:
    """The folders of records by source: the user's, as far as there is a place for these, and those of packages."""
    from flashgen.tuning.stored import shipped_folders, user_folders

    try:
        return [*user_folders(), *shipped_folders(out)]
    except EnvironmentProblem:
        return shipped_folders(out)


def places(out: Path) -> list[str]:
    """Where records may be, for people."""
    from flashgen.runtime.record_folders import NoCacheFolder, user_root

    with suppress(NoCacheFolder):
        return [str(user_root()), f"{out}/*/tuned"]
    return [f"{out}/*/tuned"]


def filters(variant: str | None, gpu: str | None) -> dict[str, str]:
    given = {"variant": variant, "gpu": gpu}
    return {name: pattern for name, pattern in given.items() if pattern is not None}


def records(out: Path, variant: str | None = None, gpu: str | None = None) -> list[Stored]:
    from flashgen.runtime.record_files import as_written
    from flashgen.tuning.stored import list_records

    return list_records(folders(out), as_written, **filters(variant, gpu))


def as_document(entry: Stored) -> dict[str, object]:
    return {"name": entry.record.key.name, **entry.record.as_dict()}
