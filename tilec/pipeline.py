"""The compiler's stages in order, each a function from products to products, connected by digests.

A stage's key consists of the digests of its inputs, its options, the target, the toolchain and tilec's own source for that
stage. An edit that does not change the tile IR (a comment) therefore does not regenerate MLIR, PTX or CUBIN. `tilec.link`
combines the products into a manifest.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec import progress
from tilec.artifact.records import json_bytes
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.diagnostics.internal_errors import reported_as_diagnostics
from tilec.progress import DEFAULT_LIMITS, Limits
from tilec.target.schedule import Overrides, Schedule, merged
from tilec.target.targets import Target

if TYPE_CHECKING:
    from tilec.cache import Store
    from tilec.diagnostics.diagnostic import Span
    from tilec.ir.core import Function

Constant = int | float | bool | str
VOCABULARY_SOURCE = (
    "untrusted/limits.py", "progress.py", "diagnostics/diagnostic.py", "diagnostics/visible.py",
    "diagnostics/internal_errors.py", "target", "artifact/records.py", "pipeline.py", "ir", "language",
)  # fmt: skip
"""Source of tilec that every stage depends on; this file contains the stages themselves."""
FRONTEND = ("frontend", "diagnostics/spelling.py")
PROVER = ("passes/__init__.py", "passes/analysis", "passes/prover")
SCHEDULE = ("passes/__init__.py", "passes/analysis", "passes/schedule", "atoms", "mlir")
PROOF_TOOLS = ("islpy", "numpy", "ml-dtypes")
"""Packages the prover depends on. `python` is added only to the stage that reads kernel files, whose syntax tree depends on the
minor version. Later stages use only integers, text and these tools, which behave the same on every version."""
JIT_LINK_TOOLS = ("cuda-bindings", "cuda-pathfinder", "nvidia-nvjitlink", "nvidia-cuda-nvcc")


@dataclass(frozen=True, slots=True)
class Request:
    """One kernel for one specialisation. `path` is relative to `root`; `sources` maps every file the kernel depends on to its
    digest; `toolchain` is the fingerprint; `compiler` maps a stage to the digest of tilec's source for it. `schedule` contains
    the build file's overrides. `limits` affect whether a stage completes, not its result, so no key contains them. `texts`
    replace files on disk, by real path; the digests in `sources` are theirs."""

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
    """The progress of a request through the stages for one target: products and their digests by name; per stage the
    milliseconds, whether it was a cache hit, and the CPU milliseconds that producing it took, on whichever machine."""

    request: Request
    target: Target | None
    products: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    digests: dict[str, str] = field(default_factory=dict[str, str])
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    hits: dict[str, bool] = field(default_factory=dict[str, bool])
    costs: dict[str, int] = field(default_factory=dict[str, int])

    def function(self, form: str = "tir") -> Function:
        """The tile IR, parsed from its text, with its names and spans; the caller may rewrite it. `form` is the product: `tir`,
        the kernel, or `claims`, the statements to be proven about it."""
        from tilec.ir.text.parser import parse_function
        from tilec.ir.text.spans import attach

        return attach(parse_function(self.products[form].decode()), self.data("spans"))

    def span(self) -> Span | None:
        """The kernel's location in its source, once known."""
        return self.function().loc if "tir" in self.products else None

    def data(self, name: str) -> Any:
        """A JSON product, decoded."""
        return json.loads(self.products[name])


def _check_sources(request: Request) -> None:
    """Raises CompileError E0713 if a file no longer has the digest in the key: its product would be cached under the digest of
    the older text."""
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
    from tilec.artifact.records import parameter_specs, to_json
    from tilec.frontend import load_kernel
    from tilec.ir.claims import claims
    from tilec.ir.text.printer import print_function
    from tilec.ir.text.spans import spans_json
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
    from tilec.artifact.records import OPTIONAL, PROOF_FIELDS, Manifest, to_json
    from tilec.ir.text.lines import line_numbers
    from tilec.passes.prover import positive_divisions, prove_claims

    function = work.function("claims")
    proofs = prove_claims(function, work.function)
    unsafe = [f"{block.loc or '?'}: {block.reason}" for block in function.unsafe]
    fields = {name: unsafe if name == "unsafe" else to_json(getattr(proofs, name)) for name in PROOF_FIELDS}
    record = {name: value for name, value in fields.items() if value or name not in OPTIONAL[Manifest]}
    lines = line_numbers(function)
    return {"proofs": json_bytes(record), "positive_divisions": json_bytes([lines[op] for op in positive_divisions(function)])}


def _schedule(work: Work) -> dict[str, bytes]:
    from tilec.passes.schedule import choose

    assert work.target is not None
    chosen = choose(work.function(), work.target, merged(work.request.schedule, work.target))
    return {"schedule": json_bytes(chosen.to_json())}


def _scheduled(work: Work, after: str | None = None) -> Function:
    """The function after all scheduling passes, or after the pass of that name."""
    from tilec.ir.text.lines import number_lines, text_line
    from tilec.passes.schedule import prepare
    from tilec.passes.schedule.passes import pass_named

    assert work.target is not None
    function, schedule = work.function(), Schedule.from_json(work.data("schedule"))
    number_lines(function)
    marked = set(work.data("positive_divisions"))
    positive = frozenset(op.operands[1] for op in function.body.walk() if text_line(op) in marked)
    last = pass_named(after) if after is not None else None
    return prepare(function, work.target, schedule, positive=positive, last=last)


def _mlir(work: Work) -> dict[str, bytes]:
    from tilec.artifact.records import to_json
    from tilec.lowering import lower
    from tilec.passes.schedule.fed_products import faster_schedule
    from tilec.passes.schedule.notes import aligned_version, notes

    assert work.target is not None
    prepared, schedule = _scheduled(work), Schedule.from_json(work.data("schedule"))
    lowered = lower(prepared, work.target, min_blocks=schedule.blocks)
    faster = faster_schedule(work.function(), work.target, schedule)
    found = notes(prepared, work.target, faster)
    launch = {
        "entry": lowered.entry,
        "abi": to_json(lowered.abi),
        "tensor_maps": to_json(lowered.tensor_maps),
        "alignments": {one.name: one.value.tensor.align for one in prepared.parameters if one.access is not None},
        "block": lowered.num_threads,
        "dynamic_shared_bytes": lowered.dynamic_shared_bytes,
        "dependent_launch": lowered.dependent_launch,
        "notes": to_json(found),
        "aligned": aligned_version(prepared, found),
    }
    return {"mlir": lowered.mlir.encode(), "launch": json_bytes(launch)}


def _ptx(work: Work) -> dict[str, bytes]:
    from tilec.codegen import to_ptx

    assert work.target is not None
    return {"ptx": to_ptx(work.products["mlir"].decode(), work.target).encode()}


def _cubin(work: Work) -> dict[str, bytes]:
    from tilec.artifact.records import to_json
    from tilec.assemble import assemble

    assert work.target is not None
    made = assemble(work.products["ptx"].decode(), work.target, Schedule.from_json(work.data("schedule")).most_blocks)
    found = to_json(made.resources) | {"one_by_one": made.one_by_one} | ({"blocks": made.blocks} if made.blocks else {})
    return {"cubin": made.cubin, "resources": json_bytes(found)}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. `inputs` are the products whose digests are part of the key; `sources`, `constants`, `options` and `target`
    tell whether those are. `packages` is the part of tilec's own source that determines the result, `toolchain` the
    distributions. Only `shared` stages are looked up in a remote cache: the others take less time than a round trip."""

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
        FRONTEND,
        ("python",),
        sources=True,
        target=False,
        shared=False,
    ),  # source -> tile IR text
    Stage("proofs", ".proofs.json", _proofs, ("claims", "spans"), PROVER, PROOF_TOOLS, target=False),  # or rejected
    Stage(
        "schedule", ".schedule.json", _schedule, ("tir",), SCHEDULE, ("numpy",), options=True, shared=False
    ),  # warps, stages, instructions
    Stage("mlir", ".mlir", _mlir, ("tir", "schedule", "positive_divisions"), (*SCHEDULE, "lowering"), ("numpy",)),  # layouts
    Stage("ptx", ".ptx", _ptx, ("mlir",), ("codegen", "toolchain.py"), ("torch-mlir", "llvmlite")),  # may abort: workers only
    Stage("cubin", ".cubin", _cubin, ("ptx", "schedule"), ("assemble", "toolchain.py"), JIT_LINK_TOOLS),
)
CHECK_STAGES = STAGES[:4]
"""The stages of a check, which need no compiler backend: front end and prover, then schedule and lowering for each target."""
CHECK_PRODUCTS = ("proofs", "schedule", "launch", "spans")
"""Products of a check."""
LINK_PACKAGES = ("__init__.py", "version.py", "link.py", "artifact/manifest_reader.py", "toolchain.py")


def stage_named(name: str) -> Stage:
    """The stage of that name; KeyError if there is none."""
    return {stage.name: stage for stage in STAGES}[name]


def stage_fields(stage: Stage, work: Work) -> dict[str, int | str | None]:
    """All fields of the key of `stage`."""
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
    """Adds the products of `stage` to `work`, from the store if they are there. CompileError if the input is rejected, and for
    internal errors."""
    from tilec.cache import products

    def make() -> Mapping[str, bytes]:
        what = f"stage `{stage.name}` of kernel `{work.request.kernel}`"
        with reported_as_diagnostics(what, work.span), progress.stage(what, work.request.limits):
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


def tile_ir_after(request: Request, target: Target, name: str, store_folder: str) -> str:
    """The text of the tile IR after the scheduling pass of that name. CompileError if the kernel is rejected, and for internal
    errors; KeyError if there is no such pass."""
    from tilec.cache import Store
    from tilec.ir.text.printer import print_function

    work = Work(request, target)
    with contextlib.closing(Store(Path(store_folder))) as store:
        for stage in STAGES[: STAGES.index(stage_named("mlir"))]:
            run_stage(stage, work, store)
    what = f"pass `{name}` of kernel `{request.kernel}`"
    with reported_as_diagnostics(what, work.span), progress.stage(what, request.limits):
        return print_function(_scheduled(work, name))


def look_up(request: Request, target: Target | None, store: Store, stages: tuple[Stage, ...]) -> Work | None:
    """The work of `stages` if the store has all of it, else None; runs nothing."""
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
    """Every input of an artifact by `kind name`; the artifact's key in the store, and the fields that `--explain` compares."""
    from tilec.cache.agreement import typed

    fields = {f"source {name}": digest for name, digest in request.sources.items()}
    fields |= {f"constant {name}": typed(value) for name, value in request.constants.items()}
    fields |= {f"toolchain {name}": text for name, text in request.toolchain.items()}
    fields |= {f"compiler {name}": digest for name, digest in request.compiler.items()}
    fields["option path"] = request.path
    fields["option target"] = target.name
    fields |= {f"schedule {name}": typed(value) for name, value in merged(request.schedule, target).given().items()}
    return fields
