"""Every snippet of the pages runs, and prints what the page shows; `pytest tests/docs --bless` writes what they print now."""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.docs.pages import pages
from tests.campaign import chosen
from tests.docs.pages import PAGES, Runner, blocks, is_same, problems
from tests.ops.fake_torch import FakeTorch
from tests.runtime.fake_driver import FakeDriver
from tilec.project.build.worker import BUILD_PRELOAD
from tilec.runtime import Device
from tilec.workers.scheduler import PersistentServer

NAMES = sorted({str(path.relative_to(PAGES)) for path in PAGES.rglob("*.md")} - set(pages()))
"""Those that are written; what is in the others is tested where it comes from."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """A driver that records for every opened device, and a stub of PyTorch for `tilec.ops`."""
    driver = FakeDriver()
    device = Device(driver)
    monkeypatch.setattr(importlib.import_module("tilec.runtime.device"), "CudaDriver", lambda: driver)
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(device))
    monkeypatch.delitem(sys.modules, "tilec.ops.torch_op", raising=False)
    for name in ("torch_op", "tensor_op"):
        monkeypatch.setattr(importlib.import_module(f"tilec.ops.{name}"), "current_device", lambda: device)
    yield driver
    monkeypatch.delitem(sys.modules, "tilec.ops.torch_op", raising=False)


@pytest.fixture(scope="module")
def standing() -> Iterator[PersistentServer]:
    """One server for the commands of all pages, so that not each starts Python and imports the compiler."""
    standing = PersistentServer(
        ("tilec.interpreter", "tilec.lowering", "tilec.passes.prover", "tilec.project.trial.trial", *BUILD_PRELOAD)
    )
    yield standing
    standing.stop()


@pytest.fixture
def one_server(standing: PersistentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(tasks: Sequence[Any], runner: Any, *_: Any, **__: Any) -> Any:
        return standing.run(tasks, runner) if tasks else iter(())

    for function in (
        "workers.call.run",
        "cli.check_command.run",
        "project.build.just_in_time.run_tasks",
        "project.build.driver.run_tasks",
    ):
        monkeypatch.setattr(f"tilec.{function}", run)


LONG = (
    "examples.md", "tutorial/product.md", "tutorial/reduction.md", "schedules.md", "language/patterns.md", "language/memory.md",
)  # fmt: skip
"""Pages with many compilations; excluded from the default run."""


@pytest.mark.parametrize("name", chosen(NAMES, lambda name: name not in LONG))
@pytest.mark.usefixtures("one_server")
def test_page(name: str, tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, bless: bool,
              cache_home: Path) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as in an interactive session
    for module in [one for one in sys.modules if one.partition(".")[0] == "kernels_src"]:
        monkeypatch.delitem(sys.modules, module)  # a project of the page has a folder of the same name
    monkeypatch.setenv("TILEC_CACHE_DIR", str(cache_home / "pages"))
    before = set(sys.modules)
    runner = Runner(PAGES / name, tmp_path)
    runner.names["driver"] = driver
    try:
        runner.run()
    finally:
        for module in set(sys.modules) - before:
            if (getattr(sys.modules[module], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[module]
    if bless and runner.text != runner.page.read_text(encoding="utf-8"):
        runner.page.write_text(runner.text, encoding="utf-8")
        runner.wrong = [problem for problem in runner.wrong if "where the page has" not in problem]
    assert not runner.wrong, "\n\n".join(runner.wrong)


def test_blocks_are_found_with_their_indent() -> None:
    text = 'a\n```python title="k.py"\nx = 1\n```\n\n    ```console\n    $ tilec check\n    done\n    ```\n'
    first, second = blocks(text)
    assert (first.kind, first.title, first.body, first.line) == ("python", "k.py", "x = 1\n", 2)
    assert (second.kind, second.body) == ("console", "$ tilec check\ndone\n")


def test_a_block_that_is_not_run_gives_the_reason() -> None:
    excused = "<!-- not run: an editor's own language -->\n```lua\nrun()\n```\n"
    assert blocks(excused) == []
    assert len(blocks(excused.replace("an editor's own language", ""))) == 1


def test_what_is_left_out_is_anything_and_nothing_else_is() -> None:
    assert is_same("4 built in ... s\n", "4 built in 2.60 s\n")
    assert not is_same("4 built in ... s\n", "5 built in 2.60 s\n")
    assert not is_same("", "error: no kernel\n")
    assert is_same("out f16[9]: -1 to 2, mean -0.008759\n", "out f16[9]: -1 to 2, mean -0.00875897\n")
    assert not is_same("out f16[9]: -1 to 2, mean -0.008759\n", "out f16[9]: -1 to 2, mean -0.0089\n")
    assert not is_same("out f16[9]: -1 to 2, mean -0.008759\n", "out f16[9]: -1 to 3, mean -0.008759\n")


@pytest.mark.parametrize("wrong", ["tilec chekc", "tilec check --proof-s", "pip install 'tilec[compilr]'", "wget x",
                                   "python -m engine --modl x", "tilec check && tilec biuld", "python -m engine --prompt x",
                                   "python -m engine x --model y --prompt z", "python -m engine serve x --row 2",
                                   "python -m engine serve", "tilec explain", "tilec explain E0302 E0303",
                                   "python ci/carri.py x", "python ci/carry.py --two x"])  # fmt: skip
def test_a_command_that_does_not_exist_is_found(wrong: str) -> None:
    assert problems(shlex.split(wrong))


@pytest.mark.parametrize("right", ["tilec check", "tilec explain E0302", "python -m engine --model x --prompt y",
                                   "python -m engine serve x --rows 2", "python -m engine chat --url x",
                                   "python ci/carry.py x --to y"])  # fmt: skip
def test_a_command_that_exists_has_no_problem(right: str) -> None:
    assert not problems(shlex.split(right))


HALF = """
import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store
class N(Dim): "elements"
@tilec.kernel
def copy_rows(x: In[f32, N], out: Out[f32, N]):
    grid(N)
    store(out, bid(0), load(x, bid(0)))
"""


@pytest.mark.usefixtures("one_server")
def test_a_kernel_that_computes_something_else_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its page shows: the reference of `copy_rows` is twice the kernel's output."""
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    command = "```console\n$ tilec run copy_rows.py --dims N=9\n...\n```\n"
    for kernel, count in ((HALF, 1), (HALF.replace("load(x, bid(0))", "load(x, bid(0)) * 2"), 0)):
        page.write_text(f'```python title="copy_rows.py"\n{kernel}```\n\n{command}')
        runner = Runner(page, tmp_path)
        runner.run()
        assert len(runner.wrong) == count, runner.wrong


def test_a_page_that_is_wrong_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that differs, a kernel without a command, and a block of unknown kind."""
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    kernel = '```python title="k.py"\n@tilec.kernel\ndef k():\n    pass\n```\n'
    page.write_text(f"{kernel}\n```console\n$ tilec --version\ntilec 9\n```\n\n```haskell\nmain\n```\n")
    runner = Runner(page, tmp_path)
    runner.run()
    assert len(runner.wrong) == 3
    assert "tilec 9" not in runner.text
