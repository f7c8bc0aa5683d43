"""Reads a `quantization_config` strictly: a key that could change what weights mean is checked, never ignored."""

from __future__ import annotations

from typing import Final, NoReturn, TypeVar, cast

from engine.checkpoint.json_file import show
from engine.models.keys import Keys

FIX: Final = "take the bf16 checkpoint, or a quantised one of a supported format"


Value = TypeVar("Value", str, int, bool)


class Fields:
    """The keys of an object of the config. Each key is asked for once; `finish` refuses what nobody asked for."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._asked: set[str] = set()

    def get(self, key: str) -> object:
        """A value; None if it is absent or null."""
        self._asked.add(key)
        return self._keys.get(key)

    def refuse(self, key: str, expected: str) -> NoReturn:
        """ModelError for a key that cannot be what it is."""
        self._keys.refuse(key, expected, FIX)

    def one_of(self, key: str, *supported: Value, default: Value | None = None) -> Value:
        """A value that is one of those supported, in letters of either case."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        known = value.lower() if isinstance(value, str) else value
        same = [choice for choice in supported if type(choice) is type(known) and choice == known]
        if not same:
            self.refuse(key, " or ".join(show(choice) for choice in supported))
        return same[0]

    def group_size(self, key: str) -> int:
        """Columns of a group: a positive multiple of 8; -1 for a whole row."""
        value = self.get(key)
        if type(value) is not int or not (value == -1 or (0 < value <= 1 << 20 and value % 8 == 0)):
            self.refuse(key, "a multiple of 8, or -1 for whole rows")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """true or false; `default` if it is absent, which is an error without one."""
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def strings(self, *keys: str) -> tuple[str, ...]:
        """The strings of the first of these keys that is there; none if none is."""
        for key in keys:
            value = self.get(key)
            if value is None:
                continue
            if not isinstance(value, list) or not all(isinstance(item, str) for item in cast("list[object]", value)):
                self.refuse(key, "a list of strings")
            return tuple(cast("list[str]", value))
        return ()

    def object(self, key: str) -> Fields | None:
        """The keys of an object; None if it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(key, "an object")
        return Fields(Keys(self._keys.path, cast("dict[str, object]", value), f"{self._keys.prefix}{key}."))

    def names(self) -> tuple[str, ...]:
        """All keys, for an object whose keys are names."""
        self._asked.update(self._keys.values)
        return tuple(self._keys.values)

    def ignore(self, *keys: str) -> None:
        """Accept any value of keys that say how weights were made, or how other programs run them."""
        self._asked.update(keys)

    def finish(self) -> None:
        """ModelError for a key that was not asked for, unless its value is null, false or empty."""
        for key, value in self._keys.values.items():
            if key not in self._asked and value not in (None, False, {}, [], ""):
                self.refuse(key, "absent: what it changes is not known here")
