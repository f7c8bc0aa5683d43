"""`tilec` with time limits of a team's cache that no load of the machine reaches.

`python -P -m ci.bench.judges.patient_tilec build ...` takes the arguments of `tilec`. A build gives up a remote that is slow,
waits a while for its last writes, and makes what another builder does not finish. So a loaded machine shares less, and rightly;
a check of what is shared must see neither its own load nor that of others. The timeout of an operation is an option of a remote
(`PATIENT`), the other limits are set here. A remote that never answers still ends.
"""

from __future__ import annotations

from typing import Final

from tilec.__main__ import main
from tilec.cache.remote import guard, lease, remote
from tilec.project.build import job

LIMIT: Final = 3600.0
"""Seconds of each limit."""
PATIENT: Final = "|timeout=600"
"""The option of a remote: the longest timeout it can have."""
MODULE: Final = __name__
"""The module to run, for those who import it."""


def lengthen(seconds: float) -> None:
    """Set the time for opening a remote, of a lease, without an artifact of another builder, and for the last writes."""
    for module, name in ((guard, "OPENING"), (lease, "LEASE"), (job, "PATIENCE")):
        assert hasattr(module, name)
        setattr(module, name, seconds)
    assert remote.Remote.close.__defaults__ is not None
    remote.Remote.close.__defaults__ = (seconds,)


if __name__ == "__main__":
    lengthen(LIMIT)
    main()
