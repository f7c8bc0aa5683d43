"""The compiler in one place: its stages in order, each a function from products to products, joined by digests.

A stage's key is made of the digests of its inputs, its options, the target, the toolchain and tilec's own source for that
stage, so an edit that changes no tile IR (a comment) makes no MLIR, PTX or CUBIN again. `link` joins the products to a
manifest at the end, because the record of proofs names source lines, which shift with comments.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.defects import told_as_diagnostics
from tilec.target import Target

if TYPE_CHECKING:
    from tilec.cache import Store
    from tilec.diagnostics import Span
    from tilec.ir.core import Function

Constant = int | float | bool | str
VOCABULARY_SOURCE = ("diagnostics.py", "defects.py", "target.py", "artifact.py", "pipeline.py", "ir", "language")
"""Source of tilec that every stage rests on; this file holds the stages themselves."""
PROOF_TOOLS = ("python", "islpy", "networkx", "numpy", "ml-dtypes")


@dataclass(frozen=True, slots=True)
class Request:
    """One kernel at one specialisation. `path` is relative to `root`; `sources` maps every file the kernel depends on to its
    digest, `toolchain` is the fingerprint, `compiler` maps a stage to the digest of tilec's source for it."""

    kernel: str
    path: str
    root: str
    constants: dict[str, Constant]
    sources: dict[str, str]
    toolchain: dict[str, str]
    compiler: dict[str, str]
    num_warps: int | None = None
    min_blocks: int | None = None


@dataclass(slots=True)
class Work:
    """A request on its way through the stages for one target: products and their digests by name, milliseconds and hits by
    stage."""

    request: Request
    target: Target | None
    products: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False)
    digests: dict[str, str] = field(default_factory=dict[str, str])
    milliseconds: dict[str, float] = field(default_factory=dict[str, float])
    hits: dict[str, bool] = field(default_factory=dict[str, bool])
    loaded: Function | None = field(default=None, repr=False)

    def function(self) -> Function:
        """The tile IR in memory, with source spans; made from source where the text came from the store."""
        if self.loaded is None:
            from tilec.frontend import load_kernel

            root = Path(self.request.root)
            self.loaded = load_kernel(root / self.request.path, self.request.constants, root=root)
        return self.loaded

    def span(self) -> Span | None:
        """Where the kernel stands in its source."""
        return self.function().loc

    def data(self, name: str) -> Any:
        """A JSON product, decoded."""
        return json.loads(self.products[name])


def _json(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, indent=1, ensure_ascii=False).encode() + b"\n"


def _tir(work: Work) -> dict[str, bytes]:
    from tilec.artifact import ScalarSpec, TensorSpec, to_json
    from tilec.ir.lines import spans_json
    from tilec.ir.printer import print_function
    from tilec.ir.types import TensorType
    from tilec.ir.verifier import verify

    function = work.function()
    verify(function)
    tensors: list[TensorSpec] = []
    scalars: list[ScalarSpec] = []
    for parameter in function.parameters:
        type_ = parameter.value.type
        if isinstance(type_, TensorType):
            assert parameter.access is not None
            tensors.append(
                TensorSpec(parameter.name, parameter.access.value, type_.dtype.name, type_.dims, type_.strides, type_.align)
            )
        else:
            scalars.append(ScalarSpec(parameter.name, parameter.value.tile.dtype.name))
    interface = {
        "tensors": to_json(tuple(tensors)),
        "scalars": to_json(tuple(scalars)),
        "grid": to_json(function.grid),
        "constants": function.constants,
    }
    return {"tir": print_function(function).encode(), "interface": _json(interface), "spans": _json(spans_json(function))}


def _proofs(work: Work) -> dict[str, bytes]:
    from tilec.artifact import to_json
    from tilec.passes import prove

    function = work.function()
    proofs = prove(function)
    record = {name: to_json(getattr(proofs, name)) for name in ("obligations", "launch_checks", "value_checks", "no_alias")}
    record["unsafe"] = [f"{block.loc or '?'}: {block.reason}" for block in function.unsafe]
    return {"proofs": _json(record)}


def _mlir(work: Work) -> dict[str, bytes]:
    from tilec.artifact import to_json
    from tilec.ir.lines import number_lines
    from tilec.lowering import lower
    from tilec.passes import prepare

    assert work.target is not None
    function = work.function()
    number_lines(function)
    prepared = prepare(function, work.target, num_warps=work.request.num_warps, min_blocks=work.request.min_blocks)
    lowered = lower(prepared, work.target, min_blocks=work.request.min_blocks)
    work.loaded = None  # `prepare` may have rewritten it
    launch = {
        "entry": lowered.entry,
        "abi": to_json(lowered.abi),
        "block": lowered.num_threads,
        "dynamic_shared_bytes": lowered.dynamic_shared_bytes,
        "dependent_launch": lowered.dependent_launch,
    }
    return {"mlir": lowered.mlir.encode(), "launch": _json(launch)}


def _ptx(work: Work) -> dict[str, bytes]:
    from tilec.codegen import to_ptx

    assert work.target is not None
    return {"ptx": to_ptx(work.products["mlir"].decode(), work.target).encode()}


def _cubin(work: Work) -> dict[str, bytes]:
    from tilec.artifact import to_json
    from tilec.assemble import assemble

    assert work.target is not None
    made = assemble(work.products["ptx"].decode(), work.target)
    return {"cubin": made.cubin, "resources": _json(to_json(made.resources))}


@dataclass(frozen=True, slots=True)
class Stage:
    """One step. `inputs` are the products whose digests enter the key; `sources` whether the kernel's text does (spans);
    `constants`, `options`, `target` likewise; `packages` is tilec's own source that decides the result, `toolchain` the
    distributions."""

    name: str
    suffix: str
    run: Callable[[Work], Mapping[str, bytes]]
    inputs: tuple[str, ...]
    packages: tuple[str, ...]
    toolchain: tuple[str, ...] = ()
    sources: bool = False
    options: bool = False
    target: bool = True


STAGES = (
    Stage("tir", ".tir", _tir, (), ("frontend",), ("python",), sources=True, target=False),  # source -> tile IR text
    Stage(
        "proofs", ".proofs.json", _proofs, ("tir",), ("passes", "frontend"), PROOF_TOOLS, sources=True, target=False
    ),  # or refused
    Stage("mlir", ".mlir", _mlir, ("tir",), ("passes", "lowering"), PROOF_TOOLS, options=True),  # layouts, upstream dialects
    Stage("ptx", ".ptx", _ptx, ("mlir",), ("codegen", "toolchain.py"), ("torch-mlir", "llvmlite")),  # may abort: workers only
    Stage("cubin", ".cubin", _cubin, ("ptx",), ("assemble", "toolchain.py"), ("cuda-bindings", "nvidia-nvjitlink")),
)
CHECK_STAGES = STAGES[:2]
LINK_PACKAGES = ()
ARTIFACT_PRODUCTS = ("cubin", "json", "ptx", "summary", "tir")
"""What is kept of an artifact: a bundle needs the texts that its code was made from, for `tilec audit`."""


def stage_named(name: str) -> Stage:
    """The stage of a name; KeyError if there is none."""
    return {stage.name: stage for stage in STAGES}[name]


def stage_fields(stage: Stage, work: Work) -> dict[str, int | str | None]:
    """Everything the key of `stage` is made of."""
    request = work.request
    fields: dict[str, int | str | None] = {f"input {name}": work.digests[name] for name in stage.inputs}
    fields["compiler"] = request.compiler[stage.name]
    fields |= {f"toolchain {name}": request.toolchain.get(name) for name in stage.toolchain}
    if stage.sources:
        fields |= {f"source {name}": digest for name, digest in request.sources.items()}
        fields["path"] = request.path
        fields |= {f"constant {name}": _typed(value) for name, value in request.constants.items()}
    if stage.options:
        fields["num_warps"] = request.num_warps
        fields["min_blocks"] = request.min_blocks
    if stage.target:
        assert work.target is not None
        fields["target"] = work.target.name
    return fields


def _typed(value: Constant) -> str:
    return f"{type(value).__name__} {value.hex() if isinstance(value, float) else value}"


def run_stage(stage: Stage, work: Work, store: Store) -> None:
    """Add the products of `stage` to `work`, from the store where they are there. CompileError where the input is refused, and
    where tilec itself fails."""
    from tilec.cache import key_of

    def make() -> Mapping[str, bytes]:
        with told_as_diagnostics(f"stage `{stage.name}` of kernel `{work.request.kernel}`", work.span):
            return stage.run(work)

    start = time.perf_counter()
    arch = f" for {work.target}" if stage.target else ""
    label = f"{stage.name} of {work.request.kernel}{arch}"
    entry = store.make(key_of(stage.name, stage_fields(stage, work)), make, label)
    work.products |= entry.outputs
    work.digests |= entry.digests
    work.hits[stage.name] = entry.hit
    work.milliseconds[stage.name] = (time.perf_counter() - start) * 1000


def look_up(request: Request, target: Target | None, store: Store, stages: tuple[Stage, ...]) -> Work | None:
    """The work of `stages` where the store holds all of it, else None; runs nothing."""
    from tilec.cache import key_of

    work = Work(request, target)
    for stage in stages:
        entry = store.lookup(key_of(stage.name, stage_fields(stage, work)), f"{stage.name} of {request.kernel}")
        if entry is None:
            return None
        work.products |= entry.outputs
        work.digests |= entry.digests
        work.hits[stage.name] = True
    return work


def artifact_fields(request: Request, target: Target) -> dict[str, str]:
    """Every input of an artifact by `kind name`; the store's key of the artifact, and what `--explain` compares."""
    fields = {f"source {name}": digest for name, digest in request.sources.items()}
    fields |= {f"constant {name}": _typed(value) for name, value in request.constants.items()}
    fields |= {f"toolchain {name}": text for name, text in request.toolchain.items()}
    fields |= {f"compiler {name}": digest for name, digest in request.compiler.items()}
    fields["option path"] = request.path
    fields["option target"] = target.name
    if request.num_warps is not None:
        fields["option num_warps"] = str(request.num_warps)
    if request.min_blocks is not None:
        fields["option min_blocks"] = str(request.min_blocks)
    return fields


def link(work: Work) -> None:
    """Add the product `json`, the manifest, and `summary`, the few numbers of a build's table."""
    with told_as_diagnostics(f"the manifest of kernel `{work.request.kernel}`", work.span):
        _link(work)


def _link(work: Work) -> None:
    interface, proofs, launch, resources = (work.data(name) for name in ("interface", "proofs", "launch", "resources"))
    request = work.request
    assert work.target is not None
    resources["dynamic_shared_bytes"] = launch["dynamic_shared_bytes"]
    source = hashlib.sha256(json.dumps(request.sources, sort_keys=True).encode()).hexdigest()
    manifest: dict[str, Any] = {
        "format": 1,
        "kernel": request.kernel,
        "entry": launch["entry"],
        "arch": work.target.name,
        "constants": interface["constants"],
        "tensors": interface["tensors"],
        "scalars": interface["scalars"],
        "abi": launch["abi"],
        "grid": interface["grid"],
        "block": launch["block"],
        "cluster": 1,
        "dependent_launch": launch["dependent_launch"],
        "launch_checks": proofs["launch_checks"],
        "value_checks": proofs["value_checks"],
        "no_alias": proofs["no_alias"],
        "resources": resources,
        "obligations": proofs["obligations"],
        "unsafe": proofs["unsafe"],
        "digests": {"source": source} | {stage.name: work.digests[stage.name] for stage in STAGES},
        "toolchain": request.toolchain,
    }
    from tilec.artifact import manifest_from_json

    manifest_from_json(manifest)
    rungs: dict[str, int] = {}
    for obligation in proofs["obligations"]:
        rungs[obligation["rung"]] = rungs.get(obligation["rung"], 0) + 1
    work.products["json"] = _json(manifest)
    work.products["summary"] = _json({"resources": resources, "proofs": rungs, "unsafe": len(proofs["unsafe"])})
