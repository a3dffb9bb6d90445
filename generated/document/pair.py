"""document: what several kernels compute of a pair of query and key: _visible, _visible_by_key_sm90.

Generated from variants/document.yaml by

    flashgen build variants/document.yaml

Do not edit: change the spec and build again.
"""

import triton
import triton.language as tl


@triton.jit
def _visible(q, k, doc_b_q, doc_base):
    """k <= q and doc[b, q] == doc[b, k]."""
    return (k <= q) & (doc_b_q == tl.load(doc_base + k))


@triton.jit
def _visible_by_key_sm90(doc_b_k, doc_b_q):
    """doc[b, q] == doc[b, k]."""
    return doc_b_q == doc_b_k
