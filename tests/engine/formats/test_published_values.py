"""Weights in every published layout are, bit for bit in f32, what their producers' own code makes of them.

`references/` was written by that code (`write_references.py`), which has nothing in common with the engine.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from layouts import MODULE, quantised
from safetensors import safe_open

from engine.formats.dequantise import dequantise, rows
from engine.formats.forms import Fp8, Int4, Int8, Nvfp4
from engine.formats.quantised import forms

REFERENCES = sorted((Path(__file__).parent / "references").glob("*.safetensors"))

KINDS: dict[str, type[Any]] = {
    "fp8": Fp8, "awq": Int4, "gptq4": Int4, "gptq8": Int8, "ct_w4": Int4, "ct_w8": Int8, "ct_fp8": Fp8, "ct_nvfp4": Nvfp4,
    "modelopt": Nvfp4,
}  # fmt: skip


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "numpy") as file:
        return dict(file.metadata())


def test_there_is_a_reference_of_each_kind() -> None:
    assert {kind for kind in KINDS for path in REFERENCES if path.stem.startswith(kind)} == set(KINDS)


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.stem)
def test_values_are_those_of_the_producer(path: Path, tmp_path: Path) -> None:
    facts = metadata(path)
    shape = tuple(json.loads(facts["shape"]))
    config = json.loads(facts["quantization_config"])
    (tmp_path / "model.safetensors").write_bytes(path.read_bytes())
    found = quantised(tmp_path, config, {f"{MODULE}.weight": shape})
    (name, form), *rest = forms(found, threads=2)
    assert (name, rest) == (f"{MODULE}.weight", [])
    assert type(form) is next(kind for prefix, kind in KINDS.items() if path.stem.startswith(prefix))
    values = dequantise(form)
    assert values.dtype == np.float32 and values.shape == form.shape == shape
    assert hashlib.sha256(values.tobytes()).hexdigest() == facts["expected_sha256"], facts["by"]
    some = [rows(form, begin, min(begin + 5, shape[0])) for begin in range(0, shape[0], 5)]
    assert np.concatenate(some).tobytes() == values.tobytes()


def test_version_two_zeros_under_the_name_of_version_one(tmp_path: Path) -> None:
    """Files that say `gptq` and hold zero points of version 2 have been published; symmetric ones tell it themselves."""
    for version, label in (("v2", "gptq"), ("v1", "gptq_v2")):
        path = next(path for path in REFERENCES if path.stem == f"gptq4_sym_{version}")
        facts = metadata(path)
        folder = tmp_path / version
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(path.read_bytes())
        config = json.loads(facts["quantization_config"]) | {"checkpoint_format": label}
        weight = quantised(folder, config, {f"{MODULE}.weight": tuple(json.loads(facts["shape"]))})[f"{MODULE}.weight"]
        assert hashlib.sha256(dequantise(weight.form()).tobytes()).hexdigest() == facts["expected_sha256"]
