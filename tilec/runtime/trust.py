"""Trust policies for bundles: parses a `trust.toml` into keys and rules.

    [trust]
    format = 2                          # of this file
    threshold = 1                       # how many of the keys must have signed; default 1
    minimum = 0                         # oldest release accepted; default 0

    [[trust.models]]
    name = "qwen3-4b"                   # of bundles
    digests = ["8b1f..."]               # model digests allowed for the name: numbers and step (`tilec.artifact.bundle_format`)
    minimum = 7                         # oldest release accepted for it; default: that above

    [[trust.keys]]
    key = "release.pub"                 # a file, relative to this one, or the PEM text itself
    name = "release"                    # for messages; default: the name of the file
    models = ["qwen3-*"]                # models above that it may sign for, with `*` and `?`; default: all
    builders = ["urn:tilec:builder:*"]  # builders whose provenance it may sign; default: all

An engine runs any bundle with its model's numbers, whatever name its signer chose. So model rules use name and digest: if a
policy has models, a bundle must have the name of one and a digest listed for it. A policy without models trusts its keys for
every model and has no rules per model. `keys = ["release.pub", "other.pub"]` is the short form.

The policy is the first of: the argument, the file named by `TILEC_TRUST`, `tilec/trust.toml` in the user's configuration
folder; `none` instead of a file means no policy. If the policy cannot be read, or has an entry not listed above, no bundle is
opened: a mistake in it must not weaken it. That includes older policies without `format`, whose rules used names only. Without
a policy, bundles are only checked for integrity.

A policy and the files it names must belong to the user or to root, and must not be writable by anyone else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tilec.artifact.bundle_format import MODEL
from tilec.runtime.errors import BundleError, shown
from tilec.untrusted.limits import LONG_KEY, MAX_KEY_PARTS
from tilec.untrusted.regular_file import WRITTEN_BY_OTHERS, read_regular

if TYPE_CHECKING:
    from tilec.artifact.signing_keys import PublicKey

POLICY_FORMAT: Final = 2
"""Format 1 had no `format` entry, and trusted the signer for what a name stands for."""
MAX_POLICY: Final = 1 << 16
"""Maximum bytes of a policy."""
MAX_KEYS: Final = 64
MAX_MODELS: Final = 256
MAX_DIGESTS: Final = 64
MAX_PATTERNS: Final = 64
MAX_TEXT: Final = 200
"""Maximum characters of a name or pattern."""
_RULES: Final = frozenset({"format", "keys", "threshold", "minimum", "models"})
_MODEL_RULES: Final = frozenset({"name", "digests", "minimum"})
_KEY_RULES: Final = frozenset({"key", "name", "models", "builders"})
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ALL: Final = ("*",)


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A key trusted to sign for these models of its policy, built by these builders; `name` is for messages."""

    key: PublicKey
    name: str
    models: tuple[str, ...] = _ALL
    builders: tuple[str, ...] = _ALL

    def __str__(self) -> str:
        return f"{self.key.id} ({self.name})"

    def signs_for(self, model: str) -> bool:
        """Whether it may sign for a model."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    def signs_of(self, builder: str) -> bool:
        """Whether it may sign the provenance of a builder."""
        return any(fnmatchcase(builder, pattern) for pattern in self.builders)


@dataclass(frozen=True, slots=True)
class TrustedModel:
    """The model digests (`tilec.artifact.bundle_format`) allowed for a name, and the oldest accepted release."""

    digests: frozenset[str]
    minimum: int = 0


@dataclass(frozen=True, slots=True)
class Trust:
    """A policy: keys by id, number of required signatures, models by name, its source (for messages), and the oldest release
    that is accepted if there are no models. ValueError if a key is for a model that is not listed, or two models have the same
    digest."""

    keys: Mapping[str, TrustedKey]
    threshold: int
    models: Mapping[str, TrustedModel]
    source: str
    minimum: int = 0

    def __post_init__(self) -> None:
        for key in self.keys.values():
            for pattern in key.models if key.models != _ALL else ():
                if not any(fnmatchcase(name, pattern) for name in self.models):
                    raise ValueError(f"lets a key sign for {shown(pattern)}, but `models` has no model of that name")
        names: dict[str, str] = {}
        for name, model in self.models.items():
            for digest in sorted(model.digests):
                if names.setdefault(digest, name) != name:
                    raise ValueError(f"has the digest {digest} for `{names[digest]}` and for `{name}`")

    def oldest(self, model: str, digest: str) -> int:
        """The oldest accepted release of a bundle with this model name and model digest. ValueError if the policy has no such
        model; its message is the end of a sentence about the policy."""
        if not self.models:
            return self.minimum
        rule = self.models.get(model)
        if rule is not None and digest in rule.digests:
            return rule.minimum
        other = next((name for name, model_rule in self.models.items() if digest in model_rule.digests), None)
        if other is not None:
            raise ValueError(f"lists that digest under `{other}`")
        raise ValueError(f"has other digests for `{model}`" if rule is not None else f"has no model `{model}`")


TrustSource = Trust | str | os.PathLike[str] | None
"""A policy, a policy file, `none`, or None for the policy of the environment and the user's configuration."""


def trust_keys(paths: Sequence[str]) -> Trust:
    """The policy that requires a signature of each of these public keys; BundleError E0715 if one is invalid or a duplicate."""
    keys = [TrustedKey(_key_of(path, _read(Path(path), "key")), Path(path).name) for path in paths]
    return _policy("--key", keys, len(keys), {}, 0)


def read_trust(path: Path) -> Trust:
    """The policy of a file; BundleError E0715 if it is invalid, E0717 if `cryptography` is missing."""
    import tomllib

    try:
        text = _read(path, "trust policy", WRITTEN_BY_OTHERS).decode("utf-8")
        if LONG_KEY.search(text):
            raise ValueError(f"a key in it has more than {MAX_KEY_PARTS} parts")
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error).partition("\n")[0]
        raise _refused(path, f"is not valid TOML: {shown(reason)}") from None
    try:
        rules = _table(data, frozenset({"trust"}), "the file").get("trust")
        _check_format(path, rules)
        rules = _table(rules, _RULES, "`[trust]`")
        keys = [_trusted(item, path.parent) for item in _list(rules.get("keys"), MAX_KEYS, "keys")]
        threshold, minimum = _number(rules.get("threshold", 1), "threshold"), _number(rules.get("minimum", 0), "minimum")
        models = _models(rules["models"], minimum) if "models" in rules else {}
        return _policy(path, keys, threshold, models, minimum)
    except ValueError as error:
        raise _refused(path, str(error)) from None


def _check_format(path: Path, rules: Any) -> None:
    """Refuse a policy of another format before anything else in it is checked."""
    if not isinstance(rules, dict):
        return
    if "format" in rules:
        if _number(rules["format"], "format") != POLICY_FORMAT:
            raise ValueError(f"has the format {rules['format']}; this tilec reads format {POLICY_FORMAT}")
        return
    message = f"has no `format`; this tilec reads format {POLICY_FORMAT}"
    hint = f"add `format = {POLICY_FORMAT}`, and `[[trust.models]]` for each model with a rule: `tilec explain E0715`"
    raise BundleError("E0715", f"the trust policy `{shown(str(path))[1:-1]}` {message}", hint=hint)


def _policy(
    source: str | Path, keys: Sequence[TrustedKey], threshold: int, models: Mapping[str, TrustedModel], minimum: int
) -> Trust:  # fmt: skip
    by_id = {key.key.id: key for key in keys}
    if len(by_id) != len(keys):
        duplicate = next(key for key in keys if by_id[key.key.id] is not key)
        raise _refused(source, f"has the key {duplicate.key.id} twice")
    if not 1 <= threshold <= len(keys):
        raise _refused(source, f"requires {threshold} signatures, but has {len(keys)} keys")
    try:
        return Trust(by_id, threshold, models, str(source), minimum)
    except ValueError as error:
        raise _refused(source, str(error)) from None


def _trusted(item: Any, folder: Path) -> TrustedKey:
    rules = {"key": item} if isinstance(item, str) else _table(item, _KEY_RULES, "an entry of `keys`")
    source = rules.get("key")
    if not isinstance(source, str) or not source:
        raise ValueError("has an entry of `keys` without `key`, a file or a PEM text")
    inline = source.lstrip().startswith("-----BEGIN")
    key = (
        _key_of("an inline key", source.encode())
        if inline
        else _key_of(source, _read(folder / source, "key", WRITTEN_BY_OTHERS))
    )
    name = _text(rules.get("name", "inline" if inline else Path(source).name), "name")
    return TrustedKey(
        key, name, _patterns(rules.get("models", [*_ALL]), "models"), _patterns(rules.get("builders", [*_ALL]), "builders")
    )


def _key_of(shown_as: str, pem: bytes) -> PublicKey:
    try:
        return signing_keys().read_public_key(pem)
    except ValueError as error:
        raise _refused(shown_as, str(error), "key") from None


def signing_keys() -> Any:
    """The module `tilec.artifact.signing_keys`; BundleError E0717 if its dependencies are not installed."""
    try:
        from tilec.artifact import signing_keys
    except ImportError as error:
        if not (error.name or "").startswith("cryptography"):
            raise
        message = "signatures cannot be checked: the package `cryptography` is not installed"
        raise BundleError("E0717", message, hint="run `pip install 'tilec[signing]'`") from None
    return signing_keys


def _read(path: Path, what: str, forbidden_mode: int = 0) -> bytes:
    try:
        return read_regular(path, MAX_POLICY, forbidden_mode=forbidden_mode)
    except OSError as error:
        raise _refused(path, f"cannot be read: {error.strerror or error}", what) from None
    except ValueError as error:
        raise _refused(path, str(error), what) from None


def _refused(path: str | Path, reason: str, what: str = "trust policy") -> BundleError:
    return BundleError(
        "E0715", f"the {what} `{shown(str(path))[1:-1]}` {reason}", hint="`tilec explain E0715` shows a valid one"
    )


def _table(data: Any, names: frozenset[str], where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"has no table where {where} is expected")
    unknown = set(data) - names  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if unknown:
        raise ValueError(f"has {shown(min(unknown))} in {where}; the keys are {', '.join(sorted(names))}")  # pyright: ignore[reportUnknownArgumentType]
    return data  # pyright: ignore[reportUnknownVariableType]


def _list(data: Any, limit: int, what: str) -> list[Any]:
    if not isinstance(data, list) or not 1 <= len(data) <= limit:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"needs a list of 1 to {limit} as `{what}`")
    return data  # pyright: ignore[reportUnknownVariableType]


def _text(data: Any, what: str) -> str:
    if not isinstance(data, str) or not 1 <= len(data) <= MAX_TEXT or not data.isprintable():
        raise ValueError(f"has a `{what}` that is not of 1 to {MAX_TEXT} characters: {shown(data)}")
    return data


def _patterns(data: Any, what: str) -> tuple[str, ...]:
    return tuple(_text(item, what) for item in _list(data, MAX_PATTERNS, what))


def _number(data: Any, what: str) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or not 0 <= data < 1 << 63:
        raise ValueError(f"has a `{what}` that is not a number: {shown(data)}")
    return data


def _models(data: Any, minimum: int) -> dict[str, TrustedModel]:
    models: dict[str, TrustedModel] = {}
    for item in _list(data, MAX_MODELS, "models"):
        rules = _table(item, _MODEL_RULES, "an entry of `models`")
        name = rules.get("name")
        if not isinstance(name, str) or not MODEL.fullmatch(name):
            raise ValueError(f"has the invalid model name {shown(name)}")
        if name in models:
            raise ValueError(f"has the model `{name}` twice")
        digests = _list(rules.get("digests"), MAX_DIGESTS, "digests")
        invalid = next((digest for digest in digests if not isinstance(digest, str) or not _DIGEST.fullmatch(digest)), None)
        if invalid is not None:
            raise ValueError(f"has {shown(invalid)} in `digests` of `{name}`, which is not a sha256 of 64 hex digits")
        models[name] = TrustedModel(frozenset(digests), _number(rules.get("minimum", minimum), "minimum"))
    return models
