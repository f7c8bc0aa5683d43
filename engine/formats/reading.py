"""Finds out how the weights of a model folder are quantised.

Reads `quantization_config` of config.json, or `hf_quant_config.json` of ModelOpt where config.json has none; returns a
`Quantization`, or None for a folder of 16-bit weights.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.checkpoint.folder_file import path_exists
from engine.checkpoint.json_file import read_object
from engine.formats.fields import Fields
from engine.models.config import CONFIG_FILE, LIMIT_BYTES
from engine.models.keys import Keys

if TYPE_CHECKING:
    from engine.formats.quantization import Quantization

MODELOPT_FILE: Final = "hf_quant_config.json"
KEY: Final = "quantization_config"


def read_quantization(folder: str | PathLike[str]) -> Quantization | None:
    """How the weights of a folder are quantised; None if they are not, or if there is no config.json. ModelError names the key
    of an unsupported format."""
    path = Path(folder) / CONFIG_FILE
    config = read_object(path, LIMIT_BYTES, "repair the link") if path_exists(path) else {}
    found = Fields(Keys(path, config)).object(KEY)
    if found is not None:
        from engine.formats.readers import READERS  # late: a folder of 16-bit weights does without all formats

        return READERS[found.one_of("quant_method", *READERS)](found)
    separate = Path(folder) / MODELOPT_FILE
    if not path_exists(separate):
        return None
    keys = Keys(separate, read_object(separate, LIMIT_BYTES, "repair the link"))
    inner = Fields(keys).object("quantization")
    if inner is None:
        keys.refuse("quantization", "an object", "download the file again")
    from engine.formats.nvfp4 import read_modelopt  # late, likewise

    return read_modelopt(inner)
