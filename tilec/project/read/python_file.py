"""Executes a Python file of a project, a reference or a baseline: its path goes in, the module comes out.

The source text is compiled. Python's own loader would use bytecode in a neighboring `__pycache__`, which can differ from the
text that somebody reviewed. It would also write bytecode there, possibly through a link in the project.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType


def execute(path: Path, name: str) -> ModuleType:
    """Execute a file as the module `name`. ImportError if its name is not that of a Python file; also raises whatever the file
    raises."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise ImportError(f"`{path.name}` is not Python")
    module = importlib.util.module_from_spec(spec)
    exec(spec.loader.source_to_code(path.read_bytes(), str(path)), vars(module))
    return module
