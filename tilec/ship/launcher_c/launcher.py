"""Generates a C header and source that launch the kernels of a verified bundle.

The source contains the CUBINs and one function per kernel. It needs only a C11 compiler (gcc or clang) and, at run time,
`libcuda.so.1`. The same bundle and prefix give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tilec.runtime import Bundle, BundledKernel
from tilec.ship.launcher_c.function import Function, function_of, unsupported_reason
from tilec.ship.launcher_c.prelude import HEADER, SOURCE
from tilec.ship.launcher_c.text import comment, identifier, literal
from tilec.target.chips import RUNS_ON, capability_of, shown

WORDS_PER_LINE: Final = 6


@dataclass(frozen=True, slots=True)
class Launcher:
    """Names and texts of the two files, the C functions by kernel, and why the other kernels were left out."""

    header_name: str
    header: str
    source_name: str
    source: str
    functions: dict[str, str]
    left_out: dict[str, str]


def make_launcher(bundle: Bundle, chosen: Sequence[BundledKernel], prefix: str | None = None) -> Launcher:
    """The launcher of `chosen` kernels of an open bundle; names begin with `prefix`, by default the model's name."""
    stem = identifier(prefix or bundle.model)
    names: dict[str, str] = {}
    functions: dict[str, Function] = {}
    left_out: dict[str, str] = {}
    used_names = {f"{stem}_{suffix}" for suffix in ("load", "unload", "error", "kernels")}
    kernels: list[BundledKernel] = []
    for kernel in chosen:
        name, reason = f"{stem}_{identifier(kernel.name)}", unsupported_reason(kernel.manifest)
        while name in used_names:
            name += "_"
        try:
            function = None if reason else function_of(kernel.manifest, name, f"{stem}_kernels", len(kernels))
        except ValueError as error:
            function, reason = None, str(error)
        if function is None:
            left_out[kernel.name] = reason
            continue
        used_names.add(name)
        names[kernel.name], functions[kernel.name] = name, function
        kernels.append(kernel)
    header = "\n".join(_header(bundle, stem, kernels, functions))
    source = "\n".join(_source(bundle, stem, kernels, functions))
    return Launcher(f"{stem}.h", header, f"{stem}.c", source, names, left_out)


def _description(bundle: Bundle) -> str:
    return f"Made by `tilec bundle launcher` of {comment(bundle.model)} for {comment(bundle.arch)}, sha256 {bundle.digest}."


def _header(bundle: Bundle, stem: str, kernels: list[BundledKernel], functions: dict[str, Function]) -> Iterator[str]:
    guard = f"TILEC_{stem.upper()}_H"
    yield f"""/* {_description(bundle)}
 *
 * A context of CUDA must be current. A function returns TILEC_OK; or a status, and has enqueued nothing then: `{stem}_error`
 * says in words what the last one that failed on this thread refused. Each clause of a kernel's launch contract is checked, but
 * for one: that a tensor has the extents that are given for it is the caller's promise. What was loaded may be used by several
 * threads at once, and a launch may be captured in a CUDA graph.
 */
#ifndef {guard}
#define {guard}

{HEADER}
typedef struct {stem}_kernels {stem}_kernels;

/* Load all kernels into the current context; `*kernels` is NULL where that fails. */
int {stem}_load({stem}_kernels **kernels);

/* Let go of them; NULL is nothing. */
void {stem}_unload({stem}_kernels *kernels);

/* What the last function that failed on this thread had to say. */
const char *{stem}_error(void);
"""
    for kernel in kernels:
        yield functions[kernel.name].declaration
    yield "#ifdef __cplusplus\n}\n#endif\n\n#endif\n"


def _source(bundle: Bundle, stem: str, kernels: list[BundledKernel], functions: dict[str, Function]) -> Iterator[str]:
    images = list(dict.fromkeys(kernel.blob for kernel in kernels))
    yield f'/* {_description(bundle)} */\n#include "{stem}.h"\n{SOURCE}'
    for index, blob in enumerate(images):
        yield from _image(index, bundle.cubin(next(kernel for kernel in kernels if kernel.blob == blob)))
    yield "static const void *const tilec_images[] = {"
    yield from (f"    tilec_image_{index}," for index in range(len(images)))
    yield "    NULL,\n};\n\nstatic const tilec_kernel tilec_kernels[] = {"
    for kernel in kernels:
        used = kernel.manifest.resources
        name, entry = literal(kernel.manifest.kernel), literal(kernel.manifest.entry)
        shared = f"{used.dynamic_shared_bytes}, {used.static_shared_bytes}"
        yield f"    {{{name}, {entry}, {images.index(kernel.blob)}, {shared}}},"
    yield "    {NULL, NULL, 0, 0, 0},\n};\n"
    capabilities = RUNS_ON.get(bundle.arch) or (capability_of(bundle.arch),)
    numbers = ", ".join(f"{{{major}, {minor}}}" for major, minor in (*capabilities, (0, 0)))
    yield f"/* The compute capabilities that {bundle.arch} code runs on. */"
    yield f"static const int tilec_capabilities[][2] = {{{numbers}}};\n"
    yield f"""struct {stem}_kernels {{
    tilec_driver driver;
    int multiprocessors;
    void *modules[{max(1, len(images))}], *functions[{max(1, len(kernels))}];
}};

const char *{stem}_error(void) {{
    return tilec_text;
}}

void {stem}_unload({stem}_kernels *kernels) {{
    if (kernels == NULL)
        return;
    for (int i = 0; i < {len(images)}; i++)
        if (kernels->modules[i] != NULL)
            kernels->driver.unload(kernels->modules[i]);
    if (kernels->driver.library != NULL)
        dlclose(kernels->driver.library);
    free(kernels);
}}

int {stem}_load({stem}_kernels **kernels) {{
    int most = 0;
    {stem}_kernels *made = calloc(1, sizeof *made);
    *kernels = NULL;
    if (made == NULL)
        return tilec_refuse(915, NULL, "the host is out of memory");
    int code = tilec_open(&made->driver);
    if (code == 0)
        code = tilec_check_device(&made->driver, tilec_capabilities, {literal(shown(capabilities))}, &most,
            &made->multiprocessors);
    for (int i = 0; code == 0 && i < {len(kernels)}; i++) {{
        const tilec_kernel *kernel = &tilec_kernels[i];
        void **module = &made->modules[kernel->image];
        code = tilec_load(&made->driver, kernel, tilec_images[kernel->image], most, module, &made->functions[i]);
    }}
    if (code != 0) {{
        {stem}_unload(made);
        return code;
    }}
    *kernels = made;
    return 0;
}}
"""
    for kernel in kernels:
        yield functions[kernel.name].definition


def _image(index: int, data: bytes) -> Iterator[str]:
    """A CUBIN as an array of 64-bit words, which also aligns it."""
    padded = data + bytes(-len(data) % 8)
    words = [f"0x{int.from_bytes(padded[offset : offset + 8], 'little'):x}" for offset in range(0, len(padded), 8)]
    yield f"/* {len(data)} bytes; little-endian, as every host of an NVIDIA GPU is. */"
    yield f"static const uint64_t tilec_image_{index}[] = {{"
    for offset in range(0, len(words), WORDS_PER_LINE):
        yield "    " + ", ".join(words[offset : offset + WORDS_PER_LINE]) + ","
    yield "};\n"
