"""The command `flashgen`: thin commands over the layers below, which load only when a command needs them."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit.

    0 done, 1 a check failed or output was lost, 2 the input is wrong, 130 interrupted.
    """
    from flashgen.cli import streams
    from flashgen.cli.app import app
    from flashgen.cli.failure import lost

    streams.prepare()
    try:
        try:
            app(prog_name="flashgen")
        finally:
            streams.flush()
    except OSError as error:
        raise SystemExit(lost(error)) from None
