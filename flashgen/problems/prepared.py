"""A drawn call as kernels take it."""

from __future__ import annotations

from flashgen import runtime
from flashgen.problems.calls import Call
from flashgen.problems.dropped import Dropout
from flashgen.runtime.call import Call as PreparedCall
from flashgen.runtime.own_arguments import prepare_own


def prepared(
    own: runtime.Variant, given: Call, scale: float | None = None, dropout: Dropout | None = None
) -> PreparedCall:
    """Checked, with inputs and params by the names of the generated module; what is left out has its default."""
    keywords = {**(dropout or Dropout(0.0)).keywords(given.q.device), **given.keywords}
    inputs = [keywords.get(each.public) for each in own.inputs]
    params = {each.name: keywords[each.public] for each in own.params}
    return prepare_own(own, given.q, given.k, given.v, scale, inputs, params)
