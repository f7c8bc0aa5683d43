"""Triton's matrix product, which `products_gpu` compares with ours and cuBLAS.

In: torch tensors `a` (M, K), `b` (N, K) and `out` (M, N), bf16, rows of a multiple of 16 bytes. Out: for each configuration a
call that launches `out = a @ b.T`; of those that compile and are correct, the fastest at a shape. Blocks are persistent (one
per multiprocessor), operands and results are copied through TMA descriptors, and tiles are visited in groups of GROUP rows, so
that neighbours share tiles of `b` in the L2 cache. Needs torch and Triton 3.4 or newer.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from ci.bench.kernels.clock import measure

torch: Any = importlib.import_module("torch")
triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")
descriptors: Any = importlib.import_module("triton.tools.tensor_descriptor")
constexpr: TypeAlias = int
"""Triton looks for this name in annotations."""

DEPTH: Final = 64
TUNING_ROUNDS: Final = 2


class Config(NamedTuple):
    """Rows and columns of a tile, pipeline stages, warps, rows of tiles per group; whether it is warp-specialized."""

    rows: int
    columns: int
    stages: int
    warps: int
    group: int = 8
    roles: bool = False

    def __str__(self) -> str:
        text = f"{self.rows}x{self.columns} stages{self.stages} warps{self.warps} group{self.group}"
        return f"{text} roles" if self.roles else text


CONFIGS: Final = (
    Config(128, 256, 3, 8),
    Config(128, 256, 3, 8, 16),
    Config(128, 256, 3, 8, 8, True),
    Config(256, 128, 3, 8),
    Config(128, 128, 4, 8),
    Config(128, 128, 4, 4),
    Config(128, 128, 3, 8, 8, True),
    Config(64, 256, 4, 4),
    Config(64, 128, 5, 4),
    Config(64, 64, 6, 4),
)


@triton.jit
def _product(
    a: "Any", b: "Any", out: "Any", rows: "Any", columns: "Any", depth: "Any",
    BM: "constexpr", BN: "constexpr", BK: "constexpr", GROUP: "constexpr", BLOCKS: "constexpr", ROLES: "constexpr",
) -> None:  # fmt: skip
    down, across, steps = tl.cdiv(rows, BM), tl.cdiv(columns, BN), tl.cdiv(depth, BK)
    for tile in tl.range(tl.program_id(0), down * across, BLOCKS, flatten=not ROLES, warp_specialize=ROLES):
        first = tile // (GROUP * across) * GROUP
        height = tl.minimum(down - first, GROUP)
        m = first + tile % (GROUP * across) % height
        n = tile % (GROUP * across) // height
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(steps):
            x = a.load([m * BM, k * BK])
            y = b.load([n * BN, k * BK])
            total = tl.dot(x, y.T, total)
        out.store([m * BM, n * BN], total.to(tl.bfloat16))


class TritonProducts:
    """The configurations that compile on this machine's GPU; says which others are not timed."""

    def __init__(self) -> None:
        self._blocks: int = torch.cuda.get_device_properties(0).multi_processor_count
        sample = {name: torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16) for name in ("a", "b", "out")}
        with ThreadPoolExecutor(len(CONFIGS)) as pool:  # most of the time is spent in the assembler, a separate process
            compiled = list(pool.map(partial(self._compiled, tensors=sample), CONFIGS))
        self._configs = [config for config, ok in zip(CONFIGS, compiled, strict=True) if ok]

    def best(
        self, sets: Sequence[Mapping[str, Any]], expected_us: float, error: Callable[[], tuple[float, float]]
    ) -> tuple[str, list[Callable[[], object]]]:
        """Name and calls, one for each set of tensors, of the fastest configuration at their shape; `error` returns the error
        of the first set's `out`, and the allowed error."""
        alternatives: dict[str, list[Callable[[], object]]] = {}
        for config in self._configs:
            runs = [self._launch(config, tensors) for tensors in sets]
            sets[0]["out"].fill_(float("nan"))
            runs[0]()
            found, allowed = error()
            if found <= allowed:
                alternatives[str(config)] = runs
            else:
                print(f"left out of Triton's: {config} at {tuple(sets[0]['out'].shape)}: error {found:.2e}", flush=True)
        if not alternatives:
            raise SystemExit("no configuration of Triton's product is right")
        times = measure(alternatives, expected_us, rounds=TUNING_ROUNDS)
        name = min(times, key=lambda one: times[one].median)
        return name, alternatives[name]

    def _compiled(self, config: Config, tensors: Mapping[str, Any]) -> bool:
        """Compile; whether it succeeded."""
        try:
            _product.warmup(*self._arguments(config, tensors), grid=(1,), **self._options(config))
        except Exception as problem:  # a compiler error of any kind: the configuration is skipped and named
            print(f"left out of Triton's: {config}: {type(problem).__name__}: {problem}"[:300], flush=True)
            return False
        return True

    def _launch(self, config: Config, tensors: Mapping[str, Any]) -> Callable[[], object]:
        arguments, options = self._arguments(config, tensors), self._options(config)
        rows, columns = tensors["out"].shape
        tiles = -(-rows // config.rows) * -(-columns // config.columns)
        grid = (min(self._blocks, tiles),)
        return lambda: _product[grid](*arguments, **options)

    def _arguments(self, config: Config, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        tiles = {"a": (config.rows, DEPTH), "b": (config.columns, DEPTH), "out": (config.rows, config.columns)}
        arguments = [descriptors.TensorDescriptor.from_tensor(tensors[name], list(tile)) for name, tile in tiles.items()]
        rows, depth = tensors["a"].shape
        return (*arguments, rows, tensors["b"].shape[0], depth)

    def _options(self, config: Config) -> dict[str, Any]:
        return {
            "BM": config.rows, "BN": config.columns, "BK": DEPTH, "GROUP": config.group, "BLOCKS": self._blocks,
            "ROLES": config.roles, "num_warps": config.warps, "num_stages": config.stages,
        }  # fmt: skip
