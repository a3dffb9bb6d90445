"""A drawn call as kernels take it."""

from __future__ import annotations

from flashgen import runtime
from flashgen.problems import Call
from flashgen.runtime.call import Call as PreparedCall
from flashgen.runtime.own import prepare_own


def prepared(own: runtime.Variant, given: Call, scale: float | None = None) -> PreparedCall:
    """Checked, with inputs and params by the names of the generated module; what is left out has its default."""
    inputs = [given.inputs.get(each.public) for each in own.inputs]
    params = {each.name: given.keywords[each.public] for each in own.params}
    return prepare_own(own, given.q, given.k, given.v, scale, inputs, params)
