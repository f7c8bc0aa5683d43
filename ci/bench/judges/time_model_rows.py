"""The measured launches that the model of time is compared with, and the kernels that were launched.

Measurements of kernels whose machine code is that of today: all products and attention of `products.json` and `attention.json`,
and the records of `tilec tune` whose digest of machine code `tests/golden/products.json` has. Records of other machine code are
`EARLIER`: they are predicted from the schedule that the compiler makes today.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from ci.bench.kernels import attention, products
from ci.bench.kernels.attention_names import GROUP, HEADS, LIBRARIES
from ci.bench.kernels.candidates import CUBLAS, ELEMENT, OVERLAPPED, TRITON, UNMERGED, Candidate
from ci.bench.kernels.projects import Part, write
from ci.evidence import RESULTS, ROOT
from ci.evidence.products import DIGITS, read_products
from tilec.cost_model.cards import CARDS
from tilec.cost_model.estimate import Prepared
from tilec.tuning.prediction import Scheduled, scheduled

TUNED: Final = ("matmul", "matmul_silu_mul")
RECORDS: Final = ROOT / "kernels_src" / "tuning"
GOLDEN: Final = ROOT / "tests" / "golden" / "products.json"
PRODUCTS, ATTENTION, TUNING, EARLIER = "products", "attention", "tuning", "tuning, earlier machine code"
Values = dict[str, int | float]


@dataclass(frozen=True)
class Row:
    """A measured launch, or a product and the kernel that adds its parts: from which `source`, on which card, of what, at which
    `shape`, microseconds, and how each kernel is `prepared`."""

    source: str
    card: str
    name: str
    shape: str
    overlapped: bool
    measured: float
    prepared: tuple[Prepared, ...] = field(repr=False)

    @property
    def held_out(self) -> bool:
        """Whether no constant was fitted to it: half of the shapes, by a checksum of their text, and earlier machine code."""
        return self.source == EARLIER or zlib.crc32(self.shape.encode()) % 2 == 1


class Kernels:
    """Scheduled kernels, each made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[tuple[Part, str], Scheduled] = {}
        self._shipped: dict[tuple[str, str], dict[str, Scheduled]] = {}

    def scheduled(self, part: Part, arch: str = "sm_90") -> Scheduled:
        """A kernel at its constants, with its schedule for an architecture."""
        if (part, arch) not in self._made:
            project = self.folder / str(len(self._made))
            write([part], project)
            (self._made[part, arch],) = _scheduled(project, part.kernel, arch).values()
        return self._made[part, arch]

    def shipped(self, kernel: str, arch: str) -> dict[str, Scheduled]:
        """The specialisations of a shipped kernel in bf16 for an architecture, by the constants in which they differ."""
        if (kernel, arch) not in self._shipped:
            self._shipped[kernel, arch] = _scheduled(ROOT, kernel, arch)
        return self._shipped[kernel, arch]


def _scheduled(project: Path, kernel: str, arch: str) -> dict[str, Scheduled]:
    """The specialisations of a project's kernel with elements of `ELEMENT`, by their tiles."""
    from tilec.cache import FileDigests, Store, store_root
    from tilec.project.read.buildfile import read_build_file
    from tilec.project.read.plan import plan
    from tilec.target.targets import Target
    from tilec.toolchain import fingerprint

    build = read_build_file(project / "build.toml")
    with contextlib.closing(Store(store_root())) as store:
        entries = tuple(entry for entry in build.entries if entry.name == kernel)
        planned, refused = plan(build, entries, (Target.parse(arch),), store, FileDigests(), fingerprint(store, None))
        assert not refused, refused
        ours = [one for one in planned if one.request.constants.get("E") == ELEMENT]
        return {_tile(one.request.constants): scheduled(one.request, one.target, str(store.root)) for one in ours}


def _tile(constants: Mapping[str, Any]) -> str:
    return " x ".join(str(constants[name]) for name in ("BM", "BN") if name in constants)


@contextlib.contextmanager
def kernels() -> Generator[Kernels]:
    """Kernels in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="time-model-") as folder:
        yield Kernels(Path(folder))


def all_rows(made: Kernels) -> list[Row]:
    """Every measured launch of products and attention."""
    return [*_products(made), *_attention(made), *(row for kernel in TUNED for row in _tuning(made, kernel))]


def card_called(device: str) -> str:
    """The row of `CARDS` of a device that a driver names so."""
    return next(name for name in CARDS if name.upper() in device)


def recorded(name: str) -> dict[str, Any]:
    """The JSON of a result."""
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return data


def _products(made: Kernels) -> Iterator[Row]:
    data = recorded("products")
    candidates = {one.name: one for one in products.CANDIDATES}
    card = card_called(data["device"])
    for measured in data["rows"]:
        m, n, k = measured["shape"]
        for name, microseconds in measured["us"].items():
            if name in (CUBLAS, TRITON):
                continue
            parts = products.parts(candidates[name.split(",")[0]])[: 1 if name.endswith(UNMERGED) else None]
            ready = _prepared(made, parts, card, {"M": m, "N": n, "K": k})
            yield Row(PRODUCTS, card, name, f"{m} x {n} x {k}", OVERLAPPED in name, microseconds, ready)


def _attention(made: Kernels) -> Iterator[Row]:
    data = recorded("attention")
    candidates: dict[str, Candidate] = {one.name: one for one in attention.CANDIDATES}
    card = card_called(data["device"])
    for measured in data["rows"]:
        tokens = measured["tokens"]
        for name, microseconds in measured["us"].items():
            if name not in LIBRARIES:
                ready = _prepared(made, attention.parts(candidates[name]), card, attention_values(tokens))
                yield Row(ATTENTION, card, name, f"{tokens} tokens", False, microseconds, ready)


def attention_values(tokens: int) -> Values:
    """The launch of a prompt without tokens before it."""
    return {"T": tokens, "S": tokens, "past": 0, "scale": 1.0, "HKV": HEADS, "G": GROUP}


def _tuning(made: Kernels, kernel: str) -> Iterator[Row]:
    """The newest time of each candidate at each shape."""
    _, golden = read_products(GOLDEN)
    now = set(golden["cubin:sm_90a"].values())
    lines = [json.loads(line) for line in (RECORDS / f"{kernel}-sm_90a.jsonl").read_text(encoding="utf-8").splitlines()]
    described = {line["candidate"]: line for line in lines if "candidate" in line}
    times: dict[tuple[str, str], tuple[str, Mapping[str, int], float]] = {}
    for line in lines:
        for digest, (median, _, _) in line.get("us", {}).items():
            times[digest, json.dumps(line["shape"], sort_keys=True)] = line["device"], line["shape"], median
    seen: dict[tuple[str, str, str], Row] = {}
    for (digest, _), (device, shape, median) in times.items():
        source = TUNING if digest[:DIGITS] in now else EARLIER
        part, card = _part(kernel, described[digest]), card_called(device)
        dims: Values = {name: extent for name, extent in shape.items() if not isinstance(extent, str)}
        name = f"{kernel} {part.constants} {part.more}".replace('"', "")
        row = Row(source, card, name, _shape_text(kernel, shape), False, median, _prepared(made, (part,), card, dims))
        seen[source, name, row.shape] = row
    yield from seen.values()


def _shape_text(kernel: str, shape: Mapping[str, int]) -> str:
    columns = f"2 x {shape['I']}" if kernel == "matmul_silu_mul" else str(shape["N"])
    return f"{shape['M']} x {columns} x {shape['K']}"


def _part(kernel: str, described: Mapping[str, Any]) -> Part:
    texts = [
        ", ".join(f"{name} = {json.dumps(value)}" for name, value in described[field_name].items())
        for field_name in ("constants", "schedule")
    ]
    return Part(kernel, texts[0], f"schedule = {{ {texts[1]} }}")


def _prepared(made: Kernels, parts: Sequence[Part], card: str, values: Values) -> tuple[Prepared, ...]:
    first, *others = (_launch(made.scheduled(part), card, json.dumps(values)) for part in parts)
    return (first, *(_after(one) for one in others))


@cache
def _launch(made: Scheduled, card: str, values: str) -> Prepared:
    return made.on(CARDS[card], json.loads(values))


def _after(ready: Prepared) -> Prepared:
    """A kernel that reads what the one before it has just written: that is still in the L2 cache."""
    return replace(ready, traffic=replace(ready.traffic, read=0.0))
