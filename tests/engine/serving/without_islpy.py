"""The engine's process where a package is missing: `python -m tests.engine.serving.without_islpy DESCRIPTOR`."""

from __future__ import annotations

import sys
from typing import Any

if __name__ == "__main__":
    modules: dict[str, Any] = sys.modules
    modules["islpy"] = None  # an import of it fails
    from engine.serving.worker import main

    sys.exit(main(int(sys.argv[1])))
