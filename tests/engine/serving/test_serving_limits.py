"""What ends a request: sizes, full queues, clients that leave, errors, keys; health, metrics and logs. Without sockets."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from asking import CHAT, ask, chat, finished
from in_process import Received, Server, says, server

from engine.serving.beginning import EngineProcess
from engine.serving.client import EngineClient, EngineEnded, EngineRestarting
from engine.serving.options import ServerLimits
from engine.serving.protocol import Cancel, Load, Submit
from tilec.version import VERSION


def test_a_body_that_is_too_large(talker: Path) -> None:
    one = server(talker, says(talker, "x"), limits=ServerLimits(body_bytes=64))
    assert ask(one, "/v1/completions", b"", headers={"content-length": "65"}).error["code"] == "request_too_large"
    found = ask(one, "/v1/completions", pieces=[b" " * 40, b" " * 40, b"never read"])
    assert found.status == 413 and found.error["code"] == "request_too_large"


def test_a_full_queue(talker: Path) -> None:
    one = server(talker, lambda work: None, rows=2, most_waiting=1)

    async def run() -> tuple[Received, Received]:
        gone = asyncio.Event()
        asking = [asyncio.ensure_future(one.ask("/v1/completions", {"prompt": "a"}, gone=gone)) for _ in range(3)]
        while one.client.outstanding < 3:
            await asyncio.sleep(0)
        refused = await one.ask("/v1/completions", {"prompt": "a"})
        gone.set()
        await asyncio.gather(*asking)
        one.client.tokens = lambda work: [5]
        return refused, await one.ask("/v1/completions", {"prompt": "a", "max_tokens": 1})

    refused, later = finished(run())
    assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "queue_full", "1")
    assert later.status == 200


@pytest.mark.parametrize(("fields", "field"), [({"prompt": "a", "n": 4}, "n"), ({"prompt": ["a"] * 4}, "prompt")])
def test_more_choices_than_there_is_ever_room_for(talker: Path, fields: dict[str, Any], field: str) -> None:
    """Whoever tries again gets no further."""
    found = ask(server(talker, lambda work: None, rows=2, most_waiting=1), "/v1/completions", fields)
    assert (found.status, found.error["param"], found.headers.get("retry-after")) == (400, field, None)
    assert "4 generations, and at most 3" in found.error["message"] and "--max-waiting 1" in found.error["message"]
    fits = fields | ({"n": 3} if field == "n" else {"prompt": ["a"] * 3})
    assert ask(server(talker, lambda work: [5], rows=2, most_waiting=1), "/v1/completions", fits).status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_rows(talker: Path, stream: bool) -> None:
    one = server(talker, lambda work: None)

    async def run() -> None:
        gone = asyncio.Event()
        asking = asyncio.ensure_future(one.ask("/v1/chat/completions", CHAT | {"stream": stream, "n": 2}, gone=gone))
        while len(one.client.submitted) < 2:
            await asyncio.sleep(0)
        one.client.report({0: 5, 1: 6})
        await asyncio.sleep(0)
        gone.set()
        await asking

    finished(run())
    assert [message for message in one.client.sent if isinstance(message, Cancel)] == [Cancel(0), Cancel(1)]
    assert one.client.outstanding == 0
    assert 'request_success_total{finished_reason="abort",model_name="talker"} 2.0' in one.metrics.text().decode()


def test_a_client_that_leaves_before_its_stream_begins(talker: Path) -> None:
    one = server(talker, lambda work: None)

    async def run() -> None:
        gone = asyncio.Event()
        gone.set()
        await one.ask("/v1/chat/completions", CHAT | {"stream": True}, gone=gone)

    finished(run())
    assert one.client.submitted and one.client.outstanding == 0


def test_an_error_of_the_engine_in_the_middle(talker: Path) -> None:
    def fail(work: Submit) -> None:
        asyncio.get_running_loop().call_soon(one.client.report, {work.number: 5}, {work.number: "error: it broke"})

    one = server(talker, fail)
    found = chat(one)
    assert (found.status, found.error["code"], found.error["message"]) == (500, "engine_error", "it broke")
    stream = chat(one, stream=True)
    assert stream.status == 200 and stream.events[-1]["error"]["message"] == "it broke"


def test_a_request_that_takes_too_long(talker: Path) -> None:
    one = server(talker, lambda work: None, limits=ServerLimits(request_seconds=0.05))
    found = chat(one)
    assert (found.status, found.error["code"]) == (504, "request_timeout")
    assert chat(one, stream=True).events[-1]["error"]["code"] == "request_timeout"
    assert one.client.outstanding == 0


def test_a_comment_keeps_a_silent_stream_open(talker: Path) -> None:
    one = server(talker, lambda work: None, limits=ServerLimits(ping_seconds=0.01))

    async def run() -> Received:
        gone = asyncio.Event()

        def leave(piece: bytes) -> None:
            if piece == b": ping\n\n":
                gone.set()

        return await one.ask("/v1/completions", {"prompt": "a", "stream": True}, gone=gone, each=leave)

    received = finished(run())
    assert received.pieces[0] == b": ping\n\n" and not received.whole


def test_keys(talker: Path) -> None:
    one = server(talker, says(talker, "x"), keys=["right", "other"])
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "right"}, {"authorization": "Basic right"}):
        found = ask(one, "/v1/models", headers=headers)
        assert (found.status, found.error["code"], found.headers["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
        assert ask(one, "/tokenize", {"prompt": "a"}, headers=headers).status == 401
    for key in ("right", "other"):
        assert ask(one, "/v1/models", headers={"authorization": f"Bearer {key}"}).status == 200
    assert ask(one, "/health").status == ask(one, "/metrics").status == 200


def test_models_and_paths(speaker: Server) -> None:
    card = ask(speaker, "/v1/models").json["data"][0]
    assert (card["id"], card["object"], card["max_model_len"]) == ("talker", "model", 256)
    assert ask(speaker, "/v1/models/talker").json == card
    assert ask(speaker, "/v1/models/other").error["code"] == "model_not_found"
    assert ask(speaker, "/nothing").error["code"] == "not_found"
    for path, method, allowed in (("/v1/models", "POST", {"GET", "HEAD"}), ("/v1/completions", "GET", {"POST"})):
        refused = ask(speaker, path, method=method)
        assert refused.status == 405 and {*refused.headers["allow"].split(", ")} == allowed


def test_an_error_of_the_template_names_no_file(talker: Path, tmp_path: Path) -> None:
    """Where the model lies on the server is nothing for clients."""
    folder = tmp_path / "model"
    shutil.copytree(talker, folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content + 'x' }}", encoding="utf-8")
    one = server(folder, says(talker, "x"))
    asked = {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {}}]}]}
    for path in ("/v1/chat/completions", "/tokenize"):
        found = ask(one, path, asked)
        assert (found.status, found.error["param"]) == (400, "messages"), found.error
        assert "cannot render" in found.error["message"] and str(folder) not in found.error["message"]


def test_tokens_of_texts_and_texts_of_tokens(speaker: Server) -> None:
    found = ask(speaker, "/tokenize", {"prompt": "the sky"}).json
    assert found["tokens"] == speaker.model.text.encode("the sky") and found["count"] == len(found["tokens"])
    assert found["max_model_len"] == 256
    assert ask(speaker, "/detokenize", {"tokens": found["tokens"]}).json == {"prompt": "the sky"}
    ids = ask(speaker, "/tokenize", CHAT).json["tokens"]
    assert ask(speaker, "/detokenize", {"tokens": ids}).json["prompt"].startswith("<|im_start|>user\nWhy?<|im_end|>")
    assert ask(speaker, "/detokenize", {"tokens": [100_000]}).error["param"] == "tokens"
    assert ask(speaker, "/tokenize", {}).error["param"] == "prompt"


def test_health_fails_when_no_iteration_ends(talker: Path) -> None:
    one = server(talker, lambda work: None, limits=ServerLimits(stall_seconds=60))
    client = one.client

    async def run() -> list[int]:
        gone, found = asyncio.Event(), list[int]()

        async def health() -> None:
            found.append((await one.ask("/health")).status)

        client.now = 1000.0  # nothing to do is no stall
        await health()
        asking = asyncio.ensure_future(one.ask("/v1/completions", {"prompt": "a"}, gone=gone))
        while not client.submitted:
            await asyncio.sleep(0)
        client.now += 60
        await health()
        client.now += 1
        await health()
        client.report(running=1)
        await health()
        gone.set()
        await asking
        client.failure = RuntimeError("gone")  # type: ignore[assignment]
        await health()
        return found

    assert finished(run()) == [200, 200, 503, 200, 503]


def test_the_version_needs_no_key(talker: Path) -> None:
    found = ask(server(talker, says(talker, "x"), keys=["secret"]), "/version")
    assert (found.status, found.json) == (200, {"version": VERSION})


def test_metrics(talker: Path) -> None:
    one = server(talker, lambda work: None)
    client = one.client

    async def run() -> None:
        asking = asyncio.ensure_future(one.ask("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 2}))
        while not client.submitted:
            await asyncio.sleep(0)
        client.now = 2.0
        client.report(admitted=[0], prompt_tokens=1, running=1, waiting=4, used_pages=2, cached={0: 2})
        client.now = 3.0
        client.report({0: 5}, running=1, used_pages=2)
        client.now = 3.5
        client.report({0: 6}, {0: "length"})
        assert (await asking).json["usage"] == {
            "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2},
        }  # fmt: skip

    finished(run())
    found = {
        line.split(" ")[0].replace('model_name="talker"', "").replace("{}", "").replace(",}", "}"): float(line.split(" ")[1])
        for line in ask(one, "/metrics").pieces[0].decode().splitlines()
        if not line.startswith("#")
    }
    expected = {
        "prompt_tokens_total": 3, "generation_tokens_total": 2, 'request_success_total{finished_reason="length"}': 1,
        "time_to_first_token_seconds_sum": 3, "inter_token_latency_seconds_sum": 0.5, "e2e_request_latency_seconds_sum": 3.5,
        "request_queue_time_seconds_sum": 2, "request_prompt_tokens_sum": 3, "request_generation_tokens_sum": 2,
        "request_time_per_output_token_seconds_sum": 0.5, "num_requests_running": 0, "kv_cache_usage_perc": 0,
        "iteration_tokens_total_count": 3, "prefix_cache_queries_total": 3, "prefix_cache_hits_total": 2,
        "num_preemptions_total": 0, "request_prefill_time_seconds_sum": 1, "request_decode_time_seconds_sum": 0.5,
        "request_inference_time_seconds_sum": 1.5,
    }  # fmt: skip
    assert {name: found[f"vllm:{name}"] for name in expected} == expected


def test_requests_are_refused_while_the_model_is_loaded_again(talker: Path) -> None:
    """What was open got an error; what comes then may be tried again, and /health says why."""
    one = server(talker, lambda work: None)
    one.client.failure = EngineRestarting("the engine's process ended; the model is being loaded again")
    found = ask(one, "/v1/completions", {"prompt": "a"})
    assert (found.status, found.error["code"], found.headers["retry-after"]) == (503, "engine_restarting", "1")
    health = ask(one, "/health")
    assert health.status == 503 and "being loaded again" in health.error["message"]
    one.client.failure = None
    assert ask(one, "/health").status == 200


def test_an_engine_s_process_that_cannot_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as when there are too many processes: whoever waits for its end hears of it, and may try once more."""
    client = EngineClient(1)
    client.failure = EngineEnded("the engine's process ended")
    started = OSError(11, "Resource temporarily unavailable")
    monkeypatch.setattr(EngineProcess, "start", Mock(side_effect=started))

    async def run() -> None:
        client.ended.set()
        for _ in range(2):
            with pytest.raises(EngineEnded, match="cannot be started"):
                await client.restart(Load("model", "interpreter", 2, 256, 64))
            assert client.ended.is_set() and type(client.failure) is EngineEnded

    finished(run())


def test_logs_have_no_text_and_no_keys(talker: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = server(talker, says(talker, "a reply"), keys=["a secret"])
    ask(one, "/v1/completions", {"prompt": "a prompt"}, headers={"authorization": "Bearer a secret"})
    ask(one, "/v1/models", headers={"authorization": "Bearer nearly secret"})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["path"], line["status"]) for line in lines] == [
        ("request", "/v1/completions", 200), ("request", "/v1/models", 401),
    ]  # fmt: skip
    assert not any(word in str(lines) for word in ("secret", "prompt", "reply"))


def test_guesses_are_counted(speaker: Server) -> None:
    speaker.client.report(guessed=[2, 5, 2, 1, 0])
    speaker.client.report(guessed=[1, 1, 1, 0, 0])
    text = speaker.metrics.text().decode()
    names = {"num_drafts": 3, "num_draft_tokens": 6, "num_accepted_tokens": 4}
    assert all(f'vllm:spec_decode_{name}_total{{model_name="talker"}} {count}.0' in text for name, count in names.items())
    positions = [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{model_name="talker",position="{at}"}} {count}.0'
        for at, count in enumerate((3, 1, 0))
    ]
    assert all(one in text for one in positions)
