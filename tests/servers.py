"""Servers for tests and campaigns, on free loopback ports: Redis, nginx (WebDAV), S3 (moto), and one that never responds.

Each is a child process, started with an empty folder and ended with the context. A missing one skips the test, or fails it if
`TILEC_PEERS=installed` states that all are there: `.ci/run` sets it once `ci/peers.sh` has installed them. The packages are in
`ci/apt-packages.txt`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

START = 60.0
"""Seconds that a server may take to respond, on a loaded machine."""


def program(name: str) -> str:
    """The path of a program of others; skips, or fails under `TILEC_PEERS=installed`, if it is missing."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        missing(f"`{name}` is not installed (ci/apt-packages.txt)")
    assert found is not None
    return found


def missing(why: str) -> None:
    """Skips, or fails if everything must be installed."""
    if os.environ.get("TILEC_PEERS") == "installed":
        pytest.fail(why)
    pytest.skip(why)


def free_port() -> int:
    """A free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether a server listens."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


@contextlib.contextmanager
def serving(command: list[str], port: int, folder: Path) -> Generator[subprocess.Popen[bytes]]:
    """Runs a server until the context ends."""
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + START
        while not answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not start: {(folder / 'log').read_text()[-1000:]}")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def redis_command(port: int, folder: Path) -> list[str]:
    """The command line of a Redis without persistence."""
    return [program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]


@contextlib.contextmanager
def redis_server(folder: Path) -> Generator[str]:
    """The URL of a Redis."""
    port = free_port()
    with serving(redis_command(port, folder), port, folder):
        yield f"redis://127.0.0.1:{port}/0"


def nginx_command(port: int, folder: Path) -> list[str]:
    """The command line of an nginx whose folder `files` accepts PUT."""
    (folder / "files" / "cache").mkdir(parents=True, exist_ok=True)
    temporary = "".join(f"{name}_temp_path {folder}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary}\n"
        f"  server {{ listen 127.0.0.1:{port}; root {folder}/files; client_max_body_size 100m;\n"
        f"    location / {{ dav_methods PUT DELETE; create_full_put_path on; }} }} }}\n"
    )
    if os.geteuid() == 0:  # its workers change to another user
        text = (folder / "nginx.conf").read_text()
        (folder / "nginx.conf").write_text(f"user root; {text}")
    return [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


@contextlib.contextmanager
def webdav_server(folder: Path) -> Generator[str]:
    """The URL of a folder that nginx serves."""
    port = free_port()
    with serving(nginx_command(port, folder), port, folder):
        yield f"http://127.0.0.1:{port}/cache"


@contextlib.contextmanager
def s3_server(folder: Path) -> Generator[tuple[str, dict[str, str]]]:
    """The URL of a bucket, and the environment with which S3 clients find the server."""
    try:
        import botocore.session
        import moto.server  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        missing(f"`{error.name}` is not installed")
        raise
    port = free_port()
    names = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
             "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}  # fmt: skip
    with serving([sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port, folder):
        client: Any = botocore.session.get_session().create_client(
            "s3", endpoint_url=names["AWS_ENDPOINT_URL"], aws_access_key_id="test", aws_secret_access_key="test",
            region_name="us-east-1",
        )  # fmt: skip
        client.create_bucket(Bucket="team")
        yield "s3://team/cache", names


@contextlib.contextmanager
def silent_server() -> Generator[int]:
    """The port of a server that accepts connections and never responds."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(128)
        yield int(server.getsockname()[1])
