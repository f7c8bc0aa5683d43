"""`tilec qualify` on this device: bundles with a side file are right, within two minutes each. Needs a GPU.

`TILEC_BUNDLES` names the folder of bundles and side files, `artifacts/bundles` by default.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tilec.cli import commands
from tilec.runtime import Device

pytestmark = pytest.mark.gpu
FOLDER = Path(os.environ.get("TILEC_BUNDLES", "artifacts/bundles"))


def test_every_bundle_with_a_side_file_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_TRUST", "none")
    paths = [path for path in sorted(FOLDER.glob(f"*-{Device().architecture}.bundle")) if path.with_suffix(".qualify").exists()]
    assert paths, f"{FOLDER} has no bundle for this device with a side file"
    for path in paths:
        report = tmp_path / f"{path.stem}.json"
        assert commands.run(["qualify", str(path), "--json", str(report)]) == 0, path.name
        data = json.loads(report.read_bytes())
        assert data["run"]["seconds"] < 120
        assert data["summary"]["verdicts"]["right"] == data["summary"]["artifacts"]
        shares = [time["share"] for one in data["artifacts"] for time in one["times"]]
        assert shares
