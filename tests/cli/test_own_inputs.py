"""Inputs of the author's own, `KERNEL_inputs(rng, dims)` next to the reference: used by commands, checked by the contract."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilec.cli import commands
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.passes.prover import prove
from tilec.project.trial.inputs import launch_inputs, own_inputs
from tilec.project.trial.launches import Contract, random_tensors, small_launches

pytestmark = pytest.mark.usefixtures("kept_workers")

GATHER = """
import tilec
from tilec import Const, Dim, In, Out, bid, bf16, f32, grid, i32, load, store, values

class T(Dim): "chosen rows"
class V(Dim): "rows"
class H(Dim): "elements of a row"

@tilec.kernel
def gather(ids: In[i32, T], table: In[bf16, V, H], out: Out[f32, T, H], scale: f32, shift: i32, *, H: Const):
    grid(T)
    values(ids, 0, V, distinct=True)
    row = load(ids, bid(0))
    store(out, (bid(0), 0), load(table, (row, 0), shape=(1, H)).astype(f32) * scale + shift.astype(f32))
"""
REFERENCE = "def gather(ids, table, scale, shift):\n    return table[ids].astype(float) * scale + shift\n"
OWN = "import numpy as np\n{}\ndef gather_inputs(rng, dims):\n    return {}\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gather.py").write_text(GATHER)
    (tmp_path / "reference.py").write_text(REFERENCE)
    return tmp_path / "gather.py"


def write(kernel: Path, returned: str, before: str = "") -> None:
    kernel.with_name("reference.py").write_text(REFERENCE + OWN.format(before, returned))


def contract_of(kernel: Path) -> Contract:
    function = load_kernel(kernel, {"H": 40}, root=kernel.parent)
    return Contract.of_function(function, prove(function))


def made(kernel: Path, seed: int = 0, given: tuple[str, ...] = ()) -> tuple[dict[str, float], dict[str, Any]]:
    contract = contract_of(kernel)
    values = {**small_launches(contract, {"T": 5, "V": 9, "shift": 3})[0]}
    return launch_inputs(contract, values, seed, own_inputs(kernel.parent, "gather", kernel.parent), given)


def test_what_is_given_is_used_and_the_rest_is_random(kernel: Path) -> None:
    write(kernel, "{'ids': np.arange(dims['T'])[::-1], 'scale': 2, 'table': rng.normal(size=(dims['V'], dims['H']))}")
    values, tensors = made(kernel)
    assert tensors["ids"].tolist() == [4, 3, 2, 1, 0] and tensors["ids"].dtype == np.int32
    assert values == {"T": 5, "V": 9, "shift": 3, "scale": 2.0} and isinstance(values["scale"], float)
    wide = np.random.default_rng([0, 2]).normal(size=(9, 40))
    stored = (tensors["table"].astype(np.uint32) << 16).view(np.float32).reshape(9, 40)
    assert np.abs(stored - wide).max() <= 2**-8 * np.abs(wide).max()  # rounded to nearest: half of the last of 8 bits
    assert np.abs(stored - wide).max() > 0
    again = made(kernel, seed=1)[1]
    assert not np.array_equal(again["table"], tensors["table"])
    write(kernel, "{}")
    nothing = made(kernel)
    assert all(
        np.array_equal(one, nothing[1][name]) for name, one in random_tensors(contract_of(kernel), nothing[0], 0).items()
    )


def test_a_scalar_of_the_command_line_is_kept(kernel: Path) -> None:
    write(kernel, "{'scale': 7.0, 'shift': -2}")
    assert made(kernel)[0] == {"T": 5, "V": 9, "shift": -2, "scale": 7.0}
    assert made(kernel, given=("shift",))[0]["shift"] == 3


IDS = "np.arange(dims['T'])"


@pytest.mark.parametrize(
    ("returned", "message", "given", "required"),
    [
        ("{'ids': np.arange(4)}", "gives `ids` in another shape", "(4,)", "(5,), which is (T)"),
        ("{'ids': np.arange(5.0)}", "gives `ids` in another dtype", "`float64`", "i32[T]"),
        ("{'ids': np.arange(5) + 5}", "a stored value is out of range", "value 9 at index [4]", "0 <= value < 9, all distinct"),
        ("{'ids': np.zeros(5, int)}", "two stored values are equal", "value 0 at flat indices 0 and 1", "all distinct"),
        ("{'ids': np.arange(5) + 2**31}", "a value that `ids` cannot hold", "2147483648 at index [0]", "from -2147483648 to"),
        ("{'table': np.full((9, 40), 1e39)}", "a value that `table` cannot hold", "1e+39 at index [0, 0]", "is 3.38953e+38"),
        ("{'table': np.full((9, 40), 1j)}", "gives `table` in another dtype", "`complex128`", "bf16[V, 40]"),
        ("{'table': [[1], [2, 3]]}", "`table` fails: ValueError", "", ""),
        ("{'out': np.zeros((5, 40))}", "gives `out`, which the kernel does not read", "", "`ids`, `table`, `scale`, `shift`"),
        ("{'T': 5}", "gives the dim `T`, which is chosen before", "", "one of `ids`"),
        ("{'idx': 5}", "gives `idx`, which is no input", "", "one of `ids`"),
        ("{'shift': 1.5}", "gives `shift` as no such number", "`float64`", "one number of i32"),
        ("{'scale': [1.0]}", "gives `scale` as no such number", "an array of shape (1,)", "one number of f32"),
        ("{'shift': 2**31}", "gives a `shift` out of range", "2147483648", "to 2147483647"),
        ("[np.arange(5)]", "returns no dict", "`list`", "a dict of arrays"),
        ("{'ids': dims['W']}", "fails at line 6: KeyError: 'W'", "", ""),
    ],
)  # fmt: skip
def test_what_does_not_satisfy_the_contract_is_refused(
    returned: str, message: str, given: str, required: str, kernel: Path
) -> None:
    write(kernel, returned)
    with pytest.raises(CompileError) as caught:
        made(kernel)
    (found,) = caught.value.diagnostics
    assert found.code == "E0815" and "`reference.py:gather_inputs`" in found.message and message in found.message
    assert found.primary is not None and (found.primary.span.file, found.primary.span.line) == ("reference.py", 5)
    notes = {note.partition(": ")[0]: note.partition(": ")[2] for note in found.notes}
    assert given in notes.get("given", "") and required in notes.get("required", "")
    assert bool(given) == ("given" in notes)


def test_a_function_of_other_parameters_is_refused(kernel: Path) -> None:
    kernel.with_name("reference.py").write_text("def gather_inputs(rng):\n    return {}\n")
    with pytest.raises(CompileError, match="takes 1 arguments"):
        made(kernel)


def test_infinities_and_nan_are_inputs_and_what_overflows_is_not(kernel: Path) -> None:
    write(kernel, "{'table': np.where(np.arange(360).reshape(9, 40) % 3, np.nan, -np.inf)}")
    stored: list[float] = (made(kernel)[1]["table"].astype(np.uint32) << 16).view(np.float32).tolist()
    assert set(stored[::3]) == {-math.inf} and all(map(math.isnan, stored[1::3]))


def test_the_scalars_of_a_launch_satisfy_its_checks(tmp_path: Path) -> None:
    text = GATHER.replace("    grid(T)\n", "    grid(T)\n    requires(shift % 4 == 0)\n").replace("store,", "requires, store,")
    (tmp_path / "gather.py").write_text(text)
    write(tmp_path / "gather.py", "{'shift': 6}")
    contract = contract_of(tmp_path / "gather.py")
    values = small_launches(contract, {"T": 5, "V": 9})[0]
    with pytest.raises(CompileError) as caught:
        launch_inputs(contract, values, 0, own_inputs(tmp_path, "gather", tmp_path))
    assert caught.value.diagnostics[0].notes[0] == "given: shift=6" and "shift % 4" in caught.value.diagnostics[0].notes[1]


def test_a_strided_tensor_takes_its_elements_alone(tmp_path: Path) -> None:
    (tmp_path / "gather.py").write_text(
        GATHER.replace("table: In[bf16, V, H]", "table: In[bf16, V, H, tilec.Strides[S, 1]]").replace(
            'class V(Dim): "rows"', 'class V(Dim): "rows"\nclass S(Dim): "elements from row to row"'
        )
    )
    contract = contract_of(tmp_path / "gather.py")
    values = small_launches(contract, {"T": 5, "V": 9, "S": 48, "shift": 1})[0]
    write(tmp_path / "gather.py", "{'table': np.ones((dims['V'], dims['H']))}")
    own = own_inputs(tmp_path, "gather", tmp_path)
    _, tensors = launch_inputs(contract, values, 0, own)
    random = random_tensors(contract, values, 0)["table"]
    inside = (np.arange(random.size) % 48) < 40
    assert (tensors["table"][inside] == 0x3F80).all() and np.array_equal(tensors["table"][~inside], random[~inside])


def test_run_and_test_use_them_and_refuse_them_with_status_2(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(kernel, "{'table': np.full((dims['V'], dims['H']), 3.0), 'scale': 2.0, 'shift': 1}")
    command = ["run", "gather.py", "-c", "H=40", "--dims", "T=5,V=9"]
    assert commands.run(command) == 0
    out = capsys.readouterr().out
    assert "inputs of `gather_inputs` of seed 0" in out and "7 to 7, mean 7" in out and "scale=2" in out
    write(kernel, "{'ids': np.arange(4)}")
    assert commands.run(command) == 2
    err = capsys.readouterr().err
    assert "error[E0815]: `reference.py:gather_inputs` gives `ids` in another shape" in err
    assert "reference.py:5:1" in err and "given: (4,)" in err and "required: (5,), which is (T)" in err
    assert commands.run([*command, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["errors"][0]["code"] == "E0815"
    kernel.with_name("other.py").write_text(REFERENCE + OWN.format("", "{'table': np.ones((dims['V'], dims['H']))}"))
    assert commands.run([*command, "--reference", "other.py"]) == 0  # its own file comes first


def test_a_wrong_result_of_random_inputs_names_the_function_to_write(kernel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel.with_name("reference.py").write_text(REFERENCE.replace("* scale", "* scale * 1e9"))
    command = ["run", str(kernel), "-c", "H=40", "--dims", "T=5,V=9,shift=16777217"]
    assert commands.run(command) == 1
    output = capsys.readouterr().out
    assert "shift=16777217" in output and "WRONG" in output
    assert "write `def gather_inputs(rng, dims)` next to the reference" in output
    write(kernel, "{}")
    reference = kernel.with_name("reference.py")
    reference.write_text(reference.read_text().replace("* scale", "* scale * 1e9"))
    assert commands.run(command) == 1
    assert "next to the reference" not in capsys.readouterr().out
