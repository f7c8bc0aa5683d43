"""The engine's process where a package is missing: `python -m tests.engine.serving.without_a_package DESCRIPTOR`."""

from __future__ import annotations

import sys
from typing import Any


class Absent:
    """A finder without `ml_dtypes`, which whatever loads models imports."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "engine.loading":
            raise ModuleNotFoundError("No module named 'ml_dtypes'", name="ml_dtypes")


if __name__ == "__main__":
    finders: list[Any] = sys.meta_path
    finders.insert(0, Absent)
    from engine.serving.worker import main

    sys.exit(main(int(sys.argv[1])))
