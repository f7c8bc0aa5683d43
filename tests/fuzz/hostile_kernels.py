"""Hostile kernel files, generated from a number: whatever the text, the compiler accepts it or refuses it with one clear error.

A file is a well-formed kernel with one or more hostile shapes in it: deep nesting, sequences of `//`, `%` and `min`, doubling
functions, huge literals, odd identifiers, thousands of parameters, huge shapes, long `requires` lists, import chains, Python
beyond the language. `examine` compiles one in this process and returns the verdict, `examined` does so in a process with
limits of CPU time and memory.

python -P -m tests.fuzz.hostile_kernels 14 189      # the files of these numbers, and the verdicts
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.slow_kernels import HEADER, KERNEL, SLOW
from tilec.diagnostics.diagnostic import CompileError, render
from tilec.frontend import load_kernel, read_kernel
from tilec.passes.prover import prove

END = "store(out, bid(0), load(x, bid(0), shape=64, pad=0), mask=True)"
CPU_SECONDS = 20.0
"""Budget of one kernel, in the frontend and in the prover together."""
MEMORY = 4 << 30
"""Limit of the address space for one kernel, in bytes."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """Files by name; the kernel is in `k.py`."""

    shape: str
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` is "accepted", "refused", or else the name of an exception, which is a failure."""

    kind: str
    codes: tuple[str, ...]
    seconds: float
    text: str = ""


def _body(*lines: str, before: str = "") -> dict[str, str]:
    return {"k.py": HEADER + before + KERNEL + "".join(f"    {line}\n" for line in (*lines, END))}


def _nested(random: random.Random) -> dict[str, str]:
    depth = random.choice((5, 40, 90, 150, 400, 3000, 60000))
    left, middle, right = random.choice(
        (("(", "bid(0)", ")"), ("-", "bid(0)", ""), ("min(1, ", "bid(0)", ")"), ("", "bid(0)", " + 1"), ("", "bid(0)", " // 3"),
         ("where(bid(0) > 1, 2, ", "3", ")"), ("", "x", ".T"), ("[", "1", "]"), ("", "1", " if bid(0) > 1 else 2"),
         ("not ", "(bid(0) > 1)", ""), ("", "bid(0)", " < 5"), ("", "bid(0) < 4", " and bid(0) > 1"), ("lambda: ", "0", ""))
    )  # fmt: skip
    return _body(f"a = {left * depth}{middle}{right * depth}")


def _numbers(random: random.Random) -> dict[str, str]:
    digits = random.choice((5, 19, 20, 40, 300, 4000, 5000, 100_000))
    number = random.choice(("9" * digits, "0x" + "f" * digits, "9" * digits + ".0", f"1e{digits}", "0b" + "1" * digits))
    line = random.choice(("a = {}", "a = bid(0) + {}", "requires(N < {})", "a = full(64, {}, f32)", "a = full({}, 0, f32)",
                          "a = {} ** {}", "a = 1 << {}", "a = load(x, {}, shape=64, pad=0)",
                          "for i in range({}): pass"))  # fmt: skip
    return _body(line.replace("{}", number))


def _names(random: random.Random) -> dict[str, str]:
    name = random.choice(
        ("ａ", "𝔵", "a" * 100_000, "_", "__class__", "N", "tilec", "and_", "é", "e\u0301", "store", "null", "self")
    )
    line = random.choice(("{} = bid(0)\n    b = {} + 1", "for {} in range(3): pass", "{} = load(x, bid(0), shape=64, pad=0)"))
    return _body(line.replace("{}", name))


def _parameters(random: random.Random) -> dict[str, str]:
    count = random.choice((10, 200, 1500))
    dims = "".join(f"class D{k}(Dim): '''d'''\n" for k in range(count))
    kind = random.choice(("In", "InOut"))
    tensors = ", ".join(f"x{k}: {kind}[f32, D{k}]" for k in range(count))
    reads = "".join(f"    v{k} = load(x{k}, bid(0), shape=1, pad=0)\n" for k in range(min(count, random.choice((0, 8)))))
    text = f"{HEADER}{dims}@tilec.kernel\ndef slow({tensors}, out: Out[f32, N]):\n    grid(cdiv(N, 64))\n{reads}"
    return {"k.py": f"{text}    store(out, bid(0), full(64, 0, f32), mask=True)\n"}


def _shapes(random: random.Random) -> dict[str, str]:
    extent = random.choice((1, 64, 1024, 1 << 20, 1 << 31, 1 << 70))
    rank = random.choice((1, 3, 40, 2000))
    return _body(f"t = full(({f'{extent}, ' * rank}), 0, f32)", "u = t + t")


def _requires(random: random.Random) -> dict[str, str]:
    count = random.choice((10, 40, 120))
    form = random.choice(("N % {k} != 1", "N > {k}", "N != {k} or N > 5", "N // {k} * {k} == N", "min(N, {k}) > 0",
                          "N % {k} == 0 or N % 7 == {k}", "max(N // {k}, N % {k}) >= 0"))  # fmt: skip
    lines = [f"requires({form.format(k=k + 2)})" for k in range(count)]
    access = f"store(out, bid(0), load(x, bid(0), shape={random.choice((1, 8))}))" if random.random() < 0.3 else "pass"
    return _body(*lines, access)


def _doubling(random: random.Random) -> dict[str, str]:
    count = random.choice((4, 12, 31, 40))
    step = random.choice(("f{k}(f{k}(v))", "f{k}(v) + f{k}(v + 1)", "(f{k}(v), f{k}(v))[0]", "f{k}(v) if v > {k} else f{k}(v)"))
    base = random.choice(("v", "v + 1", "v * 2", "v // 3 + v % 5"))
    text = f"@tilec.function\ndef f0(v):\n    return {base}\n"
    for k in range(count):
        text += f"@tilec.function\ndef f{k + 1}(v):\n    return {step.format(k=k)}\n"
    return _body(f"a = load(x, f{count}(bid(0)), shape=64, pad=0)", before=text)


def _constants(random: random.Random) -> dict[str, str]:
    count = random.choice((10, 31, 60, 2000))
    step = random.choice(("C{k} + C{k}", "C{k} * C{k}", "C{k} ** 2", "C{k} << 3", "-C{k}", "(C{k}, C{k})"))
    before = "C0 = 3\n" + "".join(f"C{k + 1} = {step.format(k=k)}\n" for k in range(count))
    return _body(f"a = C{random.choice((count, min(count, 30)))}", before=before)


def _imports(random: random.Random) -> dict[str, str]:
    count = random.choice((3, 40, 300, 1200))
    files = {f"m{k}.py": f"from m{k + 1} import f\n" for k in range(count)}
    files[f"m{count}.py"] = random.choice(
        ("import tilec\n@tilec.function\ndef f(v):\n    return v\n", "from m0 import f\n", "")
    )
    if random.random() < 0.3:
        fan = "".join(f"from m{k} import f\n" for k in reversed(range(count)))
        return files | _body("a = f(bid(0))", before=fan)
    return files | _body("a = f(bid(0))", before="from m0 import f\n")


def _products(random: random.Random) -> dict[str, str]:
    count = random.choice((2, 4, 8, 20))
    step = random.choice(("a * a", "a * (a + N)", "a * (N - a) // 3", "(a + N) * (a - 1) % 64", "a * N // (a + 1)"))
    lines = ["a = bid(0)", *[f"a = {step}"] * count]
    return _body(*lines, f"v = load(x, a, shape={random.choice(('64, pad=0', '1'))})")


def _loops(random: random.Random) -> dict[str, str]:
    count = random.choice((2, 8, 30, 90))
    bound = random.choice(("{k}", "N", "a{j} + 1", "num_blocks(0)", "min(N, {k})"))
    lines = []
    for k in range(count):
        lines.append("    " * k + f"for a{k} in range({bound.format(k=k + 2, j=max(k - 1, 0)) if k else '4'}):")
    inner = random.choice(("pass", "v = load(x, a0, shape=64, pad=0)", "v = load(x, a0 + a1, shape=1)", "s = s + a0"))
    return _body("s = 0", *lines, "    " * count + inner)


def _statements(random: random.Random) -> dict[str, str]:
    count = random.choice((50, 400, 2500))
    line = random.choice(("a = a + 1", "a = a * 3 // 2", "t = t * 1.5", "if a > {k}: a = a - {k}",
        "a = where(a > {k}, a, a + 1)",
                          "a = min(a + {k}, 2 * {k})", "store(out, bid(0), t, mask=True)",
                          "t = t + load(x, a, shape=64, pad=0)",
                          "for i in range(3): a = a + i", "a, b = b, a", "a = -a", "b = a % 7 + b // 3"))  # fmt: skip
    lines = [line.format(k=k + 1) for k in range(count)]
    last = random.choice(("v = load(x, a, shape=64, pad=0)", "v = load(x, a, shape=1)", "pass"))
    return _body("a = bid(0)", "b = 1", "t = load(x, 0, shape=64, pad=0)", *lines, last)


_BEYOND = (
    "a = [i for i in range(9)]", "a = {1: 2}", "a = f'{x!r:>{N}}'", "a = (yield)", "a = await x", "a = lambda y: y", "del x",
    "global q", "nonlocal q", "try:\n        pass\n    except Exception:\n        pass", "while True:\n        pass",
    "match x:\n        case _:\n            pass", "with open('f') as g:\n        pass", "class A:\n        pass", "import os",
    "def g():\n        return 1", "async def g():\n        pass", "assert x", "raise x", "a = x if x else x", "a: int",
    "a: int = 1",
    "a = b = c = bid(0)", "(a, (b, *c)) = (1, (2, 3, 4))", "x[0] = 1", "x.a = 1", "a = x[0]", "a = x[...]", "a = x[::2]",
    "a = 1j",
    "a = b'1'", "a = None", "a = ...", "a = 'text' * 10 ** 9", "a = (1, 2) * 10 ** 9", "a = not x", "a = ~x", "a = x is x",
    "a = 1 in x", "a = x @ x", "a = bid(0) ** bid(0)", "a = print(1)", "a = eval('1')", "a = __import__('os')",
    "a = x.__class__",
    "a = bid(0).__class__", "return 1", "return", "break", "continue", "a = load", "load = 1", "a = load(*x)", "a = load(**x)",
    "a = (b := 1)", "for i in x: pass", "for i, j in range(3): pass", "for i in range(3, 1, -1): pass",
    "for i in range(1 << 40): pass", "for i in range(0, 9, 0): pass", "a = bid(3)", "a = bid(-1)", "a = bid(True)",
    "a = bid(0.0)",
    "grid(1)", "requires(1)", "values(x, 0, 1)", "with unsafe('r'):\n        a = load(x, 10 ** 9, shape=1)", "a = 1 // 0",
    "a = 1 % 0",
    "a = bid(0) // 0", "a = 1 / 0", "a = float('nan')", "a = int(float('inf'))", "a = 5 % -3", "a = 1e400", "a = -0.0",
)  # fmt: skip


def _beyond(random: random.Random) -> dict[str, str]:
    return _body(*random.sample(_BEYOND, random.choice((1, 1, 3, 12))))


def _text(random: random.Random) -> dict[str, str]:
    text = _body("a = bid(0)")["k.py"]
    extra = random.choice(("\n" * 300_000, "#" + "x" * 900_000, "\0", "\f", "\r", "\t", "\ufeff", "'''", "\\", "\u2028",
        "if 1:\n" * 90,
                           "x = (" + "1, " * 100_000 + ")\n", "@" * 1000, "x = " + "'a' " * 50_000, "\n" * 5000))  # fmt: skip
    index = random.randrange(len(text))
    return {"k.py": random.choice((text[:index] + extra + text[index:], text + extra, extra + text))}


def _slow(random: random.Random) -> dict[str, str]:
    name = random.choice(tuple(SLOW))
    build, size = SLOW[name]
    return {"k.py": build(max(1, int(size * random.choice((0.25, 0.5, 1, 1, 1.5)))))}


SHAPES: dict[str, Callable[[random.Random], dict[str, str]]] = {
    "nested": _nested, "numbers": _numbers, "names": _names, "parameters": _parameters, "shapes": _shapes,
    "requires": _requires, "doubling": _doubling, "constants": _constants, "imports": _imports, "products": _products,
    "loops": _loops, "statements": _statements, "beyond": _beyond, "text": _text, "slow": _slow,
}  # fmt: skip


def hostile(seed: int) -> Hostile:
    """The files of a number; the numbers cycle through the shapes."""
    shape = list(SHAPES)[seed % len(SHAPES)]
    return Hostile(shape, SHAPES[shape](random.Random(seed)))


def examine(case: Hostile, folder: Path) -> Verdict:
    """Compiles the files. An exception other than CompileError is named, and so is an error without location or hint."""
    for name, text in case.files.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogatepass")
    start = time.process_time()
    try:
        read_kernel(folder / "k.py", root=folder)
        prove(load_kernel(folder / "k.py", {}, root=folder))
    except CompileError as error:
        seconds = time.process_time() - start
        codes = tuple(diagnostic.code for diagnostic in error.diagnostics)
        for diagnostic in error.diagnostics:
            if len(render(diagnostic)) > 2_000_000 or not (diagnostic.message and diagnostic.hint):
                return Verdict("unclear", codes, seconds, diagnostic.message[:200])
        return Verdict("refused" if codes else "empty", codes, seconds, error.diagnostics[0].message[:100])
    except BaseException as error:
        return Verdict(type(error).__name__, (), time.process_time() - start, str(error)[:200])
    return Verdict("accepted", (), time.process_time() - start)


def _work(seed: int, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (int(CPU_SECONDS), int(CPU_SECONDS) + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with tempfile.TemporaryDirectory() as folder:
        answer.send(examine(hostile(seed), Path(folder)))


def examined(seed: int) -> Verdict:
    """The verdict on one file, from a process of its own; `killed` if it exceeded its processor time, `died` with the reason if
    the process ended otherwise without a verdict."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(seed, theirs))
    process.start()
    theirs.close()
    try:
        found: Verdict | None = ours.recv()
    except EOFError:
        found = None
    process.join()
    ours.close()
    if found is None and process.exitcode == -signal.SIGXCPU:
        return Verdict("killed", (), CPU_SECONDS)
    return found or Verdict("died", (), 0.0, f"exit status {process.exitcode}")


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        for name, text in hostile(number).files.items():
            print(f"# {name}\n{text[:20_000]}")
        print(examined(number))
