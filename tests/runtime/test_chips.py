"""An artifact is accepted on exactly the compute capabilities that its target's row lists, by everything that loads one.

The rule is written here again, from the suffix of the name: `a` exactly, `f` the members of the family, none the later minor
capabilities of the same major. All capabilities from 7.0 to 12.9 are tried.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_driver import FakeDriver
from launch_contracts import T as rows
from launch_contracts import loaded, manifest, tensor, view

from engine.backends.cuda import CudaBackend
from engine.errors import BundleRefused
from tests.bundle import samples
from tilec.artifact.cubin_image import check_image
from tilec.qualify.session import NoDevice, Session
from tilec.runtime import BundleError, Device, LaunchError, load_artifact, open_bundle
from tilec.ship.finder import bundles_folder, find_bundle, find_kernel
from tilec.target.chips import architecture_of, capability_of, running_on, runs_on, shown, spelled
from tilec.target.targets import TARGETS, Target

CAPABILITIES = list(product(range(7, 13), range(10)))
SOLD = {(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)}
"""Those of chips that a target is for: code for desktop chips does not run on Tegra, whose capabilities lie between."""
NAMES = [target.name for target in TARGETS]
SMALL = manifest((tensor("x", "out", "f32", rows),))
NUMBERS = {"hidden_size": 128, "tied": True, "eps": 1e-6, "dtype": "bf16"}


def expected(name: str, capability: tuple[int, int]) -> bool:
    """Whether code for an architecture runs on a capability."""
    own = capability_of(name)
    if name.endswith("a"):
        return capability == own
    return capability in SOLD and capability[0] == own[0] and capability[1] >= own[1]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_a_target_runs_on_its_row_alone(target: Target) -> None:
    assert [one for one in CAPABILITIES if runs_on(target.name, one)] == [
        one for one in CAPABILITIES if expected(target.name, one)
    ]
    assert set(target.capabilities) == {one for one in CAPABILITIES if expected(target.name, one)}
    assert target.capability == min(target.capabilities)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_everything_that_loads_an_artifact_agrees(capability: tuple[int, int]) -> None:
    device = Device(FakeDriver(capability))
    for name in NAMES:
        right = expected(name, capability)
        assert device.runs(name) == right == (name in running_on(device.architecture))
        driver = FakeDriver(capability)
        if right:
            loaded(replace(SMALL, arch=name), driver)
            assert driver.images
            continue
        with pytest.raises(LaunchError) as caught:
            loaded(replace(SMALL, arch=name), driver)
        assert caught.value.code == "E0902" and "\n" not in str(caught.value) and not driver.images
        session = cast(Any, SimpleNamespace(bundle=SimpleNamespace(arch=name)))
        with pytest.raises(NoDevice, match=f"the bundle is for `{name}`"):
            Session._greeted(session, {"arch": device.architecture, "device": "a GPU"})  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(BundleRefused, match=f"is for {name}"):
            CudaBackend(cast(Any, SimpleNamespace(arch=name, path=Path("b"))), device)


def test_the_own_architecture_of_a_chip_comes_first() -> None:
    for capability in SOLD:
        names = running_on(architecture_of(capability))
        assert names[0] == architecture_of(capability) and set(names) == {name for name in NAMES if expected(name, capability)}
    assert running_on("sm_89") == ("sm_89", "sm_86", "sm_80")
    assert running_on("sm_103a") == ("sm_103a", "sm_100f")
    assert running_on("sm_87") == running_on("sm_110a") == running_on("nothing") == ()


def test_names_and_texts() -> None:
    assert shown(((8, 0), (8, 6), (8, 9))) == "8.0, 8.6 or 8.9" and shown(((9, 0),)) == "9.0"
    assert (spelled("sm_90a"), spelled("sm_100f"), spelled("sm_80")) == ("sm_90", "sm_100f", "sm_80")
    for text in ("sm_", "90", "sm_9", "sm_x0", "sm_9\N{ARABIC-INDIC DIGIT ZERO}0"):
        with pytest.raises(ValueError, match="no architecture"):
            capability_of(text)


def test_a_chip_without_a_target_gets_one_clear_error() -> None:
    with pytest.raises(LaunchError, match="tilec has no target for this chip"):
        loaded(replace(SMALL, arch="sm_80"), FakeDriver((8, 7)))
    with pytest.raises(LaunchError, match="build it with `tilec build --arch sm_103`"):
        loaded(replace(SMALL, arch="sm_100a"), FakeDriver((10, 3)))


@pytest.mark.parametrize("name", NAMES)
def test_a_bundle_is_opened_for_the_chips_that_run_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "b.bundle"
    path.write_bytes(samples.bundle(name))
    for capability in SOLD:
        chip = architecture_of(capability)
        if expected(name, capability):
            open_bundle(path, chip=chip).close()
            continue
        with pytest.raises(BundleError, match=f"is for `{name}`, which `{chip}` does not run") as caught:
            open_bundle(path, chip=chip)
        assert caught.value.code == "E0706"


def test_a_launch_of_an_older_chip_starts_after_the_previous_one() -> None:
    driver = FakeDriver((8, 9))
    kernel = loaded(replace(SMALL, arch="sm_80", dependent_launch=False), driver)
    kernel.plan({"x": view(4096, "f32", (10,))}).launch(overlap=True)
    assert [launch.overlap for launch in driver.launches] == [False]


def keep(arch: str) -> Path:
    """Writes a bundle to the user's folder."""
    bundles_folder().mkdir(parents=True, mode=0o700, exist_ok=True)
    path = bundles_folder() / f"tiny-1b-{arch}.bundle"
    path.write_bytes(samples.bundle(arch))
    return path


def test_of_several_bundles_the_exact_one_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "cache"))
    constants: dict[str, Any] = {"E": "bf16", "N": 0, "F": 0.5, "G": True}
    for arch, found in (("sm_80", "sm_80"), ("sm_86", "sm_86"), ("sm_89", "sm_89")):
        keep(arch)
        with find_bundle(NUMBERS, "sm_89", "none") as bundle, find_kernel("scale", constants, "sm_89") as other:
            assert bundle.arch == other.arch == found
    with pytest.raises(BundleError) as caught:
        find_bundle(NUMBERS, "sm_103a", "none")
    assert caught.value.code == "E0735"
    keep("sm_100f")
    keep("sm_100a")
    with find_bundle(NUMBERS, "sm_103a", "none") as family, find_bundle(NUMBERS, "sm_100a", "none") as exact:
        assert (family.arch, exact.arch) == ("sm_100f", "sm_100a")


def test_an_artifact_names_its_architecture_without_the_suffix_of_its_code(tmp_path: Path) -> None:
    for name in NAMES:
        code = samples.cubin("demo", sm=int(name[3:].rstrip("af")))
        check_image(code, name, "demo")
        record = samples.manifest("demo", code, {}, name) | {"digests": {"cubin": hashlib.sha256(code).hexdigest()}}
        (tmp_path / "demo.json").write_text(json.dumps(record))
        (tmp_path / "demo.cubin").write_bytes(code)
        assert load_artifact(tmp_path / "demo.json")[0].arch == name
    with pytest.raises(ValueError, match="is for sm_100, not for sm_103a"):
        check_image(samples.cubin("demo", sm=100), "sm_103a", "demo")
