"""Ops of the library's kernels: made on first use, and named `tilec_kernels::NAME` in PyTorch.

A kernel takes extents at run time, and constants that say how much of them a block takes. `build.toml` lists the constants that
are prebuilt, and the functions of this package choose among those, so that prebuilt kernels serve every size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import tilec
from tilec.ops.tensor_op import Op
from tilec.runtime import TRUSTED

SOURCE: Final = Path(__file__).parent / "source"
"""The folder of the kernels."""
Constants = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Chooses the constants of a call by what is known of it: extents by the name of the dim, dtypes by that of the `Element`."""


def power_of_two(extent: int, least: int = 1) -> int:
    """The least power of two that is at least `extent` and `least`."""
    return max(least, 1 << max(0, extent - 1).bit_length())


def multiple(extent: int) -> int:
    """8 if rows of `extent` elements begin at multiples of whole vectors, else 1: kernels are prebuilt for both."""
    return 8 if extent % 8 == 0 else 1


def library_op(
    kernel: str,
    constants: Constants | Mapping[str, Any] | None = None,
    *,
    dims: Constants | None = None,
    mutates: Iterable[str] = (),
    trusted: Iterable[str] = (),
    gradient: tuple[Callable[..., Any], Callable[..., Any]] | None = None,
) -> Callable[[], Op]:
    """A function that returns the op of a kernel, which it makes when it is first called with or without PyTorch loaded.

    constants, dims, mutates: as for `tilec.op`.
    trusted: tensors of integers whose values the caller of the library vouches for.
    gradient: `backward` and `setup_context` of `torch.library.register_autograd`, if PyTorch is loaded.
    """
    given, vouched = tuple(mutates), dict.fromkeys(trusted, TRUSTED)

    @cache
    def made(torch_is_loaded: bool) -> Op:
        path, name = SOURCE / f"{kernel}.py", f"tilec_kernels::{kernel}"
        op = tilec.op(path, constants=constants, dims=dims, mutates=given, values=vouched, name=name)
        if torch_is_loaded and gradient is not None:
            backward, setup_context = gradient
            op.register_autograd(backward, setup_context=setup_context)
        return op

    return lambda: made("torch" in sys.modules)
