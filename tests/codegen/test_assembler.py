"""Which ptxas Triton uses for a GPU, and what doctor says of one that loses negations."""

import json
import stat
import sys

import pytest
from triton import knobs

from flashgen.cli import main
from flashgen.codegen.assembler import LOSES_NEGATIONS, assembler
from flashgen.tuning import machine

VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


@pytest.fixture
def ptxas(tmp_path, monkeypatch):
    """Have Triton use a ptxas of a release for all GPUs."""

    def named(release):
        path = tmp_path / f"ptxas-{release}"
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.99'\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        for variable in VARIABLES:
            monkeypatch.setenv(variable, str(path))
        return str(path)

    return named


@pytest.mark.parametrize("capability", ["sm_80", "sm_90", "sm_100"])
def test_the_assembler_is_the_one_that_triton_ships_unless_another_is_named(ptxas, monkeypatch, capability):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    own = assembler(capability)
    assert own.path.startswith(knobs.__file__.removesuffix("knobs.py")) and not own.is_named
    path = ptxas("77.7")
    found = assembler(capability)
    assert (found.version, found.path, found.is_named) == ("77.7", path, True)
    assert str(found) == f"77.7, named by {found.variable}" and found.variable in VARIABLES
    monkeypatch.delenv(found.variable)
    monkeypatch.delenv(VARIABLES[1 - VARIABLES.index(found.variable)])
    assert assembler(capability) == own


def test_other_gpus_have_none():
    assert assembler("gfx942") is None and assembler("") is None


def test_a_records_versions_have_it(ptxas, monkeypatch):
    monkeypatch.setattr(machine, "current_device", lambda index: machine.Device("NVIDIA H200", "sm_90", "3.9"))
    monkeypatch.setattr(machine, "query", lambda *_: {})
    assert machine.versions(0)["ptxas"] == str(assembler("sm_90"))
    ptxas("77.7")
    assert machine.versions(0)["ptxas"].startswith("77.7, named by TRITON_PTXAS")
    monkeypatch.setattr(machine, "current_device", lambda index: machine.Device("AMD MI300X", "gfx942", "3.9"))
    assert "ptxas" not in machine.versions(0)


@pytest.mark.parametrize("release", [*LOSES_NEGATIONS, "13.4"])
def test_doctor_says_which_ptxas_loses_negations(ptxas, monkeypatch, capsys, release):
    path = ptxas(release)
    monkeypatch.setattr(sys, "argv", ["flashgen", "doctor", "--no-targets", "--json"])
    with pytest.raises(SystemExit):
        main()
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assemblers = [one for one in found if one["what"] == "ptxas"]
    assert assemblers and all(release in one["found"] and path in one["found"] for one in assemblers)
    for one in assemblers:
        loses = release in LOSES_NEGATIONS
        assert one["state"] == ("optional" if loses else "ok")
        assert ("loses the minus" in one["found"]) == loses == any(name in one["remedy"] for name in VARIABLES)
