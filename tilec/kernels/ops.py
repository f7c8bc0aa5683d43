"""Ops of the library's kernels, named `tilec_kernels::NAME` in PyTorch. They are made when the library is imported, if PyTorch
is, since Dynamo looks into functions that are called while it traces, caches included: an op made there would be traced too.

A kernel takes extents at run time, and constants that say how much of them a block takes. `build.toml` lists the constants that
are prebuilt, and the functions of this package choose among those, so that prebuilt kernels serve every size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import tilec
from tilec.ops.tensor_op import Op
from tilec.runtime.values import TRUSTED

SOURCE: Final = Path(__file__).parent / "source"
"""The folder of the kernels."""
CALLED: Final = "_dynamo_marked_constant"
"""What `torch.compiler.assume_constant_result` sets: Dynamo calls the function and does not trace it."""
Constants = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Chooses the constants of a call by what is known of it: extents by the name of the dim, dtypes by that of the `Element`."""
Gradient = tuple[Callable[..., Any], Callable[..., Any]]
"""`backward` and `setup_context` of `torch.library.register_autograd`."""


def multiple(extent: int) -> int:
    """8 if rows of `extent` elements begin at multiples of whole vectors, else 1: kernels are prebuilt for both."""
    return 8 if extent % 8 == 0 else 1


def _never() -> bool:
    return False


_records: Callable[[], bool] = getattr(sys.modules.get("torch"), "is_grad_enabled", _never)
"""Whether PyTorch records what gradients need."""


def differentiated(*tensors: Any) -> bool:
    """Whether a gradient of one of the tensors will be asked for: what only the gradient uses is not kept otherwise."""
    return _records() and any(tensor.requires_grad for tensor in tensors)


def without_gradient(ctx: Any, *statistics: Any) -> None:
    """For `setup_context`: results that only the gradient uses have none, and no zeros stand for it."""
    ctx.mark_non_differentiable(*statistics)
    ctx.set_materialize_grads(False)


def differentiate(backward: Callable[..., Any], ctx: Any, dout: Any, *others: Any) -> Any:
    """`backward`, unless the result has no gradient: then nothing has."""
    return (None,) * len(ctx.needs_input_grad) if dout is None else backward(ctx, dout, *others)


def library_op(
    kernel: str,
    constants: Constants | Mapping[str, Any] | None = None,
    *,
    dims: Constants | None = None,
    mutates: Iterable[str] = (),
    trusted: Iterable[str] = (),
    gradient: Gradient | None = None,
    name: str | None = None,
) -> Callable[[], Op]:
    """A function that returns the op of a kernel, which is made at once if PyTorch is loaded, else when it is first called with
    or without it.

    constants, dims, mutates: as for `tilec.op`.
    trusted: tensors that another kernel of the library makes, whatever its own arguments are, so that they are as `values` of
        this one states.
    gradient: registered if PyTorch is loaded.
    name: of the op. Default: the kernel's.
    """
    given = tuple(mutates)
    evidence = dict.fromkeys(trusted, TRUSTED) or None

    @cache
    def made(torch_is_loaded: bool) -> Op:
        path, qualified = SOURCE / f"{kernel}.py", f"tilec_kernels::{name or kernel}"
        op = tilec.op(path, constants=constants, dims=dims, mutates=given, name=qualified, values=evidence)
        if torch_is_loaded and gradient is not None:
            op.register_autograd(partial(differentiate, gradient[0]), setup_context=gradient[1])
        return op

    if "torch" in sys.modules:
        registered = made(True)
        return lambda: registered

    def later() -> Op:
        return made("torch" in sys.modules)

    setattr(later, CALLED, True)
    return later
