"""The backends of two ranks on drivers that launch nothing, each in a thread: what they launch, in which order, and on what."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_gpus import Ranks, kernels_of, loaded, model_of, together

from engine.backends.backend import Backend
from engine.backends.cuda import CudaBackend
from engine.errors import BundleRefused, DeviceError
from engine.graph.integers import GraphError
from engine.models.qwen3_moe.config import Qwen3MoeConfig
from engine.paged_batch import PagedBatch
from engine.ranks import cuda as ranks_cuda
from engine.ranks.cuda import RankCuda
from engine.ranks.launches import PEER, SIGNAL
from engine.ranks.verify import verify_lasting
from engine.ranks.weights import rank_weights
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, Device, open_bundle
from tilec.step.collectives import COLLECTIVES

sys.path.append(str(Path(__file__).resolve().parents[2] / "runtime"))
from fake_driver import FakeDriver, argument_bytes

TOKENS = 300
"""Of a prompt whose products are those of many tokens."""
MIXTURE = Qwen3MoeConfig(
    hidden_size=2048, intermediate_size=6144, num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_hidden_layers=2,
    vocab_size=2048, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False, max_position_embeddings=40960,
    torch_dtype="bfloat16", num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
)  # fmt: skip
"""Qwen3 30B-A3B with two layers and a small vocabulary."""


def test_all_ranks_launch_the_same_and_meet_at_the_end_of_each_step(ranks: Ranks) -> None:
    launched: list[list[str]] = []
    for backend, driver in zip(ranks.backends, ranks.drivers, strict=True):
        first = len(driver.launches)
        sequence = backend.begin()
        for ids in ([1, 2, 3], [1] * TOKENS):
            backend.prefill(sequence, ids)
        next(backend.stream_tokens(sequence, 3, 1))
        backend.run_uncaptured(sequence, 3)
        launched.append([launch.function[1] for launch in driver.launches[first:]])
    assert launched[0] == launched[1]
    steps = " ".join(kernels_of(ranks.drivers[0], 0)).split("rank_meet")
    assert len(steps) == 5 and not steps[-1].strip(), "each of four steps ends with a meet, and nothing follows"
    assert "all_gather" in steps[0] and "all_reduce " in steps[1]
    assert steps[2].split() == steps[3].split() and steps[2].split().count("all_reduce_add_scaled") == 3
    meets = [launch.overlap for launch in ranks.drivers[0].launches if launch.function[1] == "rank_meet"]
    assert meets == [True, True, True, False], "but for the step without a graph, a meet waits by itself"


def test_collectives_read_the_memory_of_all_ranks_at_the_same_offsets(ranks: Ranks) -> None:
    step = ranks.backends[1].captured_step("argmax", ranks.backends[1].step.decode_variants(1))
    regions = ranks.backends[1]._shared.regions
    checked = 0
    for op, plan in zip(step.graph.ops, step.plans, strict=True):
        specs = plan.kernel.manifest.tensors
        if op.kernel in COLLECTIVES:
            for access in (PEER, SIGNAL):
                pointers = [plan.checked.views[spec.name].pointer for spec in specs if spec.access == access]
                offsets = {pointer - base for pointer, base in zip(pointers, regions[0].pointers, strict=True)}
                assert len(pointers) == 2 and len(offsets) == 1 and 0 <= offsets.pop() < regions[0].size
            assert plan.checked.scalars["rank"] == 1
            checked += 1
        else:
            assert not any(spec.access in (PEER, SIGNAL) for spec in specs)
    assert checked == 4
    arena, size = ranks.backends[1]._arena or (0, 0)
    signals = plan_of_meet(ranks.backends[1])
    assert arena == regions[0].pointers[1] and signals >= arena + size, "signals come after the activations"


def plan_of_meet(backend: RankCuda) -> int:
    """The address of the rank's own signals in its meet."""
    (plan,) = backend.ending()
    return plan.checked.views[f"signals_{backend.rank}"].pointer


def test_prompts_hand_the_peers_pointers_to_launches(ranks: Ranks) -> None:
    """A series has other numbers for each length, and the pointers of the largest chunk."""
    backend, driver = ranks.backends[0], ranks.drivers[0]
    region = backend._shared.regions[0]
    for tokens in (TOKENS, 2 * TOKENS):
        first = len(driver.launches)
        backend.prefill(backend.begin(), [1] * tokens)
        launch = next(one for one in driver.launches[first:] if one.function[1] == "all_reduce")
        kernel = next(one for one in backend.launches._kernels.values() if one.function == launch.function)
        slots = kernel.manifest.abi
        given = argument_bytes(launch, [8 if slot.kind == "pointer" else 4 for slot in slots])
        values = {slot.name: value for slot, value in zip(slots, given, strict=True)}
        own, peer = (int.from_bytes(values[name], "little") for name in ("x_0", "x_1"))
        assert own - region.pointers[0] == peer - region.pointers[1] and 0 <= own - region.pointers[0] < region.size
        assert int.from_bytes(values["rank"], "little") == 0
        assert backend._padded(tokens, 0) in {int.from_bytes(values[s.name], "little") for s in slots if s.kind == "dim"}


def test_a_batch_has_shared_memory_of_its_own(ranks: Ranks) -> None:
    steps = together(2, lambda rank: ranks.backends[rank].decode_steps(2))
    assert [len(backend._shared.regions) for backend in ranks.backends] == [2, 2]
    for backend, own in zip(ranks.backends, steps, strict=True):
        own.send([None, None])
        own.run("argmax", backend.step.decode_variants(1))
    names = [kernels_of(driver, 0) for driver in ranks.drivers]
    assert names[0] == names[1] and names[0][-1] == "rank_meet" and "all_reduce_add_scaled" in names[0]


def test_a_device_with_too_few_multiprocessors_is_refused(bundle: Bundle) -> None:
    """Blocks that wait for others would wait for blocks that cannot start."""
    errors = loaded(bundle, [FakeDriver(multiprocessors=63), FakeDriver(multiprocessors=63)])
    assert any(isinstance(one, DeviceError) and "63 multiprocessors, and ranks meet in 64 blocks" in str(one) for one in errors)


def test_bundles_for_another_number_of_gpus_are_refused(bundle: Bundle) -> None:
    config = model_of(bundle)
    alone = CudaBackend(bundle, Device(FakeDriver()))
    with pytest.raises(BundleRefused, match="of a step on 2 GPUs, and 1 GPU") as refused:
        alone.load(config, dummy_weights(config, "bf16"), 1024)
    assert "`tilec bundle pack --model NAME`" in str(refused.value) and "`--gpus 2`" in str(refused.value)
    alone.close()
    weights = rank_weights(config, "", 0, 4, dummy=0)
    with pytest.raises(BundleRefused, match=r"2 GPUs, and 4 GPUs .*`tilec bundle pack --model NAME --gpus 4`"):
        ranks_cuda.bundled_rank_step(bundle, config, weights, 1024, "bf16", "16bit", 4)


def test_memory_that_peers_still_read_is_not_planned_for_others(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan with lifetimes that end too early is refused before anything is launched."""
    from engine.graph import plan

    backend = ranks.backends[0]
    graph = backend.step.graph("decode", "logits")
    verify_lasting(graph, plan.plan_memory(graph))
    monkeypatch.setattr(plan, "read_by_peers", lambda graph, ranges: ranges)
    with pytest.raises(GraphError, match="lies where other ranks may still read"):
        backend.captured(graph, backend.own.buffers.allocations, backend._arena)  # pyright: ignore


@pytest.mark.campaign
def test_mixtures_compute_prompts_tokens_and_rows_over_pages(shipped_shared_mixture_bundle: Path) -> None:
    """Of all tiles of experts; each rank holds half of the experts' bytes."""
    drivers = [FakeDriver(devices=2) for _ in range(2)]
    with open_bundle(shipped_shared_mixture_bundle) as bundle:
        found = loaded(bundle, drivers, MIXTURE)
        assert all(isinstance(one, tuple) for one in found), found
        backends: list[Backend] = [backend for backend, _ in found]

        def work(rank: int) -> set[str]:
            backend, first = backends[rank], len(drivers[rank].launches)
            sequence = backend.begin()
            backend.prefill(sequence, list(range(20)))
            backend.prefill(backend.begin(), list(range(700)))
            next(iter(backend.stream_tokens(sequence, 1, 2)))
            with PagedBatch(backend, 8) as batch:
                batch.join(0, [1, 2], 0, list(range(70)))
                batch.step()
            return {launch.function[1].split("_E")[0] for launch in drivers[rank].launches[first:]}

        launched = together(2, work)
        assert launched[0] == launched[1], launched
        assert launched[0] >= {"experts_down", "experts_sum", "all_reduce", "all_reduce_add_scaled", "rank_meet"}
        for backend in backends:
            backend.close()
