"""Calls in threads of their own."""

import threading

import torch


def forward_and_backward(attend, tensors):
    out, lse = attend(*tensors, return_lse=True)
    return [out.detach(), lse.detach(), *torch.autograd.grad(out.float().square().sum() + lse.sum(), tensors)]


def side_by_side(calls):
    """What each call gives in a thread of its own; all of them begin at once."""
    found, errors, start = [None] * len(calls), [], threading.Barrier(len(calls))

    def one(place):
        start.wait()
        try:
            found[place] = calls[place]()
        except BaseException as error:  # noqa: BLE001 - it is raised below, in the test's thread
            errors.append(error)

    threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    return found
