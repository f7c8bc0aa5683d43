"""What one launch of prompts has at most, and what is in it so far. The scheduler packs launches by it, and so does what
divides pieces of prompts into launches (`engine.paged_prompts`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Filling(NamedTuple):
    """What a launch has: tokens, prompts, and slots of all tokens that its prompts have by then."""

    tokens: int = 0
    prompts: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """Tokens, prompts, and slots of all tokens that prompts have by then, each prompt's a multiple of `prompt_slots`. A prompt
    alone has room, whatever its slots."""

    tokens: int = 1 << 30
    prompts: int = 1
    slots: int = 1 << 30
    prompt_slots: int = 1

    def added(self, launch: Filling, tokens: int, end: int) -> Filling | None:
        """The launch with `tokens` more, of another prompt, which has `end` tokens by then; None if it has no room for them."""
        own = self.alone(tokens, end)
        found = Filling(launch.tokens + own.tokens, launch.prompts + own.prompts, launch.slots + own.slots)
        fits = found.tokens <= self.tokens and found.prompts <= self.prompts and found.slots <= self.slots
        return found if fits or not launch.prompts else None

    def alone(self, tokens: int, end: int) -> Filling:
        """A launch with `tokens` tokens of one prompt, which has `end` tokens by then."""
        return Filling(tokens, 1, -(-end // self.prompt_slots) * self.prompt_slots)
