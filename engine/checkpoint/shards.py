"""The tensors of a model folder: those of `model.safetensors`, or of the shards listed in `model.safetensors.index.json`.

If both exist, the single file is used, as in transformers. An index must agree with its shards exactly: each tensor is in the
shard that the index lists for it, and in no other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Final, cast

from engine.checkpoint.json_file import read_object, show
from engine.checkpoint.safetensors_file import AGAIN, HEADER_LIMIT, SafetensorsFile
from engine.errors import ModelError

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"

SHARD_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,200}\.safetensors")
"""Valid shard names in an index: files of its own folder."""


def open_checkpoint(folder: str | PathLike[str]) -> Mapping[str, SafetensorsFile]:
    """The file that contains each tensor, by the tensor's name; ModelError if a file is absent, damaged or contradicts
    another."""
    root = Path(folder)
    try:
        return _open(root, root / SINGLE_FILE, root / INDEX_FILE)
    except OSError as error:  # errors of the folder itself: name too long, no permission
        raise ModelError(f"cannot be read: {error.strerror or error}", where=root, fix="give a readable folder") from None


def _open(root: Path, single: Path, index: Path) -> dict[str, SafetensorsFile]:
    if os.path.lexists(single):
        file = SafetensorsFile(single)
        return dict.fromkeys(file.tensors, file)
    if not os.path.lexists(index):
        raise ModelError(f"holds neither {SINGLE_FILE} nor {INDEX_FILE}", where=root, fix=_what_to_do(root))
    return _open_shards(root, index)


def _open_shards(root: Path, index: Path) -> dict[str, SafetensorsFile]:
    weight_map = read_object(index, HEADER_LIMIT, AGAIN).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(
            f"`weight_map` is {show(cast('object', weight_map))}, not an object of file names", where=index, fix=AGAIN
        )
    shard_of = cast("dict[str, object]", weight_map)
    shards: dict[str, SafetensorsFile] = {}
    for name, shard in shard_of.items():
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            what = f"tensor {show(name)} is said to be in {show(shard)}, which is not a safetensors file of this folder"
            raise ModelError(what, where=index, fix=AGAIN)
        if shard not in shards:
            path = root / shard
            if not os.path.exists(path):
                raise ModelError(f"names {show(shard)}, which is not in the folder", where=index, fix="download that file too")
            shards[shard] = SafetensorsFile(path)
        if name not in shards[shard].tensors:
            raise ModelError(f"tensor {show(name)} is not in {show(shard)}, where it is said to be", where=index, fix=AGAIN)
    for shard, file in shards.items():
        for name in file.tensors:
            if shard_of.get(name) != shard:
                claim = f"says it is in {show(shard_of[name])}" if name in shard_of else "does not name it"
                raise ModelError(f"holds tensor {show(name)}, and {INDEX_FILE} {claim}", where=file.path, fix=AGAIN)
    return {name: shards[cast("str", shard)] for name, shard in shard_of.items()}


def _what_to_do(root: Path) -> str:
    """A suggestion for a folder without weights, by its contents."""
    if not os.path.isdir(root):
        return "give a folder that exists"
    names = sorted(path.name for path in root.iterdir())
    if any(name.endswith(".safetensors") for name in names):
        return f"download {INDEX_FILE} too"
    if any(name.endswith((".bin", ".pth", ".gguf")) for name in names):
        return "give the model in safetensors format"
    return "give the folder of a downloaded model"
