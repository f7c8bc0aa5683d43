"""Runs programs of others against the server, each in an environment of its own, and lists what each of them asked for.

    python ci/bench/engine.py clients [--environments FOLDER] [--only openai_node,curl]

The server is the real one on a loopback port, with scripted generations in place of an engine: a thought and a sentence, or a
call of a tool. Each program (`client_scripts/`) prints the texts that it received. A package that is not in FOLDER is installed
there from the registry that pip or npm has here. Exit status 1 if a program fails or receives another text.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ci.bench.front import Outcome, names
from ci.bench.markdown import grid, page
from ci.evidence import ROOT

SCRIPTS: Final = Path(__file__).with_name("client_scripts")
TALKER: Final = ROOT / "tests/engine/serving"
KEY: Final = "a key"
LAST_SECONDS: Final = 900


@dataclass(frozen=True, slots=True)
class Client:
    """A program: what its users call it, its script, and the packages that it needs; the first one's version is reported.
    `index`: where pip also looks for them."""

    title: str
    script: str
    packages: Sequence[str] = ()
    index: str = ""


CLIENTS: Final = {
    "openai_python": Client("openai for Python", "openai_python.py", ("openai",)),
    "openai_node": Client("openai for Node", "openai_node.mjs", ("openai",)),
    "langchain": Client("langchain-openai", "langchain.py", ("langchain-openai",)),
    "litellm": Client("litellm", "litellm_python.py", ("litellm",)),
    "openai_agents": Client("openai-agents", "openai_agents.py", ("openai-agents",)),
    "pydantic_ai": Client("pydantic-ai", "pydantic_agent.py", ("pydantic-ai-slim[openai]",)),
    "ai_sdk": Client("AI SDK", "ai_sdk.mjs", ("@ai-sdk/openai-compatible", "ai")),
    "lm_eval": Client("lm-evaluation-harness", "lm_eval_task.py", ("lm-eval[api]",)),
    "guidellm": Client(
        "GuideLLM", "guidellm_load.py", ("guidellm", "torch==2.13.0+cpu"), "https://download.pytorch.org/whl/cpu"
    ),
    "curl": Client("curl", "curl.sh"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this case."""
    parser.add_argument("--environments", type=Path, default=ROOT / "artifacts/clients", metavar="FOLDER")
    parser.add_argument("--only", type=names, default=[*CLIENTS], metavar="NAME,...", help=f"of {', '.join(CLIENTS)}")


def measure(options: argparse.Namespace) -> Outcome:
    """Run the programs one after the other."""
    sys.path.append(str(TALKER))
    here: Any = importlib.import_module("on_loopback")
    in_process: Any = importlib.import_module("in_process")
    options.environments.mkdir(parents=True, exist_ok=True)
    folder = options.environments.resolve() / "talker"
    if not folder.exists():
        in_process.write_talker(folder)
    expected = {"chat": here.SENTENCE, "stream": here.SENTENCE, "responses": here.SENTENCE}
    expected |= {"completions": here.SENTENCE, "tools": here.AFTER_TOOL}
    found: list[dict[str, Any]] = []
    for name in options.only:
        client = CLIENTS[name]
        command, version = prepared(client, options.environments.resolve() / name)
        with here.listening(folder, keys=[KEY]) as server:
            done = started(command, f"{server.url}/v1", options.environments, here.SENTENCE)
            found.append({"client": client.title, "version": version, **verdict(done, expected), **used(server.asked)})
        print(f"{client.title} {version}: {found[-1]['fault'] or ', '.join(found[-1]['received'])}", file=sys.stderr)
    faults = [f"{one['client']}: {one['fault']}" for one in found if one["fault"]]
    lines = ["# What clients used of the server", "", *table(found), "", f"Faults: {'; '.join(faults) or 'none'}."]
    return Outcome({"clients": found}, {"clients.md": page(lines)}, int(bool(faults)), whole=options.only == [*CLIENTS])


def prepared(client: Client, folder: Path) -> tuple[list[str], str]:
    """The command that runs a client's script, and the version of its package, which is installed if it is not there."""
    script = SCRIPTS / client.script
    if script.suffix == ".sh":
        first = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout
        return ["bash", str(script)], first.split()[1]
    package = client.packages[0]
    if script.suffix == ".mjs":
        if not folder.exists():
            folder.mkdir()
            subprocess.run(["npm", "install", "--silent", "--prefix", str(folder), *client.packages], check=True)
        manifest = folder / "node_modules" / package / "package.json"
        copy = folder / client.script  # Node looks for packages next to the file
        copy.write_bytes(script.read_bytes())
        return ["node", str(copy)], json.loads(manifest.read_text(encoding="utf-8"))["version"]
    python = folder / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        index = ["--extra-index-url", client.index] if client.index else []
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *index, *client.packages], check=True)
    code = f"import importlib.metadata; print(importlib.metadata.version({package.partition('[')[0]!r}))"
    version = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    return [str(python), "-P", str(script)], version


def started(command: Sequence[str], base: str, folder: Path, expected: str) -> subprocess.CompletedProcess[str]:
    """A client's process, when it is over: it has the server's address and key, the text that it should get, the folder of
    the model, and no proxy."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and "PYTHON" not in name}
    environment = kept | {"BASE": base, "KEY": KEY, "EXPECTED": expected, "MODEL": str(folder.resolve() / "talker")}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=LAST_SECONDS)


def verdict(done: subprocess.CompletedProcess[str], expected: Mapping[str, str]) -> dict[str, Any]:
    """What a client received, and what is wrong with it."""
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        texts: dict[str, str] = json.loads(last) if done.returncode == 0 else {}
    except ValueError:
        texts = {}
    if not texts:
        reason = (done.stderr.strip().splitlines() or [last])[-1]
        return {"received": [], "fault": f"exit status {done.returncode}: {reason[:200]}"}
    wrong = [f"{name} is {text!r}" for name, text in texts.items() if text != expected[name]]
    return {"received": sorted(texts), "fault": "; ".join(wrong)}


def used(asked: Sequence[Any]) -> dict[str, Any]:
    """The endpoints that were asked, the fields of bodies, and whether a request was refused."""
    endpoints = sorted({f"{one.method} {one.path}" for one in asked})
    return {"endpoints": endpoints, "fields": sorted({name for one in asked for name in one.fields}), "requests": len(asked)}


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A row for each client."""
    rows = [
        (
            one["client"], one["version"], ", ".join(one["received"]), ", ".join(f"`{name}`" for name in one["endpoints"]),
            ", ".join(f"`{name}`" for name in one["fields"]),
        )
        for one in found
    ]  # fmt: skip
    return grid(("client", "version", "what it did", "endpoints", "fields that it sent"), rows, left=5)
