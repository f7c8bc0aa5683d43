"""`LLM` and `AsyncLLM` on the tile interpreter: the generations of `Engine`, in the order of the prompts."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from engine.errors import EngineError, UsageError
from engine.sampling import SamplingParams
from engine.serving.client import EngineEnded
from engine.serving.llm import LLM, AsyncLLM
from engine.serving.protocol import Load

PROMPTS = ["the sky is", "a kernel", "why does the wheel"]
SAMPLED = SamplingParams(0.8, 20, 0.9, seed=4)
HANG_SECONDS = 240


@pytest.fixture(scope="module")
def llm(tiny: Path) -> LLM:
    return LLM.from_pretrained(tiny, rows=2, backend="interpreter", max_seq_len=64)


def test_generations_are_in_the_order_of_the_prompts(llm: LLM) -> None:
    sampling = [None, SAMPLED, SAMPLED]
    together = llm.generate(PROMPTS, max_tokens=4, sampling=sampling)
    assert [llm.generate([PROMPTS[2]], max_tokens=4, sampling=SAMPLED)[0]] == together[2:]
    for prompt, found in zip(PROMPTS, together, strict=True):
        assert found.finish_reason == "length" and len(found.ids) == 4
        assert found.prompt_tokens == len(llm._engine.tokens(prompt))  # pyright: ignore[reportPrivateUsage]
    assert together[0].text and len({found.text for found in together}) == 3


def test_a_stop_string(llm: LLM) -> None:
    (whole,) = llm.generate(PROMPTS[:1], max_tokens=6)
    stop = whole.text[1:3]
    (found,) = llm.generate(PROMPTS[:1], max_tokens=6, stop=stop)
    assert (found.text, found.finish_reason) == (whole.text[: whole.text.index(stop)], "stop")
    assert len(found.ids) <= len(whole.ids)


def test_what_does_not_fit(llm: LLM) -> None:
    with pytest.raises(UsageError, match="do not fit max-seq-len 64"):
        llm.generate(["fits", "sky " * 100])
    with pytest.raises(UsageError, match="3 prompts and 2 sampling parameters"):
        llm.generate(PROMPTS, sampling=[None, None])
    with pytest.raises(UsageError, match="max-tokens is 0"):
        llm.generate(PROMPTS, max_tokens=0)
    assert llm.generate([]) == []
    (found,) = llm.generate(["the sky is " * 15], max_tokens=1000)
    assert found.finish_reason == "length" and found.prompt_tokens + len(found.ids) == 64


@pytest.mark.parametrize("method", ["compute", "step", "remove"])
def test_ctrl_c_in_the_middle_of_a_step(llm: LLM, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """It ends the generations, and later ones are as before."""
    expected = llm.generate(PROMPTS, max_tokens=3)
    rows: Any = llm._loop._rows  # pyright: ignore[reportPrivateUsage]
    original = getattr(rows, method)

    def interrupted(*values: Any, **options: Any) -> Any:
        found = original(*values, **options)
        signal.raise_signal(signal.SIGINT)
        return found

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(rows, method, interrupted)
        llm.generate(PROMPTS, max_tokens=3)
    assert llm.generate(PROMPTS, max_tokens=3) == expected


def test_one_text_is_not_a_list_of_prompts(llm: LLM) -> None:
    with pytest.raises(UsageError, match="one text"):
        llm.generate("the sky")


def test_a_closed_one_says_so(tiny: Path) -> None:
    one = LLM.from_pretrained(tiny, rows=2, backend="interpreter", max_seq_len=64)
    one.close()
    one.close()
    with pytest.raises(UsageError, match="the engine is closed"):
        one.generate(PROMPTS)


def test_a_stream_from_a_process(llm: LLM, tiny: Path) -> None:
    async def run() -> list[str]:
        async with AsyncLLM(Load(str(tiny), "interpreter", 2, 64, 16)) as one:
            ids = [one.text.raw(prompt) for prompt in PROMPTS]

            async def text(number: int) -> str:
                return "".join([piece async for piece in one.stream(ids[number], max_tokens=4, sampling=SAMPLED)])

            texts = list(await asyncio.gather(*map(text, range(3))))
            stream = one.stream(ids[0], max_tokens=50)
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            assert one._client.outstanding == 0  # pyright: ignore[reportPrivateUsage]
            with pytest.raises(UsageError, match="do not fit"):
                await anext(one.stream([1] * 64))
            process = one._client._process  # pyright: ignore[reportPrivateUsage]
            assert process is not None
            process.kill()
            with pytest.raises(EngineEnded):
                await anext(one.stream(ids[0], max_tokens=50))
            return texts

    texts = asyncio.run(asyncio.wait_for(run(), HANG_SECONDS))
    assert texts == [found.text for found in llm.generate(PROMPTS, max_tokens=4, sampling=SAMPLED)]


def test_a_model_that_cannot_be_loaded(tmp_path: Path, tiny: Path) -> None:
    async def run(load: Load) -> None:
        async with AsyncLLM(load):
            pass

    with pytest.raises(UsageError, match="max-seq-len 0"):
        asyncio.run(asyncio.wait_for(run(Load(str(tiny), "interpreter", 2, 0, 16)), HANG_SECONDS))
    with pytest.raises(EngineError):
        LLM.from_pretrained(tiny, rows=257, backend="interpreter", max_seq_len=64)
