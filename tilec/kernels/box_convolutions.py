"""Convolutions whose operands are boxes of pixels, copied by TMA for products by `wgmma` (sm_90).

A box has positions side by side along columns, and along samples or rows. What it takes of a plane lies side by side as well,
also with a stride D, if rows and columns are split by D: that is a view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.chips import of_architecture
from tilec.kernels.norms import MOST_SAMPLES, MULTIPROCESSORS, summed
from tilec.kernels.ops import CALLED, library_op, multiple
from tilec.kernels.pools import MOST
from tilec.kernels.shapes import is_aligned, whole

Box = tuple[int, int, int]
BOXES: Final[tuple[Box, ...]] = ((1, 16, 16), (32, 1, 8), (16, 1, 16), (1, 32, 8))
"""Samples, rows and columns of the positions that a block computes; of two that leave as many unused, the first is taken."""
DEPTH: Final = 64
"""Channels that a product takes at a time, and positions that one for the gradient of weights takes."""
SEVERAL: Final = 8
"""Samples of a box for the gradient of weights, or its rows if there are fewer samples; its columns in both cases."""
WEIGHTS: Final = 128
"""Output channels of a block that sums gradients of weights."""
MOST_STRIDE: Final = 3
"""The gradient of planes comes from slopes with zeros between them, which are multiplied in vain."""
SUMS: Final = {"ROWS": 64, "BLOCK": 64}
"""Positions and channels of a block that sums gradients of a bias."""
BLOCKS: Final = 264
"""Two for each multiprocessor of an H100 or H200: positions are divided into stripes until so many blocks have work."""


def _padded(count: Any, part: int) -> Any:
    return -(-count // part) * part


def _box(samples: Any, rows: Any, columns: Any) -> Box:
    def computed(box: Box) -> Any:
        return _padded(samples, box[0]) * _padded(rows, box[1]) * _padded(columns, box[2])

    return min(BOXES, key=computed)


def _tile(known: Mapping[str, Any]) -> dict[str, int]:
    """128 channels, or 64 if there are no more, or if blocks of them find more multiprocessors."""
    sides = known["B"], known["HO"], known["WO"]
    box, outputs = _box(*sides), known["O"]
    tiles = _padded(outputs, 128) // 128
    for extent, part in zip(sides, box, strict=True):
        tiles *= _padded(extent, part) // part
    narrow = outputs <= 64 or 2 * tiles <= MULTIPROCESSORS
    return {"BB": box[0], "BH": box[1], "BW": box[2], "BN": 64 if narrow else 128, "BK": DEPTH}


def _outputs(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"HO": known["rows"], "WO": known["columns"]}


def _small_box(samples: Any) -> Box:
    return (SEVERAL, 1, SEVERAL) if samples % SEVERAL == 0 or samples > 8 * SEVERAL else (1, SEVERAL, SEVERAL)


def _small_tile(samples: Any) -> dict[str, int]:
    return dict(zip(("BB", "BH", "BW"), _small_box(samples), strict=True))


def _boxes(samples: Any, rows: Any, columns: Any) -> tuple[Any, Any, Any]:
    """How many there are along columns, along samples or rows, and of the other of these."""
    many, single = (samples, rows) if _small_box(samples)[0] > 1 else (rows, samples)
    return -(-columns // SEVERAL), -(-many // SEVERAL), single


def _positions(known: Mapping[str, Any]) -> dict[str, Any]:
    across, down, single = _boxes(known["B"], known["HO"], known["WO"])
    return {"T": across * down * single * DEPTH}


def _width(channels: Any, stride: Any) -> int:
    """Input channels of a block that sums gradients of weights: a divisor of all if the plane is split. Of those that leave as
    many unused the widest is best; it may leave a tenth more than the half of it."""
    fit = [width for width in (256, 128, 64) if stride == 1 or channels % width == 0]
    return min(fit, key=lambda width: _padded(channels, width) * {256: 10, 128: 11, 64: 14}[width])


def _weight_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {**_small_tile(known["B"]), "BM": WEIGHTS, "BN": _width(known["channels"], known["D"])}


def _weight_stripes(known: Mapping[str, Any]) -> dict[str, Any]:
    """Stripes for which multiprocessors wait least for the last blocks; up to one block for each, or else four stripes."""
    width, taps = _width(known["channels"], known["D"]), known["height"] * known["width"]
    blocks = -(-known["O"] // WEIGHTS) * -(-known["channels"] // width) * taps
    most = max(1, min(known["T"] // DEPTH, max(4, MULTIPROCESSORS // blocks)))
    stripes = min(range(1, most + 1), key=lambda count: -(-blocks * count // MULTIPROCESSORS) / count)
    return {"R": known["height"], "S": known["width"], "C": known["channels"], "P": stripes}


def _split(planes: Any, stride: int) -> Any:
    """`[B, H, D, W, D * C]` of planes `[B, H, W, C]`, whose sides are padded to multiples of the stride."""
    samples, height, width, channels = planes.shape
    if stride > 1 and (height % stride or width % stride):
        padded = planes.new_zeros((samples, _padded(height, stride), _padded(width, stride), channels))
        padded[:, :height, :width] = planes
        planes = padded
    return planes.reshape(samples, -(-height // stride), stride, -(-width // stride), stride * channels)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, *ctx.numbers = inputs
    ctx.save_for_backward(x, weight, bias)


def _spread(slopes: Any, stride: int) -> Any:
    """Slopes at the pixels where filters begin, and zeros between them."""
    if stride == 1:
        return slopes
    samples, rows, columns, channels = slopes.shape
    spread = slopes.new_zeros((samples, (rows - 1) * stride + 1, (columns - 1) * stride + 1, channels))
    spread[:, ::stride, ::stride] = slopes
    return spread


def _gradient(ctx: Any, dout: Any) -> tuple[Any, ...]:
    x, weight, bias = ctx.saved_tensors
    rows, columns, _, offset = ctx.numbers
    samples, stride, (outputs, height, width, channels) = x.shape[0], x.shape[2], weight.shape
    slopes = pixels(dout)
    dx = dweight = dbias = None
    if ctx.needs_input_grad[0]:
        turned, nothing = whole(weight.permute(3, 1, 2, 0)), weight.new_zeros((channels,))
        spread = _split(_spread(slopes, stride), 1)
        dx = conv2d_boxes()(spread, turned, nothing, x.shape[1] * stride, x.shape[3] * stride, -1, -offset).reshape(x.shape)
    if ctx.needs_input_grad[1]:
        across, down, _ = _boxes(samples, rows, columns)
        partial = _weights()(_slopes()(slopes), x, height, width, channels, across, down, -offset)
        dweight = summed(partial, weight)
    if ctx.needs_input_grad[2]:
        dbias = summed(column_sums()(slopes.reshape(-1, outputs)), bias)
    return dx, dweight, dbias, *(None for _ in ctx.numbers)


def _sum_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {**SUMS, "MULTIPLE": multiple(known["N"])}


def stripes(tiles: Any, blocks: Any) -> Any:
    """As many as there are tiles, and no more than keep all multiprocessors busy."""
    return max(1, min(tiles, BLOCKS // blocks))


def _sum_stripes(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"P": stripes(-(-known["T"] // SUMS["ROWS"]), -(-known["N"] // SUMS["BLOCK"]))}


def _turn_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"BM": 64, "BN": 128, "MULTIPLE": min(multiple(known["C"]), multiple(known["N"]))}


def _turned_back(ctx: Any, dout: Any) -> Any:
    return dout.permute(0, 2, 1)


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """The gradient of a permutation needs nothing."""


def pixels(x: Any) -> Any:
    """A view `[B, H, W, C]` of planes in bf16 or f16, without gaps: itself if possible, else a copy. A kernel copies planes
    whose channels lie one after the other, since a copy by PyTorch reads their elements one by one."""
    planes = x.permute(0, 3, 1, 2)
    if x.is_contiguous() or not planes.is_contiguous() or not is_aligned(x) or x.shape[0] > MOST_SAMPLES:
        return whole(x)
    samples, channels, height, width = planes.shape
    return _channels_last()(planes.reshape(samples, channels, height * width)).reshape(x.shape)


conv2d_boxes = library_op("conv2d_boxes", _tile, dims=_outputs, gradient=(_gradient, _keep))
_slopes = library_op("conv2d_slopes", lambda known: {**_small_tile(known["B"]), "BM": 64}, dims=_positions)
_weights = library_op("conv2d_weights_boxes", _weight_tile, dims=_weight_stripes)
_channels_last = library_op("channels_last", _turn_tile, gradient=(_turned_back, _keep_nothing))
column_sums = library_op("column_sums", _sum_tile, dims=_sum_stripes)


def _are_prebuilt() -> bool:
    return of_architecture(True, {"sm_10": False, "sm_12": False})


setattr(_are_prebuilt, CALLED, True)


def serves(x: Any, weight: Any, stride: int) -> bool:
    """Whether boxes serve planes `[B, C, H, W]` and filters of sizes that `conv2d` takes."""
    outputs, channels = weight.shape[:2]
    whole_vectors = channels % 8 == 0 and outputs % 8 == 0 and (stride == 1 or channels % DEPTH == 0)
    return whole_vectors and stride <= MOST_STRIDE and max(x.shape[0], outputs, channels) <= MOST and _are_prebuilt()


def convolved(planes: Any, filters: Any, bias: Any, rows: Any, columns: Any, stride: int, padding: int) -> Any:
    """`[B, rows, columns, O]` of planes `[B, H, W, C]` and filters `[O, R, S, C]`, both without gaps."""
    return conv2d_boxes()(_split(planes, stride), filters, bias, rows, columns, 1, -padding)
