"""Checks the text of lowered code: no operation's result may be poison or undefined in LLVM.

In: the MLIR text of one module, one operation per line. Out: nothing, or a VerifyError that names the operation, because a
violation is an internal error. The lists below contain the operations that are total, or harmless for the stated reason;
everything else is rejected:

- operations by name, each with its permitted keywords: no `nsw`, `nuw`, `exact`, `inbounds`, `nnan`, `ninf`, `fast`; no
  `undef`, `poison`, `freeze`;
- the right operand of a division, remainder or shift is a constant for which LLVM defines the result, or is selected to be one
  (`tilec.lowering.integers`), or the operation carries the mark of a range proof (`tilec.passes.schedule.simplify.in_range`);
- inline PTX is one of the texts below; an intrinsic has one of the names below; the only function that is called is `vprintf`,
  of a text and of memory for its arguments.
"""

from __future__ import annotations

import re
from typing import Final

from tilec.ir.core import VerifyError
from tilec.mlir.builder import PROVEN, VPRINTF

_CONTRACT: Final = " {fastmathFlags = #llvm.fastmath<contract>}"
"""A product and the sum that uses it may be rounded once: defined either way."""
_FLOATS: Final = ("fadd", "fsub", "fmul", "fdiv")
_PLAIN: Final = """add sub mul and or xor icmp fcmp fneg select zext sext trunc fpext fptrunc sitofp uitofp bitcast ptrtoint
    inttoptr extractelement insertelement extractvalue getelementptr return intr.fabs intr.sqrt intr.floor intr.ceil
    intr.roundeven"""
_DIVISIONS: Final = ("udiv", "urem", "sdiv", "srem")
_SHIFTS: Final = ("shl", "lshr", "ashr")
KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    **{f"llvm.{name}": () for name in _PLAIN.split()},
    **{f"llvm.{name}": () for name in _FLOATS},
    **{f"llvm.{name}": (PROVEN,) for name in (*_DIVISIONS, *_SHIFTS)},
    "llvm.mlir.constant": ("true", "false"),
    "llvm.mlir.zero": (),
    "llvm.mlir.addressof": (),
    "llvm.mlir.global": ("external", "internal", "constant", "addr_space", "alignment"),
    # Memory for the arguments of a printed line, which are written before the call; the address of its text.
    "llvm.alloca": ("x", "alignment"),
    "llvm.addrspacecast": (),
    "llvm.call": (),
    # Alignment is that of the tensor's base, which the launch contract checks, and of the proven divisors of offsets.
    # `invariant` appears only on loads of tensors that no kernel in flight writes (`tilec.lowering.context.Path`, no-alias
    # pairs).
    "llvm.load": ("alignment", "invariant"),
    "llvm.store": ("alignment", "f64"),
    "llvm.fpext": ("f64",),  # only for arguments of `vprintf`: kernels compute nothing in f64
    "llvm.inline_asm": ("has_side_effects",),
    "llvm.call_intrinsic": (),
    "scf.if": (),
    "scf.for": ("unsigned", "step", "iter_args"),
    "scf.while": (),
    "scf.condition": (),
    "scf.yield": (),
    "nvvm.shfl.sync": ("bfly",),
    "nvvm.barrier": ("id", "number_of_threads"),
    "nvvm.cp.async.commit.group": (),
    "nvvm.cp.async.wait.group": (),
    "nvvm.read.ptx.sreg.cluster.ctarank": (),
    **{f"nvvm.read.ptx.sreg.{name}": () for name in ("tid.x", *(f"{n}ctaid.{axis}" for n in ("", "n") for axis in "xyz"))},
}
"""Permitted operations, each with the keywords that may appear among its operands and types."""

INTRINSICS: Final = re.compile(
    r"llvm\.(?:(?:(?:minimum|maximum)num|fma)\.f32"
    r"|nvvm\.(?:cp\.async\.c[ag]\.shared\.global\.(?:4|8|16)(?:\.s)?"
    r"|ldmatrix\.sync\.aligned\.m8n8\.x[124](?:\.trans)?\.b16\.p3|mma\.m16n8k16\.row\.col\.(?:bf16|f32\.f32)))"
)
_REGISTER: Final = r"\$\d+"
_LIST: Final = rf"\{{?{_REGISTER}(?:, {_REGISTER})*\}}?"
_REDUCTION: Final = r"(?:add\.(?:u32|u64|f32|noftz\.b?f16)|(?:and|or|xor)\.b(?:32|64)|(?:max|min)\.[su](?:32|64))"
INLINE: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?:ex2\.approx\.ftz|(?:lg2|sqrt|rsqrt|rcp|tanh|sin|cos)\.approx)\.f32 \$0, \$1;",
        r"\{ \.reg \.b32 a, b; \.reg \.b64 x, n, f, p, k; (?:(?:max|min)\.NaN\.f32 [ab], (?:[ab]|\$[23]), 0f[0-9A-F]{8}; )+"
        r"[^\"]*mul\.rn\.f32x2 p, p, n; mov\.b64 \{\$0, \$1\}, p; \}",
        r"mul\.hi\.[su](?:32|64) \$0, \$1, \$2;",
        r"cvt\.rzi\.[su](?:32|64)\.f32 \$0, \$1;",
        r"cvt\.rn\.f16x2\.e(?:4m3|5m2)x2 \$0, \$1;",
        r"cvt\.rn\.satfinite\.e(?:4m3|5m2)x2\.f32 \$0, \$1, \$2;",
        rf"ld\.global(?:\.nc)?(?:\.L1::no_allocate\.L2::128B)?(?:\.v[248])?\.b32 {_LIST}, \[{_REGISTER}\];",
        r"@\$2 ld\.global(?:\.nc)?\.b32 \$0, \[\$1\];",
        rf"@{_REGISTER} ld\.global(?:\.nc)?\.v[24]\.b32 {_LIST}, \[{_REGISTER}\];",
        rf"st\.global\.cs(?:\.v[24])?\.b32 \[\$0\], {_LIST};",
        r"mov\.b(?:32|64) \$0, \$1;",
        r"\{ \.reg \.b64 most; \.reg \.b32 amount; min\.u64 most, \$2, 64; cvt\.u32\.u64 amount, most; "
        r"(?:shl\.b64|shr\.u64) \$0, \$1, amount; \}",
        r"griddepcontrol\.(?:wait|launch_dependents);",
        # Arithmetic on counts of meets, in registers of its own; `seen` is read before it is used.
        r"\{ \.reg \.pred late; \.reg \.b32 count, seen; ld\.global\.b32 count, \[\$2\]; add\.u32 count, count, 1; "
        r"st\.global\.b32 \[\$2\], count; st\.release\.sys\.global\.b32 \[\$0\], count; "
        r"again: ld\.acquire\.sys\.global\.b32 seen, \[\$1\]; sub\.s32 seen, seen, count; setp\.lt\.s32 late, seen, 0; "
        r"@late bra again; \}",
        r"fence\.proxy\.async\.shared::cta;",
        r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32 \d+;",
        r"\{ \.reg \.pred q; not\.pred q, \$2; cp\.async\.c[ag]\.shared\.global \[\$0\], \[\$1\], (?:4|8|16), q; \}",
        *(
            rf"\{{ \.reg \.pred same; \.reg \.b32 old, seen, new; ld\.relaxed\.gpu\.global\.b32 old, \[\${at}\]; "
            rf"again: (?:max|min)\.f32 new, old, \${at + 1}; setp\.eq\.b32 same, new, old; @same bra done; "
            rf"atom\.relaxed\.gpu\.global\.cas\.b32 seen, \[\${at}\], old, new; setp\.eq\.b32 same, seen, old; "
            rf"mov\.b32 old, seen; @!same bra again; done:{result} \}}"
            for at, result in ((0, ""), (1, r" mov\.b32 \$0, old;"))
        ),
        rf"red\.relaxed\.(?:gpu\.global|cta\.shared)\.{_REDUCTION} \[\$0\], \$1;",
        rf"red\.relaxed\.gpu\.global\.add\.(?:v[24]\.f32|noftz\.(?:v[24]\.)?b?f16x2) \[\$0\], {_LIST};",
        rf"atom\.relaxed\.gpu\.global\.(?:{_REDUCTION}|exch\.b(?:32|64)) \$0, \[\$1\], \$2;",
        r"atom\.relaxed\.gpu\.global\.cas\.b(?:32|64) \$0, \[\$1\], \$2, \$3;",
        r"cvt\.rn\.(?:bf16|f16)x2\.f32 \$0, \$1, \$2;",
        r"cvt\.rna\.tf32\.f32 \$0, \$1;",
        *(
            rf"mma\.sync\.aligned\.m16n8k{shape} \{{\$0, \$1, \$2, \$3\}}, \{{\$4, \$5, \$6, \$7\}}, \{{\$8, \$9\}}, "
            r"\{\$10, \$11, \$12, \$13\};"
            for shape in (
                r"8\.row\.col\.f32\.tf32\.tf32\.f32",
                r"32\.row\.col\.f32\.e(?:4m3|5m2)\.e(?:4m3|5m2)\.f32",
                r"32\.row\.col\.s32\.[su]8\.[su]8\.s32",
            )
        ),
        r"(?:\{ \.reg \.pred late; (?:setp\.eq\.b32 late, \$\d+, 0x7f800001; @late nanosleep\.u32 0; )+\} )?"
        r"wgmma\.wait_group\.sync\.aligned \d+;",
        r"mbarrier\.init\.shared::cta\.b64 \[\$0\], \d+;",
        r"mbarrier\.arrive\.expect_tx\.shared::cta\.b64 _, \[\$0\], \d+;",
        r"@\$2 mbarrier\.complete_tx\.shared::cta\.b64 \[\$0\], \$1;",
        r"@\$1 mbarrier\.arrive\.shared::cta\.b64 _, \[\$0\];",
        r"\{ \.reg \.pred done; again: mbarrier\.try_wait\.parity\.shared::cta\.b64 done, \[\$0\], \$1; @!done bra again; \}",
        r"fence\.mbarrier_init\.release\.cluster;",
        r"barrier\.cluster\.arrive\.release; barrier\.cluster\.wait\.acquire;",
        r"mapa\.shared::cluster\.u64 \$0, \$1, 0;",
        r"mbarrier\.arrive\.expect_tx\.relaxed\.cluster\.shared::cluster\.b64 _, \[\$0\], \d+;",
        r"@\$1 mbarrier\.arrive\.release\.cluster\.shared::cluster\.b64 _, \[\$0\];",
        r"\{ \.reg \.pred done; again: mbarrier\.try_wait\.parity\.acquire\.cluster\.shared::cta\.b64 done, \[\$0\], \$1; "
        r"@!done bra again; \}",
        r"\{ \.reg \.b16 both; mov\.b16 both, 3; tcgen05\.commit\.cta_group::2\.mbarrier::arrive::one\.shared::cluster"
        r"\.multicast::cluster\.b64 \[\$0\], both; \}",
        r"bar\.warp\.sync -1;",
        rf"cp\.async\.bulk\.tensor\.[2-5]d\.shared::(?:cluster|cta)\.global\.tile\.mbarrier::complete_tx::bytes"
        rf"(?:\.cta_group::2)? "
        rf"\[\$0\], \[\$1, {_LIST}\], \[{_REGISTER}\];",
        r"stmatrix\.sync\.aligned\.m8n8\.x2\.shared\.b16 \[\$0\], \{\$1, \$2\};",
        r"stmatrix\.sync\.aligned\.m8n8\.x4\.shared\.b16 \[\$0\], \{\$1, \$2, \$3, \$4\};",
        rf"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.tile\.bulk_group \[\$0, {_LIST}\], \[{_REGISTER}\]; "
        r"cp\.async\.bulk\.commit_group;",
        r"cp\.async\.bulk\.wait_group(?:\.read)? \d+;",
        r"elect\.sync _\|\$0, 0xffffffff;",
        r"tcgen05\.alloc\.cta_group::[12]\.sync\.aligned\.shared::cta\.b32 \[\$0\], \d+; "
        r"tcgen05\.relinquish_alloc_permit\.cta_group::[12]\.sync\.aligned;",
        r"ld\.shared\.b32 \$0, \[\$1\];",
        r"tcgen05\.dealloc\.cta_group::[12]\.sync\.aligned\.b32 \$0, \d+;",
        r"tcgen05\.commit\.cta_group::1\.mbarrier::arrive::one\.shared::cluster\.b64 \[\$0\];",
        r"\{ \.reg \.pred more; [^\"]*tcgen05\.mma\.cta_group::[12]\.kind::(?:f16|f8f6f4|i8) \[to\], a, b, code, "
        r"(?:more|\$3); \}",
        rf"tcgen05\.fence::after_thread_sync; (?:tcgen05\.ld\.sync\.aligned\.16x256b\.x\d+\.b32 {_LIST}, "
        rf"\[{_REGISTER} \+ \d+\]; )+tcgen05\.wait::ld\.sync\.aligned; tcgen05\.fence::before_thread_sync;",
        r"\{ \.reg \.pred more; [^\"]*tcgen05\.mma\.cta_group::1\.kind::f16 \[\$0\], (?:a|\[from\]), b, code, (?:more|\$3); \}",
        rf"tcgen05\.fence::after_thread_sync; (?:tcgen05\.ld\.sync\.aligned\.32x32b\.x\d+\.b32 {_LIST}, "
        rf"\[{_REGISTER} \+ \d+\]; )+tcgen05\.wait::ld\.sync\.aligned; tcgen05\.fence::before_thread_sync;",
        rf"tcgen05\.fence::after_thread_sync; (?:tcgen05\.st\.sync\.aligned\.32x32b\.x\d+\.b32 \[\$0 \+ \d+\], {_LIST}; )+"
        r"tcgen05\.wait::st\.sync\.aligned; tcgen05\.fence::before_thread_sync;",
        r"\{ \.reg \.pred own, some; [^\"]*@!some bra equal; [^\"]*tcgen05\.wait::st\.sync\.aligned; "
        r"tcgen05\.fence::before_thread_sync; equal: \}",
        r"\{ \.reg \.pred p; [^\"]*wgmma\.mma_async\.sync\.aligned\.m64n\d+"
        r"(?:k16\.f32\.(?:bf16\.bf16|f16\.f16)|k32\.f32\.e(?:4m3|5m2)\.e(?:4m3|5m2)|k32\.s32\.[su]8\.[su]8)[^\"]* \}",
    )
)
"""Inline PTX that lowering may emit. LLVM does not analyze it, so the PTX ISA alone defines its meaning."""

POINTERS: Final = re.compile(r"llvm\.noalias(?:, llvm\.readonly)?")
"""Attributes of a tensor's pointer. `noalias`: the launch contract keeps every written tensor disjoint from every other
(`no_alias` of the manifest); two tensors that are only read may overlap, which `noalias` permits. `readonly`: only on `In`."""

_COMPARISONS: Final = frozenset(
    ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge", "oeq", "une", "olt", "ole", "ogt", "oge", "uno")
)
_SIGNATURE: Final = re.compile(r"llvm\.func @[\w$]+\((?P<arguments>.*)\) attributes \{nvvm\.kernel, nvvm\.reqntid = "
                               r"array<i32: \d+>(?:, nvvm\.minctasm = \d+ : i32)?"
                               r"(?:, nvvm\.cluster_dim = array<i32: 2, 1, 1>)?\} \{")  # fmt: skip
_DECLARATION: Final = f"llvm.func @{VPRINTF}(!llvm.ptr, !llvm.ptr) -> i32"
_CALL: Final = re.compile(rf" @{VPRINTF}\(%\w+, %\w+\) : \(!llvm\.ptr, !llvm\.ptr\) -> i32")
_BYTES: Final = r"!llvm\.ptr \{llvm\.byval = !llvm\.array<128 x i8>, llvm\.align = 64 : i64, nvvm\.grid_constant\}"
"""A tensor map: it is never written, and the launcher aligns it (`MAP_ALIGNMENT`)."""
_ARGUMENT: Final = re.compile(rf"%[\w$]+: (?:!llvm\.ptr<1> \{{(?P<promise>[^}}]*)\}}|{_BYTES}|i\d+|f16|bf16|f32)")
_LINE: Final = re.compile(r"(?:(?P<result>%[\w$]+)(?::\d+)? = )?(?P<name>[a-z][\w.]*)(?P<rest>.*)")
_TYPE: Final = re.compile(r"!llvm\.(?:ptr(?:<[13]>|(?!<))|struct<\([^)]*\)>|array<\d+ x i8>)|vector<\d+x\w+>")
_NOT_KEYWORDS: Final = re.compile(r"[%@][\w$#]+|\b(?:i\d+|f16|bf16|f32|to|0x[0-9A-F]+|\d+)\b")
_BLOCK: Final = re.compile(r"\^bb0\(%\w+: [\w.!<>]+(?:, %\w+: [\w.!<>]+)*\):")
_SOURCE: Final = re.compile(r"// line \d+(?: replicated)?")
_NAME: Final = re.compile(r"%\w+")
_KEYWORD: Final = re.compile(r"[A-Za-z_][\w.]*")
_CONSTANT: Final = re.compile(r"llvm\.mlir\.constant\((-?\d+) : i\d+\) : i\d+")
_PAIR: Final = re.compile(r' (?:"(\w+)" )?(%[\w$#]+), (%[\w$#]+)(?:, (%[\w$#]+))?.* : (?:i1, )?(\w+)')


def check(mlir: str) -> None:
    """Raises VerifyError for the first line that violates the rules."""
    definitions: dict[str, str] = {}
    permitted: set[str] = set()  # permitted lines, without the names of their values
    for line, normalized in zip(mlir.splitlines(), _NAME.sub("%", mlir).splitlines(), strict=True):
        if normalized in permitted:
            result, _, text = line.partition(" = ")
            if result.startswith("%"):
                definitions[result] = text
            continue
        if (
            line in ("module {", "}", "} else {", "} do {")
            or _BLOCK.fullmatch(line)
            or (line.startswith("//") and _SOURCE.fullmatch(line))
        ):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise VerifyError(f"lowered code: `{line}` is not an operation")
        result, name, rest = match.groups()
        if name == "llvm.func":
            if line != _DECLARATION:
                _check_signature(line)
        elif name not in KEYWORDS:
            raise VerifyError(f"lowered code: `{name}` is not known to have a value for all operands: {line}")
        else:
            _check_keywords(name, rest, line)
            if name[5:] in _DIVISIONS or name[5:] in _SHIFTS:
                _check_right_operand(name[5:], rest, definitions, line)
            elif name != "llvm.inline_asm" and (result is None or line.startswith(f"{result} =")):
                # inline PTX contains names of its own; the partition above does not handle several results
                permitted.add(normalized)
        if result:
            definitions[result] = name + rest


def _check_signature(line: str) -> None:
    signature = _SIGNATURE.fullmatch(line)
    if signature is None:
        raise VerifyError(f"lowered code: `llvm.func` has attributes that nothing justifies: {line}")
    rest = _ARGUMENT.sub(
        lambda match: "" if match["promise"] is None or POINTERS.fullmatch(match["promise"]) else "?", signature[1]
    )
    if rest.replace(", ", ""):
        raise VerifyError(f"lowered code: `llvm.func` promises of an argument what nothing justifies: {line}")


def _check_keywords(name: str, rest: str, line: str) -> None:
    if '"' in rest:
        text, rest = rest.split('"')[1], "".join(rest.split('"')[::2])
        allowed = (
            any(pattern.fullmatch(text) for pattern in INLINE)
            if name == "llvm.inline_asm"
            else INTRINSICS.fullmatch(text)
            if name == "llvm.call_intrinsic"
            else name == "llvm.mlir.global" or (text in _COMPARISONS and name in ("llvm.icmp", "llvm.fcmp"))
        )
        if not allowed:
            raise VerifyError(f"lowered code: `{text}` of `{name}` is on no list: {line}")
    if name == "llvm.call" and not _CALL.fullmatch(rest):
        raise VerifyError(f"lowered code: the only function that it calls is `{VPRINTF}`: {line}")
    if name[5:] in _FLOATS:
        rest = rest.replace(_CONTRACT, "")
    keywords = _KEYWORD.findall(_NOT_KEYWORDS.sub(" ", _TYPE.sub(" ", rest)))
    for keyword in keywords:
        if keyword not in KEYWORDS[name]:
            raise VerifyError(f"lowered code: `{name}` must not say `{keyword}`: {line}")


def _check_right_operand(kind: str, rest: str, definitions: dict[str, str], line: str) -> None:
    """Checks the right operand of a division or shift."""
    if f"{{{PROVEN}}}" in rest:
        return
    match = _PAIR.match(rest)
    assert match is not None, line
    right, width = match[3], int(match[5][1:])
    if not _is_safe(kind, definitions.get(right, ""), width) and not _is_guarded(
        kind, definitions.get(right, ""), definitions, width
    ):
        raise VerifyError(f"lowered code: nothing keeps the right operand of `llvm.{kind}` where it has a value: {line}")


def _is_safe(kind: str, text: str, width: int) -> bool:
    constant = _CONSTANT.fullmatch(text)
    if constant is None:
        return False
    value = int(constant[1])
    return 0 <= value < width if kind in _SHIFTS else value != 0 and (kind[0] == "u" or value != -1)


def _is_guarded(kind: str, text: str, definitions: dict[str, str], width: int) -> bool:
    """Whether `text` selects a safe constant wherever the other operand would leave the result undefined."""
    selected = _PAIR.match(text.removeprefix("llvm.select")) if text.startswith("llvm.select ") else None
    if selected is None:
        return False
    condition, on_true, on_false = selected[2], selected[3], selected[4]
    test = definitions.get(condition, "")
    compared = _PAIR.match(test.removeprefix("llvm.icmp")) if test.startswith("llvm.icmp ") else None
    if compared is None:
        return False
    predicate, left, limit = compared[1], compared[2], _number(definitions.get(compared[3], ""))
    if kind in _SHIFTS:
        return (predicate, left, limit) == ("ult", on_true, width) and _is_safe(kind, definitions.get(on_false, ""), width)
    if not _is_safe(kind, definitions.get(on_true, ""), width):
        return False
    if kind[0] == "u":
        return (predicate, left, limit) == ("eq", on_false, 0)
    shifted = _PAIR.match(definitions.get(left, "").removeprefix("llvm.add"))
    return (
        (predicate, limit) == ("ult", 2)
        and definitions.get(left, "").startswith("llvm.add ")
        and shifted is not None
        and shifted[2] == on_false
        and _number(definitions.get(shifted[3], "")) == 1
    )


def _number(text: str) -> int | None:
    constant = _CONSTANT.fullmatch(text)
    return int(constant[1]) if constant else None
