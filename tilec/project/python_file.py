"""A Python file of a project that is executed, a reference or a baseline: its path goes in, the module comes out.

It is executed from its text. Python's own loader would take bytecode that lies in `__pycache__` beside it, which may be of
another text than the one that somebody read, and would write some there, through a link that the project brought along.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType


def execute(path: Path, name: str) -> ModuleType:
    """The module `name` of a file. ImportError where it is not Python by its name; whatever the file raises."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise ImportError(f"`{path.name}` is not Python")
    module = importlib.util.module_from_spec(spec)
    exec(spec.loader.source_to_code(path.read_bytes(), str(path)), vars(module))
    return module
