"""The exposition of metrics, read back by the reference parser; series of several processes add up."""

from __future__ import annotations

import random
from bisect import bisect_left

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from octavo.api.client import EngineClient
from octavo.api.metrics import Metrics
from octavo.api.series import Histogram, PeerReport, Registry


def read(text: bytes) -> dict[str, float]:
    """Series by name and labels, as the reference parser understands the text."""
    return {
        sample.name + str(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_the_text_is_what_prometheus_reads() -> None:
    registry = Registry()
    registry.counter("a:made", "things made", kind='odd "\\\n name').inc(2)
    registry.gauge("a:level", "how much").set(0.25)
    histogram = registry.histogram("a:time", "seconds", (0.1, 1, 10), who="x")
    for value in (0.05, 0.1, 0.5, 100):
        histogram.observe(value)
    families = {f.name: f for f in text_string_to_metric_families(registry.text().decode())}
    assert {name: f.type for name, f in families.items()} == {
        "a:made": "counter", "a:level": "gauge", "a:time": "histogram",
    }  # fmt: skip
    (sample,) = families["a:made"].samples
    assert (sample.labels, sample.value) == ({"kind": 'odd "\\\n name'}, 2)
    buckets = {s.labels["le"]: s.value for s in families["a:time"].samples if s.name == "a:time_bucket"}
    assert buckets == {"0.1": 2, "1.0": 3, "10.0": 3, "+Inf": 4}
    sums = {s.name: s.value for s in families["a:time"].samples if s.name != "a:time_bucket"}
    assert sums == {"a:time_count": 4, "a:time_sum": 100.65}


def test_many_observations_at_once_equal_one_by_one() -> None:
    rng = random.Random(3)
    bounds = (0.0, 0.1, 0.2, 0.5, 1.0)
    values = [rng.choice((*bounds, rng.uniform(-1, 2))) for _ in range(500)]
    one, all_at_once = Histogram(bounds), Histogram(bounds)
    for value in values:
        one.observe(value)
    all_at_once.observe_all(values[:200])
    all_at_once.observe_all([])
    all_at_once.observe_all(values[200:])
    assert one.counts == all_at_once.counts
    assert one.counts == [sum(bisect_left(bounds, v) == i for v in values) for i in range(len(bounds) + 1)]
    assert abs(one.total - all_at_once.total) < 1e-9


def test_processes_add_up_and_what_all_know_is_not_added() -> None:
    made = []
    for i in range(3):
        client = EngineClient()
        client.stats.running, client.stats.prefix_hits = 5, 40  # the engine tells every process
        client.step_tokens.extend([1, 2, 3])
        metrics = Metrics(client, model_name="m", max_model_len=64, counts_steps=i == 0)
        metrics.on_request(1 + i)
        if i:
            metrics.on_http("POST", 200, "/v1/only/others")
        made.append(metrics)
    reports = [PeerReport(metrics.snapshot(), 0) for metrics in made[1:]]
    reports = msgspec.msgpack.decode(msgspec.msgpack.encode(reports), type=list[PeerReport])
    series = read(made[0].text([report.series for report in reports]))
    own = "[('engine', '0'), ('model_name', 'm')]"
    assert series[f"vllm:num_requests_running{own}"] == 5
    assert series[f"vllm:prefix_cache_hits_total{own}"] == 40
    assert series[f"vllm:request_params_n_count{own}"] == 3
    assert series[f"vllm:request_params_n_sum{own}"] == 6
    assert series[f"vllm:iteration_tokens_total_count{own}"] == 3
    http = "http_requests_total[('handler', '/v1/only/others'), ('method', 'POST'), ('status', '2xx')]"
    assert series[http] == 2
