"""Contracts and records made to mislead the audit: a false statement is never confirmed."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.audit import samples
from tests.audit.test_proofs import FRAME, audited, bad
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.audit.findings import CONFIRMED, REFUTED, Finding
from tilec.audit.matching import match
from tilec.audit.run import audit
from tilec.audit.sources import ARGUMENTS, EMULATION, PROOF
from tilec.audit.tasks import key
from tilec.audit.work import Options
from tilec.ir.text.parser import parse_function
from tilec.runtime import BundleError, open_bundle

pytestmark = pytest.mark.usefixtures("kept_workers")

WHERE_ZERO = """  %1 = compare %n, %0 {kind = "eq"} : bool
  %2 = constant {value = 5} : i32
  %90 = select %1, %2, %0 : i32"""
"""Reads x[5] if n is 0; N may be 1."""


@pytest.mark.parametrize(
    ("requires", "verdict"),
    [
        ("(n > 0 and 10 // n > 1) or N == 1", REFUTED),  # n = 0, N = 1: the launcher never divides
        ("(n != 0 and 10 % n == 1) or N <= 2", REFUTED),
        ("(n != 0 and 10 // n > 100) == 0", REFUTED),
        ("N == 1 or 10 // n > 1", REFUTED),
        ("n > 0 and 10 // n > 1", CONFIRMED),
        ("10 // n > -100 or N == 1", CONFIRMED),  # the left side of `or` is always evaluated: n = 0 does not launch
    ],
)
def test_what_the_launcher_does_not_evaluate_is_not_assumed(requires: str, verdict: str) -> None:
    text = FRAME.format(body=WHERE_ZERO).replace("requires N <= 1000", f"requires N <= 1000 and {requires}")
    text = text.replace(f"N <= 1000 and {requires}", f"N <= 1000 and ({requires})")
    found = {(one.property, one.subject): one.verdict for one in audited(text)}
    assert found["bounds", "load from `x`"] == verdict


def test_the_quotient_that_wraps() -> None:
    body = """  %1 = constant {value = -1} : i32
  %2 = binary %n, %1 {kind = "floordiv"} : i32
  %90 = binary %2, %0 {kind = "min"} : i32"""  # 0 for every n <= 0 except the minimum, which it keeps
    text = FRAME.format(body=body)
    wrong = audited(text.replace("N <= 1000", "N <= 1000 and n <= 0"))
    assert ("bounds", "load from `x`") in bad(wrong, REFUTED)
    right = {
        (one.property, one.subject): one.verdict
        for one in audited(text.replace("N <= 1000", "N <= 1000 and 0 - n >= 0 and n > -9"))
    }
    assert right["bounds", "load from `x`"] == CONFIRMED


def test_a_step_that_is_not_positive_is_missed_where_the_manifest_is_silent() -> None:
    findings = [Finding("divisor", "step of `range`", REFUTED), Finding("divisor", "divisor of `//`", REFUTED)]
    _, missing = match((), findings)
    assert [one.subject for one in missing] == ["step of `range`"]


def edited(name: str, edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    text = samples.text(name)
    data = samples.manifest_data(parse_function(text), text.encode(), samples.samples.cubin(name))
    data = json.loads(json.dumps(data))
    edit(data)
    return data


def swap_pointers(data: dict[str, Any]) -> None:
    data["abi"][0], data["abi"][1] = data["abi"][1], data["abi"][0]


def drop_argument(data: dict[str, Any]) -> None:
    del data["abi"][-1]


def same_pointer_twice(data: dict[str, Any]) -> None:
    data["abi"][1] = dict(data["abi"][0])


def another_grid(data: dict[str, Any]) -> None:
    data["grid"] = [["+", data["grid"][0], 1]]


def no_aliasing_rule(data: dict[str, Any]) -> None:
    data["no_alias"] = data["no_alias"][1:]


def another_access(data: dict[str, Any]) -> None:
    data["tensors"][-1]["access"] = "in"


def another_extent(data: dict[str, Any]) -> None:
    data["tensors"][0]["dims"][0] = ["+", data["tensors"][0]["dims"][0], 1]


def less_alignment(data: dict[str, Any]) -> None:
    data["tensors"][0]["align"] = 2


def two_ranges(data: dict[str, Any]) -> None:
    check = data["value_checks"][0]
    data["value_checks"] = [check | {"low": 0, "high": 4}, check | {"low": 4, "high": 8}]


def a_contradiction(data: dict[str, Any]) -> None:
    data["launch_checks"] += [{"condition": ["==", "T", 2], "text": "T == 2"}, {"condition": ["==", "T", 3], "text": "T == 3"}]


def too_few_values(data: dict[str, Any]) -> None:
    data["launch_checks"].append({"condition": [">", "T", "S"], "text": "T > S"})


def wider_values(data: dict[str, Any]) -> None:
    data["value_checks"][0]["high"] = ["+", "S", 1]


def repeated_values(data: dict[str, Any]) -> None:
    data["value_checks"][0]["distinct"] = False


def no_value_check(data: dict[str, Any]) -> None:
    data["value_checks"] = []


EDITS = [
    swap_pointers, drop_argument, same_pointer_twice, another_grid, no_aliasing_rule, another_access, another_extent,
    less_alignment, two_ranges, a_contradiction, too_few_values, wider_values, repeated_values, no_value_check,
]  # fmt: skip
ARGUMENT_EDITS = [swap_pointers, drop_argument, same_pointer_twice]


def may_overlap(data: dict[str, Any]) -> None:
    data["dependent_launch"] = not data["dependent_launch"]


def persistent(data: dict[str, Any]) -> None:
    data["schedule"]["persistent"] = True


LAUNCHES = [may_overlap, persistent]
"""Edits of the data that the emulation depends on."""


def test_what_is_edited_below_was_confirmed(tmp_path: Path) -> None:
    bundle_path = tmp_path / "a.bundle"
    bundle_path.write_bytes(samples.bundle({"kv_update": samples.text("kv_update")}))
    with open_bundle(bundle_path) as bundle:
        assert audit(bundle, Options(launches=0))["summary"]["status"] == 0


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edited_manifest_is_not_confirmed(edit: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    """The proof record is unchanged; another part of the manifest is edited."""
    bundle_path = tmp_path / "a.bundle"
    bundle_path.write_bytes(samples.bundle({"kv_update": samples.text("kv_update")}, change=edited("kv_update", edit)))
    try:
        with open_bundle(bundle_path) as bundle:
            assert audit(bundle, Options(launches=0))["summary"]["status"] != 0
    except BundleError:
        assert edit is drop_argument  # refused when it is opened


def test_what_a_verdict_depends_on_is_in_its_key() -> None:
    texts = {"tir": samples.text("kv_update").encode(), "ptx": b""}
    plain = manifest_from_json(edited("kv_update", lambda data: None))
    for edit in (*EDITS, *LAUNCHES):
        data = edited("kv_update", edit)
        other = manifest_from_json(copy.deepcopy(data))
        assert key(EMULATION, texts, plain) != key(EMULATION, texts, other), edit
        kind = ARGUMENTS if edit in ARGUMENT_EDITS else PROOF
        if edit in EDITS:
            assert key(kind, texts, plain) != key(kind, texts, other), edit
    assert key(PROOF, texts, plain) != key(PROOF, texts | {"tir": b""}, plain)
    assert key(EMULATION, texts, plain, seeds=1) != key(EMULATION, texts, plain, seeds=2)


def test_a_verdict_is_not_that_of_a_constant_of_another_type() -> None:
    """The packer of a bundle chooses its constants: a text equal to the hashed form of a float must not get the float's
    verdict."""
    texts = {"tir": b"a", "ptx": b"b"}
    values: list[Any] = [1, 1.0, True, "1", (1.0).hex(), f"f{(1.0).hex()}", "f1", "t1", math.inf, "inf", "finf"]
    plain = manifest_from_json(edited("kv_update", lambda data: None))
    keys = {key(PROOF, texts, dataclasses.replace(plain, constants={"C": value})) for value in values}
    assert len(keys) == len(values)
