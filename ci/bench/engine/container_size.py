"""Lays out the files of a container that serves one model, without its weights, runs the server in them, and adds up bytes.

    python ci/bench/engine.py container_size [--bundle FILE] [--root FOLDER] [--tar FILE]

The files are this machine's Python and the shared libraries that it and the packages need, `tilec[serve]` as pip installs it
from its wheel, and a bundle. What no server imports is left out: tests, headers, stubs, Python's own development files, and
packages that only fetch models from a hub (`LEFT_OUT`). So are folders of the compiler that no server imports, and symbols of
shared libraries. CUDA's driver comes from the container runtime. The server then runs in that folder (chroot, which root alone
may) on the tile interpreter with a tiny model: it completes a text, and a second one under a grammar. `CHECKED` runs there too,
because stripped libraries have to load and to compute. `--tar` writes the files as `docker import` takes them. Exit status 1 if
the server does not run, or if the files have over `GOAL` bytes.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from ci.bench.front import Outcome
from ci.bench.markdown import grid, page
from ci.evidence import ROOT

GOAL: Final = 120_000_000
BUNDLE: Final = ROOT / "artifacts/bundles/qwen3-4b-sm_90a.bundle"
PACKAGES: Final = "opt/tilec"
STDLIB_LEFT_OUT: Final = (
    "test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data", "distutils", "unittest", "venv",
    "config-*", "site-packages", "turtle.py", "sqlite3", "lib-dynload/_test*", "lib-dynload/_tkinter*", "lib-dynload/_sqlite3*",
    "lib-dynload/nis*", "lib-dynload/ossaudiodev*", "lib-dynload/_dbm*", "lib-dynload/_gdbm*", "lib-dynload/xxlimited*",
)  # fmt: skip
LEFT_OUT: Final = (
    "*.pyi", "*.pxd", "*.pyx", "*.h", "*.a", "*/tests", "*/tests/*", "numpy/f2py/*", "numpy/distutils/*",
    "numpy/_core/include/*", "numpy/_core/_simd.*", "numpy/_core/*_tests.*", "bin/*", "pip*", "setuptools*",
    "*.dist-info/sboms/*", "numpy/fft", "numpy/polynomial", "numpy/testing",
    "tilec/emulator", "tilec/audit", "tilec/lsp", "tilec/qualify", "tilec/tuning",
)  # fmt: skip
"""Files and folders of packages, by name or path. NumPy imports those of its own when they are asked for; those of `tilec`
check, tune and edit kernels."""
HUB: Final = (
    "annotated_doc", "certifi", "filelock", "fsspec", "hf_xet", "httpcore", "httpx", "huggingface_hub", "idna", "markdown_it",
    "mdurl", "pygments", "shellingham", "tqdm", "typer", "yaml", "_yaml", "click_default_group", "requests", "urllib3",
    "charset_normalizer", "httpcore2", "httpx2", "truststore", "packaging",
)  # fmt: skip
"""Packages that only fetch models, which tokenizers names, and that only colour sources, which rich names."""
CUDA_LEFT_OUT: Final = (
    "nvml", "cynvml", "cufile", "cycufile", "cudla", "cycudla", "nvrtc", "cynvrtc", "nvvm", "cynvvm", "nvjitlink",
    "cynvjitlink", "nvfatbin", "cynvfatbin", "runtime", "cyruntime", "runtime_ptds",
)  # fmt: skip
"""Modules of cuda.bindings for libraries that the runtime does not use."""
CHECKED: Final = """
import cuda.bindings.driver, llguidance, ml_dtypes, numpy as np, safetensors, tokenizers, tilec_engine.backends.cuda
wanted = np.eye(64) * 3 + 1
assert np.allclose(np.linalg.inv(wanted) @ wanted, np.eye(64))
assert 0 <= np.random.default_rng(1).random() < 1
assert np.float32(np.float32(3).astype(ml_dtypes.bfloat16)) == 3
"""
"""What stripped libraries have to do: each is loaded, and those of NumPy compute."""
LIBRARY: Final = re.compile(r"(?:=> )?(/\S+) \(0x")
LOADED: Final = 1
"""Kind of a part of a library that is mapped (PT_LOAD)."""
OPEN_FILES: Final = "proc/self/fd"
"""What the server counts at its start, and each container runtime has. A folder without files stands for it in the chroot."""
SMALL_MODEL: Final = "tiny"


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("--bundle", type=Path, default=BUNDLE)
    parser.add_argument("--root", type=Path, metavar="FOLDER", help="where the files stay; default: a temporary folder")
    parser.add_argument("--tar", type=Path, metavar="FILE")


def measure(options: argparse.Namespace) -> Outcome:
    """Lay out, run and count."""
    with tempfile.TemporaryDirectory() as name:
        root = (options.root or Path(name) / "root").resolve()
        shutil.rmtree(root, ignore_errors=True)
        parts = {"packages": packages(root), "Python": python(root), "bundle": bundle(root, options.bundle)}
        parts["shared libraries"] = libraries(root)
        text = completed(root, Path(name))
        sizes = {part: sum(path.stat().st_size for path in paths) for part, paths in parts.items()}
        largest = sorted(by_package(root, parts["packages"]).items(), key=lambda one: -one[1])[:8]
        packed = compressed(root, options.tar or Path(name) / "files.tar.gz")
    total = sum(sizes.values())
    rows = [(part, len(parts[part]), f"{size / 1e6:.1f}") for part, size in sizes.items()]
    rows.append(("all", sum(map(len, parts.values())), f"{total / 1e6:.1f}"))
    lines = ["# Files of a container that serves one model, without weights", "", *grid(("part", "files", "MB"), rows), ""]
    lines += [f"Compressed (gzip), as registries send them: {packed / 1e6:.1f} MB. The server ran in them.", ""]
    lines += grid(("largest package", "MB"), [(package, f"{size / 1e6:.1f}") for package, size in largest])
    record = {
        "parts": sizes, "total": total, "megabytes": total / 1e6, "compressed_megabytes": packed / 1e6, "goal": GOAL,
        "completed": bool(text), "packages": dict(largest),
    }  # fmt: skip
    return Outcome(record, {"container_size.md": page(lines)}, int(not text or total > GOAL))


def packages(root: Path) -> list[Path]:
    """Install `tilec[serve]` into the root, and remove what no server imports."""
    target = root / PACKAGES
    with tempfile.TemporaryDirectory() as wheels:
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", wheels, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(wheels).glob("tilec-*.whl")
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(target)]
        environment = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
        subprocess.run([*install, f"{wheel}[serve]"], check=True, env=environment)
    for name in (*HUB, *(f"{package}-*" for package in HUB)):
        for path in (*target.glob(name), *target.glob(f"{name}.py")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for module in CUDA_LEFT_OUT:
        for path in target.glob(f"cuda/bindings/**/{module}.*"):
            path.unlink()
    shutil.rmtree(target / "cuda/bindings/_v2", ignore_errors=True)
    for path in sorted(target.rglob("*"), reverse=True):
        if any(fnmatch(str(path.relative_to(target)), pattern) or fnmatch(path.name, pattern) for pattern in LEFT_OUT):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
    for path in files(target):
        if path.suffix == ".so" or ".so." in path.name:
            smaller(path)
    return files(target)


def python(root: Path) -> list[Path]:
    """Copy the interpreter and its standard library, at the paths that they have here."""
    stdlib, binary = Path(sysconfig.get_path("stdlib")), Path(os.path.realpath(sys.executable))

    def left_out(folder: str, names: list[str]) -> set[str]:
        inside = Path(folder).relative_to(stdlib)
        return {
            name for name in names
            if name == "__pycache__" or any(fnmatch(str(inside / name), pattern) for pattern in STDLIB_LEFT_OUT)
        }  # fmt: skip

    shutil.copytree(stdlib, within(root, stdlib), ignore=left_out)
    copied(root, binary)
    for extension in within(root, stdlib).rglob("*.so"):
        stripped(extension)
    (root / "usr/bin").mkdir(parents=True, exist_ok=True)
    (root / "usr/bin/python3").symlink_to(binary)
    return [*files(within(root, stdlib)), within(root, binary)]


def bundle(root: Path, file: Path) -> list[Path]:
    """Copy the bundle."""
    target = root / "opt/model.bundle"
    shutil.copyfile(file, target)
    return [target]


def libraries(root: Path) -> list[Path]:
    """Copy the shared libraries that programs and extensions in the root are linked with, and what a program needs besides."""
    found: dict[Path, Path] = {}
    ours = {os.path.realpath(path) for path in files(root)}
    for path in files(root):
        if path.suffix != ".so" and ".so." not in path.name and not os.access(path, os.X_OK):
            continue
        listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True).stdout
        for name in LIBRARY.findall(listed):
            if os.path.realpath(name) not in ours and not name.startswith(str(root)):
                found.setdefault(Path(name), stripped(copied(root, Path(name))))
    (root / "tmp").mkdir(exist_ok=True)
    (root / "dev").mkdir(exist_ok=True)
    return list(found.values())


def completed(root: Path, work: Path) -> str:
    """The text of a completion by a server that has the files alone; raises CalledProcessError if it does not start."""
    device = root / "dev/null"
    os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
    (root / OPEN_FILES).mkdir(parents=True)
    model = root / "tmp" / SMALL_MODEL
    tiny = [sys.executable, "-m", "engine.tiny", str(model)]
    subprocess.run(tiny, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    program = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin") or "chroot"
    command = [program, str(root), "/usr/bin/python3", "-m", "tilec_engine", "serve", f"/tmp/{SMALL_MODEL}", "--port", "0"]
    command += ["--backend", "interpreter", "--max-seq-len", "256", "--rows", "2"]
    environment = {"PYTHONPATH": f"/{PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/tmp"}
    subprocess.run([*command[:3], "-c", CHECKED], check=True, env=environment)
    with open(work / "log", "w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=log, text=True)
        assert process.stderr is not None
        try:
            for line in process.stderr:
                print(line, end="", file=sys.stderr)
                event: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
                if event.get("event") == "ready":
                    return asked(event["port"])
            raise subprocess.CalledProcessError(process.wait(), command)
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(model)
            device.unlink()
            shutil.rmtree(root / "proc")


def asked(port: int) -> str:
    """The text of a completion, after the page of the server and a text under a grammar were there too."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    connection.request("GET", "/")
    assert b"<!doctype html>" in connection.getresponse().read()
    limited = {"prompt": "the sky", "guided_regex": "[0-9]{3}", "max_tokens": 16}
    connection.request("POST", "/v1/completions", json.dumps(limited))
    answer = json.loads(connection.getresponse().read())
    assert re.fullmatch("[0-9]{3}", answer["choices"][0]["text"]), answer
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "the sky", "max_tokens": 4}))
    return json.loads(connection.getresponse().read())["choices"][0]["text"]


def compressed(root: Path, target: Path) -> int:
    """Bytes of all files as a compressed archive, whose times and owners are the same everywhere."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    with (
        open(target, "wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(root.rglob("*")):
            archive.add(path, str(path.relative_to(root)), recursive=False, filter=plain)
    return target.stat().st_size


def by_package(root: Path, paths: Iterable[Path]) -> dict[str, int]:
    """Bytes of each package."""
    sizes: dict[str, int] = {}
    for path in paths:
        name = path.relative_to(root / PACKAGES).parts[0].removesuffix(".libs")
        sizes[name] = sizes.get(name, 0) + path.stat().st_size
    return sizes


def files(folder: Path) -> list[Path]:
    """The files of a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def copied(root: Path, path: Path) -> Path:
    """A file of this machine, copied to the same path of the root."""
    target = within(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    return target


def stripped(path: Path) -> Path:
    """A copied library without what debuggers read."""
    subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)
    return path


def smaller(path: Path) -> None:
    """Strip a wheel's library if it gets smaller and can still be loaded. Tools have laid out some anew, and `strip`
    moves the parts of these."""
    aside = path.with_name(path.name + ".stripped")
    subprocess.run(["strip", "--strip-unneeded", "-o", str(aside), str(path)], check=True)
    fine = aside.stat().st_size < path.stat().st_size and aligned(aside.read_bytes())
    aside.replace(path) if fine else aside.unlink()


def aligned(library: bytes) -> bool:
    """Whether each part of a library (ELF, 64 bits, little-endian) that is mapped lies in the file as it will in memory, up to
    whole pages: the loader refuses others."""
    (first,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    for at in range(first, first + size * count, size):
        kind, _, offset, address, _, _, _, alignment = struct.unpack_from("<IIQQQQQQ", library, at)
        if kind == LOADED and (offset - address) % max(alignment, 1):
            return False
    return True


def within(root: Path, path: Path) -> Path:
    """A path of this machine, in the root."""
    return root / path.relative_to("/")
