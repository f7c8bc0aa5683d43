"""Binds the products of an entry to each other and to their key.

    encode   stage, fields of the key, products -> products and the seal
    decode   key, outputs of the store          -> the products, or ProductError

The seal is one more product: canonical JSON of the stage, of every field hashed into the key (sources, constants, architecture,
toolchain, digests of the inputs), and of the sha256 of every other product. An entry served under the key of another one, or
with a product of another one, is refused. `tilec.cache.agreement` then compares the products with the fields and with each
other. This detects mistakes and partial forgeries, but not a consistent rewrite of the whole store.

Digests that enter a key exclude the seal, so equal products keep equal digests. `lookup`, `make` and `put` wrap those of the
store: they add or remove the seal. A refused entry is dropped and reported in the store's `problems`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from tilec.artifact.bundle_format import canonical
from tilec.cache.agreement import disagreement
from tilec.cache.key import key_of
from tilec.cache.store import Entry, Store

if TYPE_CHECKING:
    from tilec.cache.remote.envelope import Received

SEAL: Final = "seal"
SEAL_FORMAT: Final = 1
MAX_SEAL: Final = 1 << 20
"""Bytes; a real seal has a few thousand."""

Fields = Mapping[str, int | str | None]
"""The inputs that are hashed into the key of an entry."""
Difference = Callable[[Mapping[str, bytes]], str]
"""What is wrong with products, as the end of a sentence; empty if nothing is."""


class ProductError(ValueError):
    """Products that do not belong to their entry; the text ends a sentence that begins with the entry's name."""


def encode(stage: str, fields: Fields, products: Mapping[str, bytes]) -> dict[str, bytes]:
    """The products, with the seal added under `SEAL`."""
    digests = {name: sha256(data).hexdigest() for name, data in products.items()}
    seal = {"format": SEAL_FORMAT, "stage": stage, "fields": dict(fields), "products": digests}
    return {**products, SEAL: canonical(seal)}


def decode(
    key: str, outputs: Mapping[str, bytes], digests: Mapping[str, str], *, stage: str = "", fields: Fields | None = None
) -> dict[str, bytes]:
    """The products without their seal. `digests` are the sha256 of all outputs, as the store computed them on reading. The seal
    must have the `stage` and `fields` that are given (those of `key`), or else fields whose key is `key`."""
    try:
        seal: dict[str, Any] = json.loads(outputs[SEAL]) if len(outputs[SEAL]) <= MAX_SEAL else {}
        bound: dict[str, int | str | None] = seal["fields"]
        product_digests: dict[str, str] = seal["products"]
        stage_name: str = seal["stage"]
        if seal["format"] != SEAL_FORMAT:
            raise ProductError("its seal has another format")
        right = (stage_name, bound) == (stage, fields) if fields is not None else key_of(stage_name, bound) == key
    except ProductError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        raise ProductError("it has no seal") from None
    if not right:
        raise ProductError("its products were made for another entry")
    products = {name: data for name, data in outputs.items() if name != SEAL}
    if product_digests != {name: digest for name, digest in digests.items() if name != SEAL}:
        raise ProductError("its products come from different builds")
    found = disagreement(stage_name, bound, products, product_digests)
    if found:
        raise ProductError(found)
    return products


def lookup(store: Store, key: str, stage: str, fields: Fields, label: str = "") -> Entry | None:
    """The products of `key`, the key of `stage` and `fields`; None if the store lacks them or they are refused."""
    return _opened(store, key, store.lookup(key, label), stage, fields, label)


def _opened(store: Store, key: str, entry: Entry | None, stage: str, fields: Fields, label: str) -> Entry | None:
    if entry is None:
        return None
    try:
        products = decode(key, entry.outputs, entry.digests, stage=stage, fields=fields)
    except ProductError as error:
        store.forget([key])
        store.problems.append(f"cache entry {label or key[:12]}: {error}; it will be rebuilt")
        return None
    return Entry(products, {name: entry.digests[name] for name in products}, entry.hit, entry.cost)


def fetch(
    store: Store, key: str, stage: str, fields: Fields, label: str = "", difference: Difference = lambda _: "", *,
    again: bool = False,
) -> Entry | None:  # fmt: skip
    """The products of `key` from the team's cache, verified and stored under the local store's own seal; None if there is no
    remote or no remote has them. `difference` checks the products further. With `again` a miss is not counted."""
    if store.remote is None:
        return None

    def check(found: Received) -> None:
        if reason := difference(decode(key, found.outputs, found.digests, stage=stage, fields=fields)):
            raise ProductError(reason)

    found = store.remote.fetch(key, label, check, again=again)
    if found is None:
        return None
    entry = store.put(key, found.outputs, label, found.cost)
    products = {name: data for name, data in found.outputs.items() if name != SEAL}
    return Entry(products, {name: entry.digests[name] for name in products}, True, found.cost)


def make(
    store: Store, stage: str, fields: Fields, run: Callable[[], Mapping[str, bytes]], label: str = "", *, shared: bool = False
) -> Entry:  # fmt: skip
    """The products of a stage: from the store, if `shared` from the team's cache, else from `run` in one process at a time."""
    key = key_of(stage, fields)
    found = lookup(store, key, stage, fields, label)
    if found is None and shared:
        found = fetch(store, key, stage, fields, label)
    if found is None:
        # A process that held the lock meanwhile may have stored products that are refused too; those made below are not.
        entry = store.make(key, lambda: encode(stage, fields, run()), label)
        found = _opened(store, key, entry, stage, fields, label)
    if found is None:
        found = put(store, key, stage, fields, run(), label)
    if shared and not found.hit:
        store.made.append(key)
    return found


def put(
    store: Store, key: str, stage: str, fields: Fields, products: Mapping[str, bytes], label: str = "", cost: int = 0
) -> Entry:  # fmt: skip
    """Store the products of `key` with their seal."""
    entry = store.put(key, encode(stage, fields, products), label, cost)
    return Entry(dict(products), {name: entry.digests[name] for name in products}, entry.hit, cost)


def verify(store: Store) -> list[str]:
    """Check the products of every entry against its key and each other. Refused entries are dropped, with one line for each."""
    before = len(store.problems)
    for key, record in list(store.records()):
        entry = store.lookup(key, record["label"])
        if entry is not None:
            try:
                decode(key, entry.outputs, entry.digests)
            except ProductError as error:
                store.forget([key])
                store.problems.append(f"cache entry {record['label'] or key[:12]}: {error}")
    return store.problems[before:]
