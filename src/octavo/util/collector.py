"""Python's collector of reference cycles in a process that serves: how often it walks what lives."""

from __future__ import annotations

import gc

# Net new containers between two collections of young ones. By default it is some 700, which a step of a few hundred
# rows makes: then all requests, also those that wait, are walked every few dozen steps (20 ms for 1,024 running, 106
# with 10,000 waiting). Counting frees requests, which leave no cycles; cycles of this many objects are some 10 MB.
YOUNG_OBJECTS = 100_000


def settle() -> None:
    """What lives now lives for ever, and is walked no more; what comes later is walked seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
