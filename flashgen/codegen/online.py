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
        return f"online_softmax{self._form}"

    @property
    def softmax(self) -> str:
        """The call of it."""
        logits = self._logits
        precision = "" if self.precision == "ieee" else ", TF32=True"
        return f"{self.softmax_function}({logits}, v_tile, acc, m, l{precision})"

    @property
    def weights(self) -> str:
        """The call of the same function up to its product, which is the kernel's own where it drops weights."""
        return f"softmax_weights{self._form}({self._logits}, m, l)"

    @property
    def _form(self) -> str:
        return "_natural" if self.natural else "_scaled" if self.scaled else ""

    @property
    def _logits(self) -> str:
        return "qk, qk_scale" if self.scaled else "x"
