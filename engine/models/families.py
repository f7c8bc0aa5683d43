"""The families of models that the engine runs, by `model_type` of config.json. Each is a folder here and a line below."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Final, NoReturn

from engine.checkpoint.json_file import read_object
from engine.models import llama, qwen3, qwen3_moe
from engine.models.config import CONFIG_FILE, LIMIT_BYTES, ModelConfig
from engine.models.family import Family
from engine.models.keys import Keys

FAMILIES: Final[Mapping[str, Family]] = {family.model_type: family for family in (qwen3.FAMILY, qwen3_moe.FAMILY, llama.FAMILY)}


def family_of(model_type: str) -> Family:
    """The family of a config that `read_config` returned."""
    return FAMILIES[model_type]


def read_config(folder: str | PathLike[str]) -> ModelConfig:
    """The config of a model folder; ModelError if it is absent, damaged or of an unsupported model."""
    path = Path(folder) / CONFIG_FILE
    absent = "give the folder that holds config.json, the tokenizer and the safetensors files"
    keys = Keys(path, read_object(path, LIMIT_BYTES, absent))
    name = keys.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        _refuse_family(keys, name)
    return FAMILIES[name].config(keys)


def _refuse_family(keys: Keys, name: object) -> NoReturn:
    """ModelError for a model of no family."""
    expected = " or ".join(f'"{known}"' for known in FAMILIES)
    reasons = {related: why for family in FAMILIES.values() for related, why in family.refused.items()}
    why = f": {reasons[name]}" if isinstance(name, str) and name in reasons else ""
    models = " or ".join(family.models for family in FAMILIES.values())
    keys.refuse("model_type", f"{expected}{why}", f"give a folder of {models}")
