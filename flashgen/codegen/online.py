"""Which function of the device makes a step of a kernel's online softmax, and how it is called."""

from __future__ import annotations


class OnlineSoftmax:
    """What a view has that says whether logits are `scaled` dot products, or `natural`, and the products' precision."""

    scaled: bool
    natural: bool
    precision: str

    @property
    def softmax_function(self) -> str:
        """The function's name."""
        return f"online_softmax{'_natural' if self.natural else '_scaled' if self.scaled else ''}"

    @property
    def softmax(self) -> str:
        """The call of it."""
        logits = "qk, qk_scale" if self.scaled else "x"
        precision = "" if self.precision == "ieee" else ", TF32=True"
        return f"{self.softmax_function}({logits}, v_tile, acc, m, l{precision})"
