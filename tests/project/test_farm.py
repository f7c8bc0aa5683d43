"""A distributed build: the same bytes as locally, with workers that differ, are lost, or lie."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.project import fake_stages, project
from tests.servers import free_port, missing, silent_server
from tilec.cache import Store, store_root
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.build.driver import BuildResult, build_project
from tilec.project.farm import dask_scheduler, node
from tilec.project.farm.node import Identity
from tilec.project.read.buildfile import read_build_file
from tilec.toolchain import fingerprint


@dataclasses.dataclass
class Cluster:
    """A scheduler with workers of one thread."""

    address: str
    toolchain: dict[str, str]
    cluster: Any

    def processes(self) -> list[int]:
        """The processes of the workers."""
        return [worker.pid for worker in self.cluster.workers.values()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    try:
        from distributed import LocalCluster
    except ImportError:
        missing("`distributed` is not installed")
        raise
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("nodes")))
        with contextlib.closing(Store(store_root())) as store:
            toolchain = fingerprint(store)  # whose note saves the nodes this work
        make: Any = LocalCluster
        folder = str(tmp_path_factory.mktemp("dask"))
        with make(2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", local_directory=folder) as found:
            yield Cluster(found.scheduler_address.replace("tcp://", "dask://"), toolchain, found)


def build(
    root: Path, cluster: Cluster, toolchain: dict[str, str] | None = None, messages: list[str] | None = None
) -> BuildResult:
    file = read_build_file(root / "build.toml")
    with contextlib.closing(Store(store_root())) as store:
        return build_project(
            file, file.entries, None, store, toolchain or cluster.toolchain, jobs=2, runner=fake_stages.run, preload=(),
            dispatch=dask_scheduler.dispatch(cluster.address, store), notify=(messages if messages is not None else []).append,
        )  # fmt: skip


def written(root: Path) -> dict[str, bytes]:
    folder = root / "artifacts" / "build"
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


@pytest.mark.campaign
def test_a_farm_produces_the_same_bytes_and_errors(cluster: Cluster, tmp_path: Path) -> None:
    local_root, farm_root = (project.make(tmp_path / name, ("copy_a", "copy_b", "copy_c")) for name in ("here", "there"))
    for root in (local_root, farm_root):
        (root / "kernels_src" / "copy_b.py").write_text(project.KERNEL.format(name="copy_b") + "#! refuse\n")
        (root / "kernels_src" / "copy_c.py").write_text(project.KERNEL.format(name="copy_c") + "#! abort sm_100a\n")
    local = project.build(local_root, toolchain=cluster.toolchain)
    with contextlib.closing(Store(store_root())) as store:
        store.forget([key for key, _ in store.records()])
    farmed = build(farm_root, cluster)
    assert project.statuses(farmed) == project.statuses(local) == ["built"] * 4 + ["failed"] * 4 + ["built", "failed"] * 2
    assert written(farm_root) == written(local_root)
    assert [(item.code, item.message) for item in farmed.diagnostics] == [
        (item.code, item.message) for item in local.diagnostics
    ]
    assert project.statuses(build(farm_root, cluster))[:4] == ["hit"] * 4  # the farm's products are in the local store


def test_budgets_hold_on_a_node(cluster: Cluster, tmp_path: Path) -> None:
    root = project.make(tmp_path, ("copy_a",), '"sm_90"')
    text = (root / "build.toml").read_text().replace("[build]\n", "[build]\nstage_seconds = 0.3\n")
    (root / "build.toml").write_text(text)
    (root / "kernels_src" / "copy_a.py").write_text(project.KERNEL.format(name="copy_a") + "#! spin\n")
    assert [item.code for item in build(root, cluster).diagnostics] == ["E0811"]


def test_another_toolchain_is_refused_by_name(cluster: Cluster, tmp_path: Path) -> None:
    messages: list[str] = []
    other = cluster.toolchain | {"llvmlite": "1"}
    with pytest.raises(CompileError, match="E0753") as caught:
        build(project.make(tmp_path), cluster, other, messages)
    assert len(messages) == 2 and all("has another llvmlite" in line for line in messages)
    assert "no worker is left" in str(caught.value)


def test_lost_workers_change_nothing(cluster: Cluster, tmp_path: Path) -> None:
    local_root, farm_root = (project.make(tmp_path / name, ("copy_a", "copy_b")) for name in ("here", "there"))
    for root in (local_root, farm_root):
        for path in (root / "kernels_src").iterdir():
            path.write_text(path.read_text() + f"#! lost {path.name}\n")  # not cached by other tests on the nodes
    project.build(local_root, toolchain=cluster.toolchain)
    with contextlib.closing(Store(store_root())) as store:
        store.forget([key for key, _ in store.records()])
    killed: list[int] = []

    def kill(_: Any, done: int, __: int) -> None:
        if not killed:
            killed.append(cluster.processes()[0])
            os.kill(killed[0], signal.SIGKILL)

    file = read_build_file(farm_root / "build.toml")
    with contextlib.closing(Store(store_root())) as store:
        farmed = build_project(
            file, file.entries, None, store, cluster.toolchain, jobs=2, runner=fake_stages.run, preload=(), progress=kill,
            dispatch=dask_scheduler.dispatch(cluster.address, store),
        )  # fmt: skip
    assert killed and project.statuses(farmed) == ["built"] * 8 and written(farm_root) == written(local_root)


def test_a_node_takes_only_what_its_task_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Identity({"tir": "1"}, {"python": "3"})
    monkeypatch.setattr(node, "identity", lambda: me)
    other = Identity({"tir": "2"}, {"python": "3"})
    assert other.difference(me) == "has another tilec (stages tir)" and me.difference(me) == ""
    assert node.unframed(node.perform(other, b"")).refused == "has another tilec (stages tir)"
    root = project.make(tmp_path, ("copy_a",))
    file = read_build_file(root / "build.toml")
    with contextlib.closing(Store(store_root())) as store:
        from tilec.cache import FileDigests
        from tilec.project.build.worker import Task
        from tilec.project.read.plan import plan

        item = plan(file, file.entries, None, store, FileDigests(store), project.TOOLCHAIN)[0][0]
    task = Task(item.request, item.name, (item.target,), (item.key,), "")
    for files in ({}, {"../x": b""}, dict.fromkeys(item.request.sources, b"other")):
        parcel = node.Parcel(task, files, fake_stages.run, ())
        data = node.framed(parcel)
        assert node.unframed(node.perform(me, data)).refused.startswith("ValueError")
        for index in range(0, len(data), 97):  # a corrupted parcel is not unpickled
            changed = data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]
            assert "changed in transit" in node.unframed(node.perform(me, changed)).refused


@pytest.mark.parametrize("address", ["dask://", "http://h:1", "dask://h", "h:8786", "dask://h:x"])
def test_no_address(address: str, tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path)) as store, pytest.raises(CompileError, match="E0753"):
        dask_scheduler.dispatch(address, store)


def test_nobody_there_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_scheduler, "CONNECT", 0.5)
    with pytest.raises(CompileError, match="E0753"):
        build(project.make(tmp_path), Cluster(f"dask://127.0.0.1:{free_port()}", project.TOOLCHAIN, None))


def test_a_silent_scheduler_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_scheduler, "CONNECT", 0.5)
    monkeypatch.setattr(dask_scheduler, "CLOSE", 0.1)
    with silent_server() as port, pytest.raises(CompileError, match="E0753") as caught:
        build(project.make(tmp_path), Cluster(f"dask://127.0.0.1:{port}", project.TOOLCHAIN, None))
    assert "cannot be used" in str(caught.value)
