"""What tests of models need of the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def registered() -> Iterator[None]:
    """Generated attention is among transformers' own. Threads of many workers would wait for each other in products
    this small."""
    from flashgen.integrations.transformers import register  # transformers need not be installed

    register()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
