"""tilec: an ahead-of-time compiler for GPU tile kernels that proves them safe.

Kernel authors import the vocabulary from here; nothing heavier is loaded. The path of a kernel:

    kernels_src/k.py --frontend--> tile IR --passes--> proven tile IR --lowering--> MLIR --codegen--> PTX
                                      |                                                               |
                                 interpreter                 runtime <--cache, bundle-- CUBIN <--assemble

`tilec.pipeline` defines the stages in order, `tilec.cli` the commands, `tilec.runtime` the launcher, which needs no compiler.
`tilec.compile` and `tilec.op`, which are loaded on first use, make a kernel callable from Python.
"""

# isort: off
from tilec import startup

startup.forget_current_folder("tilec")  # before any other import

import importlib  # noqa: E402
from typing import TYPE_CHECKING, Any, Final  # noqa: E402

from tilec import language  # noqa: E402
from tilec.language import *  # noqa: E402, F403
from tilec.version import VERSION  # noqa: E402

if TYPE_CHECKING:
    from tilec.ops import op as op
    from tilec.project.build.just_in_time import compile as compile

__all__: list[str] = ["__version__"]
__all__ += language.__all__

__version__ = VERSION

_LATER: Final = {"compile": "tilec.project.build.just_in_time", "op": "tilec.ops"}
"""Names loaded on first use, by the module that defines them: a kernel file that imports words loads none of it."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module `tilec` has no attribute `{name}`")
    return getattr(importlib.import_module(_LATER[name]), name)
