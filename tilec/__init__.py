"""tilec: an ahead-of-time compiler for GPU tile kernels that proves them safe.

Kernel authors import the vocabulary from here; nothing heavier is loaded. How a kernel travels:

    kernels_src/k.py --frontend--> tile IR --passes--> proven tile IR --lowering--> MLIR --codegen--> PTX
                                      |                                                               |
                                 interpreter                 runtime <--cache, bundle-- CUBIN <--assemble

`tilec.pipeline` holds the stages in order, `tilec.cli` the commands, `tilec.runtime` the launcher, which needs no compiler.
"""

# isort: off
from tilec import startup

startup.forget_current_folder("tilec")  # before any other import

from tilec import language  # noqa: E402
from tilec.language import *  # noqa: E402, F403

__all__: list[str] = ["__version__"]
__all__ += language.__all__

__version__ = "0.1.0"
