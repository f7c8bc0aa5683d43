"""Lets `examples/mender.py` fix broken kernels from their JSON diagnostics, and checks the results.

In: the corpus (`mender_corpus.py`), and mutants of its kernels by `tests/mutation` that the prover refuses, of which `--sample`
are drawn for each seed of `--draw`. Out: `mender.json` and `mender.md`. A kernel counts as fixed if it is accepted, admits
every tested launch of the correct kernel, and computes the reference's results there on the interpreter. Checks produce the
JSON of `tilec check` (front end, prover, lowering for sm_90) in this process.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ci.bench.front import Outcome
from ci.bench.judges.mender_corpus import RIGHT, Broken, broken
from ci.bench.markdown import page
from ci.evidence import ROOT
from tests.mutation.generate import mutants
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.project.build.report import diagnostic_json
from tilec.project.trial.launches import Contract, small_launches
from tilec.project.trial.trial import TrialRequest, own_reference, trials
from tilec.target.targets import SM_90A

LAUNCHES: Final = 4
OUTCOMES: Final = ("fixed", "other result", "fewer launches", "not fixed")


@dataclass(frozen=True)
class Verdict:
    """The result for one broken kernel; `outcome` is one of `OUTCOMES`."""

    kind: str
    kernel: str
    what: str
    outcome: str
    codes: list[str]
    changes: list[str]
    checks: int
    seconds: float


def errors(path: Path, one: Broken) -> list[dict[str, Any]]:
    """The diagnostics of `tilec check --json` for the file."""
    try:
        function = load_kernel(path, one.constants, root=path.parent)
        prove(function)
        lower(prepare(function, SM_90A), SM_90A)
    except CompileError as error:
        return [diagnostic_json(item, path.parent) for item in error.diagnostics]
    return []


def examined(one: Broken) -> Verdict | None:
    """Fix the kernel and check the result; None if it is not refused, and so not broken."""
    spec = importlib.util.spec_from_file_location("mender", ROOT / "examples" / "mender.py")
    assert spec is not None and spec.loader is not None
    fixer: Any = importlib.util.module_from_spec(spec)
    sys.modules["mender"] = fixer
    spec.loader.exec_module(fixer)
    with tempfile.TemporaryDirectory() as folder:
        for other in one.folder.glob("*.py"):
            (Path(folder) / other.name).write_bytes(other.read_bytes())
        path = Path(folder) / f"{one.kernel}.py"

        def check(text: str) -> list[dict[str, Any]]:
            path.write_text(text, encoding="utf-8")
            return errors(path, one)

        first = check(one.text)
        if not first:
            return None
        began = time.monotonic()
        found = fixer.fixed(one.text, check)
        path.write_text(found.text, encoding="utf-8")
        outcome = _compared(path, one) if found.accepted else "not fixed"
        codes = sorted({error["code"] for error in first})
        took = round(time.monotonic() - began, 2)
        return Verdict(one.kind, one.kernel, one.what, outcome, codes, list(found.changes), found.checks, took)


def _compared(path: Path, one: Broken) -> str:
    """Compare the fixed kernel with the correct one: it must admit the same launches and compute the reference there."""
    right = load_kernel(one.folder / f"{one.kernel}.py", one.constants, root=one.folder)
    launches = small_launches(Contract.of_function(right, prove(right)), {})[:LAUNCHES]
    fixed = load_kernel(path, one.constants, root=path.parent)
    contract = Contract.of_function(fixed, prove(fixed))
    for seed, dims in enumerate(launches):
        dims_used = {name: value for name, value in dims.items() if name in contract.names}
        request = TrialRequest(path, path.parent, one.constants, dims_used, seed, 1, own_reference(one.folder, one.kernel))
        (trial,) = trials(request)
        if trial.problem and not trial.blocks:
            return "fewer launches"
        if not trial.right:
            return "other result"
    return "fixed"


def drawn(count: int, only: str | None, seed: int) -> list[Broken]:
    """Mutants of the corpus kernels, in random order; more than `count`, because some are accepted."""
    found: list[Broken] = []
    for kernel, (folder, constants) in RIGHT.items():
        if only in (None, kernel):
            found += [Broken(one.kind, kernel, one.what, one.text, folder, dict(constants))
                      for one in mutants(folder / f"{kernel}.py")]  # fmt: skip
    random.Random(seed).shuffle(found)
    return found[: 3 * count]


def table(title: str, found: list[Verdict]) -> list[str]:
    """Rows by kind."""
    lines = [f"## {title}", "", "| mistake | kernels | " + " | ".join(OUTCOMES) + " |", "|---|--:|" + "--:|" * len(OUTCOMES)]
    for kind in [*dict.fromkeys(one.kind for one in found), "all"]:
        outcomes = Counter(one.outcome for one in found if kind in ("all", one.kind))
        lines.append(f"| {kind} | {sum(outcomes.values())} | " + " | ".join(str(outcomes[name]) for name in OUTCOMES) + " |")
    return [*lines, ""]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--only", metavar="KERNEL")
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--draw", type=lambda text: [int(one) for one in text.split(",")], default=[7], metavar="SEEDS")


def measure(options: argparse.Namespace) -> Outcome:
    """Fix all; status 1 if a kernel of the corpus is not refused."""
    corpus = [one for one in broken() if options.only in (None, one.kernel)]
    with ProcessPoolExecutor(options.jobs) as pool:
        first = list(pool.map(examined, corpus))
        samples: dict[int, list[Verdict]] = {}
        for seed in options.draw if options.sample else ():
            sample = drawn(options.sample, options.only, seed)
            samples[seed] = [one for one in pool.map(examined, sample) if one is not None][: options.sample]
    for one, verdict in zip(corpus, first, strict=True):
        if verdict is None:
            print(f"NOT REFUSED: {one.kernel}: {one.what}")
    refused = [one for one in first if one is not None]
    data = {
        "corpus": [asdict(one) for one in refused],
        "generated": {seed: [asdict(one) for one in found] for seed, found in samples.items()},
    }
    return Outcome(data, {"mender.md": page(report(refused, samples))}, int(None in first), whole=options.only is None)


def report(refused: list[Verdict], samples: dict[int, list[Verdict]]) -> list[str]:
    """Lines of the page."""
    lines = ["# Broken kernels, fixed from their JSON", ""]
    lines += ["`examples/mender.py` has the errors of `tilec check --json` and the text, and nothing else. Fixed: accepted,"]
    lines += [
        "takes the launches of the right kernel, and computes its reference there. Other result: accepted, and safe, but it"
    ]
    lines += ["computes something else. Fewer launches: it computes the reference, where its contract lets it."]
    lines += ["The order in which the mender tries changes was settled with the fifty in view; before that it fixed 37 of 48."]
    lines += ["The sixty generated mistakes of draw 7 were in view when E0110 got fixes; before that 48 of them were fixed."]
    lines += ["Those of draw 8 were not."]
    lines += ["", *table(f"Fifty mistakes of authors, {sum(one.checks for one in refused)} checks", refused)]
    for seed, found in samples.items():
        lines += table(f"{len(found)} generated mistakes, drawn with {seed}, which the mender was not written for", found)
    unfixed = [one for one in refused if one.outcome != "fixed"]
    lines += ["Of the fifty, those that are not fixed:", ""] if unfixed else []
    lines += [f"- {one.kernel}, {one.kind}: {one.what.replace(chr(10), ' ')}: {one.outcome}" for one in unfixed]
    return lines
