"""What generated modules need at run time. Imports torch, triton and the standard library alone."""

from flashgen.runtime.alibi import alibi_slopes
from flashgen.runtime.arguments import REQUIRED, Sizes, check_input, check_scalar, check_types, keywords
from flashgen.runtime.autocast import autocast
from flashgen.runtime.backward import (
    for_scale,
    from_sums,
    incoming,
    is_deterministic,
    key_gradients,
    no_gradients,
    query_gradient,
    query_sums,
    rescaled,
    sink_gradient,
    sum_of_groups,
)
from flashgen.runtime.call import Call, is_empty, nothing_seen, outputs, prepare
from flashgen.runtime.choosing import (
    backward_config_text,
    backward_configs,
    choose_config,
    config_text,
    inputs_config,
    options,
    rest_config,
)
from flashgen.runtime.config import Config
from flashgen.runtime.conversions import as_dtype, over_batch
from flashgen.runtime.decoding import few_queries, launch_decode
from flashgen.runtime.decoding_paged import empty_results, launch_paged, paged_plan, plan_arguments
from flashgen.runtime.defaults import (
    built_in,
    default_backward_kv_config,
    default_backward_q_config,
    default_by_key_config,
    default_config,
    default_masked_backward_kv_config,
    default_plain_config,
    default_scheduled_backward_kv_config,
    default_scheduled_backward_q_config,
    default_scheduled_config,
)
from flashgen.runtime.differentiable import attention_operator
from flashgen.runtime.eager import eager_attention
from flashgen.runtime.exact import input_gradient, input_sums
from flashgen.runtime.identity import Identity
from flashgen.runtime.kernels.backward_kv_sm90 import (
    hopper_backward_programs,
    hopper_backward_programs_at_once,
    hopper_backward_tiles,
    hopper_key_gradients,
    hopper_query_sums,
    key_head_group,
)
from flashgen.runtime.kernels.backward_kv_wide_sm90 import hopper_wide_blocks, hopper_wide_tiles
from flashgen.runtime.kernels.backward_q_sm90 import hopper_query_blocks, hopper_query_tiles
from flashgen.runtime.kernels.delta import delta_blocks, delta_programs
from flashgen.runtime.kernels.forward_sm90 import head_group, hopper_blocks, hopper_programs
from flashgen.runtime.launching import Rest, launch, relaunch
from flashgen.runtime.lookup import Lookup, shipped_root
from flashgen.runtime.operator import operator
from flashgen.runtime.paged import prepare_paged
from flashgen.runtime.paged_operator import paged_operator
from flashgen.runtime.schedule import (
    Plan,
    by_key,
    check_plan,
    compact,
    key_plan,
    plan_parts,
    state_shape,
    wants_gradients,
)
from flashgen.runtime.streams import tile_counter

__all__ = [
    "REQUIRED",
    "Call",
    "Config",
    "Identity",
    "Lookup",
    "Plan",
    "Rest",
    "Sizes",
    "alibi_slopes",
    "as_dtype",
    "attention_operator",
    "autocast",
    "backward_config_text",
    "backward_configs",
    "built_in",
    "by_key",
    "check_input",
    "check_plan",
    "check_scalar",
    "check_types",
    "choose_config",
    "compact",
    "config_text",
    "default_backward_kv_config",
    "default_backward_q_config",
    "default_by_key_config",
    "default_config",
    "default_masked_backward_kv_config",
    "default_plain_config",
    "default_scheduled_backward_kv_config",
    "default_scheduled_backward_q_config",
    "default_scheduled_config",
    "delta_blocks",
    "delta_programs",
    "eager_attention",
    "empty_results",
    "few_queries",
    "for_scale",
    "from_sums",
    "head_group",
    "hopper_backward_programs",
    "hopper_backward_programs_at_once",
    "hopper_backward_tiles",
    "hopper_blocks",
    "hopper_key_gradients",
    "hopper_programs",
    "hopper_query_blocks",
    "hopper_query_sums",
    "hopper_query_tiles",
    "hopper_wide_blocks",
    "hopper_wide_tiles",
    "incoming",
    "input_gradient",
    "input_sums",
    "inputs_config",
    "is_deterministic",
    "is_empty",
    "key_gradients",
    "key_head_group",
    "key_plan",
    "keywords",
    "launch",
    "launch_decode",
    "launch_paged",
    "no_gradients",
    "nothing_seen",
    "operator",
    "options",
    "outputs",
    "over_batch",
    "paged_operator",
    "paged_plan",
    "plan_arguments",
    "plan_parts",
    "prepare",
    "prepare_paged",
    "query_gradient",
    "query_sums",
    "relaunch",
    "rescaled",
    "rest_config",
    "shipped_root",
    "sink_gradient",
    "state_shape",
    "sum_of_groups",
    "tile_counter",
    "wants_gradients",
]
