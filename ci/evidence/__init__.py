"""What results rest on: digests by name of sources and products, results that carry them, and verdicts that are kept by them.

In: the repository. Out: for a result of `ci/bench/results`, the digests that held when it was made (`Result`), and whether they
hold today (`status`). `results.toml` is the registry: what each result rests on and the command that renews it.

    result = Result("audit")               # before the work: remembers what the sources and products are
    ...
    result.write(data, exit_status=0)      # after it: JSON with "rests_on", "measured_on", "device" and "command"

What holds: an edit of words (comments, docstrings, blank lines, formatting) changes no digest, and any other edit of what a
result rests on changes one. Imports nothing but the standard library, so that it runs on a machine with a GPU and no compiler.
"""

from ci.evidence.digests import Digests
from ci.evidence.registry import FOLDER, RESULTS, ROOT, Entry, read_registry
from ci.evidence.result import Result, Status, states_of, status

__all__ = ["FOLDER", "RESULTS", "ROOT", "Digests", "Entry", "Result", "Status", "read_registry", "states_of", "status"]
