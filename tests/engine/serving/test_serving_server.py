"""The server as a process on the loopback, on the tile interpreter: the `openai` package, clients that leave, a full queue,
SIGTERM, and the death of either process. Time limits only end tests that hang."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

ROOT = Path(__file__).resolve().parents[3]
HANG_SECONDS = 240
KEY = "a key"
LONG = {"prompt": "the sky", "max_tokens": 200, "temperature": 1, "seed": 5, "ignore_eos": True}


class Serving:
    """A running server: its process, its port, and the rest of its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.event()["event"] == "loading"
        self.ready = self.event()
        self.port: int = self.ready["port"]

    def event(self) -> Any:
        """The next line of the log."""
        assert self.process.stderr is not None
        return json.loads(self.process.stderr.readline())

    def until(self, name: str) -> Any:
        """The next line of the log with an event."""
        while (found := self.event())["event"] != name:
            pass
        return found

    def request(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_SECONDS)
        connection.request(method, path, json.dumps(body) if body else None, {"authorization": f"Bearer {KEY}"})
        return connection.getresponse()

    def gauge(self, name: str) -> float:
        text = self.request("GET", "/metrics").read().decode()
        found = re.search(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.MULTILINE)
        assert found, text
        return float(found[1])

    def wait_until_idle(self) -> None:
        """Until no request is left; each look takes an iteration of the server."""
        while self.gauge("num_requests_running") or self.gauge("num_requests_waiting"):
            pass

    def worker(self) -> int:
        """The process of the engine."""
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        return next(int(one) for one in tasks.split() if b"serving.worker" in Path(f"/proc/{one}/cmdline").read_bytes())


@contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "engine", "serve", str(folder), "--backend", "interpreter", "--port", "0", "--rows", "2"]
    environment = os.environ | {"TILEC_API_KEY": KEY}
    process = subprocess.Popen(
        [*command, "--max-seq-len", "256", *options], stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Serving]:
    with started(folder, *options) as process:
        yield Serving(process)


@pytest.fixture(scope="module")
def server(tiny: Path) -> Iterator[Serving]:
    with serving(tiny, "--max-waiting", "0", "--model-name", "tiny") as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=KEY, max_retries=0) as one:
        yield one


def test_openai_s_client(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    messages: Any = [{"role": "user", "content": "why is the sky blue"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=4, temperature=0.8, seed=3)
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=4, temperature=0.8, seed=3, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert whole.usage is not None and whole.usage == chunks[-1].usage and whole.usage.completion_tokens == 4
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content and whole.choices[0].finish_reason == "length"
    found = client.completions.create(model="tiny", prompt=["the sky", "a wheel"], max_tokens=2, temperature=0)
    assert [choice.index for choice in found.choices] == [0, 1]


def test_sampling_fields_of_openai_s_client(client: openai.OpenAI) -> None:
    """The engine's process draws by them: one allowed token, a bias that no other token reaches, probabilities of each."""
    messages: Any = [{"role": "user", "content": "x"}]
    chat = client.chat.completions.create(
        model="tiny", messages=messages, max_tokens=3, temperature=1, seed=1, logit_bias={"40": 100}, frequency_penalty=2,
        presence_penalty=1, logprobs=True, top_logprobs=4,
    )  # fmt: skip
    content = chat.choices[0].logprobs and chat.choices[0].logprobs.content
    assert content is not None and len(content) == 3
    assert len({one.token for one in content}) == 1 and [len(one.top_logprobs) for one in content] == [4] * 3
    assert all(one.logprob <= one.top_logprobs[0].logprob <= 0 for one in content)
    text = client.completions.create(
        model="tiny", prompt="the sky", max_tokens=4, temperature=1, logprobs=1,
        extra_body={"allowed_token_ids": [41], "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1},
    )  # fmt: skip
    found = text.choices[0].logprobs
    assert found is not None and found.tokens is not None and len(found.tokens) == 4 and len(set(found.tokens)) == 1


class Verdict(pydantic.BaseModel):
    """A form for texts."""

    model_config = pydantic.ConfigDict(extra="forbid")
    ok: bool


def test_forms_of_openai_s_client(client: openai.OpenAI) -> None:
    """A model with random weights writes what the schema says, and its generation ends with the text."""
    asked: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 150,
        "temperature": 1,
        "seed": 2,
    }
    parsed = client.chat.completions.parse(**asked, response_format=Verdict)
    choice = parsed.choices[0]
    assert choice.finish_reason == "stop" and isinstance(choice.message.parsed, Verdict)
    with client.chat.completions.stream(**asked, response_format=Verdict) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert (streamed.content, streamed.parsed) == (choice.message.content, choice.message.parsed)
    with pytest.raises(openai.BadRequestError, match="nonsense"):
        client.chat.completions.create(
            **asked,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}},
        )


@pytest.mark.campaign
def test_a_tool_of_openai_s_client_that_has_to_be_called(client: openai.OpenAI) -> None:
    asked: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 150,
        "temperature": 1,
        "seed": 2,
    }
    tool: Any = openai.pydantic_function_tool(Verdict, name="rate")
    called = client.chat.completions.create(**asked, tools=[tool], tool_choice="required", parallel_tool_calls=False)
    (call,) = called.choices[0].message.tool_calls or ()
    assert called.choices[0].finish_reason == "tool_calls" and call.type == "function" and call.function.name == "rate"
    Verdict.model_validate_json(call.function.arguments)


def test_errors_that_openai_s_client_names(server: Serving, client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=messages, extra_body={"bad_words": ["sky"]})
    assert refused.value.param == "bad_words" and refused.value.code == "unsupported_parameter"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=messages)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert server.request("POST", "/v1/completions").status == 400


def test_a_full_queue_and_clients_that_leave(server: Serving, client: openai.OpenAI) -> None:
    """Two streams take both rows, a third request is refused; when the streams are cut, their rows are free."""
    streams = [server.request("POST", "/v1/completions", LONG | {"stream": True}) for _ in range(2)]
    assert [stream.status for stream in streams] == [200, 200]
    with pytest.raises(openai.InternalServerError) as refused:
        client.completions.create(model="tiny", prompt="x", max_tokens=1)
    assert refused.value.code == "queue_full"
    for stream in streams:
        assert stream.readline().startswith(b"data: {")
        stream.close()
    server.wait_until_idle()
    assert server.gauge("kv_cache_usage_perc") == 0
    assert client.completions.create(model="tiny", prompt="x", max_tokens=1).usage is not None
    assert server.request("GET", "/health").status == 200


CLIENT = """
import http.client, json, sys
port, key, body = sys.argv[1:]
connection = http.client.HTTPConnection("127.0.0.1", int(port))
connection.request("POST", "/v1/completions", body, {"authorization": f"Bearer {key}"})
response = connection.getresponse()
print(response.readline().decode().strip(), flush=True)
response.read()
"""


def test_a_client_s_process_is_killed(server: Serving) -> None:
    """Its request ends, and its pages are free for the next one."""
    body = json.dumps(LONG | {"stream": True})
    process = subprocess.Popen([sys.executable, "-c", CLIENT, str(server.port), KEY, body], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().startswith("data: ")
    process.kill()
    process.wait(HANG_SECONDS)
    server.wait_until_idle()
    assert server.gauge("kv_cache_usage_perc") == 0
    assert server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200


def test_a_log_on_a_full_disk(tiny: Path) -> None:
    """Lines of the log are lost, and requests have what they asked for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "engine",
        "serve",
        str(tiny),
        "--backend",
        "interpreter",
        "--port",
        str(port),
        "--rows",
        "2",
    ]
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen([*command, "--max-seq-len", "256"], stderr=full, cwd=ROOT)
    try:
        status = 0
        while status != 200 and process.poll() is None:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_SECONDS)
            with suppress(ConnectionRefusedError):
                connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 2}))
                status = connection.getresponse().status
            connection.close()
        assert status == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == 0
    finally:
        process.kill()


def test_the_log_says_what_a_start_took(server: Serving) -> None:
    assert server.ready["engine_phases"].keys() == {"imports", "pages", "upload"}
    assert server.ready["server_phases"].keys() == {"engine_begun", "imports", "tokenizer", "loaded"}
    assert all(seconds >= 0 for seconds in server.ready["engine_phases"].values())


def test_sigterm_lets_streams_end(tiny: Path) -> None:
    with serving(tiny, "--drain-seconds", "300") as one:
        stream = one.request("POST", "/v1/completions", LONG | {"max_tokens": 6, "stream": True})
        first = stream.readline()
        one.process.send_signal(signal.SIGTERM)
        assert one.event()["event"] == "draining"
        body = (first + stream.read()).decode()
        assert body.endswith("data: [DONE]\n\n") and '"finish_reason":"length"' in body
        assert one.process.wait(HANG_SECONDS) == 0
        with pytest.raises(ConnectionRefusedError):
            one.request("GET", "/health")


@pytest.mark.parametrize(("seconds", "signals"), [("0", 1), ("300", 2)], ids=["time is over", "second signal"])
def test_a_stream_that_the_end_of_the_server_cuts_says_so(tiny: Path, seconds: str, signals: int) -> None:
    with serving(tiny, "--drain-seconds", seconds) as one:
        response = one.request("POST", "/v1/completions", LONG | {"stream": True})
        assert response.readline().startswith(b"data: ")
        one.process.send_signal(signal.SIGINT)
        assert one.event()["event"] == "draining"
        if signals == 2:
            one.process.send_signal(signal.SIGINT)
        events = [line.removeprefix("data: ") for line in response.read().decode().split("\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]" and "server ended" in json.loads(events[-2])["error"]["message"]
        assert one.process.wait(HANG_SECONDS) == 0
        assert one.process.stderr is not None and not any("Exception" in line for line in one.process.stderr)


def test_a_second_signal_waits_for_no_client_that_does_not_read(tiny: Path) -> None:
    with serving(tiny, "--drain-seconds", "3600") as one, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)
        client.connect(("127.0.0.1", one.port))
        client.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 400)  # ten megabytes
        time.sleep(2)  # until the server waits for the client; it passes also if it does not yet
        one.process.send_signal(signal.SIGTERM)
        assert one.event()["event"] == "draining"
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(HANG_SECONDS) == 0


def test_sigterm_while_the_model_is_loaded(tiny: Path) -> None:
    with started(tiny) as process:
        assert process.stderr is not None and "loading" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == 0
        assert "error" not in process.stderr.read()


def test_the_engine_s_process_is_killed(tiny: Path) -> None:
    """Streams get an error instead of an end that looks whole, the model is loaded again, and the same request then has the
    tokens that it has always. /health fails meanwhile. The second time the server ends, and its exit status says so."""
    short = LONG | {"max_tokens": 5}
    with serving(tiny, "--restarts", "1") as one:
        first = one.request("POST", "/v1/completions", short).read()
        stream = one.request("POST", "/v1/completions", LONG | {"stream": True})
        assert stream.readline().startswith(b"data: {")
        os.kill(one.worker(), signal.SIGKILL)
        assert b"the engine's process ended" in stream.read()
        event = one.until("engine_ended")
        assert (event["level"], event["restarts"]) == ("error", 0)
        health, refused = one.request("GET", "/health"), one.request("POST", "/v1/completions", short)
        if health.status != 200:  # unless the model was loaded that fast
            assert health.status == 503 and b"the model is being loaded again" in health.read()
        assert refused.status in (200, 503)
        assert one.until("restarted")["load_seconds"] > 0
        assert one.request("GET", "/health").status == 200
        again = one.request("POST", "/v1/completions", short).read()
        assert json.loads(again)["choices"] == json.loads(first)["choices"]
        assert one.gauge("num_requests_running") == 0
        os.kill(one.worker(), signal.SIGKILL)
        assert one.process.wait(HANG_SECONDS) == 6


def test_the_server_s_process_is_killed(tiny: Path) -> None:
    """The engine's process ends with it."""
    with serving(tiny) as one:
        worker = one.worker()
        descriptor = os.pidfd_open(worker)
        one.process.kill()
        assert select.select([descriptor], [], [], HANG_SECONDS)[0], "the engine goes on"
        os.close(descriptor)


def test_it_ends_with_one_line_if_it_cannot_start(tiny: Path, tmp_path: Path) -> None:
    def fails(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "engine", "serve", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=HANG_SECONDS)
        return done.returncode, done.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, error = fails(str(tiny), "--backend", "interpreter", "--port", str(port))
    assert code == 2 and re.fullmatch(r"error: cannot listen on 127.0.0.1 port \d+: .*; give another .*\n", error), error
    (tmp_path / "keys").write_text("\n", encoding="utf-8")
    code, error = fails(str(tiny), "--backend", "interpreter", "--api-key-file", str(tmp_path / "keys"))
    assert code == 2 and "there is no API key in it" in error and error.count("\n") == 1
    code, error = fails(str(tmp_path), "--backend", "interpreter")
    assert code == 3 and error.count("\n") == 1
    code, error = fails(str(tiny), "--backend", "interpreter", "--port", "0", "--max-seq-len", "100000")
    assert code == 2 and error.splitlines()[1:] == [
        "error: max-seq-len 100000 is not from 1 to 40960; the model supports no more positions"
    ]


def test_other_commands_import_nothing_of_it() -> None:
    packages = {"llguidance", "msgspec", "prometheus_client", "starlette", "uvicorn", "engine.serving"}
    code = f"import sys, engine.cli; print(sorted({packages} & {{*sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=HANG_SECONDS)
    assert done.stdout == "[]\n", done.stderr
