"""Formats of caches: what a step launches for each, with weights in any format, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.shipped import ROOT
from tilec.project.read.buildfile import read_build_file
from tilec.project.read.closed_world import default_entries, enumerate_world
from tilec.step.expressions import StepError
from tilec.step.graph import Kind, View
from tilec.step.reader import decode_declaration, read_declaration
from tilec.step.step import Step

TEXT = """
formats = {"fp8": scaled(f8e4m3, [128, 128])}
caches = {"fp8": coded(f8e4m3)}
slots = max_seq_len
weights = {"model.layers.*.up.weight": linear([width, width])}
buffers = {
    "x": input(dtype, [tokens, width]),
    "k_cache.*": cache(dtype, [slots, 2, width]),
    "state": cache(dtype, [slots, width]),
    "counts": cache(f32, [slots, width]),
    "k_pages.*": pool(dtype, [pages, 16, 2, width]),
    "chunk.k_cache": cache(dtype, [slots, 2, width]),
    "chunk.table": input(i32, [slots // 16], low=0, high=pages),
    "layers.*.y": activation(dtype, [tokens, width]),
}


def decode():
    for layer in layers:
        up = product(E=dtype, x=x, w=up, out=y)
        attend = attend(E=dtype, q=y, k_cache=k_cache[1, slots, 2, width], counts=counts)
    keep = keep(x=x, state=state)


def prefill():
    for layer in layers:
        up = matmul(a=x, b=dequantised(up), out=y)
        store = store(y=y, k_cache=k_cache)
        attend = flash(E=dtype, q=y, keys=dequantised(k_cache[1, slots, 2, width]), past=past)


def chunk():
    for layer in layers:
        up = product(E=dtype, x=x, w=up, out=y)
        store = store(y=y, k_cache=k_pages[pages * 16, 2, width])
        gather = gather(k_pages=k_pages, table=chunk.table, k_cache=chunk.k_cache, filled=past + tokens)
        attend = flash(E=dtype, q=y, keys=chunk.k_cache, past=past)
"""
NUMBERS = {"width": 128, "num_hidden_layers": 2}


def model(text: str = TEXT, cache_format: str = "fp8", **formats: Any) -> Step:
    return Step(
        read_declaration(text), NUMBERS, tied=False, dtype="f16", max_seq_len=64, cache_format=cache_format, **formats
    )  # fmt: skip


def test_a_cache_is_codes_and_scales() -> None:
    graph = model().graph("decode")
    caches = {buffer.name: (buffer.dtype, buffer.shape) for buffer in graph.of_kind(Kind.CACHE)}
    assert caches == {
        "k_cache.0": ("f8e4m3", (64, 2, 128)), "k_cache_scales.0": ("f32", (64, 2)),
        "k_cache.1": ("f8e4m3", (64, 2, 128)), "k_cache_scales.1": ("f32", (64, 2)),
        "state": ("f8e4m3", (64, 128)), "state_scales": ("f32", (64,)), "counts": ("f32", (64, 128)),
    }  # fmt: skip
    ops = {op.name: op for op in graph.ops}
    attend = ops["layers.1.attend"]
    assert (attend.kernel, attend.constants) == ("attend_c8", {"E": "f16"})
    assert attend.tensors["k_cache"] == View("k_cache.1", (1, 64, 2, 128))
    assert attend.tensors["k_scales"] == View("k_cache_scales.1", (1, 64, 2))
    assert ops["keep"].kernel == "keep_c8" and ops["keep"].tensors["state_scales"].buffer == "state_scales"
    assert ops["layers.0.up"].kernel == "product"


def test_a_prompt_takes_what_a_launch_before_dequantised() -> None:
    graph = model().graph("prefill", tokens=5, past=7)
    names = [op.name.removeprefix("layers.1.") for op in graph.ops][-4:]
    assert names == ["up", "store", "attend_dequantise_keys", "attend"]
    *_, store, dequantise, attend = graph.ops
    assert store.kernel == "store_c8" and store.tensors["k_scales"].buffer == "k_cache_scales.1"
    assert (dequantise.kernel, dequantise.constants, dequantise.scalars) == (
        "dequantise_c8", {"E": "f16", "D": 128}, {"filled": 12},
    )  # fmt: skip
    assert {name: view.buffer for name, view in dequantise.tensors.items()} == {
        "cache": "k_cache.1", "scales": "k_cache_scales.1", "out": "k_cache.16bit",
    }  # fmt: skip
    assert attend.kernel == "flash" and attend.tensors["keys"] == View("k_cache.16bit", (1, 64, 2, 128))
    shared = graph.buffers["k_cache.16bit"]
    assert (shared.dtype, shared.shape, shared.kind) == ("f16", (64, 2, 128), Kind.CACHE)


def test_pages_are_codes_and_scales_and_what_is_taken_from_them_has_16_bits() -> None:
    graph = model().with_pages(9).graph("chunk", tokens=5, past=7)
    pools = {buffer.name: (buffer.dtype, buffer.shape) for buffer in graph.of_kind(Kind.POOL)}
    assert pools == {
        name: found
        for layer in range(2)
        for name, found in (
            (f"k_pages.{layer}", ("f8e4m3", (9, 16, 2, 128))), (f"k_pages_scales.{layer}", ("f32", (9, 16, 2))),
        )
    }  # fmt: skip
    assert {buffer.name: buffer.dtype for buffer in graph.of_kind(Kind.CACHE)} == {"chunk.k_cache": "f16"}
    *_, store, gather, attend = graph.ops
    assert (store.kernel, gather.kernel, attend.kernel) == ("store_c8", "gather_c8", "flash")
    assert store.tensors["k_cache"] == View("k_pages.1", (144, 2, 128))
    assert store.tensors["k_scales"] == View("k_pages_scales.1", (144, 2))
    assert gather.tensors["k_pages"].buffer == "k_pages.1" and gather.tensors["k_cache"].buffer == "chunk.k_cache"
    assert gather.tensors["k_scales"] == View("k_pages_scales.1", (9, 16, 2))
    assert attend.tensors["keys"] == View("chunk.k_cache", (64, 2, 128))


def test_weights_and_caches_have_formats_of_their_own() -> None:
    both = model(weight_format="fp8").graph("decode")
    ops = {op.name: op for op in both.ops}
    assert (ops["layers.0.up"].kernel, ops["layers.0.attend"].kernel) == ("product_fp8", "attend_c8")
    plain = model(cache_format="16bit").graph("prefill", tokens=3)
    assert [op.kernel for op in plain.ops][:3] == ["matmul", "store", "flash"]
    assert plain.ops[2].tensors["keys"] == View("k_cache.0", (1, 64, 2, 128))
    syntax = read_declaration(TEXT).syntax
    assert decode_declaration(syntax).caches.keys() == {"fp8"}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("coded(f8e4m3)", "coded(f8e5m2)", "`fp8` is not a format of caches, as `coded(f8e4m3)`"),
        ("coded(f8e4m3)", "scaled(f8e4m3, [128, 128])", "`fp8` is not a format of caches"),
        ('"counts": cache(f32, [slots, width])', '"state_scales": cache(f32, [slots])', "`state_scales` is there, and is"),
        ("cache(dtype, [slots, width])", "cache(dtype, [slots])", "`state` has no rows of elements, as a cache in `fp8`"),
        ("b=dequantised(up)", "b=dequantised(x)", "`x` is not a weight of a linear layer, nor a cache"),
        ("keys=dequantised(k_cache", "keys=dequantised(counts", "is not a weight of a linear layer, nor a cache"),
    ],
)  # fmt: skip
def test_a_wrong_text_is_refused(old: str, new: str, problem: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(StepError) as caught:
        model(TEXT.replace(old, new))
    assert problem in str(caught.value)


def test_a_format_that_a_step_lacks_is_refused() -> None:
    with pytest.raises(StepError, match="the step has no caches in `int8`, only in `16bit`, `fp8`"):
        model(cache_format="int8")
    with pytest.raises(StepError, match=r"only in `16bit`$"):
        model(TEXT.replace('caches = {"fp8": coded(f8e4m3)}\n', ""))


def test_the_default_build_has_no_kernel_of_a_coded_cache() -> None:
    build = read_build_file(ROOT / "build.toml")
    plain, coded = enumerate_world(build), enumerate_world(build, caches=("fp8",))
    assert not plain.problems and not coded.problems
    assert not any(entry.name.endswith("_c8") for entry in default_entries(build, plain))
    by_default, with_codes = ({entry.name for entry in default_entries(build, world)} for world in (plain, coded))
    added = with_codes - by_default
    of_pages = {"paged_decode_attention_c8", "paged_gather_c8"}  # which a bundle's build adds, as those of 16 bits
    assert added | of_pages == {path.stem for path in (ROOT / "kernels_src").glob("*_c8.py")} and not added & of_pages
    assert of_pages <= {use.kernel for use in coded.uses} and not of_pages & {use.kernel for use in plain.uses}
    assert {use.cache for use in coded.uses} == {"fp8"} and {use.weights for use in coded.uses} == {"16bit"}


def test_models_name_formats_and_bundles() -> None:
    model_of = {one.name: one for one in read_build_file(Path(ROOT / "build.toml")).models}["qwen3-4b"]
    assert [name for name, *_ in model_of.bundles()] == [
        f"qwen3-4b{weights}{cache}{gpus}"
        for weights in ("", "-fp8", "-w8a8", "-int4", "-fp8_head", "-int4_head")
        for cache in ("", "-cache-fp8")
        for gpus in ("", "-2-gpus")
    ]
