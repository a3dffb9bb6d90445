"""Commands that a signal ends: they clear away what they began, as after Ctrl-C, and say so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from flashgen.ending import Ended, in_order

pytestmark = pytest.mark.usefixtures("signals_end_processes")

SPEC = "name: stopped\ncausal: true\nhead_dim: 16\ndtype: float32\n"


def sent(*numbers, error=None):
    """A program that is sent these signals, and fails."""

    def main():
        for number in numbers:
            os.kill(os.getpid(), number)
        raise error or AssertionError("it went on")

    return main


@pytest.mark.parametrize(
    ("number", "status", "said"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hangup")]
)
def test_a_build_that_is_stopped_in_its_proof_leaves_nothing_hidden(tmp_path, repository, number, status, said):
    (tmp_path / "spec.yaml").write_text(SPEC)
    line = [sys.executable, "-m", "flashgen", "build", "spec.yaml"]
    environment = {**os.environ, "PYTHONPATH": str(repository), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("verifying"):
        pass
    process.send_signal(number)
    process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (status, f"{said}\n")
    assert os.listdir(tmp_path / "generated") == ["stopped.failed"]


def test_the_status_is_that_of_the_signal(capsys):
    assert in_order(sent(signal.SIGTERM)) == 143
    assert in_order(sent(signal.SIGINT)) == 130
    assert capsys.readouterr().err == "terminated\ninterrupted\n"


def test_a_signal_that_comes_again_at_once_does_not_disturb_the_clearing(capsys):
    def main():
        try:
            sent(signal.SIGTERM)()
        finally:
            with pytest.raises(OSError):
                sent(signal.SIGTERM, signal.SIGHUP, error=OSError())()

    assert in_order(main) == 143
    assert capsys.readouterr().err == "terminated\n"


def test_an_error_in_the_place_of_the_signals_own_is_not_told(capsys):
    def main():
        try:
            sent(signal.SIGTERM)()
        except Ended:
            raise TypeError("what an extension module says then") from None

    assert in_order(main) == 143
    assert capsys.readouterr().err == "terminated\n"


def test_another_error_passes():
    with pytest.raises(ZeroDivisionError):
        in_order(sent(error=ZeroDivisionError()))


def test_a_signal_that_was_to_be_ignored_still_is():
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(ZeroDivisionError):
            in_order(sent(signal.SIGHUP, error=ZeroDivisionError()))
    finally:
        signal.signal(signal.SIGHUP, earlier)
