"""What a verdict depends on is in its key, field by field; a manifest that differs in any field of its interface is refused."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.audit import samples
from tests.bundle import samples as stubs
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest, ScalarSpec, TensorSpec, ValuePromise, to_json
from tilec.audit.contract import disagreements
from tilec.audit.findings import REFUTED
from tilec.audit.run import audit
from tilec.audit.sources import ARGUMENTS, ASSEMBLY, EMULATION, PROOF
from tilec.audit.tasks import FIELDS, Reduced, Task, key, manifest_for, prove_task
from tilec.audit.verdicts import Verdicts
from tilec.audit.work import Options
from tilec.cache import Store
from tilec.ir.expr import const
from tilec.ir.text.parser import parse_function
from tilec.runtime import open_bundle

ADVANCE = samples.text("advance")
FUNCTION = parse_function(ADVANCE)
MANIFEST = samples.manifest("advance")
TEXTS = {"tir": ADVANCE.encode(), "ptx": b""}
OTHERS = {
    "name": "other", "access": "inout", "dtype": "f32", "dims": (const(5),), "strides": (const(7),), "align": 1,
    "resident": True, "row": 2, "tensor": "other", "low": const(-9), "high": const(77), "above": ("ids",), "distinct": True,
    "sorted": True, "distinct_in_rows": True,
}  # fmt: skip
"""Another value of each field of a record."""


def with_records(**changes: Any) -> Manifest:
    return dataclasses.replace(MANIFEST, **changes)


def each_changed(records: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The records with one field of the last one changed, for each of its fields."""
    *before, last = records
    names = [field.name for field in dataclasses.fields(last) if getattr(last, field.name) != OTHERS[field.name]]
    return [(*before, dataclasses.replace(last, **{name: OTHERS[name]})) for name in names]


EDITED = [
    *(with_records(tensors=changed) for changed in each_changed(MANIFEST.tensors)),
    *(with_records(promises=changed) for changed in each_changed(MANIFEST.promises)),
    with_records(scalars=(ScalarSpec("n", "i32"),)), with_records(promises=()), with_records(no_alias=()),
    with_records(grid=(const(2),)), with_records(kernel="other"), with_records(constants={"N": 1}),
]  # fmt: skip


@pytest.mark.parametrize("manifest", EDITED, ids=range(len(EDITED)))
def test_a_manifest_of_another_interface_is_refuted_and_has_another_key(manifest: Manifest) -> None:
    assert not list(disagreements(MANIFEST, FUNCTION))
    assert list(disagreements(manifest, FUNCTION))
    assert key(PROOF, TEXTS, manifest) != key(PROOF, TEXTS, MANIFEST)
    with suppress(ValueError):  # the reader refuses it, because it disagrees with itself
        assert prove_task(Task(ADVANCE, "", to_json(manifest)))[0]["verdict"] == REFUTED


def test_a_stricter_alignment_is_the_launchers() -> None:
    stricter = tuple(dataclasses.replace(spec, align=2 * spec.align) for spec in MANIFEST.tensors)
    assert not list(disagreements(with_records(tensors=stricter), FUNCTION))


def test_every_field_of_these_records_was_changed() -> None:
    for kind in (TensorSpec, ValuePromise):
        assert {field.name for field in dataclasses.fields(kind)} <= OTHERS.keys()


@pytest.mark.parametrize("kind", [PROOF, EMULATION, ARGUMENTS, ASSEMBLY])
def test_a_task_reads_no_field_that_its_key_leaves_out(kind: str) -> None:
    reduced = manifest_for(kind, Task(ADVANCE, "", to_json(MANIFEST)))
    assert isinstance(reduced, Reduced)
    for field in dataclasses.fields(Manifest):
        if field.name in FIELDS[kind]:
            assert getattr(reduced, field.name) == getattr(MANIFEST, field.name)
        else:
            with pytest.raises(RuntimeError, match=rf"reads `{field.name}` of its manifest, which its key leaves out"):
                getattr(reduced, field.name)


def test_the_verdict_on_true_promises_is_not_reused_for_false_ones(tmp_path: Path, kept_workers: None) -> None:
    """One store of verdicts for both bundles, and both manifests of one tile IR in one bundle."""
    promise, *others = MANIFEST.promises
    false = dataclasses.replace(promise, low=const(-1))
    changed = samples.manifest_data(FUNCTION, ADVANCE.encode(), stubs.cubin("advance")) | {
        "promises": to_json((false, *others))
    }
    store = Store(tmp_path / "store")
    for name, change, status in (("true", None, 0), ("false", changed, 1)):
        bundle_path = tmp_path / f"{name}.bundle"
        bundle_path.write_bytes(samples.bundle({"advance": ADVANCE}, change=change))
        with open_bundle(bundle_path) as bundle:
            assert audit(bundle, Options(launches=0), Verdicts(store))["summary"]["status"] == status
    assert manifest_from_json(changed).promises != MANIFEST.promises
