"""Registries on other machines: with TLS, whose certificates are checked, and with plain http on request."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.registry.server import BLOBS, Registry, Response, served
from tests.registry.shipments import shipment
from tilec.ship.finder import checked
from tilec.ship.registry.client import Client
from tilec.ship.registry.connection import Limits
from tilec.ship.registry.errors import RegistryError
from tilec.ship.registry.pull import Wanted, pull
from tilec.ship.registry.push import push
from tilec.ship.registry.reference import read_reference

NAME = "registry.invalid"
LIMITS = Limits(pause_seconds=0)


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context with a certificate for a name, and the file that makes it trusted."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path, private = folder / f"{name}.pem", folder / f"{name}.key"
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, private)
    return context, path


@pytest.fixture(autouse=True)
def one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every host name resolves to this machine, so that nothing leaves it; no proxy is used."""
    resolve = socket.getaddrinfo

    def resolve_locally(host: str, *arguments: Any, **options: Any) -> Any:
        assert host.endswith(".invalid") or ipaddress.ip_address(host).is_loopback, host
        return resolve("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_locally)
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def stocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[Registry, str]]:
    """A registry with TLS and a trusted certificate, and the reference of its repository by name."""
    context, path = certificate(tmp_path, NAME)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    registry = Registry()
    with served(registry, context):
        repository = f"oci://{NAME}:{registry.host.rpartition(':')[2]}/team/kernels"
        with Client(read_reference(repository), push=True, limits=LIMITS) as client:
            push(client, [shipment()], "v1")
        yield registry, f"{repository}:v1"


def pulled(repository: str, folder: Path, **options: Any) -> bytes:
    with Client(read_reference(repository), limits=LIMITS, **options) as client:
        (found,) = pull(client, Wanted(), folder, checked)
    return found.path.read_bytes()


def refusal(repository: str, folder: Path, **options: Any) -> RegistryError:
    with pytest.raises(RegistryError) as caught:
        pulled(repository, folder, **options)
    assert not folder.exists() or not list(folder.iterdir())
    return caught.value


def test_tls_is_used_with_other_machines(stocked: tuple[Registry, str], tmp_path: Path) -> None:
    assert pulled(stocked[1], tmp_path / "out") == shipment().data


def test_who_does_not_prove_its_name_is_refused(
    stocked: tuple[Registry, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate for another name, or by an untrusted issuer."""
    other = stocked[1].replace(NAME, "other.invalid")
    found = refusal(other, tmp_path / "out")
    assert found.code == "E0731" and "has no certificate that this machine trusts" in found.message
    monkeypatch.delenv("SSL_CERT_FILE")
    found = refusal(stocked[1], tmp_path / "out")
    assert (
        found.code == "E0731"
        and "has no certificate that this machine trusts" in found.message
        and "SSL_CERT_FILE" in found.hint
    )
    assert all(request.method != "GET" for request in stocked[0].requests)


@pytest.mark.parametrize(
    "proxy", ["http://user:secret@proxy.invalid:notaport", "https://user:secret@proxy.invalid", "socks5://h:1"]
)
def test_a_proxy_that_is_none(proxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A malformed or unsupported proxy is an error; it is not bypassed."""
    monkeypatch.setenv("https_proxy", proxy)
    found = refusal(f"oci://{NAME}/team/kernels:v1", tmp_path / "out")
    assert found.code == "E0731" and "`https_proxy` is not the address" in found.message and "secret" not in str(found)


def test_a_proxy_that_never_ends_its_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line from time to time satisfies every read timeout; the deadline of the exchange applies to the proxy too."""
    hung_up = threading.Event()

    def drip(listener: socket.socket) -> None:
        with listener.accept()[0] as peer:
            peer.recv(1 << 12)
            try:
                peer.send(b"HTTP/1.0 200 Connection established\r\n")
                for _ in range(1500):
                    peer.send(b"X: y\r\n")
                    time.sleep(0.01)
            except OSError:
                hung_up.set()

    limits = Limits(seconds=0.1, least_rate=1 << 40, attempts=1, pause_seconds=0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        with (
            Client(read_reference(f"oci://{NAME}/team/kernels:v1"), limits=limits) as client,
            pytest.raises(RegistryError, match="it took too long"),
        ):
            client.document("v1")
        thread.join()
    assert hung_up.is_set()


def test_it_does_not_lead_back_to_this_machine(stocked: tuple[Registry, str], tmp_path: Path) -> None:
    registry, repository = stocked
    for target in ("http://127.0.0.1:1/x", "https://127.0.0.1:1/x", "https://localhost/x", f"http://{NAME}/x"):
        registry.tamper = lambda request, response, to=target: (
            Response(307, b"", {"Location": to}) if request.path.startswith(BLOBS) else response
        )
        assert refusal(repository, tmp_path / "out").code == "E0732"
    realm = 'Bearer realm="https://127.0.0.1:1/token"'
    registry.tamper = lambda request, response: Response(401, b"", {"WWW-Authenticate": realm})
    assert refusal(repository, tmp_path / "out").code == "E0733"


def test_plain_http_must_be_requested(tmp_path: Path) -> None:
    registry = Registry()
    with served(registry) as resolve_locally:
        with Client(read_reference(resolve_locally), push=True) as client:
            push(client, [shipment()], "v1")
        repository = f"oci://{NAME}:{registry.host.rpartition(':')[2]}/team/kernels:v1"
        assert refusal(repository, tmp_path / "out").code == "E0731"
        assert pulled(repository, tmp_path / "out", plain_http=True) == shipment().data


@pytest.mark.parametrize("challenge", ['Basic realm="x"', f'Bearer realm="https://{NAME}/token"'])
def test_no_password_goes_over_plain_http(challenge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.tamper = lambda request, response: Response(401, b"", {"WWW-Authenticate": challenge})
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with served(registry):
        host = f"{NAME}:{registry.host.rpartition(':')[2]}"
        auths = {host: {"auth": base64.b64encode(b"user:password").decode()}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
        found = refusal(f"oci://{host}/team/kernels:v1", tmp_path / "out", plain_http=True)
    assert found.code == "E0733" and "plain http would send" in found.message and "--plain-http" in found.hint
    assert registry.requests and not any("authorization" in request.headers for request in registry.requests)
