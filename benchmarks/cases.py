"""The six cases that Octavo and its rivals are measured with: what is sent, when, and how many at once.

Standard library only: it also runs inside the rivals' own environments. The same seed gives the same
prompts everywhere; another seed shares no prompt with it, so that a warm prefix cache brings nothing
that the case does not mean to bring.

| case | work | headline figure |
|---|---|---|
| c1 | 3 requests, 100 words in, 256 tokens out, one at a time | tokens/s of a stream |
| c2 | 64 requests, 200 in, 128 out, 16 at a time | output tokens/s |
| c3 | 1,900 words shared, then 32 requests of 90 more, 32 out, 8 at a time | output tokens/s |
| c4 | 3 prompts of 3,500 words, 1 out | tokens/s |
| c5 | 8 streams of 200 out; 3 prompts of 3,500 words arrive meanwhile | 99th percentile of the gaps |
| c6 | 128 requests, 120 in, 64 out, 64 at once | output tokens/s |
| try | 1 request, 16 words in, 8 tokens out: does a side answer? | - |
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

# Short common nouns: one token each, with the space before it, for the tokenizers that are measured.
NOUNS = (
    "apple arm army art baby bag ball band bank bar base bed bell bird boat body bone book box boy bridge "
    "brother cake camp car cat chair child city class clock cloud coat coffee corn cost country cup day "
    "deal desk dinner dog door dream dress ear earth east egg end engine evening event eye face fact farm "
    "father field film fire fish floor flower food foot forest friend fruit game garden gas gift girl "
    "glass gold grass group hall hand hat head heart hill home horse hotel hour house ice idea island job "
    "king kitchen lake land law leader leg letter library life light line lunch machine man map market "
    "meat metal milk mind money moon morning mother mountain mouth music name nature neck news night "
    "north nose number office oil page paper park part party past peace person picture place plan plant "
    "point power price problem queen question rain reason record ring river road rock room rule school "
    "sea season ship shoe shop side sign sister sky snow son song sound south space spring stage star "
    "state station stone store storm story street student summer sun table teacher team test time town "
    "train travel tree trip valley village voice wall war water weather week west wind window winter "
    "woman wood word work world year"
).split()

CASES = ("c1", "c2", "c3", "c4", "c5", "c6")
TRY = "try"
SEED_STEP = 1_000_003  # seeds of runs lie so far apart


@dataclass(frozen=True)
class Sent:
    """One request. `at_s`: not before so many seconds after the start."""

    prompt: str
    num_out: int
    at_s: float = 0.0


@dataclass(frozen=True)
class Case:
    name: str
    sent: list[Sent]
    at_once: int
    first: list[Sent] = field(default_factory=list)  # sent before, one by one, and not measured


def words(count: int, seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(NOUNS) for _ in range(count))


def warm_up(seed: int) -> Case:
    return Case("warm-up", [Sent(words(16, seed * SEED_STEP + 999_999), 8)], 1)


def case(name: str, seed: int) -> Case:
    """Raises KeyError for a name that is neither in CASES nor TRY."""
    if name == TRY:
        return Case(name, [Sent(words(16, seed * SEED_STEP + 999_998), 8)], 1)
    base = seed * SEED_STEP + 10_000 * CASES.index(name) if name in CASES else -1

    def prompts(num: int, num_words: int, start: int = 0) -> list[str]:
        return [words(num_words, base + start + i) for i in range(num)]

    if name == "c1":
        return Case(name, [Sent(p, 256) for p in prompts(3, 100)], 1)
    if name == "c2":
        return Case(name, [Sent(p, 128) for p in prompts(64, 200)], 16)
    if name == "c3":
        shared = words(1900, base + 9_000) + "\n"
        asked = [Sent(shared + p, 32) for p in prompts(32, 90)]
        return Case(name, asked, 8, [Sent(shared + words(90, base + 9_001), 4)])
    if name == "c4":
        return Case(name, [Sent(p, 1) for p in prompts(3, 3500)], 1)
    if name == "c5":
        streams = [Sent(p, 200, 0.15 * i) for i, p in enumerate(prompts(8, 60))]
        long = [Sent(p, 8, 0.15 * (8 + i)) for i, p in enumerate(prompts(3, 3500, 5_000))]
        return Case(name, streams + long, 16)
    if name == "c6":
        return Case(name, [Sent(p, 64) for p in prompts(128, 120)], 64)
    raise KeyError(name)
