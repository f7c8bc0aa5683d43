"""`python -m engine.serving.worker DESCRIPTOR [wake]`: the process of the engine, with a model on its device.

In: messages of `engine.serving.protocol` from the socket of that descriptor. Out: messages on the same socket. It ends when the
other end closes, however that process ended, and when its device fails, after a `Refused` that says so. Signals of a terminal
are for the other process. With `wake`, the driver of its GPU starts while modules are imported.

It is a process of its own so that nothing delays the next step: templates, tokenizers and sockets of clients take time, and
Python has one lock for all threads.
"""

from __future__ import annotations

import gc
import signal
import socket
import sys
from contextlib import suppress

from engine.early_device import wake_device
from engine.entry import missing
from engine.errors import DeviceError, EngineError
from engine.serving.beginning import WAKE


def main(descriptor: int, *, wake: bool = False) -> int:
    """Serve the socket of a descriptor; returns the exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # until the model is loaded (`engine.serving.work`)
    if wake:
        wake_device()
    connection = socket.socket(fileno=descriptor)
    try:
        from engine.serving.work import Channel, work  # late: the driver starts meanwhile

        work(Channel(connection))
    except (EOFError, ConnectionError):
        return 0
    except EngineError as error:
        refusal = error
    except ModuleNotFoundError as error:
        refusal = missing(error)
    except MemoryError:
        refusal = DeviceError("the host has too little memory", fix="use a smaller model")
    from engine.serving.protocol import Refused, encoded

    refused = Refused(refusal.what, refusal.where, refusal.fix, refusal.exit_code)
    with suppress(OSError):
        connection.sendall(encoded(refused))
    return refused.exit_code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), wake=WAKE in sys.argv[2:]))
