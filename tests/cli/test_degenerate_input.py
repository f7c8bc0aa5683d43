"""Names of thousands of characters, numbers of thousands of digits and invalid costs: one clear error, status 2 or 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import project
from tilec.cli import commands

NAME, DIGITS = "n" * 5000, "9" * 5000
TUNING = """
[[tuning]]
kernel = "copy_a"
cost = { turn = "cdiv(out[0], at_once)" }
choices = [{ BLOCK = 128, at_once = VALUE }]
measured = "by hand"
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = project.make(tmp_path / "p", ("copy_a",), arch='"sm_90"')
    monkeypatch.chdir(folder)
    kernel = folder / "kernels_src/copy_a.py"  # proven, while the other kernel is only built
    text = kernel.read_text().replace("grid, load", "grid, load, requires")
    kernel.write_text(text.replace("    grid(", "    requires(N % BLOCK == 0)\n    grid("))
    return folder


def refused(capsys: pytest.CaptureFixture[str], status: int, *command: str) -> str:
    assert commands.run(list(command)) == status
    err = capsys.readouterr().err
    assert "error" in err and "internal error" not in err and "Traceback" not in err and "sys.set_int" not in err, err[:2000]
    return err


@pytest.mark.parametrize(
    "command",
    [
        ("check", "--project", NAME), ("check", f"{NAME}.py"), ("check", NAME), ("check", "copy_a", "-c", f"BLOCK={DIGITS}"),
        ("check", "kernels_src/copy_a.py", "-c", f"BLOCK={DIGITS}"), ("explain", NAME), ("run", "copy_a", "--reference", NAME),
        ("run", "copy_a", "--dims", f"N={DIGITS}"), ("run", "copy_a", "--seed", DIGITS),
        ("cache", "prune", "--max-size", DIGITS),
        ("cache", "prune", "--max-size", "9" * 19 + "G"), ("graph", "copy_a", "-o", f"{NAME}.svg"), ("new", NAME),
        ("new", "x", "--name", NAME), ("bundle", "list", NAME), ("bundle", "verify", NAME), ("bundle", "keygen", NAME),
        ("bundle", "sign", NAME, "--key", NAME), ("bundle", "pull", f"oci://host/{NAME}"), ("build", "--arch", NAME),
        ("audit", NAME), ("bench", f"{NAME}.json"), ("build", "--arch", DIGITS),
    ],
    ids=lambda command: " ".join(option[:12] for option in command),
)  # fmt: skip
def test_of_options(root: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    refused(capsys, 2, *command)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"copy_a"', f'"{NAME}"', "E0803"), ("128", DIGITS, "E0514"), ("128", f'"{NAME}"', "E0514"), ("BLOCK", NAME, "E08"),
        ('"kernels_src"', f'"{NAME}"', "E0802"), ("[128, 256]", f"[{'9' * 100}]", "E0514"), ('"sm_90"', f'"{NAME}"', "E0802"),
    ],
)  # fmt: skip
def test_of_the_build_file(root: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, code: str) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text().replace(old, new))
    assert code in refused(capsys, 2, "check")


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("grid(N", f"grid({DIGITS} + N", "E0205"), ("grid(N", f"requires(N < {DIGITS})\n    grid(N", "E0205"),
        ("grid(N", f"requires(N < 0x{DIGITS})\n    grid(N", "E0205"), ("grid(N", f"y = -{DIGITS}\n    grid(N", "E0205"),
        ("x", NAME, "E0513"), ("N", "N" * 5000, "E0513"), ("import tilec\n", f"import tilec\nfrom {NAME} import f\n", "E0513"),
        ("import tilec\n", f"import tilec\nfrom .{'m' * 199} import f\n", "E0112"), ("bid(0)", f"bid({NAME}=0)", "E0513"),
    ],
)  # fmt: skip
def test_of_a_kernel(root: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, code: str) -> None:
    path = root / "kernels_src/copy_a.py"
    path.write_text(path.read_text().replace(old, new))
    assert code in refused(capsys, 1, "check")


@pytest.mark.parametrize("value", ["0", "-1", "0.5", "true", "inf", "nan", "1e400", '"x"', "[1]", "2147483648"])
def test_blocks_that_run_at_once_are_some(root: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text() + TUNING.replace("VALUE", value))
    err = refused(capsys, 2, "check")
    assert "error[E0802]: `at_once` is not a number of blocks" in err and "build.toml:12:" in err
    path.write_text(path.read_text().replace(f"at_once = {value}", "at_once = 1"))
    assert commands.run(["check"]) == 0
