"""Bundles of kernels without a model: what is in them, what reads them, and what refuses them in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.bundle import samples
from tests.files import copy_kernels
from tests.project import fake_stages, project
from tests.runtime.fake_driver import FakeDriver
from tilec.artifact.bundle_format import canonical
from tilec.cache import Store
from tilec.cli import commands, pack_command, verify_command
from tilec.frontend import read_interface
from tilec.ops.kernels import Kernels
from tilec.project.build import driver
from tilec.runtime import BundleError, Device, open_bundle
from tilec.ship.finder import find_bundle, find_kernel

pytestmark = pytest.mark.usefixtures("kept_workers")
MODEL = '\n[[model]]\nname = "tiny"\nfamily = "tiny"\nconfig = { size = 128 }\n'
STEP = "def decode():\n    copy = copy_a(BLOCK=size)\n\n\ndef prefill():\n    copy = copy_a(BLOCK=size)\n"


def toolchain(store: Store) -> dict[str, str]:
    return project.TOOLCHAIN


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of three kernels with two specialisations each, without a model; its stages are stubs."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = project.make(tmp_path / "p", ("copy_a", "copy_b", "copy_c"))
    monkeypatch.chdir(folder)
    defaults = dict(driver.build_project.__kwdefaults__ or {})
    monkeypatch.setattr(driver.build_project, "__kwdefaults__", defaults | {"runner": fake_stages.run, "preload": ()})
    for module in (pack_command, verify_command):
        monkeypatch.setattr(module, "toolchain", toolchain)
    return folder


def pack(*arguments: str) -> int:
    return commands.run(["bundle", "pack", *arguments])


def packed(root: Path, *arguments: str) -> Path:
    """The bundle for sm_90 of a pack that must succeed."""
    assert pack("--arch", "sm_90", *arguments) == 0
    (path,) = (root / "artifacts" / "bundles").glob("*-sm_90a.bundle")
    return path


def test_one_bundle_per_architecture_has_every_specialisation(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack("-k", "copy_b", "--kernel", "copy_a", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["bundles"]
    assert [Path(row["file"]).name for row in rows] == ["copy_a-copy_b-sm_90a.bundle", "copy_a-copy_b-sm_100a.bundle"]
    for row in rows:
        with open_bundle(row["file"], arch=row["arch"]) as bundle:
            names = [f"{name}-BLOCK={size}" for name in ("copy_a", "copy_b") for size in (128, 256)]
            assert [kernel.name for kernel in bundle.kernels] == names
            assert not bundle.has_step and all(kernel.steps == () for kernel in bundle.kernels)
            assert bundle.find("copy_b", BLOCK=256).manifest.arch == row["arch"]
            assert bundle.config == {"kernels": "copy_a copy_b"} and bundle.tables == []
            assert len(bundle.texts()) == 8


def test_aligned_versions_are_packed_too(root: Path) -> None:
    """Not into the bundle of a model, whose step launches what it names."""
    source = root / "kernels_src" / "copy_a.py"
    source.write_text(source.read_text() + "#! aligned\n")
    device = Device(FakeDriver())
    with open_bundle(packed(root, "-k", "copy_a", "--name", "copies")) as bundle:
        general = [f"copy_a-BLOCK={size}" for size in (128, 256)]
        assert [kernel.name for kernel in bundle.kernels] == sorted([*general, *(f"{name}-aligned" for name in general)])
        assert bundle.find("copy_a", BLOCK=256).name == "copy_a-BLOCK=256"
        kernels = Kernels(read_interface(source), source, bundle.path)
        for size, name in ((7, {"BLOCK": 256}), (8, {"BLOCK": 256, "if": "N % 8 == 0"})):
            found = kernels.get({"BLOCK": 256}, device, lambda _, size=size: {"N": size})
            assert found.manifest.constants == name
        bundle.path.unlink()
    build = root / "build.toml"
    build.write_text(build.read_text() + MODEL)
    (root / "kernels_src" / "tiny.step").write_text(STEP)
    with open_bundle(packed(root, "--model", "tiny")) as bundle:
        assert [kernel.name for kernel in bundle.kernels] == ["copy_a-BLOCK=128"]


def test_the_bytes_depend_on_the_project_only(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the folder, on the order of the names, or on what else the build file has, such as a model."""
    first = packed(root, "-k", "copy_a,copy_b", "--name", "copies").read_bytes()
    clone = tmp_path / "a longer path" / "q"
    shutil.copytree(root, clone, ignore=shutil.ignore_patterns("artifacts"))
    (clone / "kernels_src" / "tiny.step").write_text(STEP)
    (clone / "build.toml").write_text((clone / "build.toml").read_text() + MODEL)
    monkeypatch.chdir(clone)
    assert packed(clone, "-k", "copy_b", "-k", "copy_a", "--name", "copies").read_bytes() == first


def test_other_kernels_are_another_identity_for_a_policy(root: Path) -> None:
    """A policy cannot list one digest under two names, so bundles of other kernels need another digest."""
    digests: list[str] = []
    for kernels in ("copy_a", "copy_b", "copy_a,copy_b"):
        path = packed(root, "-k", kernels)
        with open_bundle(path) as bundle:
            digests.append(bundle.model_digest)
        path.unlink()
    assert len(set(digests)) == 3


def test_a_model_has_a_step_and_keeps_its_bundle(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "kernels_src" / "tiny.step").write_text(STEP)
    (root / "build.toml").write_text((root / "build.toml").read_text() + MODEL)
    path = packed(root, "-m", "tiny")
    with open_bundle(path) as bundle:
        assert bundle.has_step and [kernel.name for kernel in bundle.kernels] == ["copy_a-BLOCK=128"]
    before = path.read_bytes()
    assert pack("-k", "copy_b", "--name", "tiny") == 2
    assert "`tiny` is a model of `build.toml`; give the bundle of kernels another name" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_list_show_and_verify(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(packed(root, "-k", "copy_a", "-k", "copy_b", "--name", "copies-1.0"))
    capsys.readouterr()
    assert commands.run(["bundle", "list", path]) == 0
    out = capsys.readouterr().out
    assert "copies-1.0 for sm_90a: 4 kernels, " in out and "of the names of its kernels, as it has no step" in out
    assert commands.run(["bundle", "show", path, "copy_a-BLOCK=128"]) == 0
    assert "used by no step" in capsys.readouterr().out
    for more in ([], ["--json"]):
        assert commands.run(["bundle", "show", path, *more]) == 2
        out, err = capsys.readouterr()
        assert out == "" and "has no step, so nothing chooses between its kernels; name one of them: copy_a, copy_b" in err
    assert commands.run(["bundle", "verify", path, "--arch", "sm_90"]) == 0
    assert f"{path}: intact, copies-1.0 for sm_90a, 4 kernels" in capsys.readouterr().out


def test_built_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal from the same sources; a planted change of a source or of the build file is named."""
    path = str(packed(root, "-k", "copy_a", "-k", "copy_b", "--name", "copies"))
    capsys.readouterr()

    def again() -> tuple[int, str]:
        status = commands.run(["bundle", "verify", path, "--rebuild", "-j", "1"])
        out, err = capsys.readouterr()
        return status, out + err

    status, text = again()
    assert status == 0 and "built again, 4 kernels, every product equal to the last bit" in text
    build = root / "build.toml"
    original = build.read_text()
    build.write_text(original.replace("BLOCK = [128, 256]", "BLOCK = [128, 512]", 1))
    status, text = again()
    assert status == 1 and "copy_a-BLOCK=256: no source builds it\n" in text
    assert "copy_a-BLOCK=512: the sources build it, and it is not there" in text
    build.write_text(original.replace('name = "copy_b"', 'name = "copy_c"', 1).partition('[[kernel]]\nname = "copy_c"')[0])
    status, text = again()
    assert status == 2 and "no kernel `copy_b` in `build.toml`" in text
    build.write_text(original)
    source = root / "kernels_src" / "copy_b.py"
    source.write_text(source.read_text().replace("bid(0), load", "bid(0),  load"))
    status, text = again()
    assert status == 1 and "copy_b-BLOCK=128: its source differs" in text and "copy_a" not in text.partition("error")[2]


def test_provenance_names_the_sources_and_no_step(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(packed(root, "-k", "copy_a"))
    capsys.readouterr()
    assert commands.run(["bundle", "attest", path, "--project", "."]) == 0
    statement = json.loads(capsys.readouterr().out)["unsigned"][0]["statement"]
    found = {one["name"] for one in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert {"build.toml", "kernels_src/copy_a.py", "sources of copy_a"} <= found
    source = root / "kernels_src" / "copy_a.py"
    source.write_text(source.read_text() + "# another line\n")
    assert commands.run(["bundle", "attest", path, "--project", "."]) == 1
    assert "the sources of `copy_a` differ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-k", "copy_d"], "no kernel `copy_d` in `build.toml`; did you mean `copy_"),
        (["-k", "copy_a", "-m", "tiny"], "a bundle is of a model or of kernels"),
        (["--name", "copies"], "`--name` is for bundles of kernels (`--kernel`)"),
        ([], "has no `[[model]]`; `--kernel NAME` chooses kernels without a model"),
        (["-k", "copy_a", "--name", "../copies"], "`../copies` cannot be the name of a bundle"),
        (["-k", "copy_a", "--name", "Copies"], "at most 64 small letters"),
        (["-k", "copy_a", "--name", ""], "cannot be the name of a bundle"),
        (["-k", "copy_a", "--arch", "sm_10"], "E0603"),
    ],
)
def test_what_cannot_be_packed(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:  # fmt: skip
    assert pack(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("error") == 1
    assert not (root / "artifacts").exists()


def test_all_kernels_of_a_project(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_bundle(packed(root, "-k", "all", "--name", "mine")) as bundle:
        assert {kernel.name for kernel in bundle.kernels} == {
            f"copy_{one}-BLOCK={size}" for one in "abc" for size in (128, 256)
        }


def test_a_long_list_of_kernels_needs_a_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"copy_{'x' * 20}_{letter}" for letter in "abc"]
    for name in names:
        (root / "kernels_src" / f"{name}.py").write_text(project.KERNEL.format(name=name))
    entries = "".join(f'[[kernel]]\nname = "{name}"\nconstants = {{ BLOCK = 128 }}\n' for name in names)
    (root / "build.toml").write_text((root / "build.toml").read_text() + entries)
    assert pack("-k", ",".join(names)) == 2
    assert "cannot be the name of a bundle: a name has at most 64" in (err := capsys.readouterr().err)
    assert "give one with `--name`" in err
    assert packed(root, "-k", ",".join(names), "--name", "x").name == "x-sm_90a.bundle"


def test_kernels_for_other_architectures(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each architecture that one of the kernels is built for has a bundle; a note names a kernel that is missing in one."""
    build = root / "build.toml"
    build.write_text(build.read_text().replace('name = "copy_b"\n', 'name = "copy_b"\narch = ["sm_90"]\n'))
    assert pack("-k", "copy_a,copy_b", "--name", "copies") == 0
    assert capsys.readouterr().err.endswith(
        "note: `copy_b` is not built for sm_100a, so the bundle for sm_100a does not have it\n"
    )
    for arch, kernels in (("sm_90a", "copy_a copy_b"), ("sm_100a", "copy_a")):
        with open_bundle(root / "artifacts" / "bundles" / f"copies-{arch}.bundle") as bundle:
            assert bundle.config["kernels"] == kernels == " ".join(sorted({one.manifest.kernel for one in bundle.kernels}))
    assert pack("-k", "copy_b", "--arch", "sm_90,sm_100") == 2
    assert "`build.toml` builds none of these kernels for sm_100a" in capsys.readouterr().err


def test_a_refused_kernel_leaves_no_bundle(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = root / "kernels_src" / "copy_a.py"
    source.write_text(source.read_text() + "#! refuse\n")
    assert pack("-k", "copy_a,copy_b") == 1
    out, err = capsys.readouterr()
    assert out == "" and "error[E0301]" in err
    assert not list(root.rglob("*.bundle"))


def test_a_search_for_a_model_never_takes_it(root: Path, tmp_path: Path) -> None:
    """`find_bundle` is for the engine, `find_kernel` for `tilec.op`; the second takes what the first does not."""
    folder = tmp_path / "store" / "bundles"
    assert pack("-k", "copy_a", "--arch", "sm_90", "-o", str(folder)) == 0
    folder.chmod(0o700)
    for numbers in ({"hidden_size": 128}, {}):
        with pytest.raises(BundleError, match="no bundle for this model and sm_90a is installed"):
            find_bundle(numbers, "sm_90a")
    with find_kernel("copy_a", {"BLOCK": 128}, "sm_90a") as bundle:
        assert not bundle.has_step


@pytest.mark.parametrize("named", ["", "other", "scale other", "scale scale", "scale ", 1, None])
def test_its_configuration_names_exactly_its_kernels(tmp_path: Path, named: str | int | None) -> None:
    """The model digest of a policy covers the configuration, so a bundle with other kernels may not have the same one."""
    description, blobs = samples.parts()
    path = tmp_path / "x.bundle"
    path.write_bytes(samples.encode(description | {"config": {"kernels": "scale"}}, blobs))
    with open_bundle(path) as bundle:
        assert not bundle.has_step
    path.write_bytes(samples.encode(description | {"config": {"kernels": named}}, blobs))
    message = "config: not names with numbers" if named is None else "its kernels are not those that `kernels` of its conf"
    with pytest.raises(BundleError, match=message) as caught:
        open_bundle(path)
    assert caught.value.code == "E0705"


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two kernels that the real compilers built."""
    root = tmp_path_factory.mktemp("kernels") / "p"
    copy_kernels(root / "kernels_src", "argmax_reduce", "rms_norm")
    (root / "build.toml").write_text(
        '[build]\narch = ["sm_90"]\n[[kernel]]\nname = "argmax_reduce"\nconstants = { PARTS = 128 }\n'
        '[[kernel]]\nname = "rms_norm"\nconstants = { E = ["bf16", "f16"], H = 128 }\n'
    )
    arguments = ["--project", str(root), "-k", "argmax_reduce", "-k", "rms_norm", "--name", "two", "--jobs", "1"]
    assert pack(*arguments) == 0
    return root / "artifacts" / "bundles" / "two-sm_90a.bundle"


def test_it_is_audited(real: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert commands.run(["audit", str(real), "--json", str(report), "--launches", "1", "--seeds", "1", "-j", "1"]) == 0
    found = json.loads(report.read_bytes())
    assert found["summary"]["artifacts"] == 3 and found["summary"]["cubins"] == {"same": 3}
    assert found["summary"]["obligations"]["confirmed"] > 0


def test_its_qualification_is_prepared_at_the_edges_of_contracts(real: Path, tmp_path: Path) -> None:
    from tilec.qualify.side_file import read

    path = tmp_path / "two.qualify"
    assert commands.run(["qualify", str(real), "--prepare", "-o", str(path), "-j", "1"]) == 0
    entries = read(path).entries
    assert len(entries) == 3 and all(entry.launches for entry in entries.values())
    assert not any(launch.timed for entry in entries.values() for launch in entry.launches)


def test_an_op_takes_its_kernels(real: Path) -> None:
    path = real.parents[2] / "kernels_src" / "rms_norm.py"
    kernels = Kernels(read_interface(path), path, real)
    for element in ("bf16", "f16"):
        found = kernels.get({"E": element, "H": 128}, Device(FakeDriver()))
        assert found.manifest.constants == {"E": element, "H": 128}
    with pytest.raises(BundleError, match="has no kernel for `rms_norm`, E = bf16, H = 256"):
        kernels.get({"E": "bf16", "H": 256}, Device(FakeDriver()))


def test_it_gives_a_launcher_in_c(real: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["bundle", "launcher", str(real), "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert Path(found["header"]).name == "two.h" and len(found["functions"]) == 3 and not found["left_out"]


def test_a_bundle_of_kernels_with_the_numbers_of_a_model_has_no_step(tmp_path: Path) -> None:
    """Whatever it calls itself, what counts is whether its step launches anything."""
    description, blobs = samples.parts()
    path = tmp_path / "x.bundle"
    for launch, has_step in (([], False), (["norm"], True)):
        body = [["Assign", [["Name", name]], ["Call", ["Name", "scale"], [], []]] for name in launch]
        step = ["Module", [["FunctionDef", "decode", body or [["Pass"]]], ["FunctionDef", "prefill", [["Pass"]]]]]
        path.write_bytes(samples.encode(description | {"step": step}, blobs))
        assert canonical(step) in path.read_bytes()
        with open_bundle(path) as bundle:
            assert bundle.has_step is has_step and bundle.config["hidden_size"] == 128
