"""Policies: where one is found, its valid contents, which keys it lets sign what; and that without one nothing is required."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.signing.scene import DIGEST, NAME, POLICY, RELEASE, SIDECAR, SignedSetup, keys, signed
from tilec.cli import commands
from tilec.runtime import BundleError, open_bundle
from tilec.runtime.trust import Trust, TrustedKey, TrustedModel, read_trust, trust_keys
from tilec.runtime.trust_location import find_trust

ROOT = Path(__file__).resolve().parents[2]


def refusal(setup: SignedSetup, trust: Trust | Path | str | None = None) -> BundleError:
    """The refusal of the scene's bundle: one line that names the bundle or the policy, with a remedy."""
    with pytest.raises(BundleError) as caught:
        open_bundle(setup.bundle, trust=setup.policy if trust is None else trust)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 1200 and caught.value.hint
    assert str(setup.folder) in text
    return caught.value


def test_the_signers_are_reported(signed_setup: SignedSetup) -> None:
    with open_bundle(signed_setup.bundle, trust=signed_setup.policy) as bundle:
        assert bundle.signed is not None
        ids = {signer.public_key.id for signer in signed_setup.signers}
        assert {key for key, _ in bundle.signed.keys} == ids
        assert {name for _, name in bundle.signed.keys} == {"first.pub", "the second"}
        assert (bundle.signed.release, bundle.signed.builder) == (RELEASE, "urn:example:builder")
    with open_bundle(signed_setup.bundle) as bundle:
        assert bundle.signed is None


def test_the_error_names_bundle_key_and_fix(signed_setup: SignedSetup) -> None:
    first, second = (signer.public_key.id for signer in signed_setup.signers)
    signed_setup.sidecar.unlink()
    text = str(refusal(signed_setup))
    assert f"`{signed_setup.bundle}` is not signed" in text and first in text and "tilec bundle sign" in text
    signed_setup.write_envelopes(signed(signed_setup.payloads.values(), signed_setup.strangers))
    stranger = min(signer.public_key.id for signer in signed_setup.strangers)
    assert f"the key {stranger} is not trusted" in str(refusal(signed_setup))
    signed_setup.write_envelopes(signed(signed_setup.payloads.values(), signed_setup.signers[:1]))
    assert "its provenance is signed by 1 of the 2 keys" in str(refusal(signed_setup))
    signed_setup.restore()
    signed_setup.bundle.write_bytes(signed_setup.others["another of the model"][0])
    text = str(refusal(signed_setup))
    assert "is not the file that was signed" in text and (first in text or second in text)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("minimum = 7", "minimum = 8", "signed it as release 7; the oldest accepted is 8"),
        ("tiny-*", "large-*", "may not sign for `tiny-1b`"),
        ("urn:example:*", "urn:other:*", "may not sign for the builder 'urn:example:builder'"),
    ],
)
def test_what_a_key_may_not_sign(signed_setup: SignedSetup, old: str, new: str, words: str) -> None:
    another = f'[[trust.models]]\nname = "large-1b"\ndigests = ["{"1" * 64}"]\n'
    signed_setup.policy.write_text(POLICY.replace(old, new) + another)
    found = refusal(signed_setup)
    assert found.code == "E0714" and words in found.message
    assert any(signer.public_key.id in found.message for signer in signed_setup.signers)


def test_policies_that_let_it_in(signed_setup: SignedSetup) -> None:
    pem = signed_setup.signers[1].public_key.pem().decode()
    for text in (
        'trust = { format = 2, keys = ["first.pub"] }',
        'trust = { format = 2, keys = ["second.pub", "first.pub"], threshold = 2, minimum = 7 }',
        f'[trust]\nformat = 2\nkeys = ["first.pub", """{pem}"""]\nthreshold = 2\n',
        f'[trust]\nformat = 2\nminimum = 9\n[[trust.keys]]\nkey = """{pem}"""\nmodels = ["x-*", "tiny-?b"]\n'
        f'[[trust.models]]\nname = "x-1b"\ndigests = ["{"1" * 64}"]\n'
        f'[[trust.models]]\nname = "tiny-1b"\ndigests = ["{"2" * 64}", "{DIGEST}"]\nminimum = 7\n',
    ):
        signed_setup.policy.write_text(text)
        signed_setup.policy.chmod(0o600)
        open_bundle(signed_setup.bundle, trust=str(signed_setup.policy)).close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            POLICY.replace("threshold", "treshold"),
            "has 'treshold' in `[trust]`; the keys are format, keys, minimum, models, thr",
        ),
        (POLICY.replace("threshold = 2", "threshold = 3"), "requires 3 signatures, but has 2 keys"),
        (POLICY.replace("threshold = 2", "threshold = 0"), "requires 0 signatures"),
        (POLICY.replace("second.pub", "first.pub"), "twice"),
        (POLICY.replace("second.pub", "absent.pub"), "cannot be read"),
        (POLICY.replace('"tiny-1b"', '"tiny-*"'), "has the invalid model name 'tiny-*'"),
        (POLICY.replace('"tiny-1b"', '"Tiny"'), "has the invalid model name 'Tiny'"),
        (
            POLICY.replace('"tiny-1b"', '"tiny-2b"') + POLICY[POLICY.index("[[trust.models") : POLICY.index("[[trust.k")],
            "for `tiny-2b`",
        ),
        (POLICY.replace("minimum = 7", 'minimum = 7\n[[trust.models]]\nname = "tiny-1b"'), "has the model `tiny-1b` twice"),
        (POLICY.replace(DIGEST, DIGEST.upper()), "in `digests` of `tiny-1b`, which is not a sha256 of 64 hex digits"),
        (POLICY.replace('["tiny-*"]', '["large-*"]'), "lets a key sign for 'large-*', but `models` has no model of that name"),
        (POLICY.replace("format = 2", "format = 3"), "has the format 3; this tilec reads format 2"),
        (POLICY.replace("format = 2\n", ""), "has no `format`; this tilec reads format"),
        ("[trust]\nformat = 2\n", "needs a list of 1 to 64 as `keys`"),
        ("keys = [", "is not valid TOML"),
        ("", "has no table where `[trust]` is expected"),
    ],
)
def test_policies_that_are_refused(signed_setup: SignedSetup, text: str, words: str) -> None:
    signed_setup.policy.write_text(text)
    found = refusal(signed_setup)
    assert found.code == "E0715" and words in found.message


def test_where_a_policy_is_found(signed_setup: SignedSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    (config / "tilec").mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.delenv("TILEC_TRUST")
    assert find_trust() is None
    for name in ("trust.toml", "first.pub", "second.pub"):  # the user's own folder may consist of links
        (config / "tilec" / name).symlink_to(signed_setup.folder / name)
    found = find_trust()
    assert found is not None and found.threshold == 2 and found.source == str(config / "tilec" / "trust.toml")
    signed_setup.sidecar.unlink()
    with pytest.raises(BundleError, match="is not signed"):
        open_bundle(signed_setup.bundle)
    monkeypatch.setenv("TILEC_TRUST", "none")
    open_bundle(signed_setup.bundle).close()
    monkeypatch.setenv("TILEC_TRUST", str(tmp_path / "absent.toml"))
    with pytest.raises(BundleError, match="cannot be read") as caught:
        open_bundle(signed_setup.bundle)
    assert caught.value.code == "E0715"
    open_bundle(signed_setup.bundle, trust="none").close()
    monkeypatch.setenv("TILEC_TRUST", "")
    signed_setup.policy.unlink()
    with pytest.raises(BundleError, match="cannot be read"):  # the link exists, but is dangling
        find_trust()
    for other in ("relative", ""):
        monkeypatch.setenv("XDG_CONFIG_HOME", other)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert find_trust() is None


@pytest.mark.parametrize(("link", "target"), [("tilec", "absent"), ("tilec", "tilec"), ("", "absent"), ("tilec", "a file")])
def test_a_policy_that_cannot_be_read_still_applies(
    link: str, target: str, signed_setup: SignedSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    (tmp_path / "a file").touch()
    (config if link else tmp_path).mkdir(exist_ok=True)
    (config / link).symlink_to(config / target if link == target else tmp_path / target)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    monkeypatch.delenv("TILEC_TRUST")
    with pytest.raises(BundleError, match="cannot be read") as caught:
        open_bundle(signed_setup.bundle)
    assert caught.value.code == "E0715" and str(config / "tilec" / "trust.toml") in caught.value.message
    (config / link).unlink()
    open_bundle(signed_setup.bundle).close()


def test_a_policy_that_disappears_during_the_search(
    signed_setup: SignedSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, seen = tmp_path / "tilec" / "trust.toml", os.lstat
    policy.parent.mkdir()
    policy.write_text(POLICY)

    def lstat(path: str | Path, **options: int | None) -> os.stat_result:
        found = seen(path, **options)
        if path == policy:
            policy.unlink()
        return found

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("TILEC_TRUST")
    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(BundleError, match="cannot be read"):
        open_bundle(signed_setup.bundle)


def test_no_folder_of_the_user_is_known(signed_setup: SignedSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"XDG_CONFIG_HOME": "", "HOME": "relative", "TILEC_TRUST": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BundleError, match="the home folder is 'relative'") as caught:
        open_bundle(signed_setup.bundle)
    assert caught.value.code == "E0715" and "TILEC_TRUST" in (caught.value.hint or "")
    open_bundle(signed_setup.bundle, trust="none").close()


@pytest.mark.parametrize("name", ["trust.toml", "first.pub"])
def test_a_policy_that_others_may_write(signed_setup: SignedSetup, name: str) -> None:
    (signed_setup.folder / name).chmod(0o664)
    assert "may be written by others (mode 0664); run `chmod go-w` on it" in refusal(signed_setup).message


def test_keys_that_must_all_have_signed(signed_setup: SignedSetup, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.pub"
    stranger.write_bytes(signed_setup.strangers[0].public_key.pem())
    both = [str(signed_setup.folder / name) for name in ("first.pub", "second.pub")]
    open_bundle(signed_setup.bundle, trust=trust_keys(both)).close()
    assert "signed by 2 of the 3 keys" in refusal(signed_setup, trust_keys([*both, str(stranger)])).message
    with pytest.raises(BundleError, match="twice"):
        trust_keys([both[0], both[0]])


def test_a_policy_made_by_a_program(signed_setup: SignedSetup) -> None:
    key = TrustedKey(signed_setup.signers[0].public_key, "mine", ("tiny-1b",))
    for oldest in (7, 8):
        policy = Trust({key.key.id: key}, 1, {"tiny-1b": TrustedModel(frozenset({DIGEST}), oldest)}, "a program")
        if oldest == 7:
            open_bundle(signed_setup.bundle, trust=policy).close()
        else:
            assert "the oldest accepted is 8" in refusal(signed_setup, policy).message
    with pytest.raises(ValueError, match="no model of that name"):
        Trust({key.key.id: key}, 1, {}, "a program")


_WITHOUT = """
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cryptography", "tomllib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
if sys.argv[2] == "absent":
    sys.meta_path.insert(0, Forbid())
from tilec.runtime import BundleError, open_bundle
open_bundle(sys.argv[1]).close()
late = {"cryptography", "tomllib", "tilec.runtime.trust", "tilec.runtime.signatures", "tilec.artifact.signature_format"}
assert not late & sys.modules.keys()
if sys.argv[2] == "absent":
    del sys.meta_path[0]
    class Forbid(Forbid):
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "cryptography":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Forbid())
    try:
        open_bundle(sys.argv[1], trust=sys.argv[3])
    except BundleError as error:
        print(error)
"""


def test_without_a_policy_nothing_is_loaded_for_signatures(signed_setup: SignedSetup) -> None:
    environment = dict(os.environ, TILEC_TRUST="none")
    command = [sys.executable, "-c", _WITHOUT, str(signed_setup.bundle), "absent", str(signed_setup.policy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "error[E0717]" in done.stdout and "pip install 'tilec[signing]'" in done.stdout


def test_the_setup_has_the_documented_files(signed_setup: SignedSetup) -> None:
    assert {path.name for path in signed_setup.folder.iterdir()} == {NAME, SIDECAR, "trust.toml", "first.pub", "second.pub"}


def toml_blocks(name: str) -> list[str]:
    """The policies that a page shows."""
    return re.findall(r"```toml\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


def test_policies_that_are_shown_are_right(tmp_path: Path) -> None:
    for number, name in enumerate(("alice.pub", "release.pub", "release.key.pub")):
        (tmp_path / name).write_bytes(keys()[number].public_key.pem())
    wrong, *right = toml_blocks("tilec/diagnostics/explain/E0715.md")
    path = tmp_path / "trust.toml"
    path.write_text(wrong)
    with pytest.raises(BundleError, match="'treshold'"):
        read_trust(path)
    for text in (*right, *toml_blocks("artifacts/SIGNING.md")):
        path.write_text(text)
        assert read_trust(path).threshold in (1, 2)
    assert len(right) == 2 and len(toml_blocks("artifacts/SIGNING.md")) == 1


def test_commands_that_are_shown_work(signed_setup: SignedSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "artifacts/SIGNING.md").read_text(encoding="utf-8")
    (signed_setup.folder / "qwen3-4b-sm_90a.bundle").write_bytes(signed_setup.sound[NAME])
    monkeypatch.chdir(signed_setup.folder)
    lines = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[0].splitlines()
    shown_commands = [shlex.split(line, comments=True) for line in lines]
    assert [line[2] for line in shown_commands] == ["keygen", "sign", "verify"]
    assert [commands.run(line[1:]) for line in shown_commands] == [0, 0, 0]
