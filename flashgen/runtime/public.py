"""The names of `flashgen.runtime`: what generated modules and callers say as `runtime.NAME`."""

from flashgen.runtime.alibi import alibi_slopes
from flashgen.runtime.arguments import REQUIRED, keywords
from flashgen.runtime.attention import attend, make_plan
from flashgen.runtime.attention_paged import attend_paged
from flashgen.runtime.attention_varlen import attend_varlen, make_varlen_plan
from flashgen.runtime.config import Config
from flashgen.runtime.conversions import as_dtype
from flashgen.runtime.declared import Input, Owner, Param, Sums
from flashgen.runtime.defaults import (
    beside_pairs,
    default_backward_kv_config,
    default_backward_q_config,
    default_by_key_config,
    default_config,
    default_decode_config,
    default_decode_paged_config,
    default_dropout_backward_kv_config,
    default_functions_config,
    default_lookups_config,
    default_masked_backward_kv_config,
    default_pairs_backward_kv_config,
    default_pairs_config,
    default_plain_config,
    default_scheduled_backward_kv_config,
    default_scheduled_backward_q_config,
    default_scheduled_config,
    unpipelined,
)
from flashgen.runtime.differentiable import attention_operator
from flashgen.runtime.dropout import DROPOUT_P, DROPOUT_SEED, dropout_of, kept_mask
from flashgen.runtime.eager import check_reference, checked_params, eager_attention
from flashgen.runtime.identity import Identity
from flashgen.runtime.lookup import Lookup, lookups
from flashgen.runtime.planning_paged import paged_plan
from flashgen.runtime.record_folders import shipped_root
from flashgen.runtime.reloading import forget_files
from flashgen.runtime.schedule import Plan
from flashgen.runtime.torch_operator_paged import paged_operator
from flashgen.runtime.variant import Variant
from flashgen.runtime.varlen import packed_variant

__all__ = [
    "DROPOUT_P",
    "DROPOUT_SEED",
    "REQUIRED",
    "Config",
    "Identity",
    "Input",
    "Lookup",
    "Owner",
    "Param",
    "Plan",
    "Sums",
    "Variant",
    "alibi_slopes",
    "as_dtype",
    "attend",
    "attend_paged",
    "attend_varlen",
    "attention_operator",
    "beside_pairs",
    "check_reference",
    "checked_params",
    "default_backward_kv_config",
    "default_backward_q_config",
    "default_by_key_config",
    "default_config",
    "default_decode_config",
    "default_decode_paged_config",
    "default_dropout_backward_kv_config",
    "default_functions_config",
    "default_lookups_config",
    "default_masked_backward_kv_config",
    "default_pairs_backward_kv_config",
    "default_pairs_config",
    "default_plain_config",
    "default_scheduled_backward_kv_config",
    "default_scheduled_backward_q_config",
    "default_scheduled_config",
    "dropout_of",
    "eager_attention",
    "forget_files",
    "kept_mask",
    "keywords",
    "lookups",
    "make_plan",
    "make_varlen_plan",
    "packed_variant",
    "paged_operator",
    "paged_plan",
    "shipped_root",
    "unpipelined",
]
