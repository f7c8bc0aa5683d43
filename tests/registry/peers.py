"""Third-party programs that use registries: CNCF's registry and skopeo. If they are not installed, tests skip and say so; under
`TILEC_PEERS=installed` that is a failure, because nothing would be tested."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_LISTENING = re.compile(r"listening on (127\.0\.0\.1:\d+)")


def program(name: str) -> str:
    """The path of a program; skips, or fails under `TILEC_PEERS=installed`, if it is missing."""
    found = shutil.which(name)
    if found is None:
        reason = f"`{name}` is not installed (on Debian, `apt-get install {name}`)"
        pytest.fail(reason) if os.environ.get("TILEC_PEERS") == "installed" else pytest.skip(reason)
    return found


@contextlib.contextmanager
def distribution(htpasswd: str = "") -> Generator[str]:
    """CNCF's registry on a local port, with an empty folder; yields its host. `htpasswd` are lines of users."""
    registry = program("docker-registry")
    with tempfile.TemporaryDirectory(prefix="tilec-registry-") as name:
        folder = Path(name)
        config: dict[str, object] = {
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": f"{folder}/data"}},
            "http": {"addr": "127.0.0.1:0"},
        }
        if htpasswd:
            (folder / "users").write_text(htpasswd)
            config["auth"] = {"htpasswd": {"realm": "test", "path": f"{folder}/users"}}
        (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
        with open(folder / "log", "w") as log:
            process = subprocess.Popen([registry, "serve", f"{folder}/config.yml"], stdout=log, stderr=subprocess.STDOUT)
        try:
            while (found := _LISTENING.search((folder / "log").read_text())) is None:
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.02)
            yield found[1]
        finally:
            process.terminate()
            process.wait()


def skopeo(*arguments: str) -> str:
    """The output of skopeo."""
    done = subprocess.run([program("skopeo"), "--insecure-policy", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
