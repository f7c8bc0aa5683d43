"""The script of the server process: `python -P bootstrap.py SOCKET PARENT`, then modules from where the parent has them.

In: a socket on which the parent sends `path` (its `sys.path`), `package` (the folder of its tilec) and `preload`. The package
is loaded from that folder whatever the path says, so that a worker never runs another tilec than its parent. Nothing but
Python's own modules is imported before that. What goes wrong is sent back; nothing is printed.
"""

import importlib
import importlib.util
import json
import os
import signal
import socket
import sys


def main() -> None:
    """Start, or say why not."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent gets them too, and then ends us in order
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent blocked them while we could not ignore them
    control = socket.socket(fileno=int(sys.argv[1]))
    control.setblocking(True)
    try:
        asked = json.loads(control.recv(1 << 20))
        sys.path[:] = asked["path"]
        folder = asked["package"]
        spec = importlib.util.spec_from_file_location(
            "tilec", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["tilec"] = package
        spec.loader.exec_module(package)
        importlib.import_module("tilec.workers.server").serve(control, int(sys.argv[2]), asked["preload"])
    except BaseException as error:
        try:
            control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]}).encode())
        finally:
            os._exit(1)


if __name__ == "__main__":
    main()
