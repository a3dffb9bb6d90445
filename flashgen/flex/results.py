"""What comes out of an operation of a mod, as far as torch can say before there are values."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from flashgen.flex.known import Known
from flashgen.flex.values import NotTraced


def result_of(known: Known, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The real result where it is made of numbers alone, else one of the right dtype and shape."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    kwargs = {key: each for key, each in kwargs.items() if key != "device"}
    if all(map(known.is_of_numbers, tensors)):
        return func(*args, **kwargs)
    args, kwargs = tree_map_only(torch.Tensor, lambda each: torch.empty_like(each, device="meta"), (args, kwargs))
    try:
        result = func(*args, **kwargs)
    except NotImplementedError as error:
        raise NotTraced(
            f"{func}, whose shape depends on values; expected a captured tensor that was made outside"
        ) from error
    return tree_map_only(torch.Tensor, lambda each: torch.zeros((), dtype=each.dtype).expand(each.shape), result)
