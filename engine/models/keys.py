"""Reads the keys of a JSON object of a model folder: each of its type and within its limits, or a `ModelError`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

from engine.checkpoint.json_file import show
from engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a JSON object, with the file for messages. A key that is `null` counts as absent, as in transformers."""

    path: Path
    values: dict[str, object]
    prefix: str = ""

    def get(self, key: str) -> object:
        return self.values.get(key)

    def refuse(self, key: str, expected: str, fix: str = "") -> NoReturn:
        what = "is absent" if key not in self.values else f"is {show(self.values[key])}"
        fix = fix or "correct it, or download the file again"
        raise ModelError(f"`{self.prefix}{key}` {what}, and must be {expected}", where=self.path, fix=fix)

    def integer(self, key: str, lowest: int, highest: int, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not lowest <= value <= highest:  # `isinstance` would accept `True`
            self.refuse(key, f"an integer from {lowest} to {highest}")
        return value

    def number(
        self,
        key: str,
        lowest: float,
        highest: float,
        default: float | None = None,
        *,
        lowest_included: bool = False,
        highest_included: bool = False,
    ) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        number = float(value) if type(value) is float or (type(value) is int and value.bit_length() < 1000) else math.nan
        inside = lowest < number < highest or (lowest_included and number == lowest) or (highest_included and number == highest)
        if not inside:
            low = f"at least {lowest:g}" if lowest_included else f"above {lowest:g}"
            high = "finite" if highest == math.inf else f"{'at most' if highest_included else 'below'} {highest:g}"
            self.refuse(key, f"a number {low} and {high}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def tokens(self, key: str, vocab_size: int) -> tuple[int, ...]:
        value = self.get(key)
        if value is None:
            return ()
        tokens: list[object] = cast("list[object]", value) if isinstance(value, list) else [value]
        numbers = [token for token in tokens if type(token) is int and 0 <= token < vocab_size]
        if len(numbers) < len(tokens):
            self.refuse(key, f"a token id below vocab_size = {vocab_size}, or a list of such")
        return tuple(dict.fromkeys(numbers))
