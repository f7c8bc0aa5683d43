"""Everything that can change a verdict or a product is in exactly the keys that depend on it: tilec's own files, every package,
Python, the files that a kernel imports and those that it would import if they existed."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.campaign import chosen, first
from tests.project import project
from tilec import pipeline, toolchain
from tilec.cache import FileDigests, Store, files, key_of, store_root
from tilec.diagnostics.diagnostic import CompileError
from tilec.pipeline import Request, Stage, Work, stage_fields
from tilec.project.build.worker import Outcome, raise_if_fatal
from tilec.project.read import plan
from tilec.project.read.buildfile import read_build_file
from tilec.target.schedule import Overrides
from tilec.target.targets import TARGETS, Target

STAGE_NAMES = tuple(stage.name for stage in pipeline.STAGES)
TOOLS = {"python": "CPython 3.11", **{package.distribution: "1 sha256:aa" for package in toolchain.PACKAGES}}
COMPILER = dict.fromkeys((*STAGE_NAMES, "link"), "c")
MODULES = {
    "tir": ("frontend", "artifact.records", "ir.claims", "ir.text.lines", "ir.text.printer", "ir.verifier"),
    "proofs": ("artifact.records", "ir.text.lines", "ir.text.parser", "ir.text.spans", "passes.prover"),
    "schedule": ("artifact.records", "ir.text.parser", "ir.text.spans", "passes.schedule", "target.schedule"),
    "mlir": (
        "artifact.records",
        "ir.text.lines",
        "ir.text.parser",
        "ir.text.spans",
        "lowering",
        "passes.schedule",
        "passes.schedule.notes",
        "target.schedule",
    ),
    "ptx": ("codegen",),
    "cubin": ("artifact.records", "assemble"),
}
"""The modules that the functions of the stages in `pipeline.py` import."""
AREAS = {
    "frontend": {"tir"}, "diagnostics/spelling.py": {"tir"}, "lowering": {"mlir"}, "atoms": {"schedule", "mlir"},
    "mlir": {"schedule", "mlir"}, "target/schedule.py": {"schedule", "mlir"}, "codegen": {"ptx"},
    "assemble": {"cubin"}, "__init__.py": {"link"}, "version.py": {"link"}, "link.py": {"link"},
    "artifact/manifest_reader.py": {"link"},
    "toolchain.py": {"ptx", "cubin", "link"},
}  # fmt: skip
"""The stages that depend on a file in a folder of tilec; the vocabulary affects all stages, a file in no list affects none."""


def fields(stage: Stage, tools: dict[str, str], compiler: dict[str, str]) -> dict[str, int | str | None]:
    request = Request("k", "k.py", "/", {}, {"k.py": "a"}, tools, compiler)
    work = Work(request, TARGETS[0])
    work.digests = dict.fromkeys(stage.inputs, "d")
    return stage_fields(stage, work)


def moved(tools: dict[str, str] = TOOLS, compiler: dict[str, str] = COMPILER) -> set[str]:
    """The stages whose key changes with these packages and sources, and `artifact`."""
    found = {stage.name for stage in pipeline.STAGES if fields(stage, tools, compiler) != fields(stage, TOOLS, COMPILER)}
    keys = [
        key_of("artifact", dict(pipeline.artifact_fields(Request("k", "k.py", "/", {}, {}, *given), TARGETS[0])))
        for given in ((tools, compiler), (TOOLS, COMPILER))
    ]
    return found | ({"artifact"} if keys[0] != keys[1] else set())


PROOF = {"proofs", "artifact"}


@pytest.mark.parametrize(
    ("tool", "stages"),
    [
        ("python", {"tir", "artifact"}), ("islpy", PROOF), ("ml-dtypes", PROOF),
        ("numpy", {*PROOF, "schedule", "mlir"}), ("torch-mlir", {"ptx", "artifact"}), ("llvmlite", {"ptx", "artifact"}),
        ("cuda-bindings", {"cubin", "artifact"}), ("cuda-pathfinder", {"cubin", "artifact"}),
        ("nvidia-nvjitlink", {"cubin", "artifact"}),
    ],
)  # fmt: skip
def test_a_package_is_in_the_keys_of_the_stages_that_run_it(tool: str, stages: set[str]) -> None:
    assert moved(tools=TOOLS | {tool: "1 sha256:bb"}) == stages


def test_every_package_of_the_fingerprint_is_in_some_key() -> None:
    assert set(TOOLS) == {tool for stage in pipeline.STAGES for tool in stage.toolchain}


_LOADED = """
import json, sys
from pathlib import Path
from tilec import pipeline
from tilec.target.schedule import Overrides
from tilec.target.targets import TARGETS, Target
root = Path(sys.argv[1])
request = pipeline.Request("add", "kernels_src/add.py", str(root), {"E": "bf16", "BLOCK": 1024}, {}, {}, {})
work = pipeline.Work(request, TARGETS[0])
loaded, before = {}, set(sys.modules)
for stage in pipeline.STAGES:
    made = stage.run(work)
    work.products |= made
    loaded[stage.name] = sorted({getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - before})
    before = set(sys.modules)
print(json.dumps(loaded))
"""


def test_every_distribution_that_a_stage_loads_is_in_its_key() -> None:
    """By experiment: the files of the modules that each stage loads, by the distribution that installed them."""
    root = plan.PACKAGE.parent
    code = [sys.executable, "-P", "-c", _LOADED, str(root)]
    done = subprocess.run(code, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(root)}, cwd=root)
    assert done.returncode == 0, done.stderr
    owners = {toolchain._module_folder(package.module): package for package in toolchain.PACKAGES}  # pyright: ignore[reportPrivateUsage]
    ignored = ("typing_extensions.py", "__editable__")  # names for annotations, used by torch-mlir; how tilec is installed
    earlier: set[str] = set()
    counted = 0
    for stage in pipeline.STAGES:
        allowed = set(stage.toolchain) | earlier
        for name in json.loads(done.stdout)[stage.name]:
            path = Path(name)
            if "site-packages" in path.parts and not path.name.startswith(ignored):
                counted += 1
                owner = next((package.distribution for folder, package in owners.items() if folder in path.parents), None)
                assert owner in allowed, f"{stage.name} loads {name} of {owner}"
        earlier = allowed
    assert counted > 100


def test_what_is_fixed_of_a_schedule_is_in_the_keys_of_its_target_alone() -> None:
    rules = (Overrides(warps=8), Overrides(stages=3, target=TARGETS[0].name))

    def found(target: Target, rules: tuple[Overrides, ...]) -> dict[str, dict[str, int | str | None]]:
        request = Request("k", "k.py", "/", {}, {}, TOOLS, COMPILER, rules)
        work = Work(request, target)
        work.digests = dict.fromkeys(("tir", "claims", "spans", "schedule", "positive_divisions", "mlir", "ptx"), "d")
        return {stage.name: stage_fields(stage, work) for stage in pipeline.STAGES} | {
            "artifact": dict(pipeline.artifact_fields(request, target))
        }

    for target, wanted in ((TARGETS[0], {"schedule warps", "schedule stages"}), (TARGETS[1], {"schedule warps"})):
        before, after = found(target, ()), found(target, rules)
        for name, stage_before in before.items():
            added = after[name].keys() - stage_before.keys()
            assert added == (wanted if name in ("schedule", "artifact") else set())
    assert "schedule" in pipeline.stage_named("mlir").inputs, "what is chosen is in the key of the code"


def test_check_and_build_share_the_key_of_a_proof() -> None:
    stage = pipeline.stage_named("proofs")
    assert fields(stage, TOOLS, COMPILER) == fields(stage, TOOLS | {"llvmlite": "0.50"}, COMPILER)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of tilec whose files can be edited."""
    copy = tmp_path_factory.mktemp("copy") / "tilec"
    shutil.copytree(plan.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    time.sleep(files.SETTLED_NS / 1e9 + 0.05)  # so that the first digest is cached, and an edit is detected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "PACKAGE", copy)
        yield copy


def closure(package: Path, starts: tuple[str, ...]) -> set[Path]:
    """Files that these modules import, at any depth."""
    found: set[Path] = set()
    pending = [file for start in starts if (file := module_file(package, start))]
    while pending:
        file = pending.pop()
        if file not in found:
            found.add(file)
            pending.extend(imported(package, file))
    return found


def module_file(package: Path, name: str) -> Path | None:
    path = package.joinpath(*name.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


@functools.cache
def imported(package: Path, file: Path) -> tuple[Path, ...]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    wanted = {name.removeprefix("tilec.") for name in names if name.startswith("tilec.")}
    return tuple(file for name in wanted if (file := module_file(package, name)))


@pytest.mark.parametrize("part", first(1, range(8)))
def test_one_byte_of_every_file_of_tilec_moves_the_keys_it_must_and_no_others(package: Path, part: int) -> None:
    """A file that a stage imports must change its key; the vocabulary changes all keys, the prover none of lowering, lowering
    none of proofs. Files are divided into eight parts, the first one of each folder into the first."""
    digests = FileDigests()
    needs = {stage: closure(package, starts) for stage, starts in MODULES.items()}
    vocabulary = {package / name for name in pipeline.VOCABULARY_SOURCE}
    before = plan.compiler_digests(digests)
    passes = {"prover": {"proofs"}, "schedule": {"schedule", "mlir"}}
    checked = 0
    files_of = [sorted(folder.glob("*.py")) for folder in sorted({path.parent for path in package.rglob("*.py")})]
    interleaved = [file for files in zip_longest(*files_of) for file in files if file is not None]
    size = -(-len(interleaved) // 8)
    assert size >= len(files_of)
    for file in interleaved[part * size : (part + 1) * size]:
        data = file.read_bytes()
        file.write_bytes(data[:-1] + b"#" if data else b"#")
        after = plan.compiler_digests(digests)
        file.write_bytes(data)
        name = file.relative_to(package).as_posix()
        found = {stage for stage in after if after[stage] != before[stage]}
        must = {stage for stage, closed in needs.items() if file in closed}
        assert must <= found, f"{name} is imported by {must - found}, whose key it does not move"
        area = name.split("/")[0]
        if file in vocabulary or package / area in vocabulary:
            assert found == set(before), name
        elif area == "passes":
            assert found == passes.get(name.split("/")[1], {"proofs", "schedule", "mlir"}), name
        else:
            assert found == AREAS.get(name, AREAS.get(area, set())), name
        checked += 1
    assert checked > 40
    assert plan.compiler_digests(digests) == before


LARGE = ("numpy", "torch-mlir")
"""Distributions of thousands of files; excluded from the default run."""


@pytest.mark.parametrize(
    "package",
    chosen(toolchain.PACKAGES, lambda package: package.distribution not in LARGE),
    ids=lambda package: package.distribution,
)
def test_one_byte_of_every_file_of_a_distribution_changes_its_fingerprint(
    package: toolchain.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy of the distribution with short files under the real names, one file is edited after the other: all libraries,
    and one module in ten if there are many."""
    real = toolchain._module_folder(package.module)  # pyright: ignore[reportPrivateUsage]
    assert real is not None
    image = tmp_path / real.name
    if package.binaries:
        listed = [str(path) for path in toolchain.find_binaries(package)]
    else:
        listed = [path for path, _ in toolchain._modules(real)]  # pyright: ignore[reportPrivateUsage]
    copies: list[Path] = []
    for path in listed:
        copies.append(tmp_path / Path(path).relative_to(real.parent))
        copies[-1].parent.mkdir(parents=True, exist_ok=True)
        copies[-1].write_bytes(b"one")
    monkeypatch.setattr(toolchain, "_module_folder", {package.module: image}.get)
    before = toolchain.fingerprint(None, (package,))
    for copy in copies if len(copies) < 60 else [*copies[::10], *(path for path in copies if ".so" in path.name)]:
        copy.write_bytes(b"onf")
        assert toolchain.fingerprint(None, (package,)) != before, copy
        copy.write_bytes(b"one")
    assert toolchain.fingerprint(None, (package,)) == before


IMPORTING = """import tilec
from tilec import Const, In, Out, bid, f32, grid, load, store
from lib.h import N, twice


@tilec.kernel
def k(x: In[f32, N], out: Out[f32, N], *, BLOCK: Const):
    grid(N // BLOCK)
    store(out, bid(0), twice(load(x, bid(0), shape=BLOCK)))
"""
HELPER = '''import tilec
from tilec import Dim


class N(Dim):
    """Elements."""


@tilec.function
def twice(x):
    return x * {factor}
'''


@pytest.fixture
def importing(tmp_path: Path) -> Path:
    """A project whose kernel imports a helper from outside the kernels' folder."""
    root = tmp_path / "p"
    (root / "src" / "kernels" / "lib").mkdir(parents=True)
    (root / "src" / "kernels" / "k.py").write_text(IMPORTING)
    (root / "src" / "lib").mkdir()
    (root / "src" / "lib" / "h.py").write_text(HELPER.format(factor="2.0"))
    (root / "build.toml").write_text(
        '[build]\nkernels = "src/kernels"\narch = ["sm_90"]\n[[kernel]]\nname = "k"\nconstants = { BLOCK = 128 }\n'
    )
    return root


def key_now(root: Path) -> tuple[str, dict[str, str]]:
    build = read_build_file(root / "build.toml")
    with contextlib.closing(Store(store_root())) as store:
        planned, refused = plan.plan(build, build.entries, None, store, FileDigests(), TOOLS)
    assert not refused
    return planned[0].key, planned[0].request.sources


def test_a_module_that_shadows_an_import_later_changes_the_key(importing: Path) -> None:
    first, sources = key_now(importing)
    assert set(sources) == {"src/kernels/k.py", "src/lib/h.py"}
    assert key_now(importing)[0] == first
    (importing / "lib").mkdir()
    (importing / "lib" / "h.py").write_text(HELPER.format(factor="3.0"))  # the root precedes the folder above the kernels
    second, sources = key_now(importing)
    assert (second != first, set(sources)) == (True, {"src/kernels/k.py", "lib/h.py"})
    (importing / "src" / "kernels" / "lib" / "h.py").write_text(
        HELPER.format(factor="4.0")
    )  # and the kernel's own folder precedes both
    third, sources = key_now(importing)
    assert (third not in (first, second), set(sources)) == (True, {"src/kernels/k.py", "src/kernels/lib/h.py"})
    (importing / "src" / "kernels" / "lib" / "h.py").unlink()
    (importing / "lib" / "h.py").unlink()
    assert key_now(importing)[0] == first


def test_a_folder_that_becomes_a_link_elsewhere_changes_the_key(importing: Path) -> None:
    first, _ = key_now(importing)
    (importing / "src" / "lib").rename(importing / "src" / "one")
    (importing / "src" / "two").mkdir()
    (importing / "src" / "two" / "h.py").write_text(HELPER.format(factor="5.0"))
    (importing / "src" / "lib").symlink_to("one")
    second, _ = key_now(importing)
    (importing / "src" / "lib").unlink()
    (importing / "src" / "lib").symlink_to("two")
    third, sources = key_now(importing)
    assert len({first, second, third}) == 3
    assert "src/two/h.py" in sources


@pytest.mark.parametrize(
    "note", ["[]", "{", "[" * 100_000, '{"files": {"k": 1}}', '{"files": {}, "absent": [], "reached": {}}']
)
def test_a_note_of_another_shape_is_read_anew(importing: Path, note: str) -> None:
    first, _ = key_now(importing)
    with contextlib.closing(Store(store_root())) as store:
        name = f"files:{importing / 'src' / 'kernels' / 'k.py'}"
        assert store.get_text(name) is not None
        store.set_texts({name: note})
    assert key_now(importing)[0] == first


def test_a_source_that_changes_while_it_is_compiled_is_refused(tmp_path: Path) -> None:
    root = project.make(tmp_path / "p")
    path = root / "kernels_src" / "copy_a.py"
    sources = {"kernels_src/copy_a.py": FileDigests().digest(path)}
    request = Request("copy_a", "kernels_src/copy_a.py", str(root), {"BLOCK": 128}, sources, {}, {})
    tir = pipeline.stage_named("tir")
    assert tir.run(Work(request, None))["tir"].startswith(b"kernel @copy_a")
    path.write_text(path.read_text() + "X = 1\n")
    with pytest.raises(CompileError) as caught:
        tir.run(Work(request, None))
    assert [item.code for item in caught.value.diagnostics] == ["E0713"]
    raise_if_fatal(Outcome(0, caught.value.diagnostics))  # the other kernels are still built


def test_the_manifest_is_the_same_on_every_version_of_python() -> None:
    one = toolchain.stated(TOOLS | {"islpy": "2026.2 cp311 sha256:aa"})
    two = toolchain.stated(TOOLS | {"islpy": "2026.2 cp312 sha256:bb", "python": "CPython 3.12"})
    assert one == two
