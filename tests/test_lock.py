"""`requirements.lock` and pyproject.toml agree: every requested package is locked, at a version in its range, by digest. The
commands that set up a checkout install these versions, and build it with them."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ci.lock import constraints

ROOT = Path(__file__).resolve().parents[1]
PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>[\w.+!]+)(?: ; .+?)?(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)", re.ASCII)


def locked() -> dict[str, str]:
    """Versions by name; fails on a line that is not a pin with digests."""
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace(" \\\n", " ")
    found: dict[str, str] = {}
    for line in re.sub(" +", " ", text).splitlines():
        match = PIN.fullmatch(line.strip())
        assert match, f"`{line[:80]}` is not a version with digests"
        found[canonicalize_name(match["name"])] = match["version"]
    return found


def asked() -> list[Requirement]:
    """The requirements of an install of `.[compiler,test]`, and of its build."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras: dict[str, list[str]] = data["project"]["optional-dependencies"]
    pending = [*data["project"]["dependencies"], *extras["compiler"], *extras["test"], *data["build-system"]["requires"]]
    found: list[Requirement] = []
    while pending:
        one = Requirement(pending.pop())
        if one.name == "tilec":
            pending.extend(text for extra in one.extras for text in extras[extra])
        else:
            found.append(one)
    return found


@pytest.mark.parametrize("requirement", sorted(set(asked()), key=str), ids=str)
def test_a_range_is_locked_at_a_version_that_it_allows(requirement: Requirement) -> None:
    version = locked().get(canonicalize_name(requirement.name))
    assert version is not None, "run `python ci/lock.py`"
    assert requirement.specifier.contains(version, prereleases=True), "run `python ci/lock.py`"


def test_what_the_locked_distributions_ask_for_is_locked_too() -> None:
    """Checks the locked distributions that are installed here: `--require-hashes` refuses an install that needs anything
    else."""
    versions, seen = locked(), set[str]()
    pending: list[Requirement] = asked()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        mark = f"{name}[{','.join(sorted(requirement.extras))}]"
        if mark in seen:
            continue
        seen.add(mark)
        assert name in versions, name
        try:
            needs = importlib.metadata.requires(requirement.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for text in needs:
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)):
                pending.append(one)
    assert len(seen) > 20


def test_the_lock_names_no_index() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert not re.search(r"https?:|index-url|find-links|file:|@ ", text)


def test_the_constraints_are_the_versions_of_the_lock() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert text == constraints((ROOT / "requirements.lock").read_text(encoding="utf-8")), "run `python ci/lock.py`"
    found = {canonicalize_name(one.name): str(one.specifier) for one in map(Requirement, text.splitlines())}
    assert found == {name: f"=={version}" for name, version in locked().items()}


COMMAND = re.compile(r"^python3 -m venv \.venv && .*|^\| .*`(python3 -m venv .*?)`", re.MULTILINE)
CONSTRAINED = "PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt .venv/bin/pip install "


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_commands_that_set_up_install_what_is_locked(page: str) -> None:
    """The build uses locked versions too: pip up to 25.2 reads the first variable for it, later versions the second."""
    commands = [found.group() for found in COMMAND.finditer((ROOT / page).read_text(encoding="utf-8"))]
    assert len(commands) == {"README.md": 2, "CONTRIBUTING.md": 1}[page]
    for command in commands:
        assert command.count("pip install") == command.count(CONSTRAINED) == 1, command
