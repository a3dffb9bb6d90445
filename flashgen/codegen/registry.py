"""The kernels that variants are rendered to, one line each.

One that asks for the view of another stands behind it; one that needs a function that another has calls that.
"""

from __future__ import annotations

from flashgen.codegen.kernel_text import KernelText
from flashgen.codegen.kernels.backward_kv import BACKWARD_KV
from flashgen.codegen.kernels.backward_kv_sm90 import BACKWARD_KV_SM90, BACKWARD_KV_WIDE_SM90
from flashgen.codegen.kernels.backward_pairs import BACKWARD_PAIRS
from flashgen.codegen.kernels.backward_q import BACKWARD_Q
from flashgen.codegen.kernels.backward_q_sm90 import BACKWARD_Q_SM90
from flashgen.codegen.kernels.decode import DECODE, DECODE_PAGED
from flashgen.codegen.kernels.delta import DELTA
from flashgen.codegen.kernels.forward import FORWARD
from flashgen.codegen.kernels.forward_sm90 import FORWARD_SM90
from flashgen.codegen.kernels.learned import BACKWARD_INPUTS
from flashgen.codegen.kernels.schedule import SCHEDULE
from flashgen.codegen.templates import add_templates, remove_templates
from flashgen.codegen.words import words

TEXTS: list[KernelText] = [
    FORWARD,
    FORWARD_SM90,
    SCHEDULE,
    BACKWARD_Q,
    BACKWARD_Q_SM90,
    BACKWARD_KV,
    BACKWARD_KV_SM90,
    BACKWARD_KV_WIDE_SM90,
    BACKWARD_INPUTS,
    BACKWARD_PAIRS,
    DELTA,
    DECODE,
    DECODE_PAGED,
]
# The order in which files are best read, by what their names begin with.
_READ = ("forward", "decode", "schedule", "delta", "backward")


def as_read() -> list[KernelText]:
    """The kernels in the order in which their files are best read, those that belong nowhere last."""

    def place(text: KernelText) -> int:
        return next((place for place, begin in enumerate(_READ) if text.name.startswith(begin)), len(_READ))

    return sorted(TEXTS, key=place)


def register_text(text: KernelText) -> None:
    """Add a kernel, after those that there are; ValueError for a name that is taken."""
    if any(each.name == text.name for each in TEXTS):
        raise ValueError(f"kernel {text.name!r} is registered already; expected another name")
    TEXTS.append(text)
    if text.folder is not None:
        add_templates(text.folder)
    words.cache_clear()


def unregister_text(text: KernelText) -> None:
    """Take it away again."""
    TEXTS.remove(text)
    if text.folder is not None:
        remove_templates(text.folder)
    words.cache_clear()
