"""Validates `tokenizer.json` of a model folder before the tokenizer library loads it.

Returns a `Tokenizer`, or raises a `ModelError` that names the problem. The file describes a program: chains of normalizers that
double a text, patterns that never terminate, paddings of a terabyte, tables for which the library allocates gigabytes and then
aborts the process. So only these components are accepted: NFC or no normalizer, the family's split or none (`TokenizerPolicy`),
a byte-level BPE without dropout, and added tokens that match literally.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from tokenizers import Tokenizer, pre_tokenizers

from engine.checkpoint.folder_file import DOWNLOAD_AGAIN, read_bytes
from engine.checkpoint.json_file import parse_object, show
from engine.errors import EngineError, ModelError
from engine.text.policy import TokenizerPolicy

LIMIT_BYTES: Final = 1 << 25
"""Maximum bytes of the file; Qwen3's has a third of that."""

ADDED_LIMIT: Final = 4096
"""Maximum number of added tokens; the library's time is quadratic in it. Qwen3 has 26."""

ADDED_LENGTH: Final = 256
"""Maximum characters of an added token."""

ID_LIMIT: Final = 1 << 24
"""Upper bound (exclusive) of token ids."""

ABSENT: Final = "download tokenizer.json of the model"


def read_tokenizer(path: Path, policy: TokenizerPolicy) -> Tokenizer:
    """The tokenizer of a file, with padding and truncation disabled. ModelError if the file is absent, damaged, or uses a
    component that the family's tokenizer lacks."""
    text = read_bytes(path, LIMIT_BYTES, ABSENT)
    if sha256(text).hexdigest() != policy.published:
        _check_components(path, parse_object(text, path, "is not a tokenizer: the file"), policy)
    with library_errors(f"{path}: is not a tokenizer", ModelError):
        tokenizer: Tokenizer = Tokenizer.from_buffer(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer


@contextmanager
def library_errors(what: str, kind: type[EngineError]) -> Generator[None]:
    """Convert errors of the tokenizer library to `kind`. Its panics derive from BaseException only."""
    try:
        yield
    except (EngineError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise kind(f"{what}: {lines[0]}", fix=DOWNLOAD_AGAIN if kind is ModelError else "") from None


def _check_components(path: Path, file: dict[str, object], policy: TokenizerPolicy) -> None:
    """ModelError unless every component of the file is one of the family's tokenizer."""

    def refuse(part: str, value: object, expected: str) -> NoReturn:
        what = f"is not a tokenizer that the engine takes: its {part} is {show(value)}, and must be {expected}"
        raise ModelError(what, where=path, fix=f"take the tokenizer.json of a {policy.family} model")

    for name in ("padding", "truncation"):  # ignored later, but the library parses them first
        if not isinstance(file.get(name), dict | None):
            refuse(name, file[name], "null")
    if file.get("normalizer") not in (None, {"type": "NFC"}):
        refuse("normalizer", file["normalizer"], "NFC or null")
    for name in ("pre_tokenizer", "decoder", "post_processor"):
        if not _byte_level(name, file.get(name), policy.split) and not _puts_begin(name, file.get(name), policy.begin):
            refuse(name, file.get(name), f"that of {policy.family}")
    model = file.get("model")
    if not isinstance(model, dict):
        refuse("model", model, "an object")
    _check_model_fields(cast("dict[str, object]", model), policy, refuse)
    _check_added_tokens(file.get("added_tokens", []), refuse)


def _byte_level(part: str, value: object, pattern: str) -> bool:
    """Whether a component is the byte-level one; a pre-tokenizer may begin with the split at `pattern`."""
    if value is None:
        return part == "post_processor"
    if not isinstance(value, dict):
        return False
    fields = cast("dict[str, object]", value)
    if fields.get("type") == "ByteLevel":
        no_prefix_space = part != "pre_tokenizer" or fields.get("add_prefix_space") is False
        return no_prefix_space and all(type(flag) is bool for name, flag in fields.items() if name != "type")
    if part != "pre_tokenizer" or fields.get("type") != "Sequence":
        return False
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    parts = fields.get("pretokenizers")
    steps = cast("list[object]", parts) if isinstance(parts, list) else []
    last = steps[-1] if steps else None
    nested = isinstance(last, dict) and "pretokenizers" in last
    return steps[:-1] in ([], [split]) and not nested and _byte_level(part, cast("object", last), pattern)


def _puts_begin(part: str, value: object, begin: str) -> bool:
    """Whether a component is the post-processor of a family whose texts begin with a control token. `Text` puts the token
    itself; the library runs the rest of the component, which must be the text, once."""
    if part != "post_processor" or not begin or not isinstance(value, dict):
        return False
    fields = cast("dict[str, object]", value)
    parts = fields.get("processors") if fields.get("type") == "Sequence" else [fields]
    if not isinstance(parts, list):
        return False
    *byte_level, last = cast("list[object]", parts) or [None]
    template = cast("dict[str, object]", last) if isinstance(last, dict) else {}
    single = [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    if template.get("type") != "TemplateProcessing" or template.get("single") != single or len(byte_level) > 1:
        return False
    return all(one is not None and _byte_level(part, one, "") for one in byte_level)


def _check_model_fields(model: dict[str, object], policy: TokenizerPolicy, refuse: Any) -> None:
    if model.get("type") != "BPE":
        refuse("model", model.get("type"), '"BPE"')
    for name in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name) not in (None, ""):
            refuse(f"model's {name}", model[name], "null")
    for name in ("fuse_unk", "byte_fallback"):
        if model.get(name) not in (None, False):
            refuse(f"model's {name}", model[name], "false")
    if model.get("ignore_merges", False) not in (False, policy.ignore_merges):
        refuse("model's ignore_merges", model["ignore_merges"], "false")
    vocabulary = model.get("vocab")
    entries = cast("dict[str, object]", vocabulary) if isinstance(vocabulary, dict) else {}
    if not all(type(number) is int and 0 <= number < ID_LIMIT for number in entries.values()):
        refuse("vocabulary", vocabulary, f"of token ids below {ID_LIMIT}")
    missing_byte = next((byte for byte in sorted(pre_tokenizers.ByteLevel.alphabet()) if byte not in entries), None)
    if missing_byte is not None:
        refuse("vocabulary", vocabulary, f"one with a token for every byte, and {show(missing_byte)} has none")


def _check_added_tokens(added: object, refuse: Any) -> None:
    tokens = cast("list[object]", added) if isinstance(added, list) else None
    if tokens is None or len(tokens) > ADDED_LIMIT:
        refuse("list of added tokens", added, f"a list of at most {ADDED_LIMIT}")
    for token in tokens or ():
        fields = cast("dict[str, object]", token) if isinstance(token, dict) else {}
        content, number = fields.get("content"), fields.get("id")
        if not isinstance(content, str) or not 0 < len(content) <= ADDED_LENGTH:
            refuse("added token", content, f"a text of 1 to {ADDED_LENGTH} characters")
        if type(number) is not int or not 0 <= number < ID_LIMIT:
            refuse(f"id of {show(content)}", number, f"below {ID_LIMIT}")
        for flag in ("single_word", "lstrip", "rstrip"):
            if fields.get(flag, False) is not False:
                refuse(f"{flag} of {show(content)}", fields[flag], "false")
