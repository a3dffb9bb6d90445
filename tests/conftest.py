"""What every test may rely on.

Where there is no GPU, Triton's interpreter runs the kernels: the variable must be set before triton is imported, so it
is set here, for the whole process. Compiling offline needs a process without it: `compiled` asks one.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import function_blocks
import pytest
import torch
from gpu_share import take_gpu
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from offline_compiler import Compile

REPOSITORY = Path(__file__).resolve().parent.parent

take_gpu()

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests run side by side, on small tensors.
torch.set_num_threads(1)

function_blocks.install()

# The same examples every time, so that a failure is the change's; --hypothesis-profile=explore draws new ones. How long
# they take to draw is the machine's matter.
_UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **_UNTIMED)
settings.register_profile("explore", max_examples=1000, **_UNTIMED)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """What is loaded by now stays until the end: the garbage collector need not look at it again and again.

    Nor need it look at what is new as often as it does by itself: expressions, syntax trees and tiles are many objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test reads or writes the user's tuned records."""
    os.environ["FLASHGEN_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def compiled() -> Iterator[Compile]:
    """`compile_kernel` in a process that interprets nothing: one for all tests, since it has torch to import."""
    from flashgen.tuning.worker import Worker

    with Worker("offline_compiler:make") as worker:
        yield lambda path, *job: worker.ask((path, job), 240.0)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def gallery_module(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModuleType]:
    """The module of a gallery variant by its name, rendered once in this process."""
    from gallery import VARIANTS

    from flashgen.codegen import generate, load_module

    folder = tmp_path_factory.mktemp("gallery")

    @cache
    def module(name: str) -> ModuleType:
        return load_module(generate(VARIANTS[name], folder))

    return module


@pytest.fixture(scope="session")
def gpt() -> ModuleType:
    """examples/gpt.py."""
    spec = spec_from_file_location("gpt", REPOSITORY / "examples" / "gpt.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    # Its dataclasses look for their module here.
    sys.modules["gpt"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def signals_end_processes() -> Iterator[None]:
    """As in a terminal. Behind nohup, and in the background of a script, some are ignored."""
    ways = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, way) for number, way in ways.items()}
    yield
    for number, way in before.items():
        signal.signal(number, way)
