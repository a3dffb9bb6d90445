"""Continuous batching: which sequences a step serves, and with how many of their tokens.

A sequence that has all of its tokens but the last in the cache decodes: a step brings one token and yields the next.
One that has more to bring is still at its prompt, and a step brings a chunk of it. Both stand in one batch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from torch import Tensor

from engine.pages import Pages, prefixes


@dataclass(frozen=True)
class Limits:
    """What an engine has room for: `max_batch` sequences and `max_tokens` tokens a step, `max_len` tokens a sequence,
    and `num_blocks` pages of `block_size` tokens for all sequences.
    """

    max_batch: int
    max_tokens: int
    max_len: int
    block_size: int
    num_blocks: int

    def __post_init__(self) -> None:
        if self.max_tokens < self.max_batch:
            raise ValueError(f"max_tokens is {self.max_tokens}; expected max_batch, {self.max_batch}, or more")

    @property
    def max_blocks(self) -> int:
        """The pages of the longest sequence."""
        return -(-self.max_len // self.block_size)


@dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens are wanted after it."""

    prompt: tuple[int, ...]
    max_new_tokens: int


@dataclass(eq=False)
class Sequence:
    """A request under way. `cached` of its `tokens` have keys and values in its `pages`, of which `shared` were there
    before it and `published` can be found by others. `logits` has a row for each new token where the engine keeps them.
    """

    request: Request
    tokens: list[int]
    pages: list[int] = field(default_factory=list)
    cached: int = 0
    shared: int = 0
    published: int = 0
    logits: list[Tensor] = field(default_factory=list)

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]

    @property
    def finished(self) -> bool:
        return len(self.new_tokens) == self.request.max_new_tokens


@dataclass(frozen=True)
class Part:
    """A sequence's part of a step: its next `count` tokens."""

    sequence: Sequence
    count: int

    @property
    def yields(self) -> bool:
        """Whether the step brings the sequence's last token, and so finds the one after it."""
        return self.sequence.cached + self.count == len(self.sequence.tokens)


class Scheduler:
    """Requests wait in the order of their arrival; one that is admitted has room for all of its tokens, to its end."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.pages = limits, Pages(limits.num_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    def add(self, request: Request) -> Sequence:
        """Queue a request; ValueError for one that could never run."""
        length = len(request.prompt) + request.max_new_tokens
        most = min(self.limits.max_len, self.limits.num_blocks * self.limits.block_size)
        if not request.prompt or request.max_new_tokens < 1 or length > most:
            raise ValueError(
                f"the request has {len(request.prompt)} tokens and wants {request.max_new_tokens}; expected 1 or more "
                f"of each, {most} at most together"
            )
        sequence = Sequence(request, list(request.prompt))
        self.waiting.append(sequence)
        return sequence

    def schedule(self) -> list[Part]:
        """The parts of the next step: who decodes comes first, prompts share what is left of the step's tokens."""
        while self.waiting and len(self.running) < self.limits.max_batch and self._admitted(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        left, parts = self.limits.max_tokens, []
        for sequence in sorted(self.running, key=lambda each: len(each.tokens) - each.cached > 1):
            count = min(left, len(sequence.tokens) - sequence.cached)
            if count:
                parts.append(Part(sequence, count))
                left -= count
        return parts

    def advance(self, parts: list[Part], tokens: list[int]) -> None:
        """Take note of a step: `tokens` has for each part the one that it found, of use where the part yields."""
        for part, token in zip(parts, tokens, strict=True):
            sequence, yields = part.sequence, part.yields
            sequence.cached += part.count
            self._publish(sequence)
            if yields:
                sequence.tokens.append(token)
            if sequence.finished:
                self.running.remove(sequence)
                # The free page that was released first is the next to be taken: a prefix outlives what follows it.
                for page in reversed(sequence.pages):
                    self.pages.release(page)

    def _admitted(self, sequence: Sequence) -> bool:
        """Give a sequence its pages, those of a known prefix first; or say that there are too few."""
        block_size, request = self.limits.block_size, sequence.request
        # The last token of a prompt is not taken from others: its logits are wanted.
        shareable = (len(request.prompt) - 1) // block_size
        shared = self.pages.find(islice(prefixes(request.prompt, block_size), shareable))
        needed = -(-(len(request.prompt) + request.max_new_tokens) // block_size) - len(shared)
        if needed > self.pages.free - self.pages.unheld(shared):
            return False
        for page in shared:
            self.pages.hold(page)
        sequence.pages = shared + [self.pages.take() for _ in range(needed)]
        sequence.cached = sequence.shared = sequence.published = len(shared) * block_size
        return True

    def _publish(self, sequence: Sequence) -> None:
        """Let others find the blocks that have become full. Their kernels run after those that fill them."""
        block_size = self.limits.block_size
        full = sequence.cached // block_size
        if full * block_size > sequence.published:
            digests = prefixes(sequence.tokens[: full * block_size], block_size)
            for page, digest in zip(sequence.pages, digests, strict=False):
                self.pages.publish(page, digest)
            sequence.published = full * block_size
