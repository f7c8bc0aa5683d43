"""The loop and the server with a tiny mixture of experts whose weights have four bits, and with pages of eight bits: the same
tokens at any load."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_serving_loop import loaded, opened, prompt, run
from test_serving_server import HANG_SECONDS, KEY, serving, started
from tiny_formats import tiny_in_format

from engine.backends.interpreter import InterpreterBackend
from engine.paged_batch import PagedBatch
from engine.sampling import SamplingParams
from engine.serving.protocol import Submit

WORKS = [
    Submit(0, prompt(0, 70), 3, sampling=SamplingParams(0.9, 20, 0.95, seed=11)),  # two chunks
    Submit(1, prompt(1, 5), 3),
    Submit(2, prompt(0, 70), 3, sampling=SamplingParams(0.9, 20, 0.95, seed=11)),  # its first page is found
]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_in_format(tmp_path_factory.mktemp("mixture"), "int4", family="qwen3_moe")


@pytest.fixture(scope="module")
def backend(mixture: Path) -> Iterator[InterpreterBackend]:
    one = loaded(mixture)
    yield one
    one.close()


def test_tokens_do_not_depend_on_other_requests(backend: InterpreterBackend) -> None:
    assert PagedBatch.serves(backend)
    found: list[list[int]] = []
    for work in WORKS[:2]:
        loop = opened(backend, "pages")
        found.append(run(loop, work)[0][work.number])
        loop.close()
    loop = opened(backend, "pages", rows=20)  # in another bucket
    together, ended = run(loop, *WORKS)
    loop.close()
    assert together == {0: found[0], 1: found[1], 2: found[0]}
    assert ended == dict.fromkeys(range(3), "length")


def test_the_server_reads_the_folder_and_finds_pages(mixture: Path) -> None:
    body = {"prompt": prompt(0, 70), "max_tokens": 2, "temperature": 0}
    with serving(mixture) as server:
        found: list[Any] = []
        for _ in range(2):
            response = server.request("POST", "/v1/completions", body)
            found.append(json.loads(response.read()))
            assert response.status == 200, found
    first, second = found
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert "prompt_tokens_details" not in first["usage"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


def test_the_server_has_pages_of_codes_and_says_so(tiny: Path) -> None:
    """With guesses, which give the tokens without them; the second request finds the first page of the first."""
    ids = prompt(0, 30) * 3
    body = {"prompt": ids, "max_tokens": 4, "temperature": 0}
    texts: list[str] = []
    for options in (("--cache", "fp8"), ("--cache", "fp8", "--speculate", "ngram:2")):
        with started(tiny, *options) as process:
            assert process.stderr is not None
            loading, ready = (json.loads(process.stderr.readline()) for _ in range(2))
            assert (loading["event"], ready["event"], ready["cache"]) == ("loading", "ready", "fp8")
            assert ready["tokens"] == ready["pages"] * ready["page_tokens"] >= 2 * 256
            for cached in (0, 64):
                connection = http.client.HTTPConnection("127.0.0.1", ready["port"], timeout=HANG_SECONDS)
                connection.request("POST", "/v1/completions", json.dumps(body), {"authorization": f"Bearer {KEY}"})
                found = json.loads(connection.getresponse().read())
                texts.append(found["choices"][0]["text"])
                details = found["usage"].get("prompt_tokens_details") or {"cached_tokens": 0}
                assert details["cached_tokens"] == cached
    assert len(set(texts)) == 1
