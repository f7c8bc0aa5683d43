"""The script of the server process: `python -P bootstrap.py SOCKET PARENT`. It imports tilec from the parent's folder.

In: a socket on which the parent sends `path` (its `sys.path`), `package` (the folder of its tilec) and `preload`. The package
is loaded from that folder regardless of the path, so that a worker always runs the tilec of its parent. Only standard library
modules are imported before that. Errors are sent back; nothing is printed.
"""

import importlib
import importlib.util
import json
import os
import signal
import socket
import sys


def main() -> None:
    """Start the server, or send the error to the parent and exit with status 1."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent receives them too and stops the server
        signal.signal(ignored, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent blocked them until they are ignored here
    control = socket.socket(fileno=int(sys.argv[1]))
    control.setblocking(True)
    try:
        request = json.loads(control.recv(1 << 20))
        sys.path[:] = request["path"]
        folder = request["package"]
        spec = importlib.util.spec_from_file_location(
            "tilec", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["tilec"] = package
        spec.loader.exec_module(package)
        importlib.import_module("tilec.workers.server").serve(control, int(sys.argv[2]), request["preload"])
    except BaseException as error:
        try:
            control.send(json.dumps({"failed": f"{type(error).__name__}: {error}"[:1000]}).encode())
        finally:
            os._exit(1)


if __name__ == "__main__":
    main()
