"""The command `flashgen`: thin commands over the layers below, which load only when a command needs them."""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit.

    0 done, 1 a check failed or output was lost, 2 the input is wrong, 130 interrupted, 143 terminated.
    """
    from flashgen.ending import in_order

    raise SystemExit(in_order(_status))


def _status() -> int:
    """Run the command line, which exits by itself unless its output was lost."""
    from flashgen.cli import streams
    from flashgen.cli.app import app
    from flashgen.cli.failure import ended_by

    streams.prepare()
    try:
        try:
            with streams.plain_warnings():
                app(prog_name="flashgen")
        finally:
            streams.flush()
    except OSError as error:
        return ended_by(error)
    return 0
