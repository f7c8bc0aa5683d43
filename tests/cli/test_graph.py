"""`tilec graph` draws the same bytes in every process, and the pictures in the README are up to date."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign import first

ROOT = Path(__file__).resolve().parents[2]
GALLERY = ROOT / "artifacts" / "gallery"


def drawn(kernel: str, folder: Path, seed: int) -> bytes:
    """The drawing of a kernel of this project by a process with the hash seed `seed`."""
    output = folder / f"{kernel}-{seed}.svg"
    if output.exists():
        return output.read_bytes()
    command = [sys.executable, "-m", "tilec", "graph", kernel, "--project", str(ROOT), "-o", str(output)]
    environment = os.environ | {"PYTHONHASHSEED": str(seed)}
    subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    return output.read_bytes()


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("drawings")


@pytest.mark.parametrize("kernel", first(1, ["qk_norm_rope_kv", "matmul"]))
def test_drawing_is_the_same_in_every_process(kernel: str, drawings: Path) -> None:
    assert drawn(kernel, drawings, 0) == drawn(kernel, drawings, 1)


def test_the_picture_in_the_gallery_is_what_is_drawn(drawings: Path, bless: bool) -> None:
    found = drawn("matmul", drawings, 0)
    if bless:
        (GALLERY / "matmul.svg").write_bytes(found)
    assert (GALLERY / "matmul.svg").read_bytes() == found


def test_labels_of_the_pipeline_fit_their_boxes() -> None:
    """In DejaVu Sans, the widest of the usual sans-serif fonts; each text is centered at its `x` in its box."""
    import matplotlib
    from PIL import ImageFont

    text = (GALLERY / "pipeline.svg").read_text(encoding="utf-8")
    font = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    boxes = [(float(x), float(width)) for x, width in re.findall(r'<rect x="([\d.]+)" y="34" width="([\d.]+)"', text)]
    labels = re.findall(r'<text x="([\d.]+)" y="(?:60|79)" font-size="(\d+)"[^>]*>([^<]+)<', text)
    assert len(labels) == 2 * len(boxes) == 14
    for middle, size, label in labels:
        width = next(width for x, width in boxes if x + width / 2 == float(middle))
        assert ImageFont.truetype(str(font), int(size)).getlength(label) <= width - 8, label
