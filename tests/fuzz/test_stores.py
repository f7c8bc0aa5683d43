"""A short run of `ci/bench/judges.py hostile --only stores`, and tests that the watch detects violations."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import store_forgeries, store_scene, stores
from tests.fuzz.store_watch import Watch

COUNT = 28


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[stores.Result]:
    return stores.campaign(tmp_path_factory.mktemp("stores"), COUNT, seed=10_000)


@pytest.mark.campaign
def test_no_store_runs_code_touches_a_file_outside_or_changes_a_product(results: list[stores.Result]) -> None:
    assert [(item.seed, item.forged, item.wrong) for item in results if item.wrong] == []
    assert max(item.seconds for item in results) < store_scene.SECONDS


@pytest.mark.campaign
def test_the_stores_were_used_and_forged(results: list[stores.Result]) -> None:
    """Most forged stores are used to the end, most serve something, and every kind of forgery occurs."""
    assert len(results) == COUNT
    assert sum(not item.refused for item in results) > COUNT // 3
    assert sum(item.hits > 0 for item in results) > COUNT // 2
    kinds = {text.split(" ")[0] for item in results for text in item.forged}
    assert kinds >= {name.split(" ")[0] for name in (*store_forgeries.FILE_FORGERIES, *store_forgeries.ANY_FORGERIES)}


def _load(scene: store_scene.Scene) -> None:
    pickle.loads(pickle.dumps(store_forgeries.Trap(scene.outside / "ran")))


def _follow(scene: store_scene.Scene) -> None:
    handle = os.open(scene.clean, os.O_RDONLY | os.O_DIRECTORY)
    os.close(os.open("v2/locks", os.O_RDONLY, dir_fd=handle))


DEEDS: dict[str, Callable[[store_scene.Scene], object]] = {
    "reads outside": lambda scene: (scene.outside / "a.json").read_text(),
    "writes elsewhere": lambda scene: (scene.root.parent / "elsewhere").write_text(""),
    "removes outside": lambda scene: (scene.outside / "a.json").unlink(),
    "unpickles": _load,
    "follows": _follow,
    "runs code": lambda scene: exec(compile("1", str(scene.clean / "code.py"), "exec")),
    "starts a process": lambda scene: os.system("true"),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_the_watch_sees(tmp_path: Path, deed: str) -> None:
    scene = store_scene.Scene.make(tmp_path)

    def use() -> dict[str, object]:
        watch = Watch((scene.clean, scene.root), scene.outside)
        watch.start()
        DEEDS[deed](scene)
        watch.stop()
        return {"wrong": watch.seen, "refused": [], "hits": 0}

    assert store_scene.in_child(use)["wrong"]
