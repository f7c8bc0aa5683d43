"""Tensors as they come: not aligned, with gaps, repeated, empty, with infinite elements; and when ops are made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.library.interpreted import Array, interpreted, tensor
from tests.library.prebuilt import SOURCE, is_prebuilt
from tilec.kernels import ops, shapes
from tilec.kernels.source import reference_norms
from tilec.project.read.python_file import execute
from tilec.runtime import LaunchError

reference_attention: Any = execute(SOURCE / "reference_attention.py", "reference")


def moved(x: Any) -> Any:
    """The same elements, one element past the beginning of their memory."""
    storage = tensor(np.zeros(x.size + 1), x.dtype)
    storage[1:] = x.reshape(-1)
    return storage[1:].reshape(x.shape)


def _random(seed: int, *shape: int, dtype: Any = np.float16) -> Any:
    return tensor(np.random.default_rng(seed).normal(size=shape), dtype)


def _repeated(x: Any, *shape: int) -> Any:
    return np.broadcast_to(x, shape).view(Array)


def _permuted(use: Any, at: Location) -> Any:
    order, slots, _ = use.sort_by_expert(at(tensor([[1, 0], [0, 1], [1, 1]], np.int32)), 2)
    rows = use.moe_permute(at(_random(0, 3, 9)), at(order), at(slots))
    return use.moe_combine(at(rows), at(_random(1, 3, 2)), at(order), at(slots))


Location = Callable[[Any], Any]
CALLS: dict[str, Callable[[Any, Location], Any]] = {
    "softmax": lambda use, at: use.softmax(at(_random(0, 3, 40))),
    "long softmax": lambda use, at: use.softmax(at(_random(0, 2, 4104))),
    "layer_norm": lambda use, at: use.layer_norm(*(at(_random(0, *shape)) for shape in ((3, 40), (40,), (40,)))),
    "rms_norm": lambda use, at: use.rms_norm(at(_random(0, 3, 40)), at(_random(1, 40))),
    "group_norm": lambda use, at: use.group_norm(at(_random(0, 2, 6, 5)), 3, at(_random(1, 6)), at(_random(2, 6))),
    "cross_entropy": lambda use, at: use.cross_entropy(at(_random(0, 3, 40)), at(tensor([1, 2, 3], np.int64))),
    "swiglu": lambda use, at: use.swiglu(at(_random(0, 3, 7)), at(_random(1, 3, 7))),
    "gelu": lambda use, at: use.gelu(at(_random(0, 3, 7))),
    "dropout": lambda use, at: use.dropout(at(_random(0, 3, 7)), 0.5, 1),
    "sort": lambda use, at: use.sort(at(_random(0, 3, 40))),
    "long sort": lambda use, at: use.sort(at(_random(0, 1, 4104))),
    "topk": lambda use, at: use.topk(at(_random(0, 3, 40)), 8),
    "cumsum": lambda use, at: use.cumsum(at(_random(0, 3, 40))),
    "long cumsum": lambda use, at: use.cumsum(at(_random(0, 1, 16400))),
    "bincount": lambda use, at: use.bincount(at(tensor([1, 5, 2, 9, 1], np.int64)), 7),
    "histogram": lambda use, at: use.histogram(at(_random(0, 3, 40)), 9, -1.0, 1.0),
    "embedding": lambda use, at: use.embedding(at(tensor([1, 4, 0], np.int64)), at(_random(0, 5, 9))),
    "embedding_bag": lambda use, at: use.embedding_bag(
        at(tensor([1, 4, 0], np.int64)), at(_random(0, 5, 9)), at(tensor([0, 2], np.int64))
    ),
    "causal_conv1d": lambda use, at: use.causal_conv1d(at(_random(0, 2, 5, 3)), at(_random(1, 3, 4)), at(_random(2, 3))),
    "selective_scan": lambda use, at: use.selective_scan(
        *(at(_random(0, 2, 5, 3)) for _ in "ud"),
        at(_random(1, 3, 4, dtype=np.float32)),
        *(at(_random(2, 2, 5, 4)) for _ in "bc"),
        at(_random(3, 3, dtype=np.float32)),
    ),
    "max_pool2d": lambda use, at: use.max_pool2d(at(_random(0, 2, 5, 7)), 2),
    "avg_pool2d": lambda use, at: use.avg_pool2d(at(_random(0, 2, 5, 7)), 2),
    "conv2d": lambda use, at: use.conv2d(at(_random(0, 2, 3, 5, 7)), at(_random(1, 4, 3, 3, 2)), at(_random(2, 4)), 2, 1),
    "fft": lambda use, at: use.fft(at(_random(0, 2, 8, 2, dtype=np.float32))),
    "moe_route": lambda use, at: use.moe_route(at(_random(0, 3, 9)), 2),
    "moe_permute": lambda use, at: _permuted(use, at),
    "rope": lambda use, at: use.rope(at(_random(0, 2, 3, 2, 64)), *(at(_random(1, 3, 32, dtype=np.float32)) for _ in "cs")),
    "attention": lambda use, at: use.attention(*(at(_random(seed, 1, 5, 2, 64)) for seed in range(3)), causal=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_tensors_that_are_not_aligned_are_copied(name: str) -> None:
    with interpreted() as library:
        aligned, other = (CALLS[name](library.module, at) for at in (np.asanyarray, moved))
        assert library.calls and all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_array_equal(aligned, other)


def test_a_tensor_is_copied_only_if_it_has_to_be() -> None:
    x = _random(0, 4, 8)
    assert shapes.whole(x) is x and shapes.whole(x[2:]).base is x
    others: Any = (moved(x), x[:, ::2], _repeated(x[0], 4, 8))
    for other in others:
        found = shapes.whole(other)
        assert found.is_contiguous() and found.storage_offset() == 0
        np.testing.assert_array_equal(found, other)


def test_dynamo_traces_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "_traced", lambda: True)
    monkeypatch.delattr("tests.library.interpreted.Array.storage_offset")
    x = moved(_random(0, 4, 8))
    assert shapes.whole(x) is x


def test_a_gradient_that_is_one_repeated_number() -> None:
    """As that of `sum` is."""
    x = _random(0, 3, 40, dtype=np.float32)
    repeated = _repeated(np.float32(1), 3, 40)
    with interpreted() as library:
        found = library.gradient("softmax", (x,), library.module.softmax(x), repeated)
        loss = library.ops["cross_entropy"](x, labels := tensor([1, 2, 3], np.int32), -100)
        dlogits, *_ = library.gradient("cross_entropy", (x, labels, -100), loss, repeated[:, 0], None)
    np.testing.assert_allclose(found, 0, atol=1e-7)
    np.testing.assert_allclose(dlogits.sum(axis=1), 0, atol=1e-6)


def test_what_is_written_is_aligned() -> None:
    p, g, m, v = (tensor(np.ones(8), np.float32) for _ in range(4))
    with interpreted() as library, pytest.raises(ValueError, match="`m` does not begin at a multiple of 16 bytes"):
        library.module.adamw_(p, g, moved(m), v, 1)
    with interpreted() as library:
        library.module.adamw_(p, moved(g), m, v, 1)
    assert (p != 1).all()


def test_tensors_of_two_dtypes_are_refused() -> None:
    x, wide = _random(0, 3, 40), _random(1, 40, dtype=np.float32)
    with interpreted() as library:
        for function, others in (("rms_norm", (wide,)), ("layer_norm", (wide, wide)), ("swiglu", (x.astype(np.float32),))):
            with pytest.raises(LaunchError, match=r"E0904.*`(weight|up)`[^`]*`f32`[^`]*`f16`, as `E` is of `(x|gate)`"):
                getattr(library.module, function)(x, *others)
    with interpreted() as library, pytest.raises(ValueError, match="`k` is float32; attention takes bfloat16 or float16"):
        library.module.attention(_random(0, 1, 2, 1, 64), *(_random(0, 1, 2, 1, 64, dtype=np.float32) for _ in "kv"))


@pytest.mark.parametrize("tokens", [(0, 5), (5, 0), (0, 0)])
def test_attention_of_nothing_is_zero(tokens: tuple[int, int]) -> None:
    q, k, v = (_random(0, 2, count, 4, 64) for count in (tokens[0], tokens[1], tokens[1]))
    with interpreted() as library:
        found = library.module.attention(q, k, v)
        assert found.shape == q.shape and not found.any() and found.dtype == q.dtype
        with pytest.raises(ValueError, match="`q` has 4 heads"):
            library.module.attention(q, k[:, :, :0], v[:, :, :0])


@pytest.mark.parametrize("size", [64, 128])
def test_attention_and_its_gradients(size: int) -> None:
    """Of strided tensors, as projections leave them, with groups of heads."""
    joined = _random(0, 2, 9, 8, size)
    q, k, v = joined[:, :, :4], joined[:, :, 4:6], joined[:, :, 6:]
    dout = _random(1, 2, 9, 4, size)
    grouped = q.unflatten(2, (2, 2))
    exact = [np.asarray(one, np.float64) for one in (grouped, k, v)]
    visible = {"before": 1 << 24, "after": 0, "scale": size**-0.5}
    wanted, lse = reference_attention.attention(*exact, **visible)
    slopes = np.asarray(dout.unflatten(2, (2, 2)), np.float64)
    rows = reference_attention.attention_rows(wanted, slopes, lse)
    expected = (
        reference_attention.attention_backward_q(*exact, slopes, rows, **visible),
        *reference_attention.attention_backward_kv(*exact, slopes, rows, **visible),
    )
    with interpreted() as library:
        out = library.module.attention(q, k, v, causal=True)
        inputs = (grouped, k, v, 1 << 24, 0, size**-0.5)
        found = library.gradient("attention", inputs, library.ops["attention"](*inputs), dout.unflatten(2, (2, 2)), None)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_allclose(out.unflatten(2, (2, 2)).astype(np.float64), wanted, atol=4e-3)
    assert found[3:] == (None, None, None)
    for one, truth in zip(found, expected, strict=False):
        np.testing.assert_allclose(one.astype(np.float64), truth, atol=2e-2)


INFINITE = [
    [-np.inf, 0, 1, 2], [-np.inf] * 4, [np.inf, 0, 1, 2], [np.nan, 0, 1, 2], [-3.4e38] * 4, [3.4e38, -3.4e38, 0, -np.inf],
    [np.finfo(np.float32).min] * 4,
]  # fmt: skip


@pytest.mark.parametrize("length", [4, 4104])
def test_softmax_of_rows_at_the_edges_of_numbers(length: int) -> None:
    """All -inf, and a row with inf or NaN, give NaN, as in PyTorch; the least finite number, as masks have, does not."""
    x = tensor(np.repeat(np.array(INFINITE), length // 4, axis=1), np.float32)
    with interpreted() as library, np.errstate(all="ignore"):
        found = library.module.softmax(x)
        wanted = reference_norms.softmax(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert np.isnan(found).all(axis=1).tolist() == [False, True, True, True, False, False, False]


def test_cross_entropy_at_the_edges_of_numbers() -> None:
    x = tensor([[-np.inf, 0, 1, 2], [-np.inf] * 4, [np.inf, 0, 1, 2], [np.nan, 0, 1, 2], [-3.4e38, 0, 0, 0]], np.float32)
    with interpreted() as library, np.errstate(all="ignore"):
        loss = library.module.cross_entropy(x, tensor([1] * 5, np.int64), reduction="none")
        masked = library.module.cross_entropy(x, tensor([0] * 5, np.int32), reduction="none")
    np.testing.assert_allclose(loss[[0, 4]], [np.log(1 + np.e + np.e**2), np.log(3)], rtol=1e-6)
    assert np.isnan(loss[1:4]).all() and np.isnan(masked[1:4]).all() and np.isposinf(masked[0]) and masked[4] > 3e38


def test_a_dropped_element_is_zero_whatever_it_was() -> None:
    x = tensor([np.inf, np.nan, 1, -np.inf], np.float32)
    with interpreted() as library:
        assert library.module.dropout(x, 1.0, 3).tolist() == [0] * 4
        assert library.module.dropout(x[:1].reshape(()), 1.0, 3) == 0


def test_ops_are_made_when_the_library_is_imported_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that none is made while Dynamo traces; without PyTorch, Dynamo calls the function that makes it."""
    made: list[str] = []

    def op(path: Any, **_: Any) -> Any:
        made.append(path.stem)
        return object()

    monkeypatch.setattr(ops.tilec, "op", op)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    first = ops.library_op("gelu")
    assert made == ["gelu"] and first() is first() and made == ["gelu"]
    monkeypatch.delitem(sys.modules, "torch")
    later = ops.library_op("swiglu")
    assert made == ["gelu"] and getattr(later, ops.CALLED)
    assert later() is later() and made == ["gelu", "swiglu"]
