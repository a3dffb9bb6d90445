"""What `--help` says."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from flashgen.cli.app import app


@pytest.mark.parametrize("command", [[], ["cache"]], ids=["flashgen", "flashgen cache"])
def test_each_command_has_its_line_whole(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "80"}).stdout
    commands = shown.partition("Commands:\n")[2].splitlines()
    assert commands
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []
