"""Problems for checking and timing the examples on a GPU: sizes, random inputs, and allowed errors against float64.

A result is computed in f32 and rounded once to its dtype. So its error may be `UNIT` of itself (twice a rounding), plus `SUMS`
of the sum of the absolute values of its terms: an upper bound for 64 roundings of an f32 sum. Kernels that only move data must
be exact.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

torch: Any = importlib.import_module("torch")

UNIT: Final = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-22}
SUMS: Final = 2.0**-18
Inputs = Mapping[str, Any]
Sizes = dict[str, int]


@dataclass(frozen=True)
class Checked:
    """The largest difference in units of the allowed one, and an error message, if any."""

    error: float
    wrong: str = ""


@dataclass(frozen=True)
class Problem:
    """A kernel at a size. `make` generates its inputs; `exact` computes in float64 its outputs and the sums of absolute terms
    (None if data is only moved); `bytes` is the minimum traffic. `mix` is the torch operator with the most similar mix of reads
    and writes, "copy" or (for almost no writes) "sum"; "" if the kernel is not memory-bound. `changed` are the inputs that a
    kernel changes, which are its results."""

    kernel: str
    size: str
    sizes: Sizes
    odd: Sizes
    make: Callable[[Any, Sizes], dict[str, Any]]
    exact: Callable[[Inputs], list[tuple[Any, Any]]]
    bytes: Callable[[Sizes], int]
    mix: str = "copy"
    vouched: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    element: str = "bf16"

    @property
    def memory_bound(self) -> bool:
        """Whether memory bandwidth bounds the kernel."""
        return bool(self.mix)

    def inputs(self, sizes: Sizes, seed: int) -> dict[str, Any]:
        """Random tensors and numbers by the kernel's parameter names."""
        generator = torch.Generator(device="cuda").manual_seed(seed)
        return self.make(generator, sizes)

    def results(self, call: Callable[..., Any], inputs: Inputs) -> tuple[Any, ...]:
        """What a call returns and changes; `inputs` stay as they are."""
        changed = {name: inputs[name].clone() for name in self.changed}
        found = call(**{**inputs, **changed})
        returned: list[Any] = [*found] if type(found) is tuple else [] if found is None else [found]
        return *returned, *changed.values()


def checked(problem: Problem, inputs: Inputs, results: tuple[Any, ...]) -> Checked:
    """Compare the results of a call with float64."""
    if problem.kernel == "top_k":
        return _checked_top_k(inputs, *results)
    worst = 0.0
    for index, (result, (exact, terms)) in enumerate(zip(results, problem.exact(inputs), strict=True)):
        if result.shape != exact.shape:
            return Checked(0.0, f"result {index} has shape {tuple(result.shape)}, not {tuple(exact.shape)}")
        if terms is None:
            if not torch.equal(result, exact):
                return Checked(0.0, f"result {index} is not what was moved")
            continue
        allowed = UNIT[result.dtype] * exact.abs() + SUMS * terms
        off = (result.double() - exact).abs()
        error = float(torch.where(off == 0, 0.0, off / allowed).nan_to_num(nan=float("inf")).max())
        worst = max(worst, error)
    return Checked(worst, f"a result is off by {worst:.3g} of what is allowed" if worst > 1 else "")


def _checked_top_k(inputs: Inputs, best: Any, index: Any) -> Checked:
    """Check values exactly; among equal values any columns are allowed, each once."""
    wanted = torch.topk(inputs["x"], best.shape[1], dim=1).values
    columns = index.long().sort(dim=1).values
    same = torch.equal(best, wanted) and torch.equal(inputs["x"].gather(1, index.long()), best)
    return Checked(0.0, "" if same and bool((columns[:, 1:] > columns[:, :-1]).all()) else "these are not the largest")


def normal(generator: Any, *shape: int, dtype: Any = torch.bfloat16) -> Any:
    """Normal random numbers."""
    return torch.randn(*shape, device="cuda", dtype=torch.float32, generator=generator).to(dtype)


def integers(generator: Any, low: int, high: int, *shape: int, dtype: Any = torch.int32) -> Any:
    """Integers in `low <= n < high`."""
    return torch.randint(low, high, shape, device="cuda", dtype=dtype, generator=generator)


def _softmax(given: Inputs) -> list[tuple[Any, Any]]:
    exact = torch.softmax(given["x"].double(), dim=1)
    return [(exact, exact)]


def _layer_norm(given: Inputs) -> list[tuple[Any, Any]]:
    x, weight, bias = (given[name].double() for name in ("x", "weight", "bias"))
    scaled = torch.nn.functional.layer_norm(x, (x.shape[1],), None, None, given["eps"]) * weight
    return [(scaled + bias, scaled.abs() + bias.abs())]


def _cross_entropy(given: Inputs) -> list[tuple[Any, Any]]:
    logits, labels = given["logits"], given["labels"].long()
    total = torch.stack([torch.logsumexp(row.double(), 0) for row in logits])
    chosen = logits.gather(1, labels.clamp(min=0)[:, None])[:, 0].double()
    return [(torch.where(labels >= 0, total - chosen, 0.0), total.abs() + chosen.abs())]


def _labels(generator: Any, sizes: Sizes) -> dict[str, Any]:
    logits = 3 * normal(generator, sizes["T"], sizes["V"])
    return {"logits": logits, "labels": integers(generator, -1, sizes["V"], sizes["T"])}


def _conv(given: Inputs) -> list[tuple[Any, Any]]:
    x, weight, bias = (given[name].double() for name in ("x", "weight", "bias"))
    taps, tokens = weight.shape[0], x.shape[1]
    padded = torch.nn.functional.pad(x, (0, 0, taps - 1, 0))
    terms = [weight[k] * padded[:, k : k + tokens] for k in range(taps)]
    total = bias + sum(terms)
    magnitude = bias.abs() + sum(term.abs() for term in terms)
    return [(total * torch.sigmoid(total), magnitude)]


def _int8(given: Inputs) -> list[tuple[Any, Any]]:
    scales = given["a_scale"].double()[:, None] * given["b_scale"].double()
    return [((given["a"].double() @ given["b"].double().T) * scales, torch.zeros((), device="cuda", dtype=torch.float64))]


def _f8(given: Inputs) -> list[tuple[Any, Any]]:
    depth, columns = given["a"].shape[1], given["b"].shape[0]
    rows = given["a_scale"].double().repeat_interleave(128, 1)[:, :depth]
    blocks = given["b_scale"].double().repeat_interleave(128, 0).repeat_interleave(128, 1)[:columns, :depth]
    a, b = given["a"].double() * rows, (given["b"].double() * blocks).T
    return [(a @ b, a.abs() @ b.abs())]


def _batched(given: Inputs) -> list[tuple[Any, Any]]:
    x, y = given["x"].double(), given["y"].double().transpose(1, 2)
    return [(x @ y, x.abs() @ y.abs())]


def _rows(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Rows of 0 to twice `mean` elements."""
    counts = integers(generator, 0, 2 * sizes["mean"] + 1, sizes["R"])
    starts = torch.zeros(sizes["R"] + 1, device="cuda", dtype=torch.int32)
    starts[1:] = counts.cumsum(0)
    return {"x": normal(generator, int(starts[-1]), dtype=torch.float32), "starts": starts}


def _row_sums(given: Inputs) -> list[tuple[Any, Any]]:
    x, starts = given["x"].double(), given["starts"].long()

    def sums(of: Any) -> Any:
        before = torch.cat([torch.zeros(1, device="cuda", dtype=torch.float64), of.cumsum(0)])
        return before[starts[1:]] - before[starts[:-1]]

    return [(sums(x), sums(x.abs()) + 1e-9)]


def _order(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Choices of experts, sorted by expert."""
    tokens, experts = sizes["T"], 128
    scores = torch.rand(tokens, experts, device="cuda", generator=generator)
    chosen = scores.topk(sizes["K"], dim=1).indices.reshape(-1)
    return {"x": normal(generator, tokens, sizes["H"]), "order": chosen.argsort(stable=True).int()}


def _silu_mul(given: Inputs) -> list[tuple[Any, Any]]:
    gate, up = given["gate"].double(), given["up"].double()
    exact = gate * torch.sigmoid(gate) * up
    return [(exact, exact.abs())]


def _slots(generator: Any, sizes: Sizes) -> dict[str, Any]:
    """Rows for slots in random order."""
    rows = {name: normal(generator, sizes["T"], sizes["HKV"], sizes["D"]) for name in ("k", "v")}
    caches = {f"{name}_cache": normal(generator, sizes["S"], sizes["HKV"], sizes["D"]) for name in ("k", "v")}
    slots = torch.randperm(sizes["S"], device="cuda", generator=generator)[: sizes["T"]].int()
    return {**rows, "slots": slots, **caches}


def _updated(given: Inputs) -> list[tuple[Any, Any]]:
    return [(given[f"{name}_cache"].index_copy(0, given["slots"].long(), given[name]), None) for name in ("k", "v")]


def _merged(given: Inputs) -> list[tuple[Any, Any]]:
    parts = given["parts"].double()
    return [(parts.sum(dim=0), parts.abs().sum(dim=0))]


PROBLEMS: Final = (
    Problem("softmax", "16384 rows of 4096", {"T": 16384, "N": 4096}, {"T": 37, "N": 1000},
            lambda g, s: {"x": 3 * normal(g, s["T"], s["N"])}, _softmax, lambda s: 4 * s["T"] * s["N"]),
    Problem("online_softmax", "8192 rows of 16384", {"T": 8192, "N": 16384}, {"T": 5, "N": 40008},
            lambda g, s: {"x": 3 * normal(g, s["T"], s["N"])}, _softmax, lambda s: 4 * s["T"] * s["N"]),
    Problem("layer_norm", "16384 rows of 4096", {"T": 16384, "H": 4096}, {"T": 37, "H": 1000},
            lambda g, s: {"x": normal(g, s["T"], s["H"]), "weight": normal(g, s["H"]), "bias": normal(g, s["H"]), "eps": 1e-5},
            _layer_norm, lambda s: 4 * s["T"] * s["H"]),
    Problem("cross_entropy", "8192 tokens of 151936", {"T": 8192, "V": 151936}, {"T": 13, "V": 50264}, _labels, _cross_entropy,
            lambda s: 2 * s["T"] * s["V"], mix="sum", vouched=("labels",)),
    Problem("transpose", "8192 by 12288", {"M": 8192, "N": 12288}, {"M": 1000, "N": 136},
            lambda g, s: {"x": normal(g, s["M"], s["N"])}, lambda given: [(given["x"].T, None)],
            lambda s: 4 * s["M"] * s["N"]),
    Problem("causal_conv1d", "8 sequences of 4096, 4096 channels", {"B": 8, "T": 4096, "D": 4096, "W": 4},
            {"B": 3, "T": 333, "D": 1000, "W": 4},
            lambda g, s: {"x": normal(g, s["B"], s["T"], s["D"]), "weight": normal(g, s["W"], s["D"]),
                          "bias": normal(g, s["D"])},
            _conv, lambda s: 4 * s["B"] * s["T"] * s["D"]),
    Problem("int8_product", "4096 by 4096 by 4096", {"M": 4096, "N": 4096, "K": 4096}, {"M": 200, "N": 136, "K": 208},
            lambda g, s: {"a": integers(g, -128, 128, s["M"], s["K"], dtype=torch.int8),
                          "b": integers(g, -128, 128, s["N"], s["K"], dtype=torch.int8),
                          "a_scale": torch.rand(s["M"], device="cuda", generator=g),
                          "b_scale": torch.rand(s["N"], device="cuda", generator=g)},
            _int8, lambda s: s["M"] * s["K"] + s["N"] * s["K"] + 2 * s["M"] * s["N"], mix=""),
    Problem("f8_product", "4096 by 4096 by 4096", {"M": 4096, "N": 4096, "K": 4096, "NB": 32, "KB": 32},
            {"M": 200, "N": 136, "K": 208, "NB": 2, "KB": 2},
            lambda g, s: {"a": normal(g, s["M"], s["K"], dtype=torch.float32).to(torch.float8_e4m3fn),
                          "b": normal(g, s["N"], s["K"], dtype=torch.float32).to(torch.float8_e4m3fn),
                          "a_scale": torch.rand(s["M"], s["KB"], device="cuda", generator=g),
                          "b_scale": torch.rand(s["NB"], s["KB"], device="cuda", generator=g)},
            _f8, lambda s: s["M"] * s["K"] + s["N"] * s["K"] + 2 * s["M"] * s["N"], mix=""),
    Problem("batched_product", "64 of 1024 by 1024 by 1024", {"B": 64, "M": 1024, "N": 1024, "K": 1024},
            {"B": 3, "M": 99, "N": 136, "K": 72},
            lambda g, s: {"x": normal(g, s["B"], s["M"], s["K"]), "y": normal(g, s["B"], s["N"], s["K"])}, _batched,
            lambda s: 2 * s["B"] * (s["M"] * s["K"] + s["K"] * s["N"] + s["M"] * s["N"]), mix=""),
    Problem("top_k", "262144 rows of 128", {"T": 262144, "N": 128, "K": 8}, {"T": 1003, "N": 128, "K": 8},
            lambda g, s: {"x": normal(g, s["T"], s["N"], dtype=torch.float32)}, lambda given: [],
            lambda s: 4 * s["T"] * s["N"] + 8 * s["T"] * s["K"], mix="", element="f32"),
    Problem("csr_row_sum", "500000 rows of 0 to 200", {"R": 500000, "mean": 100}, {"R": 1001, "mean": 7}, _rows, _row_sums,
            lambda s: 4 * s["R"] * s["mean"] + 8 * s["R"], mix="sum", vouched=("starts",), element="f32"),
    Problem("moe_gather", "8192 tokens of 4096 to 8 experts", {"T": 8192, "K": 8, "H": 4096}, {"T": 37, "K": 8, "H": 4096},
            _order, lambda given: [(given["x"][given["order"].long() // (len(given["order"]) // len(given["x"]))], None)],
            lambda s: 2 * s["T"] * s["H"] + 4 * s["T"] * s["K"] + 2 * s["T"] * s["K"] * s["H"], vouched=("order",)),
    Problem("silu_mul", "67108864 elements", {"N": 1 << 26}, {"N": 1000003},
            lambda g, s: {"gate": 3 * normal(g, s["N"]), "up": normal(g, s["N"])}, _silu_mul, lambda s: 6 * s["N"]),
    Problem("kv_update", "16384 tokens of 8 heads into 32768 slots", {"T": 16384, "HKV": 8, "D": 128, "S": 32768},
            {"T": 37, "HKV": 8, "D": 128, "S": 61}, _slots, _updated,
            lambda s: 8 * s["T"] * s["HKV"] * s["D"] + 4 * s["T"], vouched=("slots",), changed=("k_cache", "v_cache")),
    Problem("merge_splits", "4 parts of 8192 by 4096", {"S": 4, "M": 8192, "N": 4096}, {"S": 4, "M": 37, "N": 1000},
            lambda g, s: {"parts": normal(g, s["S"], s["M"], s["N"], dtype=torch.float32)}, _merged,
            lambda s: (4 * s["S"] + 2) * s["M"] * s["N"], mix="sum"),
)  # fmt: skip
