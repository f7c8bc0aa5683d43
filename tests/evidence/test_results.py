"""A result is fresh while what it rests on is what it was, and says so; the registry of this project is whole."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from ci.evidence import Digests, Result, Status, read_registry, status
from ci.evidence.registry import RegistryError
from ci.evidence.result import Changed
from tests.evidence.repository import SOURCE, entry, record, repository, write
from tests.files import ROOT

__all__ = ["repository"]

_spec = importlib.util.spec_from_file_location("check_results", ROOT / "ci" / "check_results.py")
assert _spec is not None and _spec.loader is not None
check_results = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_results)

JUDGED = entry("source:tilec", "cubin:sm_90a:add-*")


def made(root: Path) -> dict[str, object]:
    return Result("judged", root=root, entry=JUDGED).stamped({"wrong": 0}, exit_status=0)


def state(root: Path, data: object) -> Status:
    return status(JUDGED, data, Digests(root))


def test_a_result_lists_what_it_rests_on_and_is_fresh(repository: Path) -> None:
    data = made(repository)
    assert data["rests_on"] == Digests(repository).all_of(JUDGED.rests_on)
    assert data["command"] == "python judge.py" and data["wrong"] == 0 and data["measured_on"] and data["device"]
    assert state(repository, data).state == "fresh"


def test_words_leave_it_fresh_and_a_program_makes_it_stale(repository: Path) -> None:
    data = made(repository)
    write(repository / "tilec/judge.py", SOURCE.replace("Whether it is small.", "Whether it is smaller than three."))
    assert state(repository, data).state == "fresh"
    write(repository / "tilec/judge.py", SOURCE.replace("< 3", "< 4"))
    record(repository)  # the same products: only the source changed
    found = state(repository, data)
    assert (found.state, found.reasons) == ("stale", ("source:tilec changed",))


def test_a_definition_that_moves_to_another_source_leaves_it_fresh(repository: Path) -> None:
    both = entry("source:tilec", "source:other")
    write(repository / "tilec/more.py", "x = 1\n")
    data = Result("judged", root=repository, entry=both).stamped({}, exit_status=0)
    (repository / "tilec/more.py").rename(repository / "other/more.py")
    assert status(both, data, Digests(repository)).state == "fresh"
    renamed = entry("source:tilec/judge.py", "source:other")
    assert status(renamed, data, Digests(repository)).state == "fresh"
    write(repository / "other/more.py", "x = 2\n")
    assert status(both, data, Digests(repository)).reasons == ("source:tilec changed", "source:other changed")


def test_only_a_product_that_it_rests_on_makes_it_stale(repository: Path) -> None:
    data = made(repository)
    record(repository, {"cubin:sm_90a": {"mul-N=1": "changed"}})
    assert state(repository, data).state == "fresh"
    record(repository, {"cubin:sm_90a": {"add-N=1": "changed"}})
    assert state(repository, data).reasons == ("cubin:sm_90a:add-* changed",)


def test_unknown_products_make_it_stale_and_suggest_a_command(repository: Path) -> None:
    data = made(repository)
    write(repository / "kernels_src/add.py", "x = 2\n")
    found = state(repository, data)
    assert found.state == "stale" and "python ci/products.py" in found.reasons[0]


@pytest.mark.parametrize("data", [{}, [], {"wrong": 0}, {"rests_on": {}}, {"rests_on": {"source:tilec": "0"}}])
def test_what_says_nothing_is_stale(data: object, repository: Path) -> None:
    assert state(repository, data).state == "stale"


def test_a_run_that_failed_or_tried_too_little_does_not_hold(repository: Path) -> None:
    result = Result("judged", root=repository, entry=JUDGED)
    assert state(repository, result.stamped({}, exit_status=1)).state == "failed"
    large = entry("source:tilec", at_least={"kernels": 100, "rows": 2})
    data = Result("judged", root=repository, entry=large).stamped({"kernels": 100, "rows": [1, 2]}, exit_status=0)
    assert status(large, data, Digests(repository)).state == "fresh"
    assert status(large, data | {"kernels": 99}, Digests(repository)).reasons == ("`kernels` is 99 of 100",)
    assert status(large, data | {"rows": [1]}, Digests(repository)).reasons == ("`rows` is 1 of 2",)


def test_a_result_of_sources_that_changed_meanwhile_is_not_written(repository: Path) -> None:
    result = Result("judged", root=repository, entry=JUDGED)
    write(repository / "tilec/judge.py", SOURCE.replace("< 3", "< 4"))
    record(repository)
    with pytest.raises(Changed, match="source:tilec changed"):
        result.write({}, repository / "out", exit_status=0)
    assert not (repository / "out").exists() or not list((repository / "out").iterdir())


def test_a_list_becomes_rows_and_a_stamp_is_replaced(repository: Path) -> None:
    result = Result("judged", root=repository, entry=JUDGED)
    assert result.stamped([1, 2], exit_status=0)["rows"] == [1, 2]
    path = result.write({"rests_on": {"old": "0"}, "exit_status": 1, "wrong": 0}, repository / "out", exit_status=0)
    data = json.loads(path.read_text())
    assert data["rests_on"] == result.rests_on and "exit_status" not in data and data["wrong"] == 0


@pytest.mark.parametrize(
    "text",
    [
        '[a]\nrests_on = ["source:tilec"]\n',
        '[a]\ncommand = "python a.py"\n',
        '[a]\nrests_on = ["@gone"]\ncommand = "python a.py"\n',
        '[a]\nrests_on = ["source:tilec"]\ncommand = "python a.py"\nat_lest = { rows = 3 }\n',
    ],
)
def test_a_registry_that_is_wrong_is_refused(text: str, tmp_path: Path) -> None:
    write(tmp_path / "results.toml", text)
    with pytest.raises(RegistryError):
        read_registry(tmp_path / "results.toml")


def test_the_registry_names_sources_and_files_that_are_there() -> None:
    digests, entries = Digests(ROOT), read_registry()
    for name, found in entries.items():
        for item in found.rests_on:
            kind, _, rest = item.partition(":")
            if kind == "source":
                assert list(digests.files(rest)), f"{name}: {item}"
            elif kind == "version":
                assert digests.version(rest)
            else:
                assert kind in ("tir", "ptx", "cubin"), f"{name}: {item}"
        if found.command.startswith("python") and "-m" not in found.command.split():
            script = next(word for word in found.command.split() if word.endswith(".py"))
            assert (ROOT / script).is_file(), found.command
    assert check_results.files_wrong(ROOT, entries) == []


def test_files_without_a_result_and_a_result_without_files_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "ci" / "bench" / "results"
    write(folder / "unknown.json", "{}")
    unknown, missing = check_results.files_wrong(tmp_path, {"judged": JUDGED})
    assert "unknown.json" in unknown and "`judged` has no file" in missing
    (folder / "unknown.json").unlink()
    write(folder / "judged.json", "{}")
    write(folder / "judged.md", "# Judged\n")
    assert check_results.files_wrong(tmp_path, {"judged": JUDGED}) == []
