"""Problems of the functions of `tilec.kernels` that move data, for checking and timing them."""

from __future__ import annotations

from typing import Any, Final

from ci.bench.kernels.library_problem import (  # torch first, so that ops are PyTorch's
    DEVICE,
    Problem,
    Sizes,
    functional,
    normal,
    torch,
)
from tilec import kernels


def _sorted(x: Any, descending: bool = True) -> Any:
    return torch.sort(x, dim=-1, stable=True, descending=descending)[0]


def _topk(x: Any, k: int) -> Any:
    return torch.topk(x, k, dim=-1)[0]


def _distinct(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Rows of different numbers, which all have f32: where they go is the same in every sort."""
    noise = torch.rand(sizes["T"], sizes["N"], device=DEVICE, generator=generator)
    return {"x": (torch.argsort(noise, dim=-1) - sizes["N"] // 2).float()}


def _largest(generator: Any, sizes: Sizes) -> dict[str, Any]:
    return _distinct(generator, sizes) | {"k": sizes["K"]}


def _sorts() -> list[Problem]:
    """Sorts and the largest elements."""

    def ours(x: Any, descending: bool = True) -> Any:
        return kernels.sort(x, descending)[0]

    def largest(x: Any, k: int) -> Any:
        return kernels.topk(x, k)[0]

    rows = [{"T": (1 << 26) // length, "N": length} for length in (1024, 1 << 20)]
    found = [{"T": 65536, "N": 128, "K": 8}, {"T": 64, "N": 151936, "K": 50}]
    odd = ({"T": 5, "N": 77}, {"T": 3, "N": 1000}, {"T": 1, "N": 5003})
    some = ({"T": 5, "N": 77, "K": 9}, {"T": 3, "N": 1000, "K": 1000}, {"T": 1, "N": 9001, "K": 50})
    return [
        *(Problem("sort", f"{size['T']} x {size['N']}", size, (*odd, size), _distinct, ours, _sorted,
                  lambda sizes: (12 * sizes["T"] * sizes["N"], 12 * sizes["T"] * sizes["N"]), ("x",)) for size in rows),
        *(Problem("topk", f"{size['K']} of {size['T']} x {size['N']}", size, (*some, size), _largest, largest, _topk,
                  lambda sizes: (4 * sizes["T"] * sizes["N"], 4 * sizes["T"] * sizes["N"]), ("x",)) for size in found),
    ]  # fmt: skip


def _routed(generator: Any, sizes: Sizes) -> dict[str, Any]:
    return {"logits": normal(generator, sizes["T"], sizes["X"], dtype=torch.float32), "k": sizes["K"]}


def _route(logits: Any, k: int) -> Any:
    weights = torch.topk(torch.softmax(logits, dim=-1), k, dim=-1)[0]
    return weights / weights.sum(dim=-1, keepdim=True)


def _chosen(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """The experts of tokens, without those of a token being distinct."""
    choices = torch.randint(0, sizes["X"], (sizes["T"], sizes["K"]), device=DEVICE, generator=generator)
    return {"choices": choices.int(), "experts": sizes["X"]}


def _order(choices: Any) -> Any:
    return torch.argsort(choices.reshape(-1), stable=True)


def _slots(choices: Any, experts: int) -> Any:
    return torch.argsort(_order(choices)).reshape(choices.shape).float()


def _for_experts(generator: Any, sizes: Sizes) -> dict[str, Any]:
    return {"x": normal(generator, sizes["T"], sizes["H"]), **_chosen(generator, sizes)}


def _permuted(x: Any, choices: Any, experts: int) -> Any:
    return x[_order(choices) // choices.shape[1]]


def _of_experts(generator: Any, sizes: Sizes) -> dict[str, Any]:
    weights = torch.softmax(normal(generator, sizes["T"], sizes["K"], dtype=torch.float32), dim=-1)
    y = normal(generator, sizes["T"] * sizes["K"], sizes["H"])
    return {"y": y, "weights": weights, **_chosen(generator, sizes)}


def _combined(y: Any, weights: Any, choices: Any, experts: int) -> Any:
    """PyTorch's sum in the dtype of `weights`, rounded once."""
    rows = y[_slots(choices, experts).long()].to(weights.dtype)
    return (rows * weights[..., None]).sum(dim=1).to(y.dtype)


def _experts() -> list[Problem]:
    """Mixtures of experts."""

    def route(logits: Any, k: int) -> Any:
        return kernels.moe_route(logits, k)[0]

    def slots(choices: Any, experts: int) -> Any:
        return kernels.sort_by_expert(choices, experts)[1].float()

    def permuted(x: Any, choices: Any, experts: int) -> Any:
        return kernels.moe_permute(x, *kernels.sort_by_expert(choices, experts)[:2])

    def combined(y: Any, weights: Any, choices: Any, experts: int) -> Any:
        return kernels.moe_combine(y, weights, *kernels.sort_by_expert(choices, experts)[:2])

    def rows(sizes: Sizes, tokens: int, choices: int) -> int:
        return 2 * sizes["T"] * sizes["H"] * (tokens + choices * sizes["K"])

    routed = {"T": 65536, "X": 128, "K": 8}
    moved = {"T": 16384, "K": 8, "X": 128, "H": 2048}
    odd = ({"T": 5, "X": 77, "K": 7}, {"T": 33, "X": 16, "K": 2})
    some = ({"T": 19, "K": 3, "X": 7, "H": 77}, {"T": 33, "K": 2, "X": 70, "H": 1032})
    return [
        Problem("moe_route", "8 of 128 experts, 65,536 tokens", routed, (*odd, routed), _routed, route, _route,
                lambda sizes: (4 * sizes["T"] * (sizes["X"] + 2 * sizes["K"]), 4 * sizes["T"] * 2 * (sizes["X"] + sizes["K"])),
                ("logits",)),
        Problem("sort_by_expert", "8 of 128 experts, 65,536 tokens", routed, (*odd, routed), _chosen, slots, _slots,
                lambda sizes: (12 * sizes["T"] * sizes["K"], 0)),
        Problem("moe_permute", "16,384 tokens of 2048, 8 of 128 experts", moved, (*some, moved), _for_experts, permuted,
                _permuted, lambda sizes: (rows(sizes, 1, 1), rows(sizes, 1, 1)), ("x",)),
        Problem("moe_combine", "16,384 tokens of 2048, 8 of 128 experts", moved, (*some, moved), _of_experts, combined,
                _combined, lambda sizes: (rows(sizes, 1, 1), rows(sizes, 2, 2)), ("y", "weights")),
    ]  # fmt: skip


def _rows(generator: Any, sizes: Sizes) -> dict[str, Any]:
    return {"x": normal(generator, sizes["T"], sizes["N"], dtype=torch.float32)}


def _cumsum(x: Any) -> Any:
    return torch.cumsum(x, dim=-1)


def _numbers(generator: Any, sizes: Sizes) -> dict[str, Any]:
    x = torch.randint(0, sizes["BINS"], (sizes["N"],), device=DEVICE, generator=generator)
    return {"x": x.int(), "bins": sizes["BINS"]}


def _bincount(x: Any, bins: int) -> Any:
    return torch.bincount(x, minlength=bins).float()


def _elements(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Multiples of an eighth in bins of an eighth, of which every dtype computes the same bins."""
    x = torch.randint(0, 8, (sizes["N"],), device=DEVICE, generator=generator) / 8
    return {"x": x.bfloat16() * (sizes["BINS"] // 8), "bins": sizes["BINS"], "low": 0.0, "high": sizes["BINS"] / 8}


def _histogram(x: Any, bins: int, low: float, high: float) -> Any:
    return torch.histc(x.float(), bins, low, high)


def _scans() -> list[Problem]:
    """Sums up to each element, and counts."""

    def bincount(x: Any, bins: int) -> Any:
        return kernels.bincount(x, bins).float()

    def histogram(x: Any, bins: int, low: float, high: float) -> Any:
        return kernels.histogram(x, bins, low, high).float()

    summed = [{"T": (1 << 26) // length, "N": length} for length in (1024, 1 << 20)]
    odd = ({"T": 5, "N": 77}, {"T": 3, "N": 4099}, {"T": 2, "N": 16385})
    counted = [{"N": 1 << 26, "BINS": bins} for bins in (64, 1 << 16)]
    some = ({"N": 7001, "BINS": 33}, {"N": 600, "BINS": 1000})
    binned = {"N": 1 << 26, "BINS": 256}
    return [
        *(Problem("cumsum", f"{size['T']} x {size['N']}", size, (*odd, size), _rows, kernels.cumsum, _cumsum,
                  lambda sizes: (8 * sizes["T"] * sizes["N"], 8 * sizes["T"] * sizes["N"]), ("x",)) for size in summed),
        *(Problem("bincount", f"64 Mi of {size['BINS']}", size, (*some, size), _numbers, bincount, _bincount,
                  lambda sizes: (4 * sizes["N"], 0), compiles=False, captures=False) for size in counted),
        Problem("histogram", "64 Mi of bf16 in 256 bins", binned, ({"N": 7001, "BINS": 32}, {"N": 1300, "BINS": 512}, binned),
                _elements, histogram, _histogram, lambda sizes: (2 * sizes["N"], 0), compiles=False),
    ]  # fmt: skip


def _looked_up(generator: Any, sizes: Sizes) -> dict[str, Any]:
    ids = torch.randint(0, sizes["V"], (sizes["T"],), device=DEVICE, generator=generator)
    return {"ids": ids, "table": normal(generator, sizes["V"], sizes["H"])}


def _embedding(ids: Any, table: Any) -> Any:
    return functional.embedding(ids, table)


def _bagged(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Bags of any length, some of which are empty."""
    offsets = torch.randint(0, sizes["T"], (sizes["B"],), device=DEVICE, generator=generator).sort()[0]
    offsets[0] = 0
    return {**_looked_up(generator, sizes), "offsets": offsets}


def _embedding_bag(ids: Any, table: Any, offsets: Any) -> Any:
    return functional.embedding_bag(ids, table, offsets)


def _tables() -> list[Problem]:
    """Rows of tables."""
    taken = {"T": 65536, "V": 151936, "H": 1024}
    bags = {"T": 1 << 20, "V": 1 << 20, "H": 128, "B": 1 << 15}
    some = ({"T": 19, "V": 7, "H": 77}, {"T": 33, "V": 70, "H": 136})
    bagged = ({"T": 19, "V": 7, "H": 77, "B": 5}, {"T": 33, "V": 9, "H": 136, "B": 9})

    def rows(sizes: Sizes) -> tuple[int, int]:
        return 4 * sizes["T"] * sizes["H"], 2 * (sizes["T"] + sizes["V"]) * sizes["H"]

    def sums(sizes: Sizes) -> tuple[int, int]:
        return 2 * (sizes["T"] + sizes["B"]) * sizes["H"], 2 * (sizes["T"] + sizes["V"]) * sizes["H"]

    return [
        Problem("embedding", "65,536 of 151,936 rows of 1024", taken, (*some, taken), _looked_up, kernels.embedding, _embedding,
                rows, ("table",)),
        Problem("embedding_bag", "1 Mi of 1 Mi rows of 128, 32,768 bags", bags, (*bagged, bags), _bagged, kernels.embedding_bag,
                _embedding_bag, sums, ("table",), compiles=False),
    ]  # fmt: skip


def _convolved(generator: Any, sizes: Sizes) -> dict[str, Any]:
    x = normal(generator, sizes["B"], sizes["T"], sizes["D"])
    return {"x": x, "weight": 0.5 * normal(generator, sizes["D"], 4), "bias": normal(generator, sizes["D"])}


def _causal_conv1d(x: Any, weight: Any, bias: Any) -> Any:
    padded = functional.pad(x.transpose(1, 2), (3, 0))
    return functional.silu(functional.conv1d(padded, weight[:, None], bias, groups=x.shape[2]).transpose(1, 2))


def _scanned(generator: Any, sizes: Sizes) -> dict[str, Any]:
    batch, length, channels, states = (sizes[name] for name in "BTDN")
    a = -torch.exp(0.5 * normal(generator, channels, states, dtype=torch.float32))
    delta = functional.softplus(normal(generator, batch, length, channels) - 1)
    b, c = (normal(generator, batch, length, states) for _ in range(2))
    skip = normal(generator, channels, dtype=torch.float32)
    return {"u": normal(generator, batch, length, channels), "delta": delta, "a": a, "b": b, "c": c, "skip": skip}


def _selective_scan(u: Any, delta: Any, a: Any, b: Any, c: Any, skip: Any) -> Any:
    """A token at a time, in the dtype of `a`."""
    x, time, inputs, outputs = (one.to(a.dtype) for one in (u, delta, b, c))
    state, found = x.new_zeros((*x.shape[::2], a.shape[1])), list[Any]()
    for t in range(x.shape[1]):
        added = (time[:, t] * x[:, t])[..., None] * inputs[:, t, None]
        state = torch.exp(time[:, t, :, None] * a) * state + added
        found.append((state * outputs[:, t, None]).sum(dim=-1) + skip * x[:, t])
    return torch.stack(found, dim=1).to(u.dtype)


def _sequences() -> list[Problem]:
    """Functions along the tokens of sequences."""
    convolved = {"B": 8, "T": 4096, "D": 4096}
    scanned = {"B": 8, "T": 1024, "D": 2048, "N": 16}
    some = ({"B": 2, "T": 37, "D": 67}, {"B": 1, "T": 64, "D": 72})
    few = ({"B": 2, "T": 19, "D": 21, "N": 11}, {"B": 1, "T": 24, "D": 16, "N": 16})

    def tokens(sizes: Sizes, share: int) -> int:
        return 2 * share * sizes["B"] * sizes["T"] * sizes["D"]

    return [
        Problem("causal_conv1d", "8 x 4096 tokens, 4096 channels, SiLU", convolved, (*some, convolved), _convolved,
                kernels.causal_conv1d, _causal_conv1d, lambda sizes: (tokens(sizes, 2), tokens(sizes, 3)),
                ("x", "weight", "bias")),
        Problem("selective_scan", "8 x 1024 tokens, 2048 channels of 16", scanned, (*few, scanned), _scanned,
                kernels.selective_scan, _selective_scan, lambda sizes: (tokens(sizes, 3), tokens(sizes, 5)),
                ("u", "delta", "a", "b", "c", "skip"), compiles=False),
    ]  # fmt: skip


def _planes(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Planes of which each has different numbers, so that only one is the largest of a window."""
    noise = torch.rand(sizes["M"], sizes["H"] * sizes["W"], device=DEVICE, generator=generator)
    x = torch.argsort(noise, dim=-1).float().reshape(sizes["M"], sizes["H"], sizes["W"])
    return {"x": x, "window": sizes["K"], "stride": sizes["S"], "padding": sizes["P"]}


def _max_pool2d(x: Any, window: int, stride: int, padding: int) -> Any:
    return functional.max_pool2d(x, window, stride, padding)


def _avg_pool2d(x: Any, window: int, stride: int, padding: int) -> Any:
    return functional.avg_pool2d(x, window, stride, padding)


def _pairs(generator: Any, sizes: Sizes) -> dict[str, Any]:
    return {"x": normal(generator, sizes["T"], 2 * sizes["N"], dtype=torch.float32)}


def _fft(x: Any) -> Any:
    """Of rows of real and imaginary parts in turn, so that errors are compared with the largest value of a row."""
    return torch.view_as_real(torch.fft.fft(torch.view_as_complex(x.unflatten(-1, (-1, 2))))).flatten(-2)


def _our_fft(x: Any) -> Any:
    return kernels.fft(x.unflatten(-1, (-1, 2))).flatten(-2)


def _of_planes() -> list[Problem]:
    """Pools and transforms."""
    pooled = {"M": 8192, "H": 112, "W": 112, "K": 3, "S": 2, "P": 1}
    some = ({"M": 3, "H": 19, "W": 37, "K": 3, "S": 2, "P": 1}, {"M": 2, "H": 16, "W": 40, "K": 2, "S": 2, "P": 0})
    transformed = [{"T": (1 << 25) // length, "N": length} for length in (256, 4096)]

    def plane(sizes: Sizes) -> tuple[int, int]:
        size = 4 * sizes["M"] * sizes["H"] * sizes["W"]
        return size + size // sizes["S"] ** 2, size + size // sizes["S"] ** 2

    return [
        *(Problem(name, "8192 planes of 112 x 112, 3 x 3 by 2", pooled, (*some, pooled), _planes, ours, theirs, plane, ("x",))
          for name, ours, theirs in (("max_pool2d", kernels.max_pool2d, _max_pool2d),
                                     ("avg_pool2d", kernels.avg_pool2d, _avg_pool2d))),
        *(Problem("fft", f"{size['T']} x {size['N']}", size, ({"T": 5, "N": 64}, {"T": 1, "N": 2048}, size), _pairs,
        _our_fft, _fft, lambda sizes: (16 * sizes["T"] * sizes["N"], 16 * sizes["T"] * sizes["N"]), ("x",), compiles=False)
        for size in transformed), ]  # fmt: skip


def _filtered(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Planes whose channels are the last axis in memory, and weights."""
    planes = normal(generator, sizes["B"], sizes["H"], sizes["H"], sizes["C"])
    filters = normal(generator, sizes["O"], sizes["R"], sizes["R"], sizes["C"])
    x, weight = (one.permute(0, 3, 1, 2) for one in (planes, filters * (sizes["R"] ** 2 * sizes["C"]) ** -0.5))
    return {"x": x, "weight": weight, "bias": normal(generator, sizes["O"]), "stride": sizes["S"], "padding": sizes["P"]}


def _conv2d(x: Any, weight: Any, bias: Any, stride: int, padding: int) -> Any:
    return functional.conv2d(x, weight, bias, stride, padding)


def _convolutions() -> list[Problem]:
    """Convolutions of planes."""
    wide = {"B": 64, "C": 256, "H": 56, "O": 256, "R": 3, "S": 1, "P": 1}
    some = ({"B": 2, "C": 5, "H": 9, "O": 7, "R": 3, "S": 2, "P": 1}, {"B": 1, "C": 16, "H": 6, "O": 8, "R": 2, "S": 1, "P": 0})

    def side(sizes: Sizes) -> int:
        return (sizes["H"] + 2 * sizes["P"] - sizes["R"]) // sizes["S"] + 1

    def moved(sizes: Sizes) -> tuple[int, int]:
        planes = 2 * sizes["B"] * (sizes["H"] ** 2 * sizes["C"] + side(sizes) ** 2 * sizes["O"])
        return planes, 2 * planes

    def products(sizes: Sizes) -> tuple[float, float]:
        each = 2.0 * sizes["B"] * side(sizes) ** 2 * sizes["O"] * sizes["C"] * sizes["R"] ** 2
        return each, 2 * each

    return [
        Problem("conv2d", "64 x 256 x 56 x 56, 256 of 3 x 3", wide, (*some, wide), _filtered, kernels.conv2d, _conv2d, moved,
                ("x", "weight", "bias"), products, like_torch=True),
    ]  # fmt: skip


MOVES: Final = (
    *_sorts(), *_experts(), *_scans(), *_tables(), *_sequences(), *_of_planes(), *_convolutions(),
)  # fmt: skip
