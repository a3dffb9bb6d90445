"""`flashgen list`."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from flashgen.cli.cache import records
from flashgen.cli.failure import for_each, guarded
from flashgen.cli.options import DEFAULT_OUT, Json, Out
from flashgen.cli.output import Output
from flashgen.gallery import GALLERY, gallery


@guarded
def list_gallery(out: Out = DEFAULT_OUT, json: Json = False) -> None:
    """List the specs in variants/. Of each: what it is, whether it is rendered, for which GPUs it is tuned."""
    from flashgen.spec import load

    output = Output.choose(json)
    tuned = defaultdict(set)
    for entry in records(out):
        tuned[entry.record.key.variant].add(entry.record.key.gpu)
    rows = []

    def one(path: str) -> None:
        variant = load(Path(path))
        package = variant.module_in(out)
        module = package if (package / "__init__.py").exists() else None
        summary = next(iter(variant.description.splitlines()), "")
        gpus = sorted(tuned[variant.name])
        rows.append([variant.name, summary, module or "-", ", ".join(gpus) or "-"])
        output.document(
            {
                "name": variant.name,
                "description": variant.description,
                "source": path,
                "module": module,
                "tuned": gpus,
            }
        )

    specs = gallery()
    if not specs:
        output.line(f"no spec in {GALLERY}/ here")
        return
    try:
        for_each([str(path) for path in specs], one)
    finally:
        output.table(["name", "description", "module", "tuned for"], rows)
