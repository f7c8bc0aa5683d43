"""Metrics in Prometheus' text form, under vLLM's names, so that dashboards for it work. Times are in seconds."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from engine.serving.client import Times, Watcher
from engine.serving.protocol import Report

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
STEP_SECONDS: Final = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
TOKENS: Final = tuple(1 << power for power in range(18))


class Metrics(Watcher):
    """The metrics of a server. `pages` of all caches are set once the model is loaded."""

    def __init__(self, model: str) -> None:
        self.pages = 0
        self._model = model
        self._registry = CollectorRegistry(auto_describe=True)
        self._running = self._gauge("num_requests_running", "Requests that decode, or whose prompt is computed.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for a row and memory.")
        self._usage = self._gauge("kv_cache_usage_perc", "Share of the cache's pages that requests have; 1 is all.")
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts that began, computed or found.")
        self._generated_tokens = self._counter("generation_tokens", "Tokens that were generated.")
        self._queries = self._counter("prefix_cache_queries", "Tokens of prompts that were looked up in the cache of prefixes.")
        self._hits = self._counter("prefix_cache_hits", "Tokens of prompts that the cache of prefixes had.")
        self._counter(
            "num_preemptions", "Requests that lost their memory: 0, since each has all that it may need from its begin."
        )
        self._drafts = self._counter("spec_decode_num_drafts", "Requests with guesses, counted in each step.")
        self._guesses = self._counter("spec_decode_num_draft_tokens", "Guesses of next tokens.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Guesses that were right.")
        self._accepted_by_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Guesses that were right, by their position in a step.",
            ("model_name", "position"), registry=self._registry,
        )  # fmt: skip
        self._success = Counter(
            "vllm:request_success", "Requests that ended.", ("model_name", "finished_reason"), registry=self._registry
        )
        self._first = self._histogram("time_to_first_token_seconds", "From a request to its first token.", SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", "From a token to the next.", STEP_SECONDS)
        self._of_output = self._histogram(
            "request_time_per_output_token_seconds", "Mean time between the tokens of a request.", STEP_SECONDS
        )
        self._whole = self._histogram("e2e_request_latency_seconds", "From a request to its last token.", SECONDS)
        self._queue = self._histogram("request_queue_time_seconds", "From a request to the begin of its prompt.", SECONDS)
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "From the begin of a prompt to its first token.", SECONDS
        )
        self._decode = self._histogram("request_decode_time_seconds", "From a request's first token to its last.", SECONDS)
        self._inference = self._histogram(
            "request_inference_time_seconds", "From the begin of a prompt to the request's last token.", SECONDS
        )
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a request's prompt.", TOKENS)
        self._generation = self._histogram("request_generation_tokens", "Tokens that a request generated.", TOKENS)
        self._iteration = self._histogram("iteration_tokens_total", "Tokens of an iteration, of a prompt or generated.", TOKENS)

    def text(self) -> bytes:
        """All metrics as Prometheus reads them."""
        return generate_latest(self._registry)

    def reported(self, report: Report) -> None:
        self._running.set(report.running)
        self._waiting.set(report.waiting)
        self._usage.set(report.used_pages / self.pages if self.pages else 0)
        generated = len(report.tokens) + sum(map(len, report.more.values()))
        self._generated_tokens.inc(generated)
        if report.prompt_tokens or generated:
            self._iteration.observe(report.prompt_tokens + generated)
        if report.guessed:
            drafts, guesses, *right = report.guessed
            self._drafts.inc(drafts)
            self._guesses.inc(guesses)
            self._accepted.inc(sum(right))
            for position, count in enumerate(right):
                self._accepted_by_position.labels(self._model, str(position)).inc(count)

    def admitted(self, times: Times) -> None:
        assert times.admitted is not None  # that is what happened
        self._queue.observe(times.admitted - times.submitted)
        self._prompt_tokens.inc(times.prompt)
        self._queries.inc(times.prompt)
        self._hits.inc(times.cached)

    def token(self, times: Times, now: float) -> None:
        if times.last is None:
            self._first.observe(now - times.submitted)
        else:
            self._between.observe(now - times.last)

    def ended(self, times: Times, now: float, reason: str) -> None:
        self._success.labels(self._model, reason).inc()
        if reason not in ("stop", "length"):
            return
        self._whole.observe(now - times.submitted)
        self._prompt.observe(times.prompt)
        self._generation.observe(times.generated)
        if times.admitted is not None and times.first is not None:
            self._prefill.observe(times.first - times.admitted)
            self._decode.observe((times.last or now) - times.first)
            self._inference.observe((times.last or now) - times.admitted)
        if times.first is not None and times.last is not None and times.generated > 1:
            self._of_output.observe((times.last - times.first) / (times.generated - 1))

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"vllm:{name}", what, ("model_name",), registry=self._registry).labels(self._model)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"vllm:{name}", what, ("model_name",), registry=self._registry).labels(self._model)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", what, ("model_name",), registry=self._registry, buckets=buckets).labels(self._model)
