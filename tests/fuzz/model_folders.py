"""Forged model folders. In: a seed and a good folder. Out: a hostile folder.

Each is a good tiny model with one to three faults: values of a kind, size or depth that no config has, bytes flipped or cut,
files that are missing or are links, pipes, devices and folders, false safetensors headers, hostile templates and tokenizers,
modules that act when imported. `CANARY` stands for a path that only code of the folder would write.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

CANARY: Final = "canary"
"""Name of the file next to the folder that exists if code of the folder ran."""

JSON_FILES: Final = ("config.json", "generation_config.json", "tokenizer.json")
FILES: Final = (*JSON_FILES, "chat_template.jinja", "model.safetensors")

MODULES: Final = (
    "json", "random", "signal", "struct", "numpy", "jinja2", "markupsafe", "tokenizers", "click", "rich", "engine", "tilec",
    "sitecustomize", "usercustomize", "ml_dtypes", "datetime", "modeling_qwen3", "tokenization_qwen3", "conftest", "islpy",
)  # fmt: skip

TEMPLATES: Final = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{{ 9 ** (9 ** 9) }}", "{{ 'a' * 10 ** 10 }}", "{{ 'a' * (messages | length * 10 ** 10) }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{{ 'a' | center(10 ** 10) }}", "{{ '%9999999999d' % 1 }}", "{{ '{:>9999999999}'.format(1) }}",
    "{{ messages | tojson(indent=10 ** 9) }}", "{% set a = 'a' * 99999 %}{{ a.replace('a', a) }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ cycler.__init__.__globals__.os.system('touch CANARY') }}", "{{ lipsum.__globals__.os.popen('touch CANARY') }}",
    "{{ strftime_now.__globals__['__builtins__']['open']('CANARY', 'w') }}", "{{ raise_exception.__code__ }}",
    "{{ self._TemplateReference__context.environment.from_string('x') }}", "{{ messages.append(messages) }}",
    "{% include '/etc/passwd' %}", "{% import '../secret' as x %}", "{% extends 'config.json' %}",
    "{{ messages | map(attribute='__class__.__base__.__subclasses__') | list }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for a in 'a' %}" * 40 + "{% endfor %}" * 40, "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{{ " + "[" * 50000,
    "{{ " + "1+" * 9000 + "1 }}", "{% raw %}", "{# ", "{{ '\\ud800' }}", "{{ raise_exception('<|im_end|>\\n\\x1b[31m') }}",
    "{{ strftime_now('%' * 100000) }}", "{{ strftime_now('%9999999999Y') }}", "{{ range(10 ** 9) | list }}",
    "{{ dict | string }}",
    "{{ (messages | string) * 9 }}", "{{ messages | pprint }}", "{{ lipsum(n=99999) }}", 
    "{{ messages | batch(10 ** 10) | list }}",
    "{{ 'x' | wordwrap(0) }}", "{{ ('a' * 99999) | urlize }}", "{{ ('<' * 99999) | striptags }}", "{% break %}", "\0{{ 1 }}",
    "{{ messages[0].content }}", "{% for m in messages %}<|im_{{ 'end' }}|>{{ m.content }}{% endfor %}", "{{ 1 // 0 }}",
    "{% set x %}{% for i in range(99999) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endset %}{{ x ~ x ~ x ~ x ~ x }}",
)  # fmt: skip

TARGETS: Final = (
    "/etc/passwd", "/dev/zero", "/dev/urandom", "/dev/stdin", "/dev/full", "/proc/self/environ", "/proc/self/mem", "/proc/kmsg",
    "../secret", "/nowhere", ".", "..", "config.json", "model.safetensors", "/proc/self/fd/0", "/proc/self/cwd/config.json",
)  # fmt: skip

Change = Callable[[random.Random, Path], str]


def forge(seed: int, good: Path, target: Path) -> str:
    """Writes the folder of a seed at `target`, from the folder `good`; returns the faults."""
    source = random.Random(seed)
    shutil.copytree(good, target)
    (target.parent / "secret").write_text('{"secret": 1}')
    changes_made: list[str] = []
    changes = [source.choice(CHANGES) for _ in range(source.choice((1, 1, 1, 2, 3)))]
    for change in sorted(changes, key=lambda change: change is _kind):  # links last: no later change follows one
        try:
            changes_made.append(change(source, target))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # by an earlier change
            changes_made.append(f"{change.__name__} after that: {type(error).__name__}")
    return "; ".join(changes_made)


def value(source: random.Random, depth: int = 0) -> Any:
    """A value that is invalid wherever a config has it."""
    number = source.choice((0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 10**400, source.randrange(-9, 999), 1 << 20))
    plain: list[Any] = [
        None, True, False, number, float(source.choice((0.5, -1.0, 1e308, 5e-324))), "", "qwen3", "bfloat16", "x" * 5000,
        "\x00", "\ud800", "../../secret", "/etc/passwd", "\x1b[31m\n", "日本", [], {}, "<|im_end|>", str(number)[:400],
    ]  # fmt: skip
    if depth > 2 or source.random() < 0.8:
        return source.choice(plain)
    inner = [value(source, depth + 1) for _ in range(source.randrange(5))]
    return inner if source.random() < 0.5 else {str(number): item for number, item in enumerate(inner)}


def spelled(source: random.Random, keys: dict[str, Any]) -> str:
    """Serializes to JSON, sometimes slightly invalid."""
    text = json.dumps(keys)
    if source.random() < 0.15:
        name = json.dumps(source.choice(list(keys) or ["x"]))
        text = text.replace(
            "{", "{" + f"{name}: {source.choice(('NaN', 'Infinity', '-Infinity', '9' * 5000, '1e999', '01'))}, ", 1
        )
    return text


def _json_value(source: random.Random, folder: Path) -> str:
    path = folder / source.choice(JSON_FILES[:2])
    keys = json.loads(path.read_text())
    for name in source.sample(sorted(keys), min(len(keys), source.choice((1, 1, 2, 4)))):
        keys[name] = value(source)
    path.write_text(spelled(source, keys), encoding="utf-8", errors="surrogatepass")
    return f"values of {path.name}"


def _json_key(source: random.Random, folder: Path) -> str:
    path = folder / source.choice(JSON_FILES[:2])
    keys = json.loads(path.read_text())
    other = (
        "rope_scaling", "rope_parameters", "layer_types", "num_experts", "quantization_config", "sliding_window", "dtype",
        "use_sliding_window", "max_window_layers", "auto_map", "architectures", "_name_or_path", "trust_remote_code",
    )  # fmt: skip
    if source.random() < 0.5:
        keys.pop(source.choice(sorted(keys)), None)
    else:
        keys[source.choice(other)] = value(source)
    path.write_text(spelled(source, keys), encoding="utf-8", errors="surrogatepass")
    return f"keys of {path.name}"


def _json_depth(source: random.Random, folder: Path) -> str:
    path = folder / source.choice((*JSON_FILES, "tokenizer_config.json", "model.safetensors.index.json"))
    size = source.choice((1000, 100_000, 500_000))
    opened = source.choice(('{"a":', "[", '[{"b":'))
    text = opened * size + source.choice(("", "1" + "".join({"[": "]", "{": "}"}.get(c, "") for c in reversed(opened)) * size))
    path.write_text(source.choice(("", "\ufeff", '{"model_type": ')) + text)
    if "index" in path.name or "config" in path.name:
        (folder / {"model.safetensors.index.json": FILES[4], "tokenizer_config.json": FILES[3]}.get(path.name, "x")).unlink(
            True
        )
    return f"depth of {path.name}"


def _bytes(source: random.Random, folder: Path) -> str:
    path = folder / source.choice(FILES)
    data = bytearray(path.read_bytes())
    for _ in range(source.choice((1, 3, 50))):
        at = source.randrange(len(data) + 1) if source.random() < 0.5 else source.randrange(min(len(data), 2000) + 1)
        match source.randrange(4):
            case 0:
                data[at : at + 1] = bytes([source.randrange(256)])
            case 1:
                del data[at : at + source.randrange(200)]
            case 2:
                data[at:at] = source.randbytes(source.randrange(20))
            case _:
                data[at:at] = data[: source.randrange(200)]
    path.write_bytes(data[: source.randrange(len(data) + 1)] if source.random() < 0.2 else data)
    return f"bytes of {path.name}"


def _kind(source: random.Random, folder: Path) -> str:
    path = folder / source.choice((*FILES, "tokenizer_config.json", "model.safetensors.index.json"))
    path.unlink(missing_ok=True)
    match source.randrange(6):
        case 0:
            return f"no {path.name}"
        case 1:
            os.mkfifo(path)
        case 2:
            path.mkdir()
        case 3:
            with path.open("wb") as file:
                file.truncate(source.choice((0, 1, 1 << 20, 1 << 32, 1 << 40)))
        case _:
            path.symlink_to(source.choice((*TARGETS, path.name)))
    return f"{path.name} of another kind"


def _length(source: random.Random, folder: Path) -> str:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(
        struct.pack("<Q", source.choice((0, 1, 2, 8, len(data), len(data) - 8, 2**24, 2**31, 2**63, 2**64 - 1))) + data[8:]
    )
    return "length of the header"


def _header(source: random.Random, folder: Path) -> str:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    for name in source.sample(sorted(header), min(len(header), source.choice((1, 1, 3, 9)))):
        match source.randrange(7):
            case 0:
                header[name]["dtype"] = source.choice(("F16", "F32", "F64", "I8", "BOOL", "F4", "", 3, None, "bf16", ["BF16"]))
            case 1:
                header[name]["shape"] = source.choice(
                    ([], [-1], [2**63], [2**32, 2**32, 0], [1] * 99, [1.5], "x", None, [0], [[1]])
                )
            case 2:
                begin = source.choice((0, -8, 2**63, 2**70, source.randrange(len(data)), None, 1.5, "0"))
                header[name]["data_offsets"] = [begin, source.choice((begin, 0, 2**63, len(data), source.randrange(len(data))))]
            case 3:
                header[name]["data_offsets"] = value(source)
            case 4:
                header[f"{name}{source.choice(('x', ' ', '../x', chr(0)))}"] = header.pop(name)
            case 5:
                header[name] = value(source)
            case _:
                other = source.choice(sorted(header))
                header[name], header[other] = header[other], header[name]
    if source.random() < 0.1:
        header |= {
            f"t{i}": {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]} for i in range(source.choice((1000, 100_000)))
        }
    if source.random() < 0.2:
        header["__metadata__"] = value(source)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    return "header"


def _index(source: random.Random, folder: Path) -> str:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    data = (folder / "a.safetensors").read_bytes()
    names = list(json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]]))
    shard = source.choice((
        "../secret", "../a.safetensors", "/etc/passwd", "a.safetensors", "b.safetensors", "x\x00.safetensors", "", 3, None,
        "..", ".safetensors", "p.safetensors", "l.safetensors", "A" * 999 + ".safetensors",
    ))  # fmt: skip
    os.mkfifo(folder / "p.safetensors")
    (folder / "l.safetensors").symlink_to(source.choice(TARGETS))
    shards: dict[str, Any] = dict.fromkeys(names, "a.safetensors")
    shards |= dict.fromkeys(source.sample(names, source.choice((0, 1, len(names)))), shard)
    if source.random() < 0.1:
        shards |= {f"t{i}": f"{i}.safetensors" for i in range(100_000)}
    whole = {"metadata": value(source), "weight_map": shards if source.random() < 0.9 else value(source)}
    (folder / "model.safetensors.index.json").write_text(spelled(source, whole))
    return "index"


def _template(source: random.Random, folder: Path) -> str:
    number = source.randrange(len(TEMPLATES))
    text = TEMPLATES[number].replace("CANARY", str(folder.parent / CANARY))
    if source.random() < 0.3:
        text = (folder / "chat_template.jinja").read_text() + text
    if source.random() < 0.7:
        (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    else:
        (folder / "chat_template.jinja").unlink()
        named = (
            text if source.random() < 0.8 else source.choice(([{"name": "default", "template": text}], 3, {"x": text}, None))
        )
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named, "auto_map": "x.py"}))
    return f"template {number}"


def _tokenizer(source: random.Random, folder: Path) -> str:
    path = folder / "tokenizer.json"
    file: dict[str, Any] = json.loads(path.read_text())
    regex = source.choice(("(x+x+)+y", "(", "(a{1000}){1000}", "\\p{Han}+", "(?:" * 3000, "x" * 99999, "(?=(a+))a*b\\1"))
    replace = {
        "type": "Replace",
        "pattern": {"String": source.choice(("l", "", "e"))},
        "content": "ll" * source.choice((1, 999)),
    }
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    parts: tuple[Any, ...] = (
        {"type": "Precompiled", "precompiled_charsmap": source.choice(("AAAA", "/////wAA", "", "!", "A" * 9999))}, replace,
        split, {"type": "Sequence", "normalizers": [replace] * 50, "pretokenizers": [split] * 50, "decoders": [replace] * 50},
        None, {"type": "Metaspace", "replacement": "▁▁", "prepend_scheme": "always", "split": True},
        {"type": "Prepend", "prepend": "x" * 99999},
        {"type": "Strip", "content": "x", "start": 2**63, "stop": 2**40}, {"type": "ByteFallback"}, {"type": "Nothing"},
        {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}, {"type": "WordPiece", "prefix": "#"},
        {"type": "FixedLength", "length": 0}, {"type": "Punctuation", "behavior": "Removed"}, value(source),
    )  # fmt: skip
    match source.randrange(6):
        case 0 | 1:
            file[source.choice(("normalizer", "pre_tokenizer", "decoder", "post_processor"))] = source.choice(parts)
        case 2:
            model = file["model"]
            model[source.choice([*model, "dropout", "ignore_merges"])] = source.choice((value(source), 0.5, True, "x", 2.0))
        case 3:
            file["padding"] = {"strategy": {"Fixed": source.choice((9, 2**40))}, "direction": "Left", "pad_to_multiple_of": 0,
                               "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}  # fmt: skip
            file["truncation"] = {"max_length": 3, "strategy": "LongestFirst", "stride": 7, "direction": "Right"}
        case 4:
            count = source.choice((1, 100, 100_000))
            flags = {name: source.random() < 0.3 for name in ("single_word", "lstrip", "rstrip", "normalized")}
            content = source.choice(("", "x", "<|im_end|>", "e", "\n", "x" * min(9999, 10**8 // max(count, 1)), 3))
            file["added_tokens"] += [
                {
                    "id": source.choice((i, 512 + i, -1, 2**40)),
                    "content": f"{content}{i or ''}",
                    "special": bool(i % 2),
                    **flags,
                }
                for i in range(count)
            ]
        case _:
            entries = file["model"]["vocab"]
            entries[source.choice(("<|im_end|>", "zz", "", "\x00", "ab"))] = source.choice(
                (0, 512, -1, 2**32, 10**30, None, 0.5, "x")
            )
            file["model"]["merges"] += [source.choice((["z", "z"], "q q", "x", [], 3, ["a", "b", "c"], "a b"))]
    path.write_text(json.dumps(file))
    return "tokenizer"


def _module(source: random.Random, folder: Path) -> str:
    code = f"open({str(folder.parent / CANARY)!r}, 'w').write(__name__)\n"
    for name in source.sample(MODULES, 4):
        (folder / f"{name}.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_qwen3.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["tokenization_qwen3.T", null]}}')
    return "modules"


def _many(source: random.Random, folder: Path) -> str:
    path = folder / "model.safetensors"
    count = source.choice((1000, 100_000))
    entry = source.choice((
        {"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}, {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, {},
        0, [],
    ))  # fmt: skip
    text = json.dumps({f"model.layers.{i}.x": entry for i in range(count)}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return f"{count} tensors"


CHANGES: Final[tuple[Change, ...]] = (
    _json_value, _json_value, _json_key, _json_depth, _bytes, _bytes, _kind, _kind, _length, _header, _header, _index,
    _template, _template, _tokenizer, _tokenizer, _module, _many,
)  # fmt: skip
