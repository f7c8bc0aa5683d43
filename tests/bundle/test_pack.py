"""Packing with the real compilers: the bytes depend on the project only, and the commands report the contents."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import shipped
from tests.bundle import mutants
from tests.files import copy_kernels
from tilec.artifact.bundle_format import canonical, encode
from tilec.cli import commands
from tilec.project.read import models
from tilec.runtime import load_artifact, open_bundle
from tilec.runtime.bundle_manifest import BundledKernel
from tilec.target.schedule import merged
from tilec.target.targets import SM_90A

ROOT = Path(__file__).resolve().parents[2]
MODEL = "qwen3-0.6b"


def clone(folder: Path, kernels: list[BundledKernel]) -> Path:
    """A copy of the project elsewhere, with a build file of these artifacts."""
    shutil.copytree(ROOT / "kernels_src", folder / "kernels_src", ignore=shutil.ignore_patterns("__pycache__"))
    lines = ['[build]\narch = ["sm_90"]']
    for kernel in kernels:
        entry, constants = shipped.specialisation(kernel.manifest.kernel, kernel.manifest.constants)
        fixed = merged(entry.overrides(constants), SM_90A).given()
        tables = {"constants": constants, "budget": entry.budget, "schedule": fixed}
        lines.append(f'[[kernel]]\nname = "{entry.name}"')
        for name, table in tables.items():
            lines.append(f"{name} = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in table.items())} }}")
    (folder / "build.toml").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def bundle(shipped_bundle: Path) -> Path:
    return shipped_bundle


@pytest.mark.campaign
def test_kernels_of_a_clone_at_another_path_are_the_same_bytes(bundle: Path, tmp_path: Path) -> None:
    """Built from an empty store, by another process with another hash seed, from kernels with many sets and layouts to
    order."""
    with open_bundle(bundle) as opened:
        kernels = {kernel.manifest.kernel: kernel for kernel in reversed(opened.kernels)}
        chosen = [kernels[name] for name in ("flash_attention", "sample_token")]
        root = clone(tmp_path / "a much longer path" / "q", chosen)
        environment = os.environ | {"TILEC_CACHE_DIR": f"{root}-store"}
        done = subprocess.run(
            [sys.executable, "-m", "tilec", "build", "-j", "1"], cwd=root, env=environment, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        for kernel in chosen:
            built = root / "artifacts" / "build" / "sm_90a" / f"{kernel.name}.cubin"
            assert load_artifact(built) == (kernel.manifest, opened.cubin(kernel))
    assert str(ROOT).encode() not in bundle.read_bytes()


def test_a_bundle_contains_what_the_plan_lists(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "DTYPES", ("bf16",))
    assert commands.run(["build", "--project", str(ROOT), "--plan", "--json", "--arch", "sm_90"]) == 0
    uses = [use for use in json.loads(capsys.readouterr().out)["uses"] if use["model"] == MODEL]
    with open_bundle(bundle, arch="sm_90a") as opened:
        assert {kernel.name: set(kernel.steps) for kernel in opened.kernels} == {
            name: {use["op"] for use in uses if use["artifact"] == name} for name in {use["artifact"] for use in uses}
        }
        assert opened.config["hidden_size"] == 1024
        assert opened.find("rms_norm", E="bf16", H=1024).manifest.obligations
        assert all(not kernel.manifest.unsafe for kernel in opened.kernels)


def test_list_verify_and_show(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["bundle", "list", str(bundle)]) == 0
    table = capsys.readouterr().out
    assert f"{MODEL} for sm_90a" in table
    assert commands.run(["bundle", "list", "--json", str(bundle)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["bytes"] == bundle.stat().st_size
    assert all(one["name"] in table and one["proofs"] for one in data["kernels"])
    assert commands.run(["bundle", "verify", "--arch", "sm_90", "--digest", data["sha256"], str(bundle)]) == 0
    assert f"sha256 {data['sha256']}" in (out := capsys.readouterr().out)
    assert f"{bundle}: intact, {MODEL} for sm_90a" in out
    assert data["sha256"] == hashlib.sha256(bundle.read_bytes()).hexdigest()
    assert commands.run(["bundle", "show", str(bundle), "rms_norm-E=bf16-H=1024"]) == 0
    shown = capsys.readouterr().out
    assert "in x: bf16 [T, 1024], aligned to 16 bytes" in shown
    assert "kernels_src/rms_norm.py" in shown
    assert f"  bundle {data['sha256']}" in shown
    assert commands.run(["bundle", "show", "--json", str(bundle), "rms_norm-E=bf16-H=1024"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["kernel"] == "rms_norm"


def test_refusals_have_their_status(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = tmp_path / "damaged.bundle"
    damaged.write_bytes(bundle.read_bytes()[:-1])
    for arguments, status, message in (
        (["verify", str(bundle), str(damaged)], 1, "error[E0705]"),
        (["verify", str(bundle), "--arch", "sm_100"], 1, "error[E0706]"),
        (["verify", str(bundle), "--sha256", "00"], 1, "error[E0705]"),
        (["list", str(bundle), "--digest", "00" * 32], 1, "is not the requested bundle: its sha256 is "),
        (["show", str(bundle), "rms_norm-E=bf16-H=1024", "--digest", "00" * 32], 1, "error[E0705]"),
        (["diff", str(bundle), str(bundle), "--new-digest", "00" * 32], 1, "error[E0705]"),
        (["verify", str(bundle), str(bundle), "--digest", "00" * 32], 2, "is of one bundle"),
        (["verify", str(ROOT / "build.toml")], 1, "error[E0704]"),
        (["verify", str(tmp_path / "absent")], 2, "error[E0703]"),
        (["verify", str(bundle), "--arch", "sm_13"], 2, "error[E0603]"),
        (["show", str(bundle), "nothing"], 2, "error[E0707]"),
        (["pack", "--project", str(ROOT), "-m", "nothing"], 2, "no model `nothing`"),
    ):
        assert commands.run(["bundle", *arguments]) == status, arguments
        err = capsys.readouterr().err
        assert message in err
        assert err.count("error") == 1
    assert commands.run(["bundle", "verify", "--json", str(bundle), str(damaged)]) == 1
    assert [one["intact"] for one in json.loads(capsys.readouterr().out)["bundles"]] == [True, False]


def changed(bundle: Path, path: Path) -> Path:
    """The bundle without one kernel, and with worse proofs and resources in another."""
    with open_bundle(bundle) as opened:
        data = bundle.read_bytes()
        start = data.index(b'{"arch"')
        description = json.JSONDecoder().raw_decode(data[start : data.index(b"\x7fELF")].decode("latin-1"))[0]
        del description["blobs"], description["texts"]
        description["kernels"] = [one for one in description["kernels"] if one["manifest"]["kernel"] != "embedding"]
        record = next(one for one in description["kernels"] if one["manifest"]["kernel"] == "rms_norm")
        norm, proofs = record["manifest"], opened.proofs()
        obligations = json.loads(proofs[record["proofs"]])
        first = next(one for one in obligations if one["rung"] == "set")
        first["rung"] = "launch"
        norm["resources"]["spill_bytes"] = 8
        norm["launch_checks"].append({"condition": ["<=", "T", 4], "text": "T is at most 4"})
        text = canonical(obligations)
        record["proofs"] = hashlib.sha256(text).hexdigest()
        proofs[record["proofs"]] = text
        proofs = {one["proofs"]: proofs[one["proofs"]] for one in description["kernels"]}
        blobs = {one["blob"]: opened.cubin(one["name"]) for one in description["kernels"]}
    path.write_bytes(encode(description, blobs, {}, proofs))
    return path


def test_diff_names_what_got_worse(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["bundle", "diff", str(bundle), str(bundle)]) == 0
    assert capsys.readouterr().out == "the bundles are the same\n"
    other = str(changed(bundle, tmp_path / "other.bundle"))
    assert commands.run(["bundle", "diff", str(bundle), other]) == 1
    out = capsys.readouterr().out
    assert "- embedding-E=bf16-H=1024-BLOCK=" in out
    assert "! spill bytes 0 -> 8" in out
    assert "! new launch check: T is at most 4" in out
    assert any(line.startswith("  ! ") and "set -> " in line and "launch" in line for line in out.splitlines())
    assert commands.run(["bundle", "diff", "--json", other, str(bundle)]) == 1
    back = json.loads(capsys.readouterr().out)
    assert not back["same"]
    assert [one["kind"] for one in back["changes"] if one["kind"] == "added"]
    assert not any(one["worse"] for one in back["changes"])


def rebuilt(root: Path, path: Path) -> tuple[int, dict[str, Any], str]:
    """`bundle verify --rebuild` in a process: status, the row of the bundle, and stderr."""
    command = [sys.executable, "-m", "tilec", "bundle", "verify", str(path), "--rebuild", "--project", str(root), "--json"]
    environment = os.environ | {"TILEC_CACHE_DIR": str(path.parent / "unused"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert not (path.parent / "unused").exists()
    assert not (root / "artifacts").exists()
    return done.returncode, json.loads(done.stdout)["bundles"][0], done.stderr


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A project with one model of two kernels, and its bundle."""
    root = tmp_path_factory.mktemp("small") / "p"
    copy_kernels(root / "kernels_src", "argmax_reduce", "rms_norm")
    (root / "build.toml").write_text(
        '[build]\narch = ["sm_90"]\n[[kernel]]\nname = "argmax_reduce"\nconstants = { PARTS = 128 }\n'
        '[[kernel]]\nname = "rms_norm"\nconstants = { E = ["bf16", "f16"], H = 128 }\n'
        '[[model]]\nname = "small"\nfamily = "tiny"\nconfig = { hidden_size = 128 }\n'
    )
    (root / "kernels_src" / "tiny.step").write_text(
        "def decode():\n    choose = argmax_reduce()\n\n\ndef prefill():\n    norm = rms_norm(E=dtype, H=hidden_size)\n"
    )
    assert commands.run(["bundle", "pack", "--project", str(root), "-o", str(root.parent / "out"), "--jobs", "1"]) == 0
    shutil.rmtree(root / "artifacts", ignore_errors=True)
    return root, root.parent / "out" / "small-sm_90a.bundle"


@pytest.mark.campaign
def test_built_again_it_is_equal(small: tuple[Path, Path]) -> None:
    status, row, err = rebuilt(*small)
    assert (status, row["intact"], row["rebuilt"], row["differences"], "error" in err) == (0, True, True, [], False)


def test_what_its_sources_do_not_build_is_named(small: tuple[Path, Path], tmp_path: Path) -> None:
    """An intact bundle with the code of one kernel swapped with its twin's, and one with weaker launch checks."""
    root, path = small
    data = path.read_bytes()
    manifest = json.loads(mutants.split(data)[1])
    first, right = (one for one in manifest["kernels"] if one["manifest"]["kernel"] == "rms_norm")
    with open_bundle(path) as bundle:
        blobs = {one.blob: bundle.cubin(one) for one in bundle.kernels}
        texts, proofs = bundle.texts(), bundle.proofs()
    first["blob"] = first["manifest"]["digests"]["cubin"] = right["blob"]
    manifest["kernels"][0]["manifest"]["launch_checks"] = []
    del manifest["blobs"], manifest["texts"]
    used = {one["blob"] for one in manifest["kernels"]}
    forged = tmp_path / "forged.bundle"
    forged.write_bytes(encode(manifest, {digest: code for digest, code in blobs.items() if digest in used}, texts, proofs))
    status, row, err = rebuilt(root, forged)
    assert (status, row["intact"], row["rebuilt"]) == (1, True, False)
    assert row["differences"] == [
        "argmax_reduce-PARTS=128: `launch_checks` of its manifest differs", f"{first['name']}: its CUBIN differs"
    ]  # fmt: skip
    assert "error[E0921]" in err and f"{first['name']}: its CUBIN differs" in err


@pytest.mark.campaign
def test_rebuild_of_another_project(small: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "q"
    shutil.copytree(small[0], root)
    (root / "build.toml").write_text((root / "build.toml").read_text().replace('name = "small"', 'name = "other"'))
    command = ["bundle", "verify", "--rebuild", "--project"]
    assert commands.run([*command, str(root), str(small[1])]) == 2
    assert "no model `small`" in capsys.readouterr().err
    kernel = root / "kernels_src" / "argmax_reduce.py"
    shutil.copy(small[0] / "build.toml", root)
    kernel.write_text("# a comment moves the lines of the proofs\n" + kernel.read_text())
    assert commands.run([*command, str(root), str(small[1])]) == 1
    err = capsys.readouterr().err
    assert "argmax_reduce-PARTS=128: its source differs" in err and "its CUBIN differs" not in err
    step = root / "kernels_src" / "tiny.step"
    step.write_text("# a comment changes nothing\n" + step.read_text().replace("norm = ", "normed = "))
    assert commands.run([*command, str(root), str(small[1])]) == 1
    assert "the step differs" in capsys.readouterr().err


def test_provenance_names_the_sources(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each source file of the bundle by its sha256; and the packages of the manifests."""
    assert commands.run(["bundle", "attest", str(bundle), "--project", str(ROOT)]) == 0
    statement = json.loads(capsys.readouterr().out)["unsigned"][0]["statement"]
    found = {one["name"]: one for one in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    for name in ("build.toml", "engine/models/qwen3/qwen3.step", "kernels_src/rms_norm.py"):
        assert found[name]["digest"] == {"sha256": hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}
    assert {"sources of rms_norm", "step", "tuning"} <= found.keys()
    with open_bundle(bundle) as opened:
        toolchain = opened.kernels[0].manifest.toolchain
    assert found["torch-mlir"]["uri"] == f"pkg:pypi/torch-mlir@{toolchain['torch-mlir'].split()[0]}"
    assert found["tilec"]["annotations"]["sha256OfItsFiles"] in toolchain["tilec"]
    project = tmp_path / "p"
    shutil.copytree(ROOT / "kernels_src", project / "kernels_src", ignore=shutil.ignore_patterns("__pycache__"))
    steps = [f"engine/models/{family}/{family}.step" for family in ("qwen3", "llama", "qwen3_moe")]
    for name in ("build.toml", *steps):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    (tmp_path / "link").symlink_to(project)
    assert commands.run(["bundle", "attest", str(bundle), "--project", str(tmp_path / "link")]) == 0
    assert json.loads(capsys.readouterr().out)["unsigned"][0]["statement"] == statement
    build = (ROOT / "build.toml").read_text(encoding="utf-8")
    (project / "build.toml").write_text(build.replace('"engine/models"', '"../steps"'), encoding="utf-8")
    shutil.move(project / "engine" / "models", tmp_path / "steps")
    assert commands.run(["bundle", "attest", str(bundle), "--project", str(project)]) == 1
    err = capsys.readouterr().err
    assert "error[E0921]" in err and "`qwen3.step` lies outside of the project" in err
    kernel = project / "kernels_src" / "rms_norm.py"
    kernel.write_text(kernel.read_text(encoding="utf-8") + "# another line\n", encoding="utf-8")
    assert commands.run(["bundle", "attest", str(bundle), "--project", str(project)]) == 1
    err = capsys.readouterr().err
    assert "error[E0921]" in err and "the sources of `rms_norm` differ" in err
