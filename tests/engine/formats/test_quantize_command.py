"""`python -m engine.quantize`: whole folders that the engine reads, exact errors, and nothing half written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import safe_open

from engine.api import Engine
from engine.checkpoint.json_file import parse_object
from engine.checkpoint.weights import WeightPlan
from engine.models.families import read_config
from engine.tools.quantize import checkpoint, command
from engine.tools.quantize.fp8 import Fp8
from engine.tools.quantize.int4 import Int4
from engine.tools.quantize.int8 import Int8
from engine.tools.quantize.rounding import Format, round_weight
from engine.tools.tiny import write_tiny_model
from tests import shipped

BF16 = np.dtype(ml_dtypes.bfloat16)
FORMATS: dict[str, tuple[tuple[str, ...], Format]] = {
    "fp8": (("--to", "fp8"), Fp8()),
    "int4": (("--to", "int4", "--group-size", "64"), Int4(64)),
    "int8": (("--to", "int8"), Int8()),
    "int8 groups": (("--to", "int8", "--group-size", "32"), Int8(32)),
    "minmax": (("--to", "int4", "--group-size", "32", "--observer", "minmax"), Int4(32, "minmax")),
}
Q_PROJ = "model.layers.0.self_attn.q_proj"


def quantize(*arguments: str | Path) -> int:
    return command.run([str(argument) for argument in arguments])


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    write_tiny_model(folder)
    return folder


def values(form: Format, weight: NDArray[Any]) -> NDArray[np.float32]:
    """What the rounded weight stands for."""
    return form.rounded(weight.astype(np.float32), weight.dtype)[1]


def contents(path: Path) -> dict[str, bytes]:
    """The tensors of a file, as the library reads them."""
    return {name: bytes(tensor["data"]) for name, tensor in safetensors.deserialize(path.read_bytes())}


def change(folder: Path, name: str, to: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Change one tensor of a folder's only file."""
    path = folder / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    arrays[name] = np.ascontiguousarray(to(arrays[name].copy()))
    path.write_bytes(safetensors.numpy.save(arrays))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("family", "tied"), [("qwen3", False), ("qwen3", True), ("llama", False)])
def test_the_engine_reads_what_is_written(name: str, family: str, tied: bool, tmp_path: Path) -> None:
    arguments, form = FORMATS[name]
    source, target = tmp_path / "source", tmp_path / "target"
    write_tiny_model(source, family=family, tied=tied)
    assert quantize(source, target, *arguments) == 0
    before, after = (WeightPlan.for_model(read_config(folder), folder) for folder in (source, target))
    linear = [tensor for tensor in before.tensor_names if tensor.endswith("_proj.weight")]
    assert set(after.quantised) == set(linear) and len(linear) == 14
    for tensor in before.tensor_names:
        expected = before.tensor(tensor)
        expected = values(form, expected).astype(BF16) if tensor in linear else expected
        assert after.tensor(tensor).tobytes() == expected.tobytes()
    config, old = (json.loads((folder / "config.json").read_text()) for folder in (target, source))
    assert config == old | {"quantization_config": form.config(["lm_head"])}
    for file in ("tokenizer.json", "generation_config.json", "chat_template.jinja"):
        assert (target / file).read_bytes() == (source / file).read_bytes()
    assert sorted(path.name for path in target.iterdir()) == sorted(path.name for path in source.iterdir())
    modes = {path.stat().st_mode for path in target.iterdir()}
    assert len(modes) == 1, "all files can be read by whom the umask allows"


def test_logits_are_near_those_of_the_source(tiny: Path, tmp_path: Path) -> None:
    logits: dict[str, NDArray[np.float32]] = {}
    for name in ("tiny", "fp8", "int4", "int8"):
        if name != "tiny":
            assert quantize(tiny, tmp_path / name, *FORMATS[name][0]) == 0
        with Engine.from_pretrained(tmp_path / name, backend="interpreter", max_seq_len=16) as engine:
            logits[name] = engine.logits((3, 141, 59, 26, 5))
    distance = {name: np.linalg.norm(logits[name] - logits["tiny"]) / np.linalg.norm(logits["tiny"]) for name in logits}
    assert 0 < 2 * distance["int8"] < distance["fp8"] < distance["int4"] / 2 < 0.25


def test_shards_and_their_index(tiny: Path, tmp_path: Path) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    assert quantize(tiny, one, "--to", "fp8") == 0
    assert quantize(tiny, several, "--to", "fp8", "--max-shard-size", "70KB") == 0
    index = json.loads((several / "model.safetensors.index.json").read_text())
    files = sorted(several.glob("*.safetensors"))
    assert [file.name for file in files] == [f"model-{n + 1:05}-of-{len(files):05}.safetensors" for n in range(len(files))]
    assert len(files) > 3 and set(index["weight_map"].values()) == {file.name for file in files}
    found = {name: data for file in files for name, data in contents(file).items()}
    assert found == contents(one / "model.safetensors")
    assert index["metadata"]["total_size"] == sum(map(len, found.values()))
    for file in files:
        with safe_open(file, "numpy") as opened:
            assert opened.metadata() == {"format": "pt"}
            assert sum(len(found[name]) for name in opened.keys()) <= 70_000  # noqa: SIM118  # it is no mapping


def test_ignored_modules_keep_their_bits(tiny: Path, tmp_path: Path) -> None:
    for name in ("fp8", "int4"):
        target = tmp_path / name
        ignored = ("--ignore", "re:.*0.mlp.down_proj", "--ignore", "model.layers.1.self_attn.o_proj")
        assert quantize(tiny, target, *FORMATS[name][0], *ignored) == 0
        plan = WeightPlan.for_model(read_config(target), target)
        assert len(plan.quantised) == 12 and "model.layers.0.mlp.down_proj.weight" not in plan.quantised
        config = json.loads((target / "config.json").read_text())["quantization_config"]
        skipped = config["modules_to_not_convert" if name == "fp8" else "ignore"]
        assert skipped == ["lm_head", "model.layers.0.mlp.down_proj", "model.layers.1.self_attn.o_proj"]


def test_the_table_has_each_weight_and_its_error(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize(tiny, tmp_path / "out", *FORMATS["int4"][0]) == 0
    heading, *rows, total, last = capsys.readouterr().out.splitlines()
    assert heading.split() == ["weight", "shape", "rms", "error", "largest", "error"]
    plan = WeightPlan.for_model(read_config(tiny), tiny)
    assert [row.split()[0] for row in rows] == [name for name in plan.tensor_names if name.endswith("_proj.weight")]
    for row in rows:
        name, height, _, width, rms, _, largest = row.split()
        weight = plan.tensor(name)
        difference = weight.astype(np.float64) - values(Int4(64), weight)
        assert (int(height), int(width)) == weight.shape and f"{np.abs(difference).max():.4g}" == largest
        relative = np.linalg.norm(difference) / np.linalg.norm(weight.astype(np.float64))
        assert float(rms) == pytest.approx(100 * relative, abs=6e-4)
    assert total.startswith("all 14 ") and last.startswith(f"{tmp_path / 'out'}: 1 safetensors files, 0.000 GB")


def quantised_already(source: Path) -> None:
    keys = json.loads((source / "config.json").read_text())
    keys["quantization_config"] = Fp8().config(["lm_head"])
    (source / "config.json").write_text(json.dumps(keys))


def no_number(source: Path) -> None:
    def put(weight: NDArray[Any]) -> NDArray[Any]:
        weight[70, 9] = np.nan
        return weight

    change(source, "model.layers.1.mlp.up_proj.weight", put)


REFUSED: list[tuple[str, Callable[[Path], object] | None, Sequence[str], int, str]] = [
    ("group", None, ("--to", "int4"), 3, f'"{Q_PROJ}.weight" has 64 columns, which are not whole groups of 128; give'),
    ("quantised", quantised_already, ("--to", "fp8"), 3, "is quantised already; give the checkpoint of 16 bits"),
    ("nan", no_number, ("--to", "fp8"), 3, '"model.layers.1.mlp.up_proj.weight" holds nan at [70, 9], which is no weight'),
    ("f32", lambda source: change(source, f"{Q_PROJ}.weight", lambda w: w.astype(np.float32)), ("--to", "fp8"), 3,
     f'"{Q_PROJ}.weight" is F32, and weights must be BF16 or F16; save the model in bfloat16 first'),
    ("absent", shutil.rmtree, ("--to", "fp8"), 3, "there is no such file"),
    ("no weights", lambda source: (source / "model.safetensors").unlink(), ("--to", "fp8"), 3, "holds neither"),
    ("format", None, ("--to", "int3"), 2, "'int3' is not one of 'fp8', 'int4', 'int8'"),
    ("no format", None, (), 2, "Missing option '--to'"),
    ("observer", None, ("--to", "fp8", "--observer", "mse"), 2, "--observer is of --to int4"),
    ("int8 observer", None, ("--to", "int8", "--observer", "mse"), 2, "--observer is of --to int4"),
    ("fp8 groups", None, ("--to", "fp8", "--group-size", "64"), 2, "--group-size is of --to int4 and int8"),
    ("int8 group", None, ("--to", "int8", "--group-size", "96"), 3, "not whole groups of 96; leave --group-size out"),
    ("size", None, ("--to", "int4", "--group-size", "12"), 2, "--group-size 12 is not a positive multiple of 8"),
    ("shard", None, ("--to", "fp8", "--max-shard-size", "5 GiB"), 2, "--max-shard-size 5 GiB is no size; give one such"),
    ("ignored", None, ("--to", "fp8", "--ignore", "router"), 2, '--ignore "router" is none of the model\'s linear modules'),
    ("expression", None, ("--to", "fp8", "--ignore", "re:["), 2, "is no regular expression"),
    ("fused", None, ("--to", "fp8", "--ignore", Q_PROJ), 2, f'keeps "{Q_PROJ}" in 16 bits and not "{Q_PROJ[:-6]}k_proj"'),
    ("all", None, ("--to", "fp8", "--ignore", "re:.*"), 2, "--ignore leaves nothing to quantise"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("prepare", "arguments", "status", "expected"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refusals_are_one_line_and_leave_nothing(
    prepare: Callable[[Path], object] | None, arguments: Sequence[str], status: int, expected: str, tiny: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if prepare is not None:
        prepare(tiny)
    before = sorted(tiny.parent.iterdir())
    assert quantize(tiny, tiny.parent / "out", *arguments) == status
    line = capsys.readouterr().err
    assert line.startswith("error: ") and line.count("\n") == 1 and expected in line
    assert sorted(tiny.parent.iterdir()) == before


def test_a_folder_that_exists_is_left_alone(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    for target in (tiny, tmp_path / "empty", tmp_path / "link"):
        assert quantize(tiny, target, "--to", "fp8") == 2
        assert capsys.readouterr().err == f"error: {target}: exists already; name a new folder\n"
    assert quantize(tiny, tmp_path / "absent" / "out", "--to", "fp8") == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link", "tiny"]


def test_a_failure_in_the_middle_leaves_nothing(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard = checkpoint.write_shard
    for failure, status in ((OSError(28, "No space left on device"), 1), (KeyboardInterrupt(), 130), (MemoryError(), 5)):
        written: list[str] = []

        def fail_later(
            folder: Any, name: str, modules: Any, *, written: list[str] = written, failure: BaseException = failure
        ) -> None:
            write_shard(folder, name, modules)
            written.append(name)
            if len(written) == 2:
                raise failure

        monkeypatch.setattr(checkpoint, "write_shard", fail_later)
        assert quantize(tiny, tmp_path / "out", "--to", "fp8", "--max-shard-size", "70KB") == status
        assert len(written) == 2 and [path.name for path in tmp_path.iterdir()] == ["tiny"]
        assert capsys.readouterr().err.strip().startswith("error: ")


def test_space_is_asked_for_first(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = os.statvfs(tmp_path)
    few = os.statvfs_result((1024, 1024, 500, 500, 300, *status[5:]))
    monkeypatch.setattr(os, "fstatvfs", lambda handle: few)
    assert quantize(tiny, tmp_path / "out", "--to", "fp8") == 1
    out, err = capsys.readouterr()
    assert "bytes are needed, and 307200 are free" in err and out.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_disk_that_becomes_full_is_one_error(tiny: Path, tmp_path: Path) -> None:
    """The file is larger than this process may write, which the library `safetensors` finds in the middle of it; the scratch
    file, which has the quantised weights alone, is not."""
    limit = (tiny / "model.safetensors").stat().st_size // 2
    code = f"""
import resource, signal, sys
sys.dont_write_bytecode = True  # which the limit would cut
from engine.tools.quantize.command import run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(run(sys.argv[1:]))
"""
    arguments = [str(tiny), str(tmp_path / "out"), "--format", "fp8"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=shipped.ROOT)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "cannot be written: " in done.stderr and "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_terminated_run_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from engine.tools.quantize import checkpoint, command\n"
        "checkpoint._sync = lambda folder: os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.exit(command.run(sys.argv[1:]))\n"
    )
    (tmp_path / "out").mkdir()
    arguments = [str(tiny), str(tmp_path / "out/target"), "--to", "fp8"]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=shipped.ROOT)
    assert (done.returncode, done.stderr.strip()) == (130, "error: interrupted")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_the_source_that_leaves_it_is_not_followed(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret").write_text("mine")
    (tiny / "vocab.json").symlink_to(tmp_path / "secret")
    assert quantize(tiny, tmp_path / "out", "--to", "fp8") == 3
    assert "vocab.json: is a link to a file outside its folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_configs_have_the_keys_of_the_producers() -> None:
    """compressed-tensors' own dumps are in references; the keys of `fp8` are those of Qwen3's published configs."""
    for name, form in {"ct_w4a16": Int4(), "ct_w8a16": Int8()}.items():
        reference = Path(__file__).parent / "references" / f"{name}.safetensors"
        with safe_open(reference, "numpy") as file:
            theirs = parse_object(file.metadata()["quantization_config"].encode(), reference, "the config")
        ours: Any = form.config(["lm_head"])
        weights: Any = theirs["config_groups"]
        weights = weights["group_0"]["weights"]
        own: dict[str, Any] = ours["config_groups"]["group_0"]["weights"]
        differing = {key for key, value in own.items() if weights.get(key) != value}
        assert differing <= {"observer", "observer_kwargs"} and not weights.keys() - own.keys()
        assert all(ours[key] == theirs[key] for key in ("format", "quant_method", "quantization_status", "ignore"))
    assert Fp8().config(["lm_head"]) == {
        "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head"],
    }  # fmt: skip


def test_memory_holds_one_weight(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a weight is rounded, the arrays of those before it in its shard are freed."""
    import gc
    import weakref

    alive: list[weakref.ref[NDArray[Any]]] = []

    def watched(weight: NDArray[Any], form: Format) -> Any:
        gc.collect()
        assert not [one for one in alive if one() is not None]
        arrays, errors = round_weight(weight, form)
        alive.extend(weakref.ref(array) for array in arrays.values())
        return arrays, errors

    monkeypatch.setattr(checkpoint, "round_weight", watched)
    assert quantize(tiny, tmp_path / "out", "--to", "fp8") == 0
    assert len(alive) == 28


def test_the_old_name_of_the_option_does_the_same(tiny: Path, tmp_path: Path) -> None:
    assert quantize(tiny, tmp_path / "new", "--to", "int8") == quantize(tiny, tmp_path / "old", "--format", "int8") == 0
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "old" / name).read_bytes()


def test_the_command_is_a_module(tiny: Path, tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "engine.quantize", tiny, tmp_path / "out", "--to", "int4"],
        capture_output=True, text=True, timeout=600, check=False, cwd=shipped.ROOT,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (3, "")
    assert process.stderr.startswith(f"error: {tiny / 'model.safetensors'}: tensor ")
