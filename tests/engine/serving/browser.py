"""A headless Chromium for tests, over its debugging pipe (Chrome DevTools Protocol): opens a page, evaluates, types, clicks."""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HANG_SECONDS = 120
OPTIONS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-proxy-server", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--window-size=900,900",
)  # fmt: skip


class Page:
    """A page of a browser. `requests` are the addresses that it asked for, `complaints` errors of scripts and policies."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of, self._pending, self._number = to, of, b"", 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to an address and wait until the page is loaded."""
        self._call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """The value of an expression, of a promise when it is there."""
        found = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until a condition holds."""
        self.value(f"new Promise((done) => {{ const look = () => {condition} ? done() : setTimeout(look, 5); look(); }})")

    def text(self, selector: str) -> str:
        """The text of an element as it is shown, empty if there is none."""
        return self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        found = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        position = self.value(
            f"(() => {{ const at = {found}; return {{x: at.x + at.width / 2, y: at.y + at.height / 2}}; }})()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **position)

    def type(self, selector: str, text: str) -> None:
        """Replace the text of a field."""
        self.value(
            f"(() => {{ const field = document.querySelector({json.dumps(selector)}); field.focus(); field.select(); }})()"
        )
        self._call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key that writes a line end or nothing."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            code = {"windowsVirtualKeyCode": 13} if key == "Enter" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, modifiers=8 if shift else 0, **text, **code)

    def screenshot(self, path: Path) -> None:
        """Write what is shown, as PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self._note(found.get("method"), found.get("params", {}))

    def _note(self, method: str | None, event: Any) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(event["exceptionDetails"]))
        elif method == "Log.entryAdded" and event["entry"]["source"] != "network" and event["entry"]["level"] != "verbose":
            self.complaints.append(event["entry"]["text"])

    def _message(self) -> Any:
        while b"\0" not in self._pending:
            assert select.select([self._of], [], [], HANG_SECONDS)[0], "the browser does not respond"
            piece = os.read(self._of, 1 << 16)
            assert piece, "the browser has ended"
            self._pending += piece
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)


@contextmanager
def browsing() -> Generator[Page]:
    """A page of a new browser, with a profile of its own; skips where no Chromium is installed, which is 300 MB."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("`chromium` is not installed (ci/apt-packages-optional.txt)")
    its_input, to = os.pipe()
    of, its_output = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = shlex.join([program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"])
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command} 3<&{its_input} 4>&{its_output}"], pass_fds=(its_input, its_output),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(its_input)
        os.close(its_output)
        try:
            yield Page(to, of)
        finally:
            os.close(to)  # the browser ends when its pipe does
            try:
                process.wait(HANG_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(of)
