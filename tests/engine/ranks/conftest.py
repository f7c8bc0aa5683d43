"""Tiny models that two ranks can share, with whole blocks of every format in each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.tools import tiny

SHARED = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 32}
"""Each of two ranks has 256 rows of q_proj, 128 of k_proj and v_proj, 256 columns of o_proj and 128 of down_proj."""


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Writes a tiny model of 16 bits, or returns what was written with these arguments."""
    written: dict[tuple[str, bool], Path] = {}

    def folder(family: str = "qwen3", *, tied: bool = False) -> Path:
        if (family, tied) not in written:
            target = tmp_path_factory.mktemp("ranks") / family
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tiny, "SIZES", {**tiny.SIZES, **SHARED})
                tiny.write_tiny_model(target, family=family, tied=tied, hidden_size=SHARED["hidden_size"])
            written[family, tied] = target
        return written[family, tied]

    return folder
