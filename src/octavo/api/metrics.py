"""Prometheus series of one API process, under the names that vLLM's dashboards know.

Everything about requests is observed once, from the request's record at its end, so that counts agree.
Label values come from closed sets: a client cannot make a series. Gauges are read at scrape time.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.api.client import EngineClient
from octavo.api.records import RequestLog
from octavo.api.series import Histogram, Registry, Snapshot, Value

_FAST_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
)
_TTFT_S = (*_FAST_S, 640, 2560)
_GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LONG_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)

_TIMES = {
    "time_to_first_token_seconds": (_TTFT_S, "arrival to first token"),
    "inter_token_latency_seconds": (_GAP_S, "gap between pieces of output"),
    "request_time_per_output_token_seconds": (_GAP_S, "mean time per token after the first"),
    "e2e_request_latency_seconds": (_LONG_S, "arrival to end"),
    "request_queue_time_seconds": (_LONG_S, "queued to first scheduled"),
    "request_inference_time_seconds": (_LONG_S, "first scheduled to end"),
    "request_prefill_time_seconds": (_LONG_S, "first scheduled to first token"),
    "request_decode_time_seconds": (_LONG_S, "first token to end"),
}
_SIZES = {
    "request_prompt_tokens": "prompt tokens of a request",
    "request_generation_tokens": "generated tokens of a request",
    "request_max_num_generation_tokens": "generated tokens of the longest of n choices",
    "request_params_max_tokens": "max_tokens of a request",
    "request_prefill_kv_computed_tokens": "prompt tokens that were computed, not taken from the cache",
}
_COUNTS = {
    "prompt_tokens": "prompt tokens of finished requests",
    "prompt_tokens_cached": "prompt tokens taken from the prefix cache",
    "generation_tokens": "generated tokens of finished requests",
}
REASONS = ("stop", "length", "abort", "error", "repetition")
_UNCOUNTED = frozenset(
    {"/health", "/load", "/metrics", "/ping", "/server_info", "/version"}
)  # probes, not work
METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})


def size_buckets(max_value: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... up to `max_value`."""
    buckets: list[int] = []
    base = 1
    while True:
        for m in (1, 2, 5):
            if m * base > max_value:
                return buckets or [1]
            buckets.append(m * base)
        base *= 10


_HTTP = ("http_requests", "HTTP requests")
_WAITS = ("capacity", "deferred")
# Counters of the engine, by the attribute of EngineStats.
_ENGINE_COUNTS = {
    "prefix_queries": ("vllm:prefix_cache_queries", "prompt tokens looked up"),
    "prefix_hits": ("vllm:prefix_cache_hits", "prompt tokens found"),
    "preemptions": ("vllm:num_preemptions", "preemptions"),
    "recomputed_tokens": ("octavo:recomputed_tokens", "computed again after preemption; never hits"),
    "grammars_compiled": ("octavo:grammars_compiled", "grammars compiled by the engine"),
    "grammars_failed": ("octavo:grammars_failed", "grammars that could not be compiled by the engine"),
    "grammar_compile_us": ("octavo:grammar_compile_us", "microseconds of compiling grammars"),
    "grammar_masks": ("octavo:grammar_masks", "masks made: one for each drawn token under a grammar"),
    "grammar_mask_us": ("octavo:grammar_mask_us", "microseconds of steps that went into masks"),
}


class _EngineSeries:
    """What the engine said of itself last; read when scraped."""

    def __init__(self, client: EngineClient, registry: Registry, labels: dict[str, str]) -> None:
        self._client = client
        gauge = registry.gauge
        self._running = gauge("vllm:num_requests_running", "requests in the running list", **labels)
        self._waiting = gauge("vllm:num_requests_waiting", "requests that wait", **labels)
        self._kv = gauge("vllm:kv_cache_usage_perc", "share of KV blocks in use, 0 to 1", **labels)
        self._waits = {
            reason: gauge(
                "vllm:num_requests_waiting_by_reason", "waiting requests by cause", **labels, reason=reason
            )
            for reason in _WAITS
        }
        self._counts = {
            counter: registry.shared_counter(name, text, **labels)
            for counter, (name, text) in _ENGINE_COUNTS.items()
        }
        self._restarts = registry.shared_counter("octavo:engine_restarts", "engine deaths survived", **labels)

    def read(self) -> None:
        stats = self._client.stats
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._kv.set(stats.kv_usage_frac)
        self._waits["capacity"].set(stats.waiting - stats.waiting_deferred)
        self._waits["deferred"].set(stats.waiting_deferred)
        for counter, value in self._counts.items():
            value.set(self._client.total(counter))
        self._restarts.set(self._client.restarts)


class Metrics:
    """`counts_steps`: of several API processes one alone counts the engine's steps, which all hear of."""

    def __init__(
        self, client: EngineClient, *, model_name: str, max_model_len: int, counts_steps: bool = True
    ) -> None:
        self.registry = Registry()
        self._client = client
        self._counts_steps = counts_steps
        self._values = {"model_name": model_name, "engine": "0"}
        self._engine = _EngineSeries(client, self.registry, self._values)
        sizes = size_buckets(max_model_len)
        self._times = {n: self._histogram(n, text, b) for n, (b, text) in _TIMES.items()}
        self._sizes = {n: self._histogram(n, text, sizes) for n, text in _SIZES.items()}
        self._counts = {n: self._counter(n, text) for n, text in _COUNTS.items()}
        self._params_n = self._histogram("request_params_n", "n of a request", (1, 2, 5, 10, 20))
        self._preempted = self._histogram(
            "request_num_preemptions", "preemptions of a request", (1, 2, 3, 4, 5, 10, 20)
        )
        self._steps = self._histogram("iteration_tokens_total", "tokens of an engine step", _STEP_TOKENS)
        self._success = {
            r: self._counter("request_success", "finished requests", finished_reason=r) for r in REASONS
        }
        self._sources = {
            s: self._counter("prompt_tokens_by_source", "prompt tokens by origin", source=s)
            for s in ("local_compute", "local_cache_hit")
        }
        self._rejections = {
            r: self.registry.counter(
                "vllm:admission_rejections", "refused for load", model_name=model_name, reason=r
            )
            for r in ("max_num_queued_reqs", "max_num_queued_tokens")
        }
        self.registry.declare(*_HTTP)
        self.mean_e2e_s = 1.0  # moving, for Retry-After

    def _histogram(self, name: str, text: str, bounds: Iterable[float]) -> Histogram:
        return self.registry.histogram(f"vllm:{name}", text, bounds, **self._values)

    def _counter(self, name: str, text: str, **more: str) -> Value:
        return self.registry.counter(f"vllm:{name}", text, **self._values, **more)

    # ---- what happens ---------------------------------------------------------------------------

    def on_request(self, num_choices: int) -> None:
        self._params_n.observe(num_choices)

    def on_rejection(self, reason: str) -> None:
        self._rejections[reason].inc()

    def on_http(self, method: str, status: int, handler: str) -> None:
        """`handler` is a route's own path or 'other', never what the client wrote."""
        if handler in _UNCOUNTED:
            return
        self.registry.counter(
            *_HTTP,
            method=method if method in METHODS else "other",
            status=f"{status // 100}xx",
            handler=handler,
        ).inc()

    def on_close(self, record: RequestLog) -> None:
        """A request is over: all its series at once."""
        generated = record.num_generated
        self._success[record.reason if record.reason in REASONS else "error"].inc()
        self._counts["prompt_tokens"].inc(record.num_prompt)
        self._counts["prompt_tokens_cached"].inc(record.num_cached)
        self._counts["generation_tokens"].inc(generated)
        self._sources["local_cache_hit"].inc(record.num_cached)
        self._sources["local_compute"].inc(record.num_prompt - record.num_cached)
        self._sizes["request_prompt_tokens"].observe(record.num_prompt)
        self._sizes["request_generation_tokens"].observe(generated)
        siblings = record.siblings
        siblings.num_open -= 1
        siblings.longest = max(siblings.longest, generated)
        if siblings.num_open == 0:
            self._sizes["request_max_num_generation_tokens"].observe(siblings.longest)
        self._sizes["request_params_max_tokens"].observe(record.max_tokens)
        self._sizes["request_prefill_kv_computed_tokens"].observe(record.num_prompt - record.num_cached)
        self._preempted.observe(record.engine.num_preemptions if record.engine else 0)
        self._observe_times(record)

    def _observe_times(self, record: RequestLog) -> None:
        times = self._times
        times["e2e_request_latency_seconds"].observe(record.end - record.arrival)
        self.mean_e2e_s += 0.1 * (record.end - record.arrival - self.mean_e2e_s)
        if record.first_token:
            times["time_to_first_token_seconds"].observe(record.first_token - record.arrival)
            times["request_decode_time_seconds"].observe(record.end - record.first_token)
            if record.num_tokens > 1:
                mean = (record.last_token - record.first_token) / (record.num_tokens - 1)
                times["request_time_per_output_token_seconds"].observe(mean)
        times["inter_token_latency_seconds"].observe_all(record.gaps_s)
        engine = record.engine
        if engine is not None and engine.scheduled:
            times["request_queue_time_seconds"].observe(max(0.0, engine.scheduled - engine.queued))
            times["request_inference_time_seconds"].observe(max(0.0, engine.finished - engine.scheduled))
            if engine.first_token:
                times["request_prefill_time_seconds"].observe(max(0.0, engine.first_token - engine.scheduled))

    def snapshot(self) -> Snapshot:
        """What this process counted, for the one that is scraped."""
        self._read()
        return self.registry.snapshot()

    def text(self, others: Iterable[Snapshot] = ()) -> bytes:
        """The exposition of everything, as Prometheus reads it; `others`: of the other API processes."""
        self._read()
        return self.registry.text(others)

    def _read(self) -> None:
        self._engine.read()
        while self._client.step_tokens:
            tokens = self._client.step_tokens.popleft()
            if self._counts_steps:
                self._steps.observe(tokens)
