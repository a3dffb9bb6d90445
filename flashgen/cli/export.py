"""`flashgen export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flashgen.cli.failure import guarded
from flashgen.cli.options import DEFAULT_OUT, Json, Out, Spec, path_option
from flashgen.cli.output import Output
from flashgen.cli.specs import read
from flashgen.files import check_target


@guarded
def export(
    spec: Spec,
    target: Annotated[Path, path_option("-o", "--output", metavar="FILE", help="The file to write.")],
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> None:
    """Write a module as one file that needs torch and triton alone. Its runtime and its tuned configs are in it."""
    output = Output.choose(json)
    check_target(target)
    variant = read(spec, output)
    # What is wrong with the input is said before torch is imported.
    from flashgen.codegen.export import export_module
    from flashgen.runtime.record_folders import record_folders, shipped_in
    from flashgen.runtime.usable_records import usable
    from flashgen.tuning.stored import list_records

    folders = record_folders(variant.name, shipped_in(variant.module_in(out)))
    records = [entry.record for entry in list_records(folders.items(), usable, variant=variant.name)]
    exported = export_module(variant, records, target)
    output.line(f"{exported.path}: {exported.lines} lines, {exported.records} tuned configs, needs torch and triton")
    output.document(exported)
