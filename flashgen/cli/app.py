"""The table of commands."""

from __future__ import annotations

import os
from typing import Annotated

import typer

import flashgen
from flashgen.cli.bench import bench
from flashgen.cli.build import build
from flashgen.cli.cache import cache
from flashgen.cli.convert import convert
from flashgen.cli.doctor import doctor
from flashgen.cli.explain import explain
from flashgen.cli.export import export
from flashgen.cli.failure import DEBUG_VARIABLE
from flashgen.cli.list import list_gallery
from flashgen.cli.schema import schema
from flashgen.cli.tune import tune
from flashgen.cli.verify import verify

app = typer.Typer(
    name="flashgen",
    help="A compiler for attention variants: one YAML file in, one readable, proven, tuned module of kernels out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        print(flashgen.__version__)
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", envvar=DEBUG_VARIABLE, help="Show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    if debug:
        os.environ[DEBUG_VARIABLE] = "1"


for command in (build, verify, tune, bench, explain, export, convert):
    app.command()(command)
app.command("list")(list_gallery)
app.add_typer(cache, name="cache")
app.command()(schema)
app.command()(doctor)
