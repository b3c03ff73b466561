"""Terms of art and their meanings. The page explains a term where it first appears; docs/glossary.md has all terms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Term:
    name: str
    """As in docs/glossary.md."""
    meaning: str
    """One or two sentences."""
    pattern: str = ""
    """Regular expression of the forms of the term in a sentence. Default: the name, with or without an s."""

    @property
    def anchor(self) -> str:
        """Name for links to the explanation."""
        return f"term-{self.name.lower().replace(' ', '-')}"


TERMS = (
    Term(
        name="Batch per worker",
        meaning="The number of samples that one worker processes in one forward and backward pass.",
        pattern=r"(?:batch(?: of)?(?: [\d,]+)?|[\d,]+) per worker|batch per worker",
    ),
    Term(
        name="Bus bandwidth",
        meaning="The bandwidth of an all-reduce, comparable between worker counts: bytes / time x 2(n - 1)/n for n "
        "workers, as nccl-tests defines it.",
    ),
    Term(
        name="Critical batch size",
        meaning="The global batch at which training needs twice as many steps to its target as with a very large "
        "batch.",
        pattern=r"critical batch(?: size)?s?",
    ),
    Term(
        name="Efficiency",
        meaning="Speedup divided by the growth in workers. 100 % is perfect scaling.",
        pattern="efficiency|efficient",
    ),
    Term(
        name="Exposed communication",
        meaning="The time that exchanging gradients adds to a step. Communication that overlaps with computing does "
        "not count.",
    ),
    Term(
        name="Global batch",
        meaning="The number of samples in one step of all workers: workers x batch per worker x accumulation.",
        pattern=r"global batch(?:es)?",
    ),
    Term(
        name="Gradient noise scale",
        meaning="A measure of how much the gradients of single samples differ, as a number of samples. Batches much "
        "larger than it hardly improve a step.",
    ),
    Term(
        name="Interval",
        meaning="A range that contains the true value with a stated probability: 90 % for measurements, 80 % for "
        "projections.",
    ),
    Term(
        name="Knee",
        meaning="The largest worker count that pays: each doubling of workers up to it saves at least half of the "
        "time that perfect scaling would save.",
    ),
    Term(
        name="Launch",
        meaning="One start of worker processes. A launch runs many trials, one after another.",
        pattern=r"launch(?:es)?",
    ),
    Term(name="MFU", meaning="Model FLOP utilization: the fraction of the peak FLOP/s that goes into the model."),
    Term(
        name="Probe",
        meaning="A short trial that measures the time per step without training to the end.",
    ),
    Term(
        name="Projection",
        meaning="An estimate for a worker count that was not run.",
        pattern="projections?|projected",
    ),
    Term(name="Rank", meaning="The number of a worker within a launch, counting from 0."),
    Term(
        name="Series",
        meaning="Settings that differ only in the number of workers: one scaling curve.",
        pattern="series",
    ),
    Term(name="Speedup", meaning="Throughput relative to the smallest worker count of the same scaling curve."),
    Term(
        name="Straggler",
        meaning="The slowest worker of a step. The other workers wait for it before the step can end.",
    ),
    Term(
        name="Strong scaling",
        meaning="A fixed global batch is divided among the workers, so that more workers mean a smaller batch per "
        "worker.",
        pattern="strong(?:ly)? scal(?:ing|ed)",
    ),
    Term(name="Trial", meaning="One point of a study, run once: either a probe or a training run."),
    Term(
        name="Variant",
        meaning="What can differ between trials of one setting without changing their speed: optimizer, learning rate "
        "and initial weights.",
    ),
    Term(
        name="Weak scaling",
        meaning="A fixed batch per worker, so that the global batch grows with the number of workers.",
        pattern="weak(?:ly)? scal(?:ing|ed)",
    ),
    Term(name="Worker", meaning="One training process, usually with one GPU or one or more CPU cores."),
)
_BY_NAME = {term.name.lower(): term for term in TERMS}
_ANY_TERM = re.compile(
    "|".join(
        f"(?P<t{index}>\\b(?:{term.pattern or re.escape(term.name) + 's?'})\\b)" for index, term in enumerate(TERMS)
    ),
    re.IGNORECASE,
)


def meaning(name: str) -> str:
    """Return what a term means, as one or two sentences."""
    return _BY_NAME[name].meaning


def find_terms(text: str) -> Iterator[tuple[Term, int, int]]:
    """Yield the terms in a text, each with the start and end of the place where it occurs."""
    for match in _ANY_TERM.finditer(text):
        assert match.lastgroup is not None
        yield TERMS[int(match.lastgroup[1:])], match.start(), match.end()
