"""Attacks on a policy's model identities: keys that sign other models under other names, files next to a signed bundle,
policies of the former format, and unsigned artifacts.

There are two models with a key each: `tiny-1b`, the scene's, and a toy of somebody else.
"""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.bundle import samples
from tests.ops import prebuilt
from tests.runtime.fake_driver import FakeDriver
from tests.signing.scene import DIGEST, NAME, POLICY, RELEASE, SIDECAR, SignedSetup, payloads_of, signed
from tilec.artifact.bundle_format import model_digest
from tilec.artifact.signature_format import encode_sidecar, sidecar_path
from tilec.artifact.signing_keys import FileSigner
from tilec.frontend import read_interface
from tilec.ops.kernels import Kernels
from tilec.runtime import Bundle, BundleError, Device
from tilec.runtime.trust_location import find_trust
from tilec.ship.finder import find_bundle

NUMBERS: dict[str, Any] = {"hidden_size": 128, "tied": True, "eps": 1e-6, "dtype": "bf16", "layers": 2}
"""The identity of the engine's model, `tiny-1b`."""
SIZES = ("hidden_size",)
TOY: dict[str, Any] = {"hidden_size": 16, "tied": True, "eps": 1e-6, "dtype": "bf16"}
VAGUE: dict[str, Any] = {"tied": True, "dtype": "bf16"}
"""Dimensions of a toy that omit some deciding ones: those of `tiny-1b` satisfy them."""
STEP: Any = samples.STEP["step"]
OTHER_STEP: Any = [STEP[0], [*STEP[1], ["Assign", [["Name", "group"]], ["Constant", 1]]]]
ROLES = f"""[trust]
format = 2

[[trust.models]]
name = "tiny-1b"
digests = ["{DIGEST}"]
minimum = {RELEASE}

[[trust.models]]
name = "toy-1m"
digests = ["{model_digest(TOY, STEP)}", "{model_digest(VAGUE, STEP)}"]

[[trust.keys]]
key = "first.pub"
models = ["tiny-*"]

[[trust.keys]]
key = "second.pub"
models = ["toy-*"]
"""
BEFORE = (
    '[trust]\nthreshold = 2\nminimum = {{ "tiny-1b" = 7 }}\n{keys}', '[trust]\nthreshold = 2\nminimum = 7\n{keys}',
    '[trust]\nkeys = ["first.pub"]\n', 'trust = {{ keys = ["second.pub", "first.pub"], threshold = 2 }}\n', "[trust]\n{keys}",
)  # fmt: skip
"""Policies of the former format, with the rules of the scene's keys."""

Use = Callable[[], None]


def _bundle(model: str, config: dict[str, Any], step: Any = STEP, salts: tuple[int, ...] = (1, 2, 1)) -> bytes:
    description, blobs = samples.parts(salts=salts)
    return samples.encode(description | {"model": model, "config": config, "step": step}, blobs)


def _write_signed(path: Path, data: bytes, signers: tuple[FileSigner, ...], release: int = RELEASE) -> None:
    """Writes a bundle and its signatures."""
    payloads = payloads_of(path, data, release)
    if signers:
        sidecar_path(path).write_bytes(encode_sidecar(signed(payloads.values(), signers)))


def _searched(setup: SignedSetup, check: Callable[[Bundle], None]) -> Use:
    """The engine's search among the files of the scene, without packages of this machine."""

    def use() -> None:
        with (
            patch("tilec.ship.finder.bundles_folder", lambda: setup.folder),
            patch("tilec.ship.finder._entry_points", list),
            find_bundle(NUMBERS, "sm_90a", setup.policy, deciding=SIZES) as bundle,
        ):
            check(bundle)

    setup.folder.chmod(0o700)
    return use


def toy_key(setup: SignedSetup, rng: random.Random) -> Use | None:
    """The toy's key signs a bundle that an engine would use for `tiny-1b`: with its dimensions, or another step, under any
    name."""
    setup.policy.write_text(ROLES)
    setup.sidecar.unlink()
    toy = setup.signers[1:]
    numbers: dict[str, Any] = samples.parts()[0]["config"]
    fewer = {name: value for name, value in numbers.items() if name != rng.choice(("tied", "eps", "dtype"))}
    name, config, step = rng.choice(
        (
            ("toy-1m", numbers, STEP), ("tiny-1b", numbers, STEP), ("toy-2m", numbers, STEP), ("toy-1m", fewer, STEP),
            ("toy-1m", numbers | {"layers": 2}, STEP), ("toy-1m", TOY | {"hidden_size": 128}, STEP),
            ("tiny-1b", fewer, STEP), ("toy-1m", numbers, OTHER_STEP), ("toy-1m", VAGUE, STEP),
        )
    )  # fmt: skip
    _write_signed(setup.bundle, _bundle(name, config, step), toy)
    if config is VAGUE or rng.random() < 0.5:
        return _searched(setup, lambda _: None)
    return None


def older_release(setup: SignedSetup, rng: random.Random) -> None:
    """The right keys signed a superseded release, when the model had another name, step, or list of dimensions."""
    numbers: dict[str, Any] = samples.parts()[0]["config"]
    name, config, step = rng.choice(
        (
            ("tiny-1b-beta", numbers, STEP), ("other", numbers, STEP), ("tiny-1b", numbers | {"layers": 2}, STEP),
            ("tiny-1b", numbers, OTHER_STEP), ("tiny-1b", VAGUE, STEP), ("tiny-1b-beta", numbers, OTHER_STEP),
            ("tiny-1b", numbers, STEP),
        )
    )  # fmt: skip
    _write_signed(setup.bundle, _bundle(name, config, step, (3, 9)), setup.signers, rng.randrange(RELEASE))


def policy_of_before(setup: SignedSetup, rng: random.Random) -> None:
    """A policy whose rules use names only, next to bundles that it would have accepted."""
    rules = POLICY[POLICY.index("[[trust.keys]]") :]
    setup.policy.write_text(rng.choice(BEFORE).format(keys=rules))
    if rng.random() < 0.5:
        _write_signed(setup.bundle, _bundle(rng.choice(("tiny-1b", "tiny-2b")), TOY), setup.signers)


def unsigned_next_to_it(setup: SignedSetup, rng: random.Random) -> Use:
    """Bundles with the same dimensions that precede the signed one in the engine's search: unsigned, signed by others,
    superseded, damaged. The signed one must still be found."""
    numbers: dict[str, Any] = samples.parts()[0]["config"]
    for number in range(rng.randrange(1, 4)):
        path = setup.folder / f"a{number}-sm_90a.bundle"
        kind = rng.randrange(5)
        if kind == 4:
            path.write_bytes(setup.sound[NAME][:-1] + b"x")
        else:
            signers = ((), setup.strangers, setup.signers, setup.signers[:1])[kind]
            _write_signed(path, _bundle("tiny-1b", numbers, salts=(4, 5)), signers, RELEASE - 1)
    recorder = _LogRecorder()

    def check(bundle: Bundle) -> None:
        setup.check(bundle)
        assert all("skipped a bundle" in text for text in recorder.texts) and recorder.texts, (
            "nothing was reported of the skipped bundle"
        )

    search = _searched(setup, check)

    def use() -> None:
        logger = logging.getLogger("tilec.ship.finder")
        logger.addHandler(recorder)
        try:
            search()
        except BundleError as error:
            raise AssertionError(f"the signed bundle was hidden: {error}") from None
        finally:
            logger.removeHandler(recorder)

    return use


class _LogRecorder(logging.Handler):
    """Records log messages."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


ADD = prebuilt.KERNELS / "add.py"


def prebuilt_folder(setup: SignedSetup, rng: random.Random) -> Use:
    """An unsigned folder of artifacts for an op, next to the scene's own signatures."""
    folder = prebuilt.write(setup.folder / "build", prebuilt.add("bf16"))
    number = rng.choice((folder, folder / "sm_90a"))
    (number / f"{number.name}.intoto.jsonl").write_bytes(setup.sound[SIDECAR])
    kernels = Kernels(_interface(), ADD, number)

    def use() -> None:
        with patch("tilec.ops.kernels.find_trust", functools.partial(find_trust, setup.policy)):
            kernels.get({"E": "bf16", "BLOCK": 2048}, Device(FakeDriver()))

    return use


@functools.cache
def _interface() -> Any:
    return read_interface(ADD)
