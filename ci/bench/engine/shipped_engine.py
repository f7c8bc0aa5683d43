"""Ships a model's kernels as users would, and runs the engine on the result: packed, signed, pushed, pulled, installed.

    python ci/bench/engine.py shipped_engine prepare FOLDER --tokenizer FILES   with compiler, network, `docker-registry`
    python3 ci/bench/engine.py shipped_engine run FOLDER                        with a GPU

`prepare` packs and signs the bundle of a model, pushes it to the CNCF registry on the loopback, pulls it from there under a
policy that trusts the key, builds its wheel and the wheel of tilec, and collects their dependencies, without a compiler. FILES
is a folder with a model's config, tokenizer and chat template; weights are generated at run time. `run` creates a new
environment, installs the wheels, and runs `python -m tilec_engine` three times: with the installed wheel, which it finds
itself; with the pulled bundle, given by name; and under a policy that trusts another key, which must refuse (exit status 4).
Exit status 1 if anything differs from that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from ci.bench.engine.weights import config_of
from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from ci.evidence import ROOT

MODEL: Final = "qwen3-4b"
TARGET: Final = "sm_90"
PYTHON: Final = "3.12"
PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
POLICY: Final = '[trust]\nformat = 2\n\n[[trust.keys]]\nkey = "{key}"\n'
COMPILERS: Final = ("torch_mlir", "mlir", "llvmlite", "triton", "torch", "islpy", "nvidia")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("half", choices=("prepare", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokenizer", type=Path, help="folder with config, tokenizer and chat template, for `prepare`")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Run one of the two halves."""
    folder: Path = options.folder.resolve()
    if options.half == "run":
        return run(folder)
    if options.tokenizer is None:
        print("error: `prepare` needs --tokenizer FOLDER", file=sys.stderr)
        return 2
    prepare(folder, options.tokenizer)
    return 0


def prepare(folder: Path, tokenizer: Path) -> None:
    """Fill the folder: keys, policies, the pulled bundle, wheels, a model without weights."""
    from tests.registry.peers import distribution

    shutil.rmtree(folder, ignore_errors=True)
    (folder / "model").mkdir(parents=True)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("release", "stranger"):
            tilec("bundle", "keygen", str(work / f"{name}.key"))
            shutil.copy(work / f"{name}.key.pub", folder)
            (folder / f"{name}.toml").write_text(POLICY.format(key=f"{name}.key.pub"), encoding="utf-8")
        tilec("bundle", "pack", "--model", MODEL, "--arch", TARGET, "-o", str(work))
        bundle = work / f"{MODEL}-{TARGET}a.bundle"
        tilec("bundle", "sign", str(bundle), "--key", str(work / "release.key"), "--release", "1")
        server = stack.enter_context(distribution())
        address = f"oci://{server}/kernels:1"
        trusted = ("--trust", str(folder / "release.toml"))
        tilec("bundle", "push", str(bundle), address, *trusted)
        tilec("bundle", "pull", address, "-o", str(folder / "pulled"), *trusted)
    pulled = next((folder / "pulled").glob("*.bundle"))
    tilec("bundle", "wheel", str(pulled), "-o", str(folder / "wheels"), *trusted)
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder / "wheels")]
    subprocess.run([*pip_wheel, str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    needs = [*project["dependencies"], *optional["engine"], *optional["signing"]]
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", "--python-version", PYTHON]
    fetch += [option for platform in PLATFORMS for option in ("--platform", platform)]
    subprocess.run([*fetch, "-d", str(folder / "wheels"), *needs], check=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(tokenizer / name, folder / "model")
    config = config_of(MODEL)
    numbers = {field.name: getattr(config, field.name) for field in fields(config)}
    described = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **numbers}
    (folder / "model" / "config.json").write_text(json.dumps(described), encoding="utf-8")


def tilec(*arguments: str) -> None:
    """Run a command of tilec."""
    subprocess.run([sys.executable, "-P", "-m", "tilec", *arguments], check=True)


def run(folder: Path) -> Outcome:
    """Install, and run three times."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
        python = str(home / "venv/bin/python")
        names = [path for path in sorted((folder / "wheels").glob("*.whl")) if path.name.startswith("tilec")]
        wanted = [f"{path}[engine,signing]" if path.name.startswith("tilec-") else str(path) for path in names]
        install = [python, "-m", "pip", "install", "-q", "--no-index", "--find-links", str(folder / "wheels"), *wanted]
        subprocess.run(install, check=True)
        installed = time.perf_counter() - began
        check_script = f"import importlib.util as u; print([name for name in {COMPILERS!r} if u.find_spec(name)])"
        compilers = subprocess.run([python, "-c", check_script], check=True, capture_output=True, text=True).stdout.strip()
        pulled = ("--bundle", str(next((folder / "pulled").glob("*.bundle"))))
        cases = {
            "wheel, found by itself": generate(python, home, folder, "release"),
            "pulled bundle": generate(python, home, folder, "release", *pulled),
            "pulled bundle, another key trusted": generate(python, home, folder, "stranger", *pulled),
        }
    first, second, refused = cases.values()
    same = bool(first.get("ids")) and first.get("ids") == second.get("ids")
    right = same and first["status"] == second["status"] == 0 and refused["status"] == 4 and compilers == "[]"
    record = {"model": MODEL, "install_seconds": installed, "compilers_importable": compilers, "right": right, "cases": cases}
    lines = [f"# {MODEL} from a signed, pulled bundle and its wheel, in an environment without a compiler", ""]
    lines += [f"Installed in {installed:.1f} s; compilers that can be imported: {compilers}; answers equal: {same}.", ""]
    rows: list[list[object]] = []
    for title, case in cases.items():
        numbers = [case.get(key, "") for key in ("load_seconds", "kernel_load_seconds", "first_token_seconds")]
        shown = [f"{value:.3f}" if isinstance(value, float) else value for value in numbers]
        rows.append([title, case["status"], *shown, case["error"] or "an answer"])
    header = ("kernels from", "exit status", "load, s", "kernels, s", "first token, s", "said")
    return Outcome(record, {"shipped_engine.md": page([*lines, *grid(header, rows)])}, int(not right))


def generate(python: str, home: Path, folder: Path, policy: str, *more: str) -> dict[str, Any]:
    """Generate once in a separate process that cannot see a checkout."""
    command = [python, "-P", "-m", "tilec_engine", "--model", str(folder / "model"), "--dummy-weights", "--json", *more]
    command += ["--prompt", "Hello", "--max-new-tokens", "32", "--trust", str(folder / f"{policy}.toml")]
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")}
    done = subprocess.run(command, cwd=home, env={**kept, "HOME": str(home)}, capture_output=True, text=True, check=False)
    error = next((line for line in done.stderr.splitlines() if "error" in line), "").replace(str(folder), "FOLDER")
    output: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return {"status": done.returncode, "error": error, **output}
