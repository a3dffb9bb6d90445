"""The language stands alone: it needs neither torch nor triton, so that specs are checked without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import flashgen.lang


def test_the_language_imports_neither_torch_nor_triton() -> None:
    modules = sorted(path.stem for path in Path(*flashgen.lang.__path__).glob("*.py") if path.stem != "__init__")
    assert "check" in modules
    program = "import sys\n" + "".join(f"import flashgen.lang.{module}\n" for module in modules)
    program += "print(*sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'triton', 'jinja2'}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
