"""What is measured, in what order: lengths of prompts and answers, repetitions, prompts.

The policy is that of Grout's sweeps, so that numbers stand side by side: greedy, batch 1, clocks as they are found, no outlier
is dropped; answers of many lengths behind the first prompt length, prompts of many lengths before the first answer length.
Repetitions are the outer loop and cells the inner one, so that a drift of the clocks meets all cells alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from engine.errors import UsageError
from tilec.step.step import BATCHES

PROMPTS: Final = (18, 128, 512, 2048, 8192)
"""Tokens of prompts, `pp`."""

ANSWERS: Final = (36, 128, 512, 2048)
"""Tokens of answers, `tg`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing measured: an answer of `tg` tokens to a prompt of `pp`."""

    pp: int
    tg: int


@dataclass(frozen=True, slots=True)
class Policy:
    """`pp` and `tg` as above; `full` takes every pair. `warmup_reps` repetitions of every cell are thrown away first. `batch`
    sequences are answered at once, each with a prompt of its own."""

    pp: tuple[int, ...] = PROMPTS
    tg: tuple[int, ...] = ANSWERS
    full: bool = False
    reps: int = 5
    warmup_reps: int = 2
    seed: int = 0
    batch: int = 1

    def check(self) -> None:
        """UsageError for numbers that measure nothing."""
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
        """Every cell once: answers of each length to the first prompt, then each other prompt with the first answer."""
        if self.full:
            return tuple(Cell(pp, tg) for pp in self.pp for tg in self.tg)
        return (*(Cell(self.pp[0], tg) for tg in self.tg), *(Cell(pp, self.tg[0]) for pp in self.pp[1:]))

    def longest(self) -> int:
        """Tokens of prompt and answer together in the longest cell."""
        return max(cell.pp + cell.tg for cell in self.cells())

    def prompt(self, pp: int, vocab_size: int, number: int = 0) -> list[int]:
        """Token ids drawn evenly from the vocabulary, the same for the same seed, length and number."""
        seeds = [self.seed, pp, number] if number else [self.seed, pp]
        return [int(token) for token in np.random.default_rng(seeds).integers(0, vocab_size, pp)]
