"""FlexAttention's signature: score_mod and mask_mod traced into specs, and the attention that these give."""

from flashgen.flex.attention import flex_attention
from flashgen.flex.spec import to_spec

__all__ = ["flex_attention", "to_spec"]
