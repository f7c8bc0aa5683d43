"""The compiler in one place: its stages in order, each a function from products to products, joined by digests.

A stage's key is made of the digests of its inputs, its options, the target, the toolchain and tilec's own source for that
stage, so an edit that changes no tile IR (a comment) makes no MLIR, PTX or CUBIN again. `tilec.link` joins the products to a
manifest.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec import progress
from tilec.artifact import json_bytes
from tilec.defects import told_as_diagnostics
from tilec.diagnostics import CompileError, Diagnostic
from tilec.progress import DEFAULT_LIMITS, Limits
from tilec.schedule import Overrides, Schedule, merged
from tilec.target import Target

if TYPE_CHECKING:
    from tilec.cache import Store
    from tilec.diagnostics import Span
    from tilec.ir.core import Function

Constant = int | float | bool | str
VOCABULARY_SOURCE = (
    "limits.py", "progress.py", "diagnostics.py", "visible.py", "defects.py", "target.py", "artifact.py", "pipeline.py", "ir",
    "language",
)  # fmt: skip
"""Source of tilec that every stage rests on; this file holds the stages themselves."""
FRONTEND = ("frontend", "spelling.py")
PROVER = ("passes/__init__.py", "passes/analysis", "passes/prover")
SCHEDULE = ("passes/__init__.py", "passes/analysis", "passes/schedule", "schedule.py", "atoms", "mlir")
PROOF_TOOLS = ("islpy", "numpy", "ml-dtypes")
"""What the prover runs on. `python` is added to the stage that reads kernel files, whose syntax tree its minor version decides,
and to no other: past the tile IR all is integers, text and these tools, the same on every version."""
JIT_LINK_TOOLS = ("cuda-bindings", "cuda-pathfinder", "nvidia-nvjitlink", "nvidia-cuda-nvcc")


@dataclass(frozen=True, slots=True)
class Request:
    """One kernel at one specialisation. `path` is relative to `root`; `sources` maps every file the kernel depends on to its
    digest, `toolchain` is the fingerprint, `compiler` maps a stage to the digest of tilec's source for it. `schedule` is what
    the build file fixes of it. `limits` decide whether a stage ends, not what it makes: they are in no key. `texts` are
    those of files that count in place of what the disk has, by real path: the digests in `sources` are of them."""

    kernel: str
    path: str
    root: str
    constants: dict[str, Constant]
    sources: dict[str, str]
    toolchain: dict[str, str]
    compiler: dict[str, str]
    schedule: tuple[Overrides, ...] = ()
    limits: Limits = DEFAULT_LIMITS
    texts: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(slots=True)
class Work:
    """A request on its way through the stages for one target: products and their digests by name; by stage milliseconds, hits,
    and the milliseconds of CPU that making it takes, whoever made it."""

    request: Request
    target: Target | None
    products: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    digests: dict[str, str] = field(default_factory=dict[str, str])
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    hits: dict[str, bool] = field(default_factory=dict[str, bool])
    costs: dict[str, int] = field(default_factory=dict[str, int])

    def function(self, form: str = "tir") -> Function:
        """The tile IR, read from its text, with the names and spans that stand beside it; the caller's to rewrite. `form` is
        the product: what the kernel is, or `claims`, what is to be proven of it."""
        from tilec.ir.parser import parse_function
        from tilec.ir.spans import attach

        return attach(parse_function(self.products[form].decode()), self.data("spans"))

    def span(self) -> Span | None:
        """Where the kernel stands in its source, once that is known."""
        return self.function().loc if "tir" in self.products else None

    def data(self, name: str) -> Any:
        """A JSON product, decoded."""
        return json.loads(self.products[name])


def _check_sources(request: Request) -> None:
    """Raise CompileError E0713 where a file is no longer the one whose digest is in the key: its product would be kept as that
    of the older text."""
    from tilec.cache import FileDigests

    files = FileDigests(texts=request.texts)
    for name, digest in request.sources.items():
        try:
            same = files.digest(Path(request.root) / name) == digest
        except OSError:
            same = False
        if not same:
            message = f"`{name}` changed while kernel `{request.kernel}` was compiled"
            raise CompileError(Diagnostic("E0713", message, hint="run the command again"))


def _tir(work: Work) -> dict[str, bytes]:
    from tilec.artifact import parameter_specs, to_json
    from tilec.frontend import load_kernel
    from tilec.ir.claims import claims
    from tilec.ir.printer import print_function
    from tilec.ir.spans import spans_json
    from tilec.ir.verifier import verify

    root = Path(work.request.root)
    function = load_kernel(root / work.request.path, work.request.constants, root=root, texts=work.request.texts)
    _check_sources(work.request)
    verify(function)
    tensors, scalars = parameter_specs(function)
    interface = {
        "tensors": to_json(tensors),
        "scalars": to_json(scalars),
        "grid": to_json(function.grid),
        "constants": function.constants,
    }
    return {
        "tir": print_function(function).encode(),
        "claims": claims(function).encode(),
        "interface": json_bytes(interface),
        "spans": json_bytes(spans_json(function)),
    }


def _proofs(work: Work) -> dict[str, bytes]:
    from tilec.artifact import to_json
    from tilec.ir.lines import line_numbers
    from tilec.passes.prover import positive_divisions, prove

    function = work.function("claims")
    try:
        proofs = prove(function)
    except CompileError:
        prove(work.function())  # which is refused in words of the kernel's own types
        raise
    record = {name: to_json(getattr(proofs, name)) for name in ("obligations", "launch_checks", "value_checks", "no_alias")}
    if proofs.promises:
        record["promises"] = to_json(proofs.promises)
    record["unsafe"] = [f"{block.loc or '?'}: {block.reason}" for block in function.unsafe]
    lines = line_numbers(function)
    return {"proofs": json_bytes(record), "positive_divisions": json_bytes([lines[op] for op in positive_divisions(function)])}


def _schedule(work: Work) -> dict[str, bytes]:
    from tilec.passes.schedule import choose

    assert work.target is not None
    chosen = choose(work.function(), work.target, merged(work.request.schedule, work.target))
    return {"schedule": json_bytes(chosen.to_json())}


def _mlir(work: Work) -> dict[str, bytes]:
    from tilec.artifact import to_json
    from tilec.ir.lines import number_lines, text_line
    from tilec.lowering import lower
    from tilec.passes.schedule import prepare
    from tilec.passes.schedule.notes import notes

    assert work.target is not None
    function, schedule = work.function(), Schedule.from_json(work.data("schedule"))
    number_lines(function)
    marked = set(work.data("positive_divisions"))
    positive = frozenset(op.operands[1] for op in function.body.walk() if text_line(op) in marked)
    prepared = prepare(function, work.target, schedule, positive=positive)
    lowered = lower(prepared, work.target, min_blocks=schedule.blocks)
    launch = {
        "entry": lowered.entry,
        "abi": to_json(lowered.abi),
        "tensor_maps": to_json(lowered.tensor_maps),
        "block": lowered.num_threads,
        "dynamic_shared_bytes": lowered.dynamic_shared_bytes,
        "dependent_launch": lowered.dependent_launch,
        "notes": to_json(notes(prepared, work.target)),
    }
    return {"mlir": lowered.mlir.encode(), "launch": json_bytes(launch)}


def _ptx(work: Work) -> dict[str, bytes]:
    from tilec.codegen import to_ptx

    assert work.target is not None
    return {"ptx": to_ptx(work.products["mlir"].decode(), work.target).encode()}


def _cubin(work: Work) -> dict[str, bytes]:
    from tilec.artifact import to_json
    from tilec.assemble import assemble

    assert work.target is not None
    made = assemble(work.products["ptx"].decode(), work.target)
    return {"cubin": made.cubin, "resources": json_bytes(to_json(made.resources) | {"one_by_one": made.one_by_one})}


@dataclass(frozen=True, slots=True)
class Stage:
    """One step. `inputs` are the products whose digests enter the key; `sources` whether the kernel's text does;
    `constants`, `options`, `target` likewise; `packages` is tilec's own source that decides the result, `toolchain` the
    distributions. Only what is `shared` is asked of a team's cache: the others are made in less than a round trip."""

    name: str
    suffix: str
    run: Callable[[Work], Mapping[str, bytes]]
    inputs: tuple[str, ...]
    packages: tuple[str, ...]
    toolchain: tuple[str, ...] = ()
    sources: bool = False
    options: bool = False
    target: bool = True
    shared: bool = True


STAGES = (
    Stage(
        "tir",
        ".tir",
        _tir,
        (),
        ("frontend", "spelling.py"),
        ("python",),
        sources=True,
        target=False,
        shared=False,
    ),  # source -> tile IR text
    Stage("proofs", ".proofs.json", _proofs, ("claims", "spans"), PROVER, PROOF_TOOLS, target=False),  # or refused
    Stage(
        "schedule", ".schedule.json", _schedule, ("tir",), SCHEDULE, ("numpy",), options=True, shared=False
    ),  # warps, stages, instructions
    Stage("mlir", ".mlir", _mlir, ("tir", "schedule", "positive_divisions"), (*SCHEDULE, "lowering"), ("numpy",)),  # layouts
    Stage("ptx", ".ptx", _ptx, ("mlir",), ("codegen", "toolchain.py"), ("torch-mlir", "llvmlite")),  # may abort: workers only
    Stage("cubin", ".cubin", _cubin, ("ptx",), ("assemble", "toolchain.py"), JIT_LINK_TOOLS),
)
CHECK_STAGES = STAGES[:4]
"""The stages that judge a kernel, and need no compiler: front end and prover, then schedule and lowering for each target."""
CHECK_PRODUCTS = ("proofs", "schedule", "launch", "spans")
"""What a check tells."""
LINK_PACKAGES = ("__init__.py", "link.py", "manifest_reader.py", "toolchain.py")
ARTIFACT_PRODUCTS = ("cubin", "json", "ptx", "summary", "tir")
"""What is kept of an artifact: a bundle needs the texts that its code was made from, for `tilec audit`."""


def stage_named(name: str) -> Stage:
    """The stage of a name; KeyError if there is none."""
    return {stage.name: stage for stage in STAGES}[name]


def stage_fields(stage: Stage, work: Work) -> dict[str, int | str | None]:
    """Everything the key of `stage` is made of."""
    from tilec.cache.agreement import typed

    request = work.request
    fields: dict[str, int | str | None] = {f"input {name}": work.digests[name] for name in stage.inputs}
    fields["compiler"] = request.compiler[stage.name]
    fields |= {f"toolchain {name}": request.toolchain.get(name) for name in stage.toolchain}
    if stage.sources:
        fields |= {f"source {name}": digest for name, digest in request.sources.items()}
        fields["path"] = request.path
        fields |= {f"constant {name}": typed(value) for name, value in request.constants.items()}
    if stage.options:
        assert work.target is not None
        fields |= {f"schedule {name}": typed(value) for name, value in merged(request.schedule, work.target).given().items()}
    if stage.target:
        assert work.target is not None
        fields["target"] = work.target.name
    return fields


def run_stage(stage: Stage, work: Work, store: Store) -> None:
    """Add the products of `stage` to `work`, from the store where they are there. CompileError where the input is refused, and
    where tilec itself fails."""
    from tilec.cache import products

    def make() -> Mapping[str, bytes]:
        what = f"stage `{stage.name}` of kernel `{work.request.kernel}`"
        with told_as_diagnostics(what, work.span), progress.stage(what, work.request.limits):
            return stage.run(work)

    start = time.perf_counter()
    arch = f" for {work.target}" if stage.target else ""
    label = f"{stage.name} of {work.request.kernel}{arch}"
    entry = products.make(store, stage.name, stage_fields(stage, work), make, label, shared=stage.shared)
    work.products |= entry.outputs
    work.digests |= entry.digests
    work.hits[stage.name] = entry.hit
    work.costs[stage.name] = entry.cost
    work.milliseconds[stage.name] = (time.perf_counter() - start) * 1000


def look_up(request: Request, target: Target | None, store: Store, stages: tuple[Stage, ...]) -> Work | None:
    """The work of `stages` where the store holds all of it, else None; runs nothing."""
    from tilec.cache import key_of, products

    work = Work(request, target)
    for stage in stages:
        fields = stage_fields(stage, work)
        label = f"{stage.name} of {request.kernel}"
        entry = products.lookup(store, key_of(stage.name, fields), stage.name, fields, label)
        if entry is None:
            return None
        work.products |= entry.outputs
        work.digests |= entry.digests
        work.hits[stage.name] = True
    return work


def artifact_fields(request: Request, target: Target) -> dict[str, str]:
    """Every input of an artifact by `kind name`; the store's key of the artifact, and what `--explain` compares."""
    from tilec.cache.agreement import typed

    fields = {f"source {name}": digest for name, digest in request.sources.items()}
    fields |= {f"constant {name}": typed(value) for name, value in request.constants.items()}
    fields |= {f"toolchain {name}": text for name, text in request.toolchain.items()}
    fields |= {f"compiler {name}": digest for name, digest in request.compiler.items()}
    fields["option path"] = request.path
    fields["option target"] = target.name
    fields |= {f"schedule {name}": typed(value) for name, value in merged(request.schedule, target).given().items()}
    return fields
