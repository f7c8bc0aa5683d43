"""What results rest on: digests of sources and products by name, results that record them, and verdicts cached by them.

In: the repository. Out: for a result of `ci/bench/results`, the digests at the time it was made (`Result`), and whether they
are still the same (`status`). `results.toml` is the registry: what each result rests on and the command that renews it.

    result = Result("audit")               # before the work: records the digests of sources and products
    ...
    result.write(data, exit_status=0)      # after it: JSON with "rests_on", "measured_on", "device" and "command"

An edit of comments, docstrings, blank lines or formatting changes no digest; any other edit of what a result rests on does. The
package imports only the standard library, so that it runs on a machine with a GPU and no compiler.
"""

from ci.evidence.digests import Digests
from ci.evidence.registry import FOLDER, RESULTS, ROOT, Entry, read_registry
from ci.evidence.result import Result, Status, states_of, status

__all__ = ["FOLDER", "RESULTS", "ROOT", "Digests", "Entry", "Result", "Status", "read_registry", "states_of", "status"]
