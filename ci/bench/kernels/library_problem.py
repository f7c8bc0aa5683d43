"""A problem for checking and timing a function of `tilec.kernels`: sizes, random inputs, PyTorch's operator, allowed errors.

A result or gradient may be off from PyTorch's in float64 by `UNIT` of itself (twice a rounding to its dtype), plus a share of
the largest value of its row: `SUMS` for results, which are f32 sums rounded once, and `GRADIENTS` for gradients, which take
results that were rounded. Attention rounds its probabilities between two products; there PyTorch's own operator in the same
dtype says what rounding costs, and twice its largest error is allowed. Of dropout, what is kept must be right, and the share
that is dropped within five standard deviations. A kernel that adds many terms one after the other errs by about the square
root of their number times a rounding, of which `SEQUENTIAL` are allowed.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

torch: Any = importlib.import_module("torch")

functional: Any = torch.nn.functional
DEVICE: Final = "cuda" if torch.cuda.is_available() else "cpu"
"""Where problems are made: `library_interpreted` needs no GPU."""

UNIT: Final = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-21, torch.float64: 0.0}
SUMS: Final = 2.0**-16
SEQUENTIAL: Final = 4 * 2.0**-24
GRADIENTS: Final = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-16}
Inputs = Mapping[str, Any]
Sizes = dict[str, int]


@dataclass(frozen=True)
class Problem:
    """A function at a size, which is timed, and at the sizes at which it is `checked`. `make` generates its arguments by name;
    `theirs` is PyTorch's operator with the same parameters, also on float64. `gradients` are the arguments that get one.
    `moved`: bytes that the forward and the backward must move; `products`: floating-point operations of products of both, where
    these bound the function. `like_torch`: errors are compared with PyTorch's in the same dtype. `compiles`: PyTorch's operator
    is compiled for comparison too. `captures`: PyTorch's operator can be captured into a CUDA graph. `written`: arguments that
    the function writes, in place of a result. `dropped`: the share of results that are 0 at random. `terms`: how many are added
    one after the other, where ours does so and PyTorch's does not."""

    function: str
    size: str
    sizes: Sizes
    checked: tuple[Sizes, ...]
    make: Callable[[Any, Sizes], dict[str, Any]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    moved: Callable[[Sizes], tuple[int, int]]
    gradients: tuple[str, ...] = ()
    products: Callable[[Sizes], tuple[float, float]] | None = None
    like_torch: bool = False
    compiles: bool = True
    captures: bool = True
    written: tuple[str, ...] = ()
    dropped: float = 0.0
    terms: Callable[[Sizes], int] | None = None

    @property
    def differentiable(self) -> bool:
        """Whether it has a backward."""
        return bool(self.gradients)

    def inputs(self, sizes: Sizes, seed: int) -> dict[str, Any]:
        """Random arguments; those with a gradient are leaves."""
        given = self.make(torch.Generator(device=DEVICE).manual_seed(seed), sizes)
        for name in self.gradients:
            given[name].requires_grad_()
        return given

    def bytes(self, sizes: Sizes, backward: bool) -> int:
        """Bytes that must be moved."""
        forward, more = self.moved(sizes)
        return forward + more * backward

    def floor_us(self, rate: float, peak: float, *, backward: bool) -> float:
        """Microseconds at `rate` bytes per second, or at `peak` TFLOP/s where products take longer."""
        floor = self.bytes(self.sizes, backward) / rate * 1e6
        if self.products is None:
            return floor
        forward, more = self.products(self.sizes)
        return max(floor, (forward + more * backward) / peak * 1e-6)

    def run(self, function: Callable[..., Any], given: Inputs, *, backward: bool) -> tuple[Any, ...]:
        """Results of a call, or, with `backward`, gradients for a gradient of the result that is the result's own shape of a
        fixed pattern."""
        if not backward:
            with torch.no_grad():
                found = function(**given)
            if self.written:
                return tuple(given[name] for name in self.written)
            return tuple(found) if isinstance(found, tuple) else (found,)  # pyright: ignore
        out = function(**given)
        return torch.autograd.grad(out, [given[name] for name in self.gradients], pattern(out.shape, out.dtype))

    def error(self, sizes: Sizes, *, backward: bool) -> float:
        """The largest difference from float64 in units of what is allowed; infinite for another shape."""
        given = self.inputs(sizes, 1)
        if self.dropped:
            return self._random_error(given, backward)
        exact = self.run(self.theirs, self._wide(given), backward=backward)
        rounded = self.run(self.theirs, self.copied(given), backward=backward) if self.like_torch else exact
        found = self.run(self.ours, self.copied(given), backward=backward)
        terms = self.terms(sizes) if self.terms is not None else 0
        sums = max(SUMS, SEQUENTIAL * math.sqrt(terms))
        return max(self._error(one, wide, near, backward, sums) for one, wide, near in zip(found, exact, rounded, strict=True))

    def _error(self, found: Any, exact: Any, rounded: Any, backward: bool, sums: float) -> float:
        if found.shape != exact.shape:
            return math.inf
        off = (found.double() - exact).abs()
        if not found.dtype.is_floating_point:
            return math.inf if bool(off.any()) else 0.0
        if self.like_torch:
            allowed: Any = 2 * (rounded.double() - exact).abs().max() + UNIT[found.dtype] * exact.abs()
        else:
            share = GRADIENTS[found.dtype] if backward else sums
            largest = exact.abs().amax(dim=-1, keepdim=True) if exact.ndim else exact.abs()
            allowed = UNIT[found.dtype] * exact.abs() + share * largest
        return float(torch.where(off == 0, 0.0, off / allowed).nan_to_num(nan=math.inf).max())

    def _random_error(self, given: Inputs, backward: bool) -> float:
        """As `error`, where some of the results are 0: those that are not, and how many are."""
        (found,) = self.run(self.ours, self.copied(given), backward=backward)
        value = pattern(found.shape, found.dtype) if backward else given["x"].detach()
        exact, kept = value.double() / (1 - self.dropped), found != 0
        off = ((found.double() - exact).abs() / (UNIT[found.dtype] * exact.abs()))[kept & (value != 0)]
        deviations = abs(float((~kept).double().mean()) - self.dropped) / math.sqrt(self.dropped / found.numel()) / 5
        return max(float(off.nan_to_num(nan=math.inf).max()) if off.numel() else 0.0, deviations)

    def _wide(self, given: Inputs) -> dict[str, Any]:
        return {name: _leaf(value, torch.float64 if _floats(value) else None) for name, value in given.items()}

    def copied(self, given: Inputs) -> dict[str, Any]:
        """The same arguments in memory of their own."""
        return {name: _leaf(value, None) for name, value in given.items()}


def _floats(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _leaf(value: Any, dtype: Any) -> Any:
    """A copy of a tensor, which has a gradient if it does."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().to(dtype or value.dtype).requires_grad_(value.requires_grad)


_patterns: dict[Any, Any] = {}


def pattern(shape: Any, dtype: Any) -> Any:
    """A gradient of a result: normal numbers that both dtypes hold, the same for each shape."""
    key = (tuple(shape), dtype)
    if key not in _patterns:
        generator = torch.Generator(device=DEVICE).manual_seed(7)
        drawn = torch.randn(tuple(shape), device=DEVICE, generator=generator).bfloat16()
        _patterns.clear()
        _patterns[key] = drawn.to(dtype)
    return _patterns[key]


def normal(generator: Any, *shape: int, dtype: Any = torch.bfloat16) -> Any:
    """Normal random numbers."""
    return torch.randn(*shape, device=DEVICE, generator=generator).to(dtype)
