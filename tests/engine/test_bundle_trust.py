"""A bundle with another digest than requested, without the signature that a policy requires, or without a step, runs nothing:
the engine reports why and exits with status 4. Without a named bundle, it uses one that it finds for the model and the GPU."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cuda_backend import FakeDriver
from test_engine_cli import model, run_engine
from test_text import folder

from engine.api import Engine
from engine.backends import load
from engine.errors import BundleRefused, UsageError
from engine.models.config import SIZES
from tests.bundle import samples
from tilec.artifact.bundle_format import canonical
from tilec.artifact.signature_format import encode_sidecar, sidecar_path
from tilec.artifact.signing_keys import FileSigner, generate
from tilec.runtime import Bundle, Device, open_bundle
from tilec.ship.finder import bundles_folder
from tilec.ship.registry.parts import frame_of, join, split
from tilec.ship.signing.sign import signed_envelopes, statements

RULES = '[trust]\nformat = 2\nkeys = ["key.pub"]\n'

__all__ = ["folder", "model", "run_engine"]  # fixtures of other modules


def test_the_command_takes_a_digest(run_engine: Callable[..., Any], bundle: Bundle) -> None:
    correct_digest = hashlib.sha256(bundle.path.read_bytes()).hexdigest()
    assert run_engine("--dummy-weights", "--max-new-tokens", "2", "--bundle-digest", correct_digest) == (0, "!!\n", "")
    status, out, err = run_engine("--dummy-weights", "--bundle-digest", "0" * 64)
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert f"its sha256 is {correct_digest}, not {'0' * 64}" in err
    status, out, err = run_engine("--dummy-weights", "--bundle-digest", "right")
    assert (status, out) == (4, "") and "not 64 hex digits" in err


def test_a_bundle_of_kernels_has_no_model_to_run(run_engine: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    path = tmp_path / "kernels.bundle"
    path.write_bytes(samples.bundle())
    status, out, err = run_engine("--dummy-weights", **{"--bundle": str(path)})
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert f"{path}: is a bundle of kernels without a step, so there is no model in it to run; pack this model's" in err
    with pytest.raises(BundleRefused, match="without a step"):
        Engine.from_pretrained(model, bundle=path, dummy=0)


def test_the_interpreter_has_no_bundle(run_engine: Callable[..., Any]) -> None:
    status, out, err = run_engine("--backend", "interpreter", "--bundle-digest", "0" * 64, **{"--bundle": None})
    assert (status, out) == (2, "") and "--bundle-digest changes nothing" in err


def test_the_api_takes_a_digest(model: Path, bundle: Bundle) -> None:
    with pytest.raises(BundleRefused, match=f"its sha256 is {bundle.digest}, not {'1' * 64}"):
        Engine.from_pretrained(model, bundle=bundle.path, dummy=0, bundle_digest="1" * 64)
    with pytest.raises(UsageError):
        Engine.from_pretrained(model, backend="interpreter", dummy=0, bundle_digest="1" * 64)


def test_a_policy_requires_a_signer(
    run_engine: Callable[..., Any], model: Path, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = generate("ed25519")
    (tmp_path / "key.pub").write_bytes(signer.public_key.pem())
    copied = tmp_path / bundle.path.name  # so that no other test finds a signature
    copied.write_bytes(bundle.path.read_bytes())
    policy = tmp_path / "trust.toml"
    policy.write_text(RULES)
    policy.chmod(0o600)
    status, out, err = run_engine("--dummy-weights", "--trust", str(policy), **{"--bundle": str(copied)})
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert f"`{copied}` is not signed" in err and signer.public_key.id in err and "tilec bundle sign" in err
    monkeypatch.setenv("TILEC_TRUST", str(policy))
    with pytest.raises(BundleRefused, match="is not signed"):
        Engine.from_pretrained(model, bundle=copied, dummy=0)
    sign(copied, signer)
    with pytest.raises(BundleRefused, match="is signed for a model whose `num_hidden_layers` is 28, and this one's is"):
        Engine.from_pretrained(model, bundle=copied, dummy=0)  # whatever the policy requires for that other model
    copied.write_bytes(packed_for(model, bundle))
    sign(copied, signer)
    assert run_engine("--dummy-weights", "--max-new-tokens", "2", **{"--bundle": str(copied)}) == (0, "!!\n", "")
    status, out, err = run_engine("--backend", "interpreter", "--trust", str(policy), **{"--bundle": None})
    assert (status, out) == (2, "") and "--trust changes nothing" in err


def test_a_bundle_is_found_where_none_is_named(
    run_engine: Callable[..., Any], bundle: Bundle, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bundle that declares the model's dimensions is used; the first one in the folder is for a larger model."""
    monkeypatch.setattr(load, "Device", lambda: Device(FakeDriver()))
    options: dict[str, Any] = {"--bundle": None}
    installed = bundles_folder()
    installed.mkdir(parents=True, mode=0o700)
    (installed / "small-sm_90a.bundle").write_bytes(packed_for(model, bundle, "hidden_size"))  # without the other dimensions
    (installed / "qwen3-0.6b-sm_90a.bundle").write_bytes(bundle.path.read_bytes())
    status, out, err = run_engine("--dummy-weights", **options)
    assert (status, out, err.count("\n")) == (4, "", 1)
    assert "no bundle for this model and sm_90a is installed" in err and "`tilec bundle pull`" in err
    (installed / "tiny-sm_90a.bundle").write_bytes(packed_for(model, bundle))
    assert run_engine("--dummy-weights", "--max-new-tokens", "2", **options) == (0, "!!\n", "")


def test_an_unsigned_bundle_hides_no_signed_one(
    run_engine: Callable[..., Any], bundle: Bundle, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Both are for the model, and the unsigned one comes first; the signature of a key for other models does not count."""
    monkeypatch.setattr(load, "Device", lambda: Device(FakeDriver()))
    signer, toy, installed, policy = generate("ed25519"), generate("ed25519"), bundles_folder(), tmp_path / "trust.toml"
    (tmp_path / "key.pub").write_bytes(signer.public_key.pem())
    (tmp_path / "toy.pub").write_bytes(toy.public_key.pem())
    installed.mkdir(parents=True, mode=0o700)
    unsigned, signed = installed / "a-sm_90a.bundle", installed / "tiny-sm_90a.bundle"
    for path in (unsigned, signed):
        path.write_bytes(packed_for(model, bundle))
    with open_bundle(signed) as opened:
        models = [("tiny", opened.model_digest), ("toy", "0" * 64)]
    lines = [f'[[trust.models]]\nname = "{name}"\ndigests = ["{digest}"]\n' for name, digest in models]
    lines += [f'[[trust.keys]]\nkey = "{key}.pub"\nmodels = ["{name}"]\n' for key, name in (("key", "tiny"), ("toy", "toy"))]
    policy.write_text("[trust]\nformat = 2\n" + "".join(lines))
    options: dict[str, Any] = {"--bundle": None, "--trust": str(policy)}
    sign(signed, toy)
    status, out, err = run_engine("--dummy-weights", **options)
    assert (status, out) == (4, "") and f"`{unsigned}` is not signed" in err
    sign(signed, signer)
    caplog.clear()
    assert run_engine("--dummy-weights", "--max-new-tokens", "2", **options)[:2] == (0, "!!\n")
    assert [text for text in caplog.messages if "skipped a bundle" in text and f"`{unsigned}` is not signed" in text]


def packed_for(model: Path, bundle: Bundle, *names: str) -> bytes:
    """The bundle, declared for the model's dimensions or for some of them."""
    parts, config = split(bundle.path.read_bytes()), json.loads((model / "config.json").read_text())
    numbers = {name: config[name] for name in names or SIZES}
    return join(frame_of(canonical(json.loads(parts.manifest) | {"model": "tiny", "config": numbers})), parts.blobs)


def sign(path: Path, signer: FileSigner) -> None:
    """Signatures with one key, of release 0."""
    with open_bundle(path, trust="none") as bundle:
        payloads = statements(bundle, 0, "urn:example:builder", {})
        sidecar_path(path).write_bytes(encode_sidecar(signed_envelopes(bundle.digest, payloads.values(), signer)))
