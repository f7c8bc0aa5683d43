"""The gradient of an op in the dispatcher of PyTorch, so that compiled functions do not pay for it.

`torch.library.register_autograd` registers a Python function under the dispatch key of autograd. A graph of `torch.compile` has
the gradient as operators of its own, but calls the registered operator again, and with it that function, which finds nothing to
record: half of the time of a call. So two operators are registered here. NAME has the gradient, and is what callers and Dynamo
see. Below autograd it calls NAME + `IN_GRAPHS`, which has none, so that graphs contain that one.

As PyTorch's own function, it records no gradient within `torch.func`, which raises RuntimeError. The functions get the module
`torch`, which only `torch_op` imports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

IN_GRAPHS: Final = "_in_graphs"
"""Suffix of the name of the operator that graphs contain."""
Setup = Callable[[Any, tuple[Any, ...], Any], None]
"""As `torch.library.register_autograd` takes it: keeps what the gradient needs of a call, in the context of autograd."""


def has_guards(torch: Any) -> bool:
    """Whether PyTorch has the private functions that `autograd_kernel` uses."""
    return all(getattr(torch._C, name, None) is not None for name in ("_AutoDispatchBelowAutograd", "_any_requires_grad"))


def autograd_kernel(
    torch: Any, name: str, in_graphs: Callable[..., Any], setup: Setup, backward: Callable[..., Any]
) -> Callable[..., Any]:
    """The function under the dispatch key of autograd of an operator; `in_graphs` is the one without a gradient."""
    below, any_requires_grad = torch._C._AutoDispatchBelowAutograd, torch._C._any_requires_grad
    is_grad_enabled = torch.is_grad_enabled

    def forward(ctx: Any, *args: Any) -> Any:
        with below():
            result = in_graphs(*args)
        setup(ctx, args, result)
        return result

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    record = type(name, (torch.autograd.Function,), members).apply  # pyright: ignore[reportAttributeAccessIssue]

    def call(*args: Any) -> Any:
        if is_grad_enabled() and any_requires_grad(*args):
            return record(*args)
        with below():
            return in_graphs(*args)

    return call


def plain_apply(torch: Any, function: Any) -> Callable[..., Any]:
    """`apply` of a function of autograd for calls outside of `torch.func`: that of its base in C, without the Python function
    that looks for transforms at each call. If PyTorch has another base, the function's own."""
    apply = vars(getattr(torch._C, "_FunctionBase", object)).get("apply")
    return function.apply if apply is None else apply.__get__(None, function)
