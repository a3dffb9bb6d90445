"""What a rehearsal of a proof notes and a pool compiles is all that the proof asks any compiler for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import triton
from gallery import VARIANTS
from triton.runtime import build

from flashgen.codegen import generate
from flashgen.codegen.rehearsal import Wanted
from flashgen.tuning.pool import compilers
from flashgen.tuning.worker import RequestFailed
from flashgen.verify import verify

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["alibi", "document"])
def test_a_proof_finds_all_its_kernels_compiled(
    name: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    variant = VARIANTS[name]
    path = generate(variant, tmp_path)
    compiled, answers = list[str](), dict[Any, Any]()

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled.append(src.name)

    monkeypatch.setattr(triton.knobs.compilation, "listener", listen)
    made, make = list[str](), build._build
    monkeypatch.setattr(build, "_build", lambda name, *rest: made.append(name) or make(name, *rest))
    with compilers(variant, path) as pool:

        def ahead(wanted: Iterable[Sequence[Wanted]]) -> Iterator[None]:
            yield from map(answers.update, pool.answers_each(wanted))

        report = verify(path, variant, level="quick", seconds=280.0, ahead=ahead)
    assert report.passed, str(report)
    # On a machine that is busy otherwise a compiler may take longer than it is given.
    assert [str(answer) for answer in answers.values() if isinstance(answer, RequestFailed)] == []
    assert compiled == [] and "__triton_launcher" not in made
