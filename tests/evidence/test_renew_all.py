"""Jobs that renew results run when what they need is there, on processors and GPUs that are free, and end with the time."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.evidence import read_registry
from ci.evidence.digests import UnknownDigest
from ci.evidence.registry import RegistryError
from tests.files import ROOT

_spec = importlib.util.spec_from_file_location("renew_all", ROOT / "ci" / "renew_all.py")
assert _spec is not None and _spec.loader is not None
renew_all = importlib.util.module_from_spec(_spec)
sys.modules["renew_all"] = renew_all
_spec.loader.exec_module(renew_all)
Job, Progress = renew_all.Job, renew_all.Progress


def begun(progress: Any) -> list[str]:
    names: list[str] = []
    while job := progress.begin():
        names.append(job.name)
    return names


def test_the_plan_of_the_repository_is_valid() -> None:
    """Every result that a machine can renew alone is in it; the others need a folder that somebody names."""
    registry = read_registry()
    plan = renew_all.read_plan(registry)
    manual = {
        "cold_start",
        "shipped_engine",
        "chat_template",
        "tampering",
        "build_speed",
        "farm_model",
        "clients",
        "serving_check",
        "serving_load",
        "container_size",
    }
    assert registry.keys() - plan.keys() == manual


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[results.nothing]", "`nothing` is no result"),
        ('[steps.soundness]\ncommand = "x"\n[results.soundness]', "or a step has its name"),
        ('[steps.a]\ncommand = "x"\nneeds = ["b"]', "`a` waits for what is not there: b"),
        ('[steps.a]\ncommand = "x"\ncores = 3', "`a`: .*cores"),
        ("[more]\n", "unknown: more"),
    ],
)
def test_a_wrong_plan_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(RegistryError, match=message):
        renew_all.read_plan(read_registry(), path)


def test_steps_that_are_made_are_left_out(tmp_path: Path) -> None:
    jobs = {
        job.name: job for job in (Job("a", "x", makes="a"), Job("b", "x", makes="b", needs=("a",)), Job("c", "x", needs=("b",)))
    }
    assert [job.name for job in renew_all.chosen(jobs, ["c"], tmp_path)] == ["a", "b", "c"]
    (tmp_path / "b").touch()
    assert [job.name for job in renew_all.chosen(jobs, ["c"], tmp_path)] == ["c"]
    assert [job.name for job in renew_all.chosen(jobs, ["b", "c"], tmp_path)] == ["a", "b", "c"]


def test_what_needs_a_failed_job_is_not_begun_and_what_comes_after_it_is() -> None:
    progress = Progress(
        [Job("a", "x"), Job("b", "x", needs=("a",)), Job("c", "x", after=("a",)), Job("d", "x", needs=("b",))], 4, []
    )
    assert begun(progress) == ["a"]
    progress.end("a", 1)
    assert begun(progress) == ["c"]
    assert progress.ended == {"a": 1, "b": None, "d": None}


def test_a_gpu_does_not_wait_for_processors() -> None:
    progress = Progress(
        [Job("wide", "x", processors=4), Job("one", "x", gpus=1), Job("two", "x", gpus=1), Job("more", "x")], 4, [0]
    )
    assert begun(progress) == ["wide", "one"]
    progress.end("one", 0)
    assert begun(progress) == ["two"]
    progress.end("wide", 0)
    assert begun(progress) == ["more"]


def test_gpus_are_left_to_a_job_that_waits_for_several() -> None:
    progress = Progress(
        [Job("one", "x", gpus=1), Job("both", "x", gpus=2), Job("other", "x", gpus=1), Job("judge", "x")], 4, [0, 1]
    )
    assert begun(progress) == ["one", "judge"]
    progress.end("one", 0)
    assert begun(progress) == ["both"]
    assert progress.running["both"][1] == [0, 1]
    progress.end("both", 0)
    assert begun(progress) == ["other"]


@pytest.mark.parametrize("patient", [False, True])
def test_results_of_processors_alone_run_at_low_priority(tmp_path: Path, patient: bool) -> None:
    job = Job("a", "python -c 'import os; print(os.nice(0))'", patient=patient)
    renew_all.run(Progress([job], 1, []), 1e9, tmp_path / "logs", tmp_path)
    own = os.nice(0)
    assert int((tmp_path / "logs/a.log").read_text()) == min(own + renew_all.PATIENT * patient, 19)


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from((0.2, 0.9, 1, 2, 5)), st.sets(st.integers(0, 9))), min_size=1, max_size=10
    ),
    st.integers(1, 6),
    st.integers(0, 2),
    st.randoms(),
)
def test_every_job_ends_and_nothing_is_taken_twice(
    drawn: list[tuple[int, float, set[int]]], processors: int, gpus: int, random: Random
) -> None:
    """Jobs wait only for earlier ones, so all end; those that need more GPUs than there are do not begin."""
    jobs = [
        Job(str(number), "x", gpus=wanted, processors=share, needs=tuple(str(n) for n in before if n < number))
        for number, (wanted, share, before) in enumerate(drawn)
    ]
    kept = [job for job in jobs if job.gpus <= gpus]
    progress = Progress(kept, processors, list(range(gpus)))
    while begun(progress) or progress.running:
        taken = [share for share, used in progress.running.values() if not used]
        used = [gpu for _, used in progress.running.values() for gpu in used]
        assert sum(taken) <= processors and len(used) == len(set(used))
        progress.end(random.choice(sorted(progress.running)), 0)
    assert progress.ended == {job.name: 0 for job in kept}


def test_jobs_run_in_the_folder_with_their_environment(tmp_path: Path) -> None:
    says = "import os, pathlib; pathlib.Path('said').write_text(os.environ['WORD'] + ' {processors}'); print('told')"
    jobs = [
        Job("a", f'python -c "{says}"', processors=0.5, environment={"WORD": "it"}),
        Job("b", "python -c 'raise SystemExit(7)'"),
    ]
    progress = Progress(jobs, 4, [])
    took = renew_all.run(progress, 1e9, tmp_path / "logs", tmp_path)
    assert progress.ended == {"a": 0, "b": 7} and took.keys() == {"a", "b"}
    assert (tmp_path / "said").read_text() == "it 2"
    assert (tmp_path / "logs/a.log").read_text() == "told\n"


def test_jobs_follow_each_other_on_one_processor(tmp_path: Path) -> None:
    jobs = [Job(name, "true", needs=needs) for name, needs in (("a", ()), ("b", ("a",)), ("c", ()))]
    progress = Progress(jobs, 1, [])
    renew_all.run(progress, 1e9, tmp_path / "logs", tmp_path)
    assert progress.ended == {"a": 0, "b": 0, "c": 0}


def test_what_runs_at_the_end_of_the_time_is_terminated_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    waits = f"sleep 100000 & echo $! > {pid}; wait"
    progress = Progress([Job("a", f'bash -c "{waits}"'), Job("b", "true", processors=2)], 2, [])
    renew_all.run(progress, 2.0, tmp_path / "logs", tmp_path)
    assert progress.ended.get("a") is None and progress.ended.get("b") is None and not progress.running
    if pid.exists() and (child := pid.read_text().strip()):
        stat = Path(f"/proc/{child}/stat")
        assert not stat.exists() or stat.read_text().split()[2] == "Z"


def test_a_result_without_a_digest_is_named_before_anything_begins() -> None:
    class Known:
        def of(self, name: str) -> str:
            if name.startswith("ptx"):
                raise UnknownDigest("no record")
            return "0"

    registry = read_registry()
    assert not renew_all.without_digest([registry["chat_template"]], Known())
    assert renew_all.without_digest([registry["chat_template"], registry["audit"]], Known()) == "audit: no record"
