"""The page of `build.toml` has a row for every key that the reader knows, and for no other."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES
from tests.files import ROOT
from tilec.project.read import buildfile, models, schedules
from tilec.project.read.remotes import KEYS as REMOTE_KEYS
from tilec.target.schedule import COPIES, PRODUCTS

PAGE = (PAGES / "build-toml.md").read_text(encoding="utf-8")
KNOWN = {
    "build": buildfile._BUILD_KEYS,  # pyright: ignore[reportPrivateUsage]
    "kernel": buildfile._KERNEL_KEYS,  # pyright: ignore[reportPrivateUsage]
    "schedule": schedules._KEYS,  # pyright: ignore[reportPrivateUsage]
    "budget": tuple(buildfile.BUDGETS),
    "model": models._MODEL_KEYS,  # pyright: ignore[reportPrivateUsage]
    "tuning": models._TUNING_KEYS,  # pyright: ignore[reportPrivateUsage]
}


def section(name: str) -> str:
    """The text below a heading, down to the next one."""
    found = re.search(rf"^##+ (?:\[+{name}\]+ [^\n]*|{name})\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1]


@pytest.mark.parametrize("name", KNOWN)
def test_every_key_has_a_row(name: str) -> None:
    cells = re.findall(r"^\| (`[^|]*) \|", section(name), re.MULTILINE)
    keys = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(keys) == sorted(KNOWN[name])


def test_every_table_has_a_section() -> None:
    assert {"build", *buildfile.TABLES} <= set(KNOWN)


def test_the_words_of_a_schedule_are_those_that_it_knows() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)$", section("schedule"), re.MULTILINE))
    assert set(re.findall(r'`"(\w+)"`', rows["copy"])) == set(COPIES)
    assert set(re.findall(r'`"(\w+)"`', rows["mma"])) == set(PRODUCTS)


def test_keys_of_a_remote_are_named() -> None:
    assert all(f"`{key}`" in section("build") for key in REMOTE_KEYS)


@pytest.mark.parametrize("name", ["build", "kernel", "budget"])
def test_the_error_of_an_unknown_key_names_every_key(name: str) -> None:
    """`tilec explain E0802` lists what may be written instead."""
    text = (ROOT / "tilec/diagnostics/explain/E0802.md").read_text(encoding="utf-8")
    build, kernel = text.split("Each `[[kernel]]`")
    assert [key for key in KNOWN[name] if f"`{key}`" not in (build if name == "build" else kernel)] == []
