"""`requested = true`: a command that names no kernel has the specialisations that a model's step requests, and no others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.project import fake_stages, project
from tilec.cache import Store, store_root
from tilec.cli import commands
from tilec.cli.project import chosen_entries
from tilec.project.build.driver import build_project
from tilec.project.read.buildfile import read_build_file
from tilec.project.read.closed_world import enumerate_world
from tilec.project.read.plan import artifact_name
from tilec.target.targets import SM_90A

pytestmark = pytest.mark.usefixtures("kept_workers")
MODEL = '\n[[model]]\nname = "m{0}"\nfamily = "f"\nconfig = {{ hidden_size = {0} }}\n'
STEP = "def decode():\n    norm = copy_a(BLOCK=hidden_size)\n\n\ndef prefill():\n    pass\n"
OTHERS = {"copy_b-BLOCK=128", "copy_b-BLOCK=256"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose `copy_a` is built on request."""
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = project.make(tmp_path / "p")
    path = folder / "build.toml"
    path.write_text(path.read_text().replace('name = "copy_a"\n', 'name = "copy_a"\nrequested = true\n'))
    (folder / "kernels_src" / "f.step").write_text(STEP)
    monkeypatch.chdir(folder)
    return folder


def add_models(root: Path, sizes: Iterable[int]) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text() + "".join(map(MODEL.format, sizes)))


def names(root: Path, kernels: Iterable[str] = ()) -> list[str]:
    entries = chosen_entries(read_build_file(root / "build.toml"), kernels)
    return [artifact_name(entry.name, values) for entry in entries for values in entry.specialisations()]


@pytest.mark.parametrize("sizes", [(), (128,), (256,), (256, 128)])
def test_a_build_of_all_kernels_has_what_steps_request(root: Path, sizes: tuple[int, ...]) -> None:
    add_models(root, sizes)
    found = names(root)
    assert set(found) == OTHERS | {f"copy_a-BLOCK={size}" for size in sizes}
    assert len(found) == len(set(found))


def test_a_command_that_names_the_kernel_has_all_of_it(root: Path) -> None:
    add_models(root, [128])
    assert names(root, ["copy_a"]) == ["copy_a-BLOCK=128", "copy_a-BLOCK=256"]


def built(root: Path) -> set[str]:
    """What a build of all kernels leaves."""
    build = read_build_file(root / "build.toml")
    entries = chosen_entries(build, (), enumerate_world(build, (SM_90A,)))
    with contextlib.closing(Store(store_root())) as store:
        build_project(
            build, entries, (SM_90A,), store, project.TOOLCHAIN, jobs=2, runner=fake_stages.run, preload=(), whole=True
        )  # fmt: skip
    return {path.stem for path in (root / "artifacts/build/sm_90a").glob("*.cubin")}


def test_a_build_of_all_kernels_removes_what_no_step_requests_any_more(root: Path) -> None:
    text = (root / "build.toml").read_text()
    add_models(root, [128, 256])
    assert built(root) == OTHERS | {"copy_a-BLOCK=128", "copy_a-BLOCK=256"}
    (root / "build.toml").write_text(text)
    add_models(root, [128])
    assert built(root) == OTHERS | {"copy_a-BLOCK=128"}


def test_a_plan_names_no_specialisation_that_is_not_built(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_models(root, [128])
    assert commands.run(["build", "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert {use["artifact"] for use in plan["uses"]} == {"copy_a-BLOCK=128"}
    assert set(plan["unused"]) == OTHERS
