"""What generated modules need at run time. Imports torch, triton and the standard library alone."""

from flashgen.runtime.alibi import alibi_slopes
from flashgen.runtime.arguments import Sizes, check_input, check_scalar, check_types
from flashgen.runtime.call import (
    Call,
    choose_config,
    config_text,
    fake_outputs,
    is_empty,
    nothing_seen,
    options,
    outputs,
    prepare,
)
from flashgen.runtime.config import Config
from flashgen.runtime.defaults import (
    built_in,
    default_backward_kv_config,
    default_backward_q_config,
    default_config,
    default_scheduled_backward_kv_config,
    default_scheduled_backward_q_config,
    default_scheduled_config,
)
from flashgen.runtime.eager import eager_attention
from flashgen.runtime.identity import Identity
from flashgen.runtime.kernels import launch
from flashgen.runtime.lookup import Lookup, shipped_root
from flashgen.runtime.operator import operator
from flashgen.runtime.schedule import Plan, check_plan, compact, plan_parts, state_shape

__all__ = [
    "Call",
    "Config",
    "Identity",
    "Lookup",
    "Plan",
    "Sizes",
    "alibi_slopes",
    "built_in",
    "check_input",
    "check_plan",
    "check_scalar",
    "check_types",
    "choose_config",
    "compact",
    "config_text",
    "default_backward_kv_config",
    "default_backward_q_config",
    "default_config",
    "default_scheduled_backward_kv_config",
    "default_scheduled_backward_q_config",
    "default_scheduled_config",
    "eager_attention",
    "fake_outputs",
    "is_empty",
    "launch",
    "nothing_seen",
    "operator",
    "options",
    "outputs",
    "plan_parts",
    "prepare",
    "shipped_root",
    "state_shape",
]
