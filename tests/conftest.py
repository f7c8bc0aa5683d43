"""Options shared by all tests: rewriting expected texts, the size of random runs, and no silent skips on a GPU."""

from __future__ import annotations

import fcntl
import functools
import gc
import itertools
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import times
from tests.campaign import first
from tests.kept_workers import Kept
from tilec import toolchain
from tilec.workers import client, scheduler

# Texts are compared without color, which the user may have requested.
for _name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
    os.environ.pop(_name, None)

# The user may have a trust policy, and the tests' bundles are not signed for it.
os.environ["TILEC_TRUST"] = "none"

# The time of an example depends on the machine's load, so it must not fail a test. Every `@settings` of a test starts from this
# profile.
settings.register_profile("tilec", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tilec")

# Commands that tests start must not find modules in the current folder, and neither must their workers.
_ROOT = str(Path(__file__).resolve().parents[1])
os.environ["PYTHONPATH"] = os.pathsep.join(
    dict.fromkeys([_ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
)


def _kept_bytecode() -> str:
    """A folder of this user outside of every checkout, the same in each run."""
    folder = Path(tempfile.gettempdir()) / f"tilec-tests-bytecode-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()  # another owner could put code there
    return str(folder) if found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) else tempfile.mkdtemp()


# If Python writes no bytecode next to the sources, the bytecode of the test files goes there. Otherwise each worker compiles
# all of them in every run, which is two thirds of the time of collecting the tests. Processes that tests start do not share it
# (`compiled_once`), since some of them cannot write whole files.
if sys.flags.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, _kept_bytecode()

gc.disable()  # until tests are collected: all ten thousand stay alive

# Tests send these signals to the commands that they start; a shell's background job starts with them ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_TESTS = itertools.count()
_SETTINGS = "_hypothesis_internal_use_settings"
"""The attribute in which Hypothesis stores a test's `@settings`."""
LEAST_EXAMPLES = 20
"""The minimum number of random examples of a test in the default run."""

Make = Callable[[Path], object]
"""Fills an empty folder."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The default run tries some of the random examples of a test, and a campaign as many as the test requests."""
    requested: settings | None = getattr(metafunc.function, _SETTINGS, None)
    if requested is None or requested.max_examples <= LEAST_EXAMPLES:
        return
    if metafunc.definition.get_closest_marker("campaign") is None:
        metafunc.fixturenames.append("examples")
        metafunc.parametrize("examples", first(1, [max(requested.max_examples // 6, LEAST_EXAMPLES), requested.max_examples]))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Runs a test with the number of random examples of its case."""
    count = item.callspec.params.get("examples") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(item, pytest.Function) and isinstance(count, int) and hasattr(item.function, _SETTINGS):
            patch.setattr(item.function, _SETTINGS, settings(getattr(item.function, _SETTINGS), max_examples=count))
        yield


@pytest.hookimpl(tryfirst=True)  # before a run's marks select tests
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks and sorts by recorded times: the slowest file starts first, since a worker that gets it at the end makes the others
    wait. With `--no-loadscope-reorder` xdist keeps this order instead of starting with the file of most tests."""
    record = times.read_times()
    times.mark(items, record)
    if (number := config.getoption("--shard")) is not None:
        items[:] = times.in_shard(items, record, number)
    campaign = "campaign" in str(config.getoption("-m")).replace("not campaign", "")
    seconds = record.of_files(campaign=campaign)
    items.sort(key=lambda item: -seconds.get(times.function_of(item).partition("::")[0], 0.0))


def pytest_configure(config: pytest.Config) -> None:
    """The process that reports records what those that run tests measure."""
    if config.getoption("--record-times"):
        config.pluginmanager.register(times.Meter())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(times.Recorder())


def pytest_collection_finish() -> None:
    """From here on no bytecode is written: only test files and their imports have some, modules that a test writes have none.
    Objects loaded until here are not garbage, so collections skip them."""
    gc.enable()
    gc.freeze()
    if sys.flags.dont_write_bytecode:
        sys.dont_write_bytecode, sys.pycache_prefix = True, None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tilec")
    group.addoption("--bless", action="store_true", help="rewrite the expected texts of tests/ui and other golden files")
    group.addoption("--soundness-kernels", type=int, default=200, help="how many random kernels to check (default 200)")
    group.addoption("--record-times", action="store_true", help="write tests/times.json, by which later runs choose tests")
    group.addoption("--shard", type=int, metavar="N", help="run one part of the campaigns; N counts on around the parts")
    group.addoption("--soundness-seed", type=int, default=0, help="seed of the first random kernel (default 0)")


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """True if expected texts are to be rewritten."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture
def soundness_kernels(request: pytest.FixtureRequest) -> int:
    return int(str(request.config.getoption("--soundness-kernels")))


@pytest.fixture
def soundness_seed(request: pytest.FixtureRequest) -> int:
    return int(str(request.config.getoption("--soundness-seed")))


@pytest.fixture(scope="session", autouse=True)
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """No test reads or writes the user's own store."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        for name in ("TILEC_CACHE_DIR", "TILEC_CACHE_KEY_FILE"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="session")
def run_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of this run, the same for all workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if hasattr(request.config, "workerinput") else base  # a worker's own folder lies in that of the run


@pytest.fixture(scope="session", autouse=True)
def compiled_once(run_folder: Path) -> Generator[None]:
    """If Python writes no bytecode, processes that tests start write theirs to the folder of the run. Otherwise each of
    hundreds compiles every module that it imports."""
    with pytest.MonkeyPatch.context() as patch:
        if sys.flags.dont_write_bytecode:
            bytecode = str(run_folder / "bytecode")
            patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
            patch.setenv("PYTHONPYCACHEPREFIX", bytecode)
            options = client._OPTIONS  # pyright: ignore[reportPrivateUsage]
            patch.setattr(client, "_OPTIONS", tuple(f"-Xpycache_prefix={bytecode}" if one == "-B" else one for one in options))
        yield


@pytest.fixture(scope="session")
def made_once(run_folder: Path) -> Callable[[str, Make], Path]:
    """`made_once(name, make)`: a folder that `make` has filled once in this run, for all workers; a test only reads it."""

    def made(name: str, make: Make) -> Path:
        folder = run_folder / f"once-{name}"
        with (run_folder / f"once-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                begun = Path(tempfile.mkdtemp(dir=run_folder))
                make(begun)
                begun.rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def shipped_store(made_once: Callable[[str, Make], Path]) -> Path:
    """A store for tests that build shipped kernels and do not test the store: tests share what they build."""
    return made_once("store", lambda _: None)


@pytest.fixture(scope="session")
def _server_of_workers() -> Generator[Kept]:
    kept = Kept()
    yield kept
    kept.stop()


@pytest.fixture
def kept_workers(_server_of_workers: Kept, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that do not test processes: commands that this process runs get their workers from one server. Output of the
    workers themselves goes to the server's stdout at its start, so a test that checks it needs its own server."""
    if not {"capfd", "capfdbinary"} & set(request.fixturenames):
        monkeypatch.setattr(scheduler, "Server", _server_of_workers.lease)


_PACKER = """
import sys
from tilec.cli.commands import run
from tilec.project.read import models
models.DTYPES = ("bf16",)
sys.exit(run(sys.argv[1:]))
"""


MIXED_MODEL = """
[[model]]
name = "mixed"
family = "qwen3_moe"
requested = true
[model.config]
hidden_size = 2048
intermediate_size = 6144
dense_layers = "0,3,4"
num_attention_heads = 32
num_key_value_heads = 4
head_dim = 128
num_hidden_layers = 6
vocab_size = 2048
num_experts = 128
num_experts_per_tok = 8
moe_intermediate_size = 768
norm_topk_prob = true
"""
"""Qwen3 30B-A3B with six layers, of which three are dense."""


@pytest.fixture(scope="session")
def shipped_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The bundle of the smallest model for one architecture, packed in a process from this checkout. The model is one of both
    dtypes; the other dtype has the same kernels."""

    return _packed(made_once, shipped_store, "16bit")


@pytest.fixture(scope="session")
def shipped_fp8_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The same for FP8 weights."""
    return _packed(made_once, shipped_store, "fp8")


@pytest.fixture(scope="session")
def shipped_w8a8_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The same for FP8 weights and FP8 activations."""
    return _packed(made_once, shipped_store, "w8a8")


@pytest.fixture(scope="session")
def shipped_cache_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The same for a cache of FP8 codes."""
    return _packed(made_once, shipped_store, "16bit", "fp8")


@pytest.fixture(scope="session")
def shipped_int4_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The same for INT4 weights."""
    return _packed(made_once, shipped_store, "int4")


@pytest.fixture(scope="session")
def shipped_mixture_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The same for the smallest mixture of experts."""
    return _packed(made_once, shipped_store, "16bit", model="qwen3-30b-a3b")


@pytest.fixture(scope="session")
def mixed_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The bundle of a mixture that no build has: dense layers are among those of experts, so it needs the kernels of both."""

    def project(folder: Path) -> None:
        build = (Path(_ROOT) / "build.toml").read_text(encoding="utf-8")
        (folder / "build.toml").write_text(f"{build}\n{MIXED_MODEL}", encoding="utf-8")
        for name in ("kernels_src", "engine"):  # of the build and of the families
            (folder / name).symlink_to(Path(_ROOT) / name)

    return _packed(made_once, shipped_store, "16bit", model="mixed", project=made_once("mixed-project", project))


@pytest.fixture(scope="session")
def shipped_ranks_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The bundle of the smallest model that two GPUs share."""
    return _packed(made_once, shipped_store, "16bit", gpus=2)


@pytest.fixture(scope="session")
def shipped_shared_mixture_bundle(made_once: Callable[[str, Make], Path], shipped_store: Path) -> Path:
    """The bundle of a mixture of experts that two GPUs share."""
    return _packed(made_once, shipped_store, "16bit", model="qwen3-30b-a3b", gpus=2)


def _packed(
    made_once: Callable[[str, Make], Path], shipped_store: Path, weight_format: str, cache_format: str = "16bit",
    model: str = "qwen3-0.6b", gpus: int = 1, project: Path | str = _ROOT,
) -> Path:  # fmt: skip
    def pack(folder: Path) -> None:
        command = [sys.executable, "-c", _PACKER, "bundle", "pack", "--project", str(project), "--model", model]
        environment = os.environ | {"TILEC_CACHE_DIR": str(shipped_store)}
        options = ["--weights", weight_format, "--cache", cache_format, "--arch", "sm_90", "-o", str(folder)]
        options += ["--gpus", str(gpus)]
        subprocess.run([*command, *options], env=environment, check=True, capture_output=True)

    name = f"bundle-{weight_format}" if cache_format == "16bit" else f"bundle-{weight_format}-cache-{cache_format}"
    name = name if gpus == 1 else f"{name}-{gpus}-gpus"
    (path,) = made_once(name if model == "qwen3-0.6b" else f"{name}-{model}", pack).glob("*.bundle")
    return path


@pytest.fixture(scope="session", autouse=True)
def installed_once() -> Generator[None]:
    """Installed libraries do not change while tests run: a process hashes each once, not once per empty store."""
    anew = toolchain._sha256  # pyright: ignore[reportPrivateUsage]
    once = functools.cache(anew)

    def hashed(path: Path) -> str:
        return once(path) if path.is_relative_to(sys.prefix) else anew(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain, "_sha256", hashed)
        yield


@pytest.fixture(autouse=True)
def own_cache_home(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the store of another test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home / str(next(_TESTS))))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """A test marked `gpu` that skips has shown nothing: reports it as failed."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.skipped and item.get_closest_marker("gpu") is not None and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"a GPU test was skipped, which counts as a failure: {report.longrepr}"
