"""Runs the cases in OpenVINO GenAI's continuous-batching pipeline, inside its own environment, without HTTP.

    PYTHON_OF_THE_ENVIRONMENT -m benchmarks.peers.openvino_cases MODEL_DIR [--threads 2]

Speaks lines: prints {"ready": true} after its first token, then for each line "CASE SEED" on standard
input one line of figures. Everything is one process, so its figures lack the cost of a server.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import openvino_genai as genai

from benchmarks.cases import Case, Sent, case, warm_up
from benchmarks.figures import Seen, of_case

CACHE_GB = 3
IDLE_S = 0.0005  # while nothing runs and nothing is due


class Pipeline:
    """The engine, fed and read between its steps."""

    def __init__(self, model: str, num_threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": num_threads}
        self._pipe = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self._tokenizer = self._pipe.get_tokenizer()
        self._next_id = 0

    def _submit(self, sent: Sent) -> tuple[Any, int]:
        """(handle, prompt tokens); ids are given, so that no chat template is applied."""
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = sent.num_out
        config.ignore_eos = True
        config.do_sample = False
        ids = self._tokenizer.encode(sent.prompt, add_special_tokens=False).input_ids
        self._next_id += 1
        return self._pipe.add_request(self._next_id, ids, config), ids.shape[1]

    def load(self, sent: list[Sent], at_once: int) -> tuple[list[Seen], float]:
        """All requests, each not before its time and at most `at_once` together."""
        start = time.perf_counter()
        todo, running, done = list(sent), [], []
        while todo or running:
            now = time.perf_counter()
            due = [s for s in todo if s.at_s <= now - start][: at_once - len(running)]
            for one in due:
                todo.remove(one)
                seen = Seen(time.perf_counter())
                handle, seen.num_prompt = self._submit(one)
                running.append((one, seen, handle))
            if not running:
                time.sleep(IDLE_S)
                continue
            self._pipe.step()
            now = time.perf_counter()
            still = []
            for one, seen, handle in running:
                if handle.can_read():
                    for output in handle.read().values():
                        seen.num_out += len(output.generated_ids)
                        seen.chunks_s.append(now)
                (done if seen.num_out >= one.num_out else still).append((one, seen, handle))
            running = still
        return [seen for _, seen, _ in done], time.perf_counter() - start

    def run(self, work: Case) -> tuple[list[Seen], float]:
        for one in work.first:
            self.load([one], 1)
        return self.load(work.sent, work.at_once)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a directory written by optimum-cli export openvino")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    pipeline = Pipeline(given.model, given.threads)
    pipeline.load([Sent("Hello", 1)], 1)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name, seed = line.split()
        pipeline.run(warm_up(int(seed)))
        seen, wall_s = pipeline.run(case(name, int(seed)))
        print(json.dumps(of_case(name, "openvino", seen, wall_s)), flush=True)


if __name__ == "__main__":
    main()
