"""What generated modules need at run time. Imports torch, triton and the standard library alone."""

from flashgen.runtime.alibi import alibi_slopes
from flashgen.runtime.arguments import Sizes, check_input, check_scalar, check_types
from flashgen.runtime.autocast import autocast
from flashgen.runtime.backward import (
    backward_configs,
    delta_rows,
    for_scale,
    from_sums,
    incoming,
    inputs_config,
    is_deterministic,
    key_gradients,
    no_gradients,
    query_gradient,
    query_sums,
    rest_config,
    sink_gradient,
    sum_of_groups,
)
from flashgen.runtime.call import (
    Call,
    backward_config_text,
    choose_config,
    config_text,
    is_empty,
    nothing_seen,
    options,
    outputs,
    prepare,
)
from flashgen.runtime.config import Config
from flashgen.runtime.counter import tile_counter
from flashgen.runtime.defaults import (
    built_in,
    default_backward_kv_config,
    default_backward_q_config,
    default_causal_backward_kv_config,
    default_config,
    default_plain_config,
    default_scheduled_backward_kv_config,
    default_scheduled_backward_q_config,
    default_scheduled_config,
    hopper_backward_q_refuses,
    hopper_backward_refuses,
    hopper_refuses,
)
from flashgen.runtime.differentiable import attention_operator
from flashgen.runtime.eager import eager_attention
from flashgen.runtime.exact import input_gradient, input_sums
from flashgen.runtime.hopper import head_group, hopper_blocks, hopper_programs
from flashgen.runtime.hopper_backward import (
    hopper_backward_programs,
    hopper_backward_tiles,
    hopper_key_gradients,
    hopper_query_sums,
    hopper_wide_blocks,
    hopper_wide_tiles,
    key_head_group,
)
from flashgen.runtime.hopper_backward_q import hopper_query_blocks, hopper_query_tiles
from flashgen.runtime.identity import Identity
from flashgen.runtime.kernels import launch
from flashgen.runtime.lookup import Lookup, shipped_root
from flashgen.runtime.operator import operator
from flashgen.runtime.schedule import Plan, by_key, check_plan, compact, plan_parts, state_shape

__all__ = [
    "Call",
    "Config",
    "Identity",
    "Lookup",
    "Plan",
    "Sizes",
    "alibi_slopes",
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
    "default_causal_backward_kv_config",
    "default_config",
    "default_plain_config",
    "default_scheduled_backward_kv_config",
    "default_scheduled_backward_q_config",
    "default_scheduled_config",
    "delta_rows",
    "eager_attention",
    "for_scale",
    "from_sums",
    "head_group",
    "hopper_backward_programs",
    "hopper_backward_q_refuses",
    "hopper_backward_refuses",
    "hopper_backward_tiles",
    "hopper_blocks",
    "hopper_key_gradients",
    "hopper_programs",
    "hopper_query_blocks",
    "hopper_query_sums",
    "hopper_query_tiles",
    "hopper_refuses",
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
    "launch",
    "no_gradients",
    "nothing_seen",
    "operator",
    "options",
    "outputs",
    "plan_parts",
    "prepare",
    "query_gradient",
    "query_sums",
    "rest_config",
    "shipped_root",
    "sink_gradient",
    "state_shape",
    "sum_of_groups",
    "tile_counter",
]
