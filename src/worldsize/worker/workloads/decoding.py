"""Telling how far decoding is, in the log of the rank that does it."""

from __future__ import annotations

EVERY = 1_000


def report(done: int, total: int) -> None:
    if done == total or done % EVERY == 0:
        print(f"decoded {done:,} of {total:,} images", flush=True)
