"""The manifest parser trusts nothing: its own output is read back, anything else is a ValueError, never another exception."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_contracts import T, embedding_like, manifest, tensor

from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Obligation, ValueCheck, ValuePromise, to_json
from tilec.ir.expr import const, sym

FULL = replace(
    embedding_like(),
    obligations=(Obligation("bounds", "load of `x`", "k.py:3:4", "set", ("H % 8 == 0",), ("{ [i] : i < 0 }",)),),
    constants={"H": 16, "E": "bf16", "causal": True, "scale": 0.5},
    digests={"cubin": "00"},
    unsafe=("because",),
)
PROMISING = replace(
    manifest(
        (
            tensor("ids", "in", "i32", T),
            tensor("out", "inout", "i32", T),
            tensor("rows", "out", "i32", T, const(2)),
        ),
        value_checks=(ValueCheck("ids", const(0), const(9), True),),
    ),
    promises=(
        ValuePromise("out", const(0), sym("T"), distinct=True),
        ValuePromise("out", const(0), const(2), ("ids", "out"), sorted=True),
        ValuePromise("rows", const(0), const(9), distinct_in_rows=True),
    ),
)
STRIDED = manifest((tensor("a", "inout", "f32", T, const(8), strides=(sym("S"), const(1))),), strides=("S",))


@pytest.mark.parametrize("kernel_manifest", [FULL, STRIDED, PROMISING])
def test_round_trip(kernel_manifest: Any) -> None:
    assert manifest_from_json(json.loads(json.dumps(to_json(kernel_manifest)))) == kernel_manifest


@pytest.mark.parametrize(
    ("field", "value"),
    [("tensor", "ids"), ("tensor", "other"), ("above", ["other"]), ("above", "ids"), ("distinct", 1), ("low", None)],
)
def test_a_promise_names_tensors_that_the_kernel_has(field: str, value: Any) -> None:
    data = to_json(PROMISING)
    data["promises"][1][field] = value
    with pytest.raises(ValueError, match="promises"):
        manifest_from_json(data)


@pytest.mark.parametrize("records", ["promises", "value_checks"])
def test_only_tensors_of_two_axes_have_rows(records: str) -> None:
    data = to_json(PROMISING)
    data[records][0]["distinct_in_rows"] = True
    with pytest.raises(ValueError, match=rf"{records}\[0\]\.distinct_in_rows: `(out|ids)` has fewer than two axes"):
        manifest_from_json(data)
    data[records][0]["distinct_in_rows"] = 1
    with pytest.raises(ValueError, match="not a bool"):
        manifest_from_json(data)


def paths(data: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    result = [prefix]
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        result += paths(value, (*prefix, key))
    return result


PLAIN = to_json(FULL)
arbitrary_json: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.just([]), st.just({}),
    st.lists(st.integers(), max_size=3), st.just(["+", "T", ["//", "H", 0]]), st.dictionaries(st.text(max_size=3), st.none()),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(paths(PLAIN)), value=arbitrary_json, remove=st.booleans())
def test_a_damaged_manifest_is_a_value_error_or_a_valid_manifest(path: tuple[Any, ...], value: Any, remove: bool) -> None:
    data: Any = {"root": copy.deepcopy(PLAIN)}
    container, key = data, "root"
    for part in path:
        container, key = container[key], part
    if remove and isinstance(container, dict):
        del container[key]
    else:
        container[key] = value
    try:
        parsed = manifest_from_json(data.get("root"))
    except ValueError as error:
        assert str(error)
    else:
        again = to_json(parsed)
        assert manifest_from_json(again) == parsed or "nan" in repr(again).lower()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 8, "format"), (("tensors", 0, "row"), 3, "row"), (("schedule", "early"), -1, "schedule"),
        (("tensors", 2, "resident"), True, "resident"), (("schedule", "roles", 0, "warps"), 5, "schedule"),
        (("schedule", "order"), 1, "schedule"),
        (("schedule", "more"), 1, "schedule"), (("schedule", "pipelines"), [{"stages": 2}], "schedule"),
        (("block",), 2048, "block"), (("tensors", 0, "dtype"), "f64", "dtype"),
        (("tensors", 0, "align"), 24, "power of two"), (("tensors", 1, "name"), "ids", "same name"),
        (("abi", 0, "name"), "nobody", "no parameter"), (("value_checks", 0, "tensor"), "nobody", "no tensor"),
        (("no_alias", 0), ["out"], "pair"), (("grid",), [], "axes"), (("surprise",), 1, "unknown field"),
    ],
)  # fmt: skip
def test_the_error_names_the_field(path: tuple[Any, ...], value: Any, message: str) -> None:
    data = copy.deepcopy(PLAIN)
    container = data
    for part in path[:-1]:
        container = container[part]
    container[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        manifest_from_json(data)
