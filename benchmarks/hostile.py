"""Thousands of hostile requests against a real server: no answer may be a fault of the server, and nothing may leak.

    PYTHONPATH=src:. python -m benchmarks.hostile --requests 5000

Up to half of the requests are made by schemathesis from the served /openapi.json, the others by tests.fakes.hostile.
The server must never answer 5xx but for a 503, keep its engine process, end with no open request, and answer as it did
before. Prints the counts as JSON; exit code 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import warnings
from collections import Counter
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.fakes.hostile import Shot, shots
from tests.multi.launched import Launched, launched
from tests.multi.traffic import traffic

#: A request without a bound of its own ends soon, too; the pool is small, so that requests preempt each other.
SMALL = (
    "--max-model-len",
    "512",
    "--num-blocks",
    "64",
    "--override-generation-config",
    '{"max_new_tokens": 12}',
)
AT_ONCE = 20
PLAIN = {"prompt": "One, two,", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
_QUIET: Any = {
    "deadline": None,
    "database": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}


class Range:
    """Fires at one server and counts what comes back."""

    def __init__(self, server: Launched) -> None:
        self.server = server
        self.url = f"http://127.0.0.1:{server.port}"
        self.pids = server.engine_pids()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def fire(self, drawn: list[Shot]) -> None:
        asyncio.run(self._fire(drawn))

    async def _fire(self, drawn: list[Shot]) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=120, trust_env=False) as http:
            await asyncio.gather(*(self._one(http, shot) for shot in drawn))

    async def _one(self, http: httpx.AsyncClient, shot: Shot) -> None:
        headers = {k.encode(): v.encode("latin-1") for k, v in shot.headers.items()}
        try:
            answer = await http.request(shot.method, shot.path, content=shot.content, headers=headers)
        except httpx.TransportError as error:
            self.counts[type(error).__name__] += 1
            self.wrong.append(f"{error!r} for {shot}")
            return
        self.see(str(shot), answer.status_code, answer.text)

    def see(self, what: str, status: int, text: str) -> None:
        self.counts[str(status)] += 1
        if status >= 500 and status not in (503, 529):
            self.wrong.append(f"{status} {text[:500]} for {what}")
        elif status == 200 and '"InternalServerError"' in text:
            self.wrong.append(f"a fault in a stream: {text[-500:]} for {what}")

    def by_document(self, count: int, start: int) -> None:
        """What schemathesis makes of the served document: valid bodies and invalid ones."""
        import schemathesis
        from schemathesis import GenerationMode

        warnings.simplefilter("ignore")
        schema = schemathesis.openapi.from_url(f"{self.url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        strategies: list[Any] = [
            one.as_strategy(generation_mode=mode)
            for one in operations
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
        ]
        each = -(-count // len(strategies))
        for number, strategy in enumerate(strategies):

            @seed(start + number)
            @settings(max_examples=each, **_QUIET)
            @given(strategy)
            def run(case: Any) -> None:
                answer = case.call(base_url=self.url)
                self.see(case.as_curl_command()[:2_000], answer.status_code, answer.text)

            try:
                run()
            except Exception as error:
                if (
                    type(error).__name__ != "Unsatisfiable"
                ):  # nothing is wrong by the document, where all is allowed
                    raise

    def by_hand(self, count: int, start: int) -> None:
        """The bodies of tests.fakes.hostile, some at a time."""
        document = httpx.get(f"{self.url}/openapi.json", trust_env=False).json()
        from hypothesis import strategies as st

        @seed(start)
        @settings(max_examples=-(-count // AT_ONCE), **_QUIET)
        @given(st.lists(shots(document), min_size=AT_ONCE, max_size=AT_ONCE))
        def run(drawn: list[Shot]) -> None:
            self.fire(drawn)

        run()

    async def plain(self) -> Any:
        async with traffic(self.server) as calls:
            await calls.idle()
            return await calls.send(PLAIN)

    def end(self, expected: Any) -> None:
        """What has to hold afterwards."""
        answer = asyncio.run(self.plain())
        if answer != expected:
            self.wrong.append(f"afterwards {answer} and not {expected}")
        if self.server.engine_pids() != self.pids:
            self.wrong.append("the engine has been replaced")
        self.wrong += [
            line for line in self.server.lines if "unexpected error" in line or "Traceback" in line
        ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="(default: %(default)s)")
    parser.add_argument("--requests", type=int, default=5_000, help="(default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given_ = parser.parse_args(argv)
    with launched(given_.model, *SMALL, "--served-model-name", "m") as server:
        found = Range(server)
        expected = asyncio.run(found.plain())
        found.by_document(given_.requests // 2, given_.seed)
        found.by_hand(given_.requests - sum(found.counts.values()), given_.seed)
        found.end(expected)
    print(
        json.dumps(
            {"requests": sum(found.counts.values()), **found.counts, "wrong": found.wrong[:40]}, indent=1
        )
    )
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
