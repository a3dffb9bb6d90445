"""`flashgen doctor`: what is here, what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import flashgen
from flashgen.cli.failure import guarded
from flashgen.cli.options import DEFAULT_OUT, Json, Out
from flashgen.cli.output import Output

if TYPE_CHECKING:
    from flashgen.api import Progress
    from flashgen.compiling import Job
    from flashgen.runtime.config import Config

OK, MISSING, OPTIONAL = "ok", "missing", "optional"
STYLES = {OK: "green", MISSING: "red", OPTIONAL: "yellow"}

# The smallest spec that has a mask and a matrix product, and its kernel: what every target must compile. A compiler
# that takes one kernel of a spec for a target takes the others too, and each costs seconds.
PROBE = {"name": "doctor_probe", "causal": True, "head_dim": 16, "dtype": "bfloat16"}
PROBE_KERNEL = "forward"
# Rows and keys of its tiles at least: what every target has a matrix product for. Large ones take longer to compile.
PROBE_TILE = 32


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `state` is ok, missing (something does not work) or optional (it works without).

    `remedy` says how to get what is not there.
    """

    what: str
    state: str
    found: str
    remedy: str = ""


@guarded
def doctor(
    targets: Annotated[bool, typer.Option("--targets/--no-targets", help="Compile a probe for every target.")] = True,
    out: Out = DEFAULT_OUT,
    json: Json = False,
) -> None:
    """Show versions, the GPU, targets that compile and folders. It exits with 1 where something needed is missing."""
    output = Output.choose(json)
    failed = False
    with output.progress() as progress:
        for finding in findings(targets, out, progress):
            failed |= finding.state == MISSING
            text = f"{finding.what:<16} {finding.state:<9} {finding.found}"
            output.line(text if not finding.remedy else f"{text}: {finding.remedy}", STYLES[finding.state])
            output.document(finding)
    if failed:
        raise typer.Exit(1)


def findings(targets: bool, out: Path, progress: Progress) -> Iterator[Finding]:
    """Everything that is looked at, in order; the targets are slow and come last."""
    import platform

    yield Finding("python", OK, platform.python_version())
    yield from look_at_packages()
    broken = list(look_at_imports("torch", "triton"))
    yield from broken
    if broken:
        return
    yield look_at_gpu()
    yield from look_at_assemblers()
    yield from look_at_folders(out)
    if targets:
        progress("compiling a probe for every target", passing=True)
        yield from look_at_targets()


def look_at_packages() -> Iterator[Finding]:
    """The package and each of its requirements, with the version that is there."""
    from packaging.requirements import Requirement

    try:
        yield Finding("flashgen", OK, version("flashgen"))
        needed = requires("flashgen") or ()
    except PackageNotFoundError:
        yield Finding("flashgen", OPTIONAL, f"{flashgen.__version__}, not installed", "pip install . in the checkout")
        return
    for text in needed:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield Finding(requirement.name, MISSING, "not installed", remedy)
            continue
        fits = requirement.specifier.contains(found, prereleases=True)
        yield Finding(requirement.name, OK if fits else MISSING, found, "" if fits else remedy)


def look_at_imports(*names: str) -> Iterator[Finding]:
    """The packages that are there and do not load."""
    for name in names:
        try:
            import_module(name)
        except (ImportError, OSError) as error:
            yield Finding(name, MISSING, f"does not load ({error})", f"pip install --force-reinstall {name}")


def look_at_gpu() -> Finding:
    import torch

    if not torch.cuda.is_available():
        built_for = torch.version.cuda or torch.version.hip
        remedy = (
            "install the GPU's driver"
            if built_for
            else "install a build of torch for CUDA or ROCm, from https://pytorch.org/get-started"
        )
        return Finding("gpu", OPTIONAL, "none; kernels are interpreted and nothing is tuned", remedy)
    from flashgen.runtime.lookup import current_device

    names = []
    for index in range(torch.cuda.device_count()):
        device = current_device(index)
        memory = torch.cuda.get_device_properties(index).total_memory / 2**30
        names.append(f"{device.gpu} ({device.capability}, {memory:.0f} GiB)")
    return Finding("gpu", OK, ", ".join(names))


def look_at_assemblers() -> Iterator[Finding]:
    """Each ptxas that Triton uses, with the GPUs that it is for."""
    from flashgen.codegen.assembler import Assembler, assembler
    from flashgen.runtime.gpus import GPUS

    served: dict[Assembler, list[str]] = {}
    for target in GPUS:
        found = assembler(target)
        if found is not None:
            served.setdefault(found, []).append(target)
    for one, targets in served.items():
        text = f"{one} for {', '.join(targets)} ({one.path})"
        if not one.loses_negations:
            yield Finding("ptxas", OK, text)
            continue
        also = "; it also gets some sums of 64 bits wrong, which flashgen looks for" if one.doubles_words else ""
        yield Finding(
            "ptxas", OPTIONAL, f"{text} loses the minus of max(max(t, -u), v) of signed integers, silently; flashgen's "
            f"kernels are written without that form, but Triton kernels of others that have it are wrong{also}",
            f"name the ptxas of CUDA 13 in {one.variable}, or install a later triton",
        )  # fmt: skip


def look_at_folders(out: Path) -> Iterator[Finding]:
    """The folders that flashgen writes to."""
    from triton import knobs

    from flashgen.runtime.record_folders import NoCacheFolder, cache_folder

    chosen = "name another one in FLASHGEN_CACHE_DIR"
    try:
        yield look_at_folder("flashgen cache", cache_folder(), chosen)
    except NoCacheFolder as error:
        yield Finding("flashgen cache", MISSING, str(error))
    yield look_at_folder("triton cache", Path(knobs.cache.dir), "name another one in TRITON_CACHE_DIR")
    yield look_at_folder("output folder", out, "name another one with --out")


def look_at_folder(what: str, folder: Path, remedy: str) -> Finding:
    """Whether files can be written there, or the folder be made."""
    from flashgen.errors import FlashgenError
    from flashgen.files import check_folder

    try:
        check_folder(folder, writable=True)
    except FlashgenError:
        return Finding(what, MISSING, f"{folder} cannot be written", remedy)
    return Finding(what, OK, str(folder))


def look_at_targets() -> Iterator[Finding]:
    """A small kernel compiled for each target that flashgen knows."""
    from tempfile import TemporaryDirectory

    from flashgen.codegen import generate
    from flashgen.compiling import compile_all, jobs_for
    from flashgen.runtime.gpus import GPUS
    from flashgen.spec import load

    variant = load(PROBE)
    jobs = [replace(job, config=_small(job)) for job in jobs_for(variant, tuple(GPUS), [PROBE_KERNEL])]
    with TemporaryDirectory() as folder:
        for compiled in compile_all(generate(variant, Path(folder)), jobs):
            target = compiled.job.target
            if compiled.error is None:
                yield Finding(target, OK, f"{compiled.job.kernel} compiles in {compiled.seconds:.1f} s")
            else:
                yield Finding(target, OPTIONAL, compiled.error, "another version of triton may know this target")


def _small(job: Job) -> Config:
    """The config with the smallest tiles of a probe that its kernel may have."""
    from flashgen.runtime.registry import kernel_of

    domain = kernel_of(job.kernel, job.config).domain
    allowed = {side: [size for size in domain[side] if size is not None] for side in ("BM", "BN")}
    return job.config.but(**{side: min(n for n in sizes if n >= PROBE_TILE) for side, sizes in allowed.items()})
