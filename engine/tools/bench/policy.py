"""What is measured, and in what order: prompt and generation lengths, repetitions, prompts.

The policy is that of Grout's sweeps, so that numbers are comparable: greedy, batch 1, clocks unchanged, no outlier dropped; all
generation lengths with the first prompt length, all prompt lengths with the first generation length. Repetitions are the outer
loop and cells the inner one, so that clock drift affects all cells alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.errors import UsageError
from tilec.step.step import BATCHES

PROMPTS: Final = (18, 128, 512, 2048, 8192)
"""Default prompt lengths in tokens, `pp`."""

GENERATIONS: Final = (36, 128, 512, 2048)
"""Default generation lengths in tokens, `tg`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One measurement: `tg` tokens generated after a prompt of `pp` tokens."""

    pp: int
    tg: int


@dataclass(frozen=True, slots=True)
class Policy:
    """`pp` and `tg` as above; `full` measures every pair. The first `warmup_reps` repetitions of every cell are discarded.
    `batch` sequences are generated at once, each with its own prompt."""

    pp: tuple[int, ...] = PROMPTS
    tg: tuple[int, ...] = GENERATIONS
    full: bool = False
    reps: int = 5
    warmup_reps: int = 2
    seed: int = 0
    batch: int = 1

    def check(self) -> None:
        """UsageError for values with which nothing can be measured."""
        for option, numbers, lowest in (("--pp", self.pp, 1), ("--tg", self.tg, 2)):
            if not numbers:
                raise UsageError("the list is empty", where=option, fix="give numbers of tokens, such as 18,128")
            for number in numbers:
                if number < lowest:
                    why = "; the first token is prefill's, and decode needs another" if option == "--tg" else ""
                    raise UsageError(f"{number} is below {lowest}{why}", where=option)
            if len(set(numbers)) < len(numbers):
                raise UsageError("a number is there twice", where=option)
        if self.reps < 1:
            raise UsageError(f"{self.reps} repetitions measure nothing", where="--reps")
        if self.warmup_reps < 0:
            raise UsageError(f"{self.warmup_reps} is below 0", where="--warmup-reps")
        if self.batch != 1 and self.batch not in BATCHES:
            raise UsageError(f"{self.batch} is none of {', '.join(map(str, (1, *BATCHES)))}", where="--batch")
        if self.seed < 0:
            raise UsageError(f"{self.seed} is below 0", where="--seed")

    def cells(self) -> tuple[Cell, ...]:
        """Every cell once: all generation lengths with the first prompt length, then the other prompts with the first `tg`."""
        if self.full:
            return tuple(Cell(pp, tg) for pp in self.pp for tg in self.tg)
        return (*(Cell(self.pp[0], tg) for tg in self.tg), *(Cell(pp, self.tg[0]) for pp in self.pp[1:]))

    def longest(self) -> int:
        """Tokens of prompt plus generation in the longest cell."""
        return max(cell.pp + cell.tg for cell in self.cells())

    def prompt(self, pp: int, vocab_size: int, number: int = 0) -> list[int]:
        """Token ids drawn uniformly from the vocabulary, deterministic for a seed, length and number."""
        seeds = [self.seed, pp, number] if number else [self.seed, pp]
        return [int(token) for token in np.random.default_rng(seeds).integers(0, vocab_size, pp)]
