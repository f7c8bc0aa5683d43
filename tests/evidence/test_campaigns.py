"""Campaigns judge again what changed and nothing else, and go on where a budget ended."""

from __future__ import annotations

import argparse
import json
import stat
import sys
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.bench import front
from ci.bench.judges import kill_matrix, programs, soundness, source_mutants
from ci.bench.kernels import CASES, sanitize_gpu
from ci.evidence.digests import Digests
from ci.evidence.verdicts import Budget, Line, Verdict, Verdicts, key
from tests.evidence.repository import write
from tests.files import ROOT
from tests.programs import machines
from tests.programs.generate import program
from tests.programs.machines import Outcome
from tests.programs.workers import Job
from tests.source_mutation.sites import Mutant, function_tree, mutants
from tilec.target.targets import Target


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Calls of a function of a module, which still does what it does."""
    calls: list[Any] = []
    real: Callable[..., Any] = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, call)
    return calls


def test_a_random_kernel_is_checked_once_per_prover(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, soundness, "examine_function")
    first, now, is_kept = soundness.checked((0, None))
    assert (len(calls), is_kept) == (1, False)
    line = Line((now,), Verdict(first.kind, [first.launches, first.codes, first.wrong_examples]))
    assert soundness.checked((0, line)) == (first, now, True) and len(calls) == 1
    monkeypatch.setattr(soundness, "basis", lambda: "another prover")
    again, later, is_kept = soundness.checked((0, line))
    assert (again, is_kept, len(calls)) == (first, False, 2) and later != now


def test_a_run_of_random_kernels_resumes_where_its_budget_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = SimpleNamespace(Pool=lambda jobs, maxtasksperchild: ThreadPool(jobs))  # no process has to start
    monkeypatch.setattr(soundness.multiprocessing, "get_context", lambda _: threads)
    verdicts = Verdicts("soundness", tmp_path)
    assert soundness.check_all(range(4), 1, Budget(0), verdicts) == ([], 0)
    rows, fresh = soundness.check_all(range(4), 1, Budget(None), verdicts)
    assert [row.seed for row in rows] == [0, 1, 2, 3] and fresh == sum(row.kind != "invalid" for row in rows)
    again, fresh = soundness.check_all(range(4), 1, Budget(None), Verdicts("soundness", tmp_path))
    assert (again, fresh) == (rows, 0)


def asked(tmp_path: Path, budget: float | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        programs=2, traffic=0, odd_programs=0, odd_traffic=0, u64_programs=0, first=3, jobs=1, budget=budget, output=tmp_path
    )


def test_a_program_runs_again_where_its_ptx_or_a_checker_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(budget: float | None = None) -> tuple[int, bool]:
        found, ran, done = programs.check_all(asked(tmp_path, budget), Verdicts("programs", tmp_path))
        assert all(outcome.kind == "equal" for _, outcome in found)
        return ran, done

    def examined(job: Job) -> Outcome:
        ptx = f"ptx of {job.number}"
        return job.known(ptx) or Outcome("equal", seconds={"emulate": 1.0}, ptx=ptx)

    monkeypatch.setattr(programs, "examined", examined)
    monkeypatch.setattr(programs, "examine_all", lambda jobs, _: [(job, programs.examined(job)) for job in jobs])
    names = {programs.COMPILER: "compiler", programs.BASIS: "judges"}
    monkeypatch.setattr(Digests, "sources", lambda self, paths: names[paths])
    assert run(budget=0) == (0, False)
    assert run() == (2, True)
    assert run() == (0, True)
    names[programs.COMPILER] = "another compiler that makes the same PTX"
    calls = counted(monkeypatch, programs, "examined")
    assert run() == (0, True) and len(calls) == 2  # compiled again, and not run
    assert run() == (0, True) and len(calls) == 2
    names[programs.BASIS] = "other judges"
    assert run() == (2, True) and len(calls) == 4


def test_a_program_whose_ptx_is_known_is_compiled_and_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted = counted(monkeypatch, machines, "reference")
    asked_for: list[str] = []

    def known(ptx: str) -> Outcome:
        asked_for.append(ptx)
        return Outcome("equal", "as before")

    found = machines.examine(program(3), (Target.parse("sm_90a"),), known=known)
    assert (found.detail, len(asked_for), interpreted) == ("as before", 1, [])


def test_a_job_knows_an_outcome_by_its_ptx() -> None:
    job = Job("program", 3, ("sm_90a",), basis="basis")
    queued = Job("program", 3, ("sm_90a",), basis="basis", kept=Line((job.key("ptx"),), Verdict("equal")))
    assert job.known("ptx") is None
    found = queued.known("ptx")
    assert found is not None and found.kind == "equal"
    assert queued.known("other ptx") is None and queued.known("") is None


SOURCE = '''"""Docstring."""


def small(n: int) -> bool:
    """Words."""
    if n < 3:
        return True
    return False


def other(n: int) -> bool:
    return n > 3
'''


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source with its tests, which one step runs."""
    write(tmp_path / "tilec/passes/judge.py", SOURCE)
    write(tmp_path / "tests/test_judge.py", "x = 1\n")
    write(tmp_path / "tests/test_more.py", "x = 1\n")
    for name in source_mutants.SHARED:
        write(tmp_path / name, "")
    steps = [("tests/test_judge.py",), ("tests/test_more.py",)]
    monkeypatch.setattr(source_mutants, "steps", lambda root, path, reached: steps)
    return tmp_path


def test_a_mistake_in_the_source_is_checked_again_where_function_or_tests_changed(tree: Path) -> None:
    path = tree / "tilec/passes/judge.py"
    mutant = next(m for m in mutants(tree, path) if m.function == "small")
    near, far = ("tests/test_judge.py",), ("tests/test_more.py",)

    def state() -> Any:
        now = next(m for m in mutants(tree, path) if m.identity == mutant.identity)
        return source_mutants.State(Verdicts("source_mutants", tree), [now], {}, tree), now

    first, _ = state()
    assert first.is_open(mutant, near) and first.is_open(mutant, far)
    first.add(mutant, near, ("passed", "", 1.0))
    first.add(mutant, far, ("failed", "tests/test_more.py::test_it", 2.0))
    queued, now = state()
    assert not queued.is_open(now, near) and not queued.is_open(now, far)
    write(path, SOURCE.replace("n > 3", "n > 4").replace('"""Words."""', '"""Other words."""'))
    queued, now = state()
    assert not queued.is_open(now, near) and not queued.is_open(now, far)  # another function, and words
    write(tree / "tests/test_more.py", "x = 2\n")
    queued, now = state()
    assert queued.is_open(now, far) and not queued.is_open(now, near)
    write(path, SOURCE.replace("return False", "return n is None"))
    queued, now = state()
    assert queued.is_open(now, near) and queued.is_open(now, far)


def test_tests_that_cannot_be_collected_find_no_mistakes(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tree / "tilec/passes/judge.py"
    mutant, step = next(m for m in mutants(tree, path) if m.function == "small"), ("tests/test_judge.py",)
    (tree / "artifacts").mkdir()
    monkeypatch.setattr(source_mutants, "ROOT", tree)
    copy = source_mutants.Tree(tmp_path.with_name(f"{tmp_path.name}-copy"))
    source_mutants.check_collection(copy, [(mutant, step)])
    write(copy.root / "tests/test_judge.py", "import a_module_that_this_machine_lacks\n")
    with pytest.raises(SystemExit, match="without any mistake pytest cannot collect the tests"):
        source_mutants.check_collection(copy, [(mutant, step)])
    source_mutants.check_collection(copy, [(mutant, source_mutants.RATCHET)])


TESTS = """
import pytest

def test_right(): pass

@pytest.mark.parametrize("what", ["a - b"])
def test_case(what): pass

@pytest.mark.core
def test_wrong(): assert False
"""


def test_a_test_that_fails_without_a_mistake_finds_none(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tree / "tests/test_judge.py", TESTS)
    (tree / "artifacts").mkdir()
    monkeypatch.setattr(source_mutants, "ROOT", tree)
    copy = source_mutants.Tree(tmp_path.with_name(f"{tmp_path.name}-copy"))
    copy.check_without(("tests/test_judge.py::test_right",), 60)
    copy.check_without(("tests/test_judge.py::test_case[a",), 60)
    assert copy.passed == {("tests/test_judge.py::test_right",), ("tests/test_judge.py::test_case[a",)}
    with pytest.raises(SystemExit, match=r"without any mistake tests/test_judge.py::test_wrong fails as well"):
        copy.check_without(("tests/test_judge.py::test_wrong",), 60)
    with pytest.raises(SystemExit, match=r"without any mistake tests fail: test_judge.py::test_wrong"):
        kill_matrix.check_without(copy, ["tests/test_judge.py"])


def test_a_function_is_found_by_the_name_that_mutants_have() -> None:
    text = "class A:\n    def f(self):\n        def g():\n            return 1\n        return g\n"
    assert function_tree(text, "f.g") and function_tree(text, "f.g") != function_tree(text, "f")
    assert function_tree(text, "f.g") == function_tree(text.replace("return g\n", "return g  # words\n"), "f.g")
    assert function_tree(text, "gone") == ""


def test_every_mutant_of_a_file_has_its_function() -> None:
    path = ROOT / "tilec/passes/prover/bounds.py"
    text = path.read_text(encoding="utf-8")
    found: list[Mutant] = mutants(ROOT, path)
    assert found and all(function_tree(text, name) for name in {mutant.function for mutant in found})


FAKE = f"""#!{sys.executable}
import json, sys, pathlib
tool, stems = sys.argv[2], json.loads(sys.argv[sys.argv.index("--child") + 1])
with open(pathlib.Path(__file__).parent / "calls", "a") as file:
    file.write(tool + " " + ",".join(stems) + "\\n")
print("ERROR SUMMARY: " + ("1 errors" if tool == "racecheck" and "bad" in stems else "0 errors"))
for stem in stems:
    print("@" + json.dumps(dict(kind="launched", artifact=stem, launches=2)))
sys.exit(9 if tool == "racecheck" and "bad" in stems else 0)
"""


def test_a_cubin_is_not_sanitized_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for compute-sanitizer that says which artifacts it was given."""
    tool, built, out = tmp_path / "bin/compute-sanitizer", tmp_path / "sm_90a", tmp_path / "out"
    write(tool, FAKE)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    for stem in ("add-1", "add-2"):
        write(built / f"{stem}.json", json.dumps({"kernel": "add"}))
        write(built / f"{stem}.cubin", stem)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    _, options = front.parse("kernels", CASES, ["sanitize_gpu", str(built), "--out", str(out), "--jobs", "1"])
    monkeypatch.setattr(sanitize_gpu, "Verdicts", lambda name: Verdicts(name, out / "verdicts"))

    def run() -> tuple[int, list[str], list[int]]:
        (tool.parent / "calls").write_text("")
        found = sanitize_gpu.measure(options)
        assert isinstance(found, front.Outcome)
        launches = [result["launches"] for result in found.data["results"]]
        return found.status, (tool.parent / "calls").read_text().splitlines(), launches

    everything = [f"{name} add-1,add-2" for name in sanitize_gpu.TOOLS]
    assert run() == (0, everything, [4] * 4)
    assert run() == (0, [], [4] * 4)
    write(built / "add-2.cubin", "changed")
    assert run() == (0, [f"{name} add-2" for name in sanitize_gpu.TOOLS], [4] * 4)
    write(built / "bad.json", json.dumps({"kernel": "bad"}))
    write(built / "bad.cubin", "bad")
    status, calls, _ = run()
    assert (status, calls) == (1, [f"{name} bad" for name in sanitize_gpu.TOOLS])
    assert run()[:2] == (1, ["racecheck bad"])


def test_keys_of_campaigns_name_sources_that_are_there() -> None:
    digests = Digests(ROOT)
    for paths in (soundness.BASIS, programs.COMPILER, programs.BASIS, sanitize_gpu.BASIS, source_mutants.SHARED):
        assert all(list(digests.files(path)) for path in paths)
    assert key(1) == key("1")
