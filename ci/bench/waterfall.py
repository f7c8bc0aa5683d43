"""One token of a decode step as a waterfall: each operation of a layer behind the one before it, beside the time of its bytes.

    python3 ci/bench/waterfall.py profile artifacts/bundles FILE.json [--model qwen3-4b] [--tokens 18]
    python3 ci/bench/waterfall.py draw BEFORE.json AFTER.json PICTURE.svg

`profile` loads a model with random weights on this machine's GPU and times each kind of operation in CUDA graphs of its own
(`engine/tools/profile.py`). A record has for each kind its launches, microseconds and bytes of one launch, and for the whole
the step's microseconds and the bytes per second at which the LM head is read. `draw` puts a layer of two records below each
other: a bar is an operation's time, its dark part what its bytes take at the LM head's rate, the rest the gap.
"""

from __future__ import annotations

import argparse
import json
import sys
from html import escape
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "ci" / "bench")]

WIDTH: Final = 960
LEFT: Final = 120
RIGHT: Final = 190
ROW: Final = 24
LAYER: Final = "layers.*."


def main() -> int:
    """Measure or draw."""
    parser = argparse.ArgumentParser(description="one token of a decode step as a waterfall")
    which = parser.add_subparsers(dest="which", required=True)
    measured = which.add_parser("profile")
    measured.add_argument("bundles", type=Path)
    measured.add_argument("record", type=Path)
    measured.add_argument("--model", default="qwen3-4b")
    measured.add_argument("--tokens", type=int, default=18)
    drawn = which.add_parser("draw")
    drawn.add_argument("before", type=Path)
    drawn.add_argument("after", type=Path)
    drawn.add_argument("picture", type=Path)
    options = parser.parse_args()
    if options.which == "draw":
        records = [json.loads(path.read_text(encoding="utf-8")) for path in (options.before, options.after)]
        options.picture.write_text(picture(records[0], records[1]), encoding="utf-8")
    else:
        record = profile(options.bundles, options.model, options.tokens)
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def profile(bundles: Path, model: str, tokens: int) -> dict[str, Any]:
    """The record of a model's step behind a prompt of so many tokens."""
    from engine_check import BlockWeights, config_of, prompt_of

    from engine.backends.cuda import CudaBackend
    from engine.tools.profile import profile_decode
    from tilec.runtime import open_bundle

    config = config_of(model)
    backend = CudaBackend(open_bundle(bundles / f"{model}-sm_90a.bundle"))
    backend.load(config, BlockWeights(config, "bf16"), max(512, tokens + 1), "bf16")
    sequence = backend.begin()
    backend.prefill(sequence, prompt_of(tokens, config))
    found = profile_decode(backend, sequence)
    backend.close()
    return {
        "model": model, "tokens": tokens, "us": 1e6 * found.seconds, "bytes_per_second": found.bandwidth,
        "operations": [
            {"name": op.name, "launches": op.launches, "us": 1e6 * op.seconds, "bytes": op.bytes} for op in found.operations
        ],
    }  # fmt: skip


def in_layers(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Operations of a layer in order: the one that ends it, which the step names first, behind the others."""
    found = [op for op in record["operations"] if op["name"].startswith(LAYER)]
    return sorted(found, key=lambda op: op["name"] == f"{LAYER}down_proj")


def picture(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Both layers as SVG, on one scale."""
    longest = max(sum(op["us"] for op in in_layers(record)) for record in (before, after))
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts: list[str] = []
    top = 40
    for title, record in (("before", before), ("after", after)):
        layer = in_layers(record)
        words = (
            f"{title}: {record['us']:.0f} us a token; a layer's operations one by one {sum(op['us'] for op in layer):.1f} us"
        )
        parts.append(f'<text x="10" y="{top - 14}" font-weight="bold">{escape(words)}</text>')
        at = 0.0
        for op in layer:
            parts += bar(op, record["bytes_per_second"], LEFT + scale * at, top, scale)
            at += op["us"]
            top += ROW
        top += 50
    words = f"{before['model']} behind {before['tokens']} tokens. Dark: bytes at the rate of the LM head; light: the gap to it"
    parts.append(f'<text x="10" y="{top - 14}">{escape(words)}</text>')
    size = f'width="{WIDTH}" height="{top}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n'
        '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def bar(op: dict[str, Any], rate: float, left: float, top: int, scale: float) -> list[str]:
    """An operation's time from `left` on, and its numbers."""
    floor = 1e6 * op["bytes"] / rate
    name, numbers = op["name"].removeprefix(LAYER), f"{op['us']:.2f} us, {op['bytes'] / 1e6:.1f} MB, gap {op['us'] - floor:.2f}"
    place = f'y="{top + 3}" height="{ROW - 8}"'
    return [
        f'<text x="{LEFT - 8}" y="{top + 14}" text-anchor="end">{escape(name)}</text>',
        f'<rect x="{left:.1f}" width="{scale * op["us"]:.1f}" {place} fill="#9ecae1"/>',
        f'<rect x="{left:.1f}" width="{scale * min(op["us"], floor):.1f}" {place} fill="#3182bd"/>',
        f'<text x="{left + scale * op["us"] + 5:.1f}" y="{top + 14}">{escape(numbers)}</text>',
    ]


if __name__ == "__main__":
    sys.exit(main())
