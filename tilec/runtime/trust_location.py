"""Finds the trust policy that applies, given the caller's argument; None if there is none.

Separate from `tilec.runtime.trust`, which parses policies, so that programs without a policy do not import that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tilec.runtime.errors import BundleError, shown

if TYPE_CHECKING:
    from tilec.runtime.trust import Trust, TrustSource

VARIABLE: Final = "TILEC_TRUST"
NO_POLICY: Final = "none"


def find_trust(given: TrustSource = None) -> Trust | None:
    """The policy that applies, or None. BundleError E0715 if it cannot be read, E0717 if `cryptography` is missing. Its
    location is determined once."""
    policy = policy_location(given)
    if not isinstance(policy, Path):
        return policy
    from tilec.runtime.trust import read_trust  # late: most bundles are opened without a policy

    return read_trust(policy)


def policy_location(given: TrustSource) -> Trust | Path | None:
    """The given policy, or the file of the policy that applies: that of `TILEC_TRUST`, or the user's. None only if there
    certainly is none; BundleError E0715 if the user's configuration folder is unknown."""
    if given is None:
        setting = os.environ.get(VARIABLE, "")
        if not setting:
            path = _user_policy_file()
            return None if _is_absent(path) else path
    elif isinstance(given, (str, os.PathLike)):
        setting = os.fspath(given)
    else:
        return given
    return None if setting == NO_POLICY else Path(setting)


def _user_policy_file() -> Path:
    """The policy file of the configuration folder (XDG Base Directory Specification: a relative one is ignored)."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.expanduser("~/.config")
    if not os.path.isabs(folder):
        message = f"cannot locate the user's trust policy: the home folder is {shown(folder[: -len('/.config')])}"
        raise BundleError(
            "E0715", message, hint=f"set `HOME` to an absolute path, or `{VARIABLE}` to a policy or `{NO_POLICY}`"
        )
    return Path(folder, "tilec", "trust.toml")


def _is_absent(path: Path) -> bool:
    """Whether there certainly is no file of this name. False if that cannot be determined, or a link on the path is
    dangling."""
    for ancestor in (path, *path.parents):
        try:
            os.lstat(ancestor)
        except FileNotFoundError:
            continue
        except OSError:
            return False
        return ancestor != path and os.path.isdir(ancestor)
    return True
