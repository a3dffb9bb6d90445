"""What models of transformers do with their masks, by what their classes say that they support.

Transformers makes a mask once for a model and hands it to each layer. Layers that hand it on to the attention
interface take a mask of any kind. Others read it as a matrix, to choose keys, to join it with another, or because they
compute attention themselves; these say that they have no flex_attention, whose masks are no matrices, or bring
attention functions of their own, since the common ones would not do. Where a model has no sdpa either, what its layers
call `is_causal` need not be true, since no other attention asks for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# It hands masks on, and None says no more than is_causal does.
HANDS_ON = "hands on"
# It hands masks on, and each has to say all.
ASKS_FOR_ALL = "asks for all"
# It reads matrices, as sdpa and as eager attention have them.
READS_BOOLS = "reads bools"
READS_FLOATS = "reads floats"


def reading_of(config: Any) -> str:
    """Which of these holds for the models that take a config of this type, the last of them that does."""
    return _reading_of(type(config))


def takes_some_queries(config: Any) -> bool:
    """Whether a model's last layers may take, of queries and masks, what logits are asked for alone.

    Layers that share the keys of earlier ones do so in Gemma 4.
    """
    return bool(getattr(config, "num_kv_shared_layers", 0))


def reads_text(config: Any) -> bool:
    """Whether a model reads text, as far as its classes say; one that says nothing does."""
    return _reads_text(type(config))


@torch.compiler.assume_constant_result
def _reading_of(kind: type) -> str:
    # torch.compile asks while it traces. It sees through a cache, to each class there is, but not through this.
    return _found(kind)


@torch.compiler.assume_constant_result
def _reads_text(kind: type) -> bool:
    models = _models_of(kind)
    return not models or any("text" in getattr(each, "input_modalities", "text") for each in models)


@cache
def _models_of(kind: type) -> list[Any]:
    """The models that take configs of this type; one of a user's own class is read by those of the class below it."""
    known = list(_below(PreTrainedModel))
    below = ([each for each in known if each.config_class is base] for base in kind.__mro__)
    return next(filter(None, below), [])


@cache
def _found(kind: type) -> str:
    models = _models_of(kind)
    if any(not each._supports_sdpa and not each._supports_flex_attn for each in models):
        return READS_FLOATS
    if any(_says_no_flex(each) or _brings_functions(each) for each in models):
        return READS_BOOLS
    return HANDS_ON if all(each._supports_sdpa for each in models) else ASKS_FOR_ALL


def _below(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _says_no_flex(model: Any) -> bool:
    """Whether a model itself denies it: by default the flag is False, also of models that nobody has looked at."""
    said = any("_supports_flex_attn" in vars(each) for each in model.__mro__ if each is not PreTrainedModel)
    return said and not model._supports_flex_attn


def _brings_functions(model: type) -> bool:
    """Whether a model's file has an attention interface of its own, in which some functions are others."""
    own = getattr(sys.modules.get(model.__module__), "ALL_ATTENTION_FUNCTIONS", ALL_ATTENTION_FUNCTIONS)
    return own is not ALL_ATTENTION_FUNCTIONS
