"""`tilec build --on`: a Dask scheduler instead of the local one.

In: an address, `dask://HOST:PORT` or `tls://HOST:PORT`. Out: a dispatch that yields the same events as
`tilec.workers.scheduler.run`. `tilec.project.farm.tasks` submits the tasks, `tilec.project.farm.answers` checks the results,
`tilec.project.farm.node` runs on a worker.

Dask sends Python objects as pickles: whoever can connect to the scheduler can run code on every worker, and the scheduler and
every worker can run code on this machine. `--on` is therefore only for machines of one owner, on a private network or over TLS
with the owner's certificates (`tls://`, configured by Dask's `DASK_DISTRIBUTED__COMM__TLS__...`). No secret is sent: workers
get neither the address nor the key of the team's cache.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from tilec.cache import Store
from tilec.cache.remote.guard import within
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.build.job import Dispatch
from tilec.project.farm.tasks import Farm, unreachable
from tilec.workers.scheduler import Crashed, Finished, Report
from tilec.workers.worker import Runner

CONNECT: Final = 20.0
"""Timeout for connecting to the scheduler, in seconds."""
CLOSE: Final = 5.0
"""Timeout for disconnecting, in seconds."""


def dispatch(address: str, store: Store) -> Dispatch:
    """A dispatch on the farm at `address`; results are stored in `store`. CompileError E0753 if the address is malformed."""
    parts = urlsplit(address)
    if parts.scheme not in ("dask", "tcp", "tls") or not parts.hostname or not _port(address):
        hint = "write `--on dask://HOST:8786`, or `tls://HOST:8786`"
        raise CompileError(Diagnostic("E0753", f"`{address}` is not the address of a Dask scheduler", hint=hint))
    return functools.partial(_run, f"{'tls' if parts.scheme == 'tls' else 'tcp'}://{parts.netloc}", store)


def _port(address: str) -> int | None:
    try:
        return urlsplit(address).port
    except ValueError:
        return None


def _run(
    address: str, store: Store, tasks: Sequence[Any], runner: Runner, workers: int, preload: Sequence[str],
    notify: Callable[[str], None] | None,
) -> Generator[Report | Finished | Crashed]:  # fmt: skip
    """`tilec.workers.scheduler.run` on a farm. `workers` limits only the tasks that are run locally."""
    if not tasks:
        return
    try:
        from distributed import Client
    except ImportError:
        hint = "`pip install 'tilec[farm]'`"
        raise CompileError(Diagnostic("E0753", "`--on` needs the package `distributed`", hint=hint)) from None
    make: Any = Client
    try:
        client: Any = within(CONNECT, lambda: make(address, timeout=CONNECT, set_as_default=False), "farm")
    except TimeoutError:
        raise unreachable(address, f"it does not answer within {CONNECT:g} s") from None
    except Exception as error:
        raise unreachable(address, str(error) or type(error).__name__) from None
    farm = Farm(client, address, store, tasks, runner, tuple(preload), notify or (lambda line: None))
    try:
        yield from farm.run()
        yield from farm.rest(workers)
    finally:
        farm.expected.close()
        with contextlib.suppress(Exception):  # the scheduler may be gone
            within(CLOSE, lambda: client.close(timeout=CLOSE), "farm")
