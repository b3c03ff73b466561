"""worldsize: how many GPUs should train this model, with which batch and rate, and why does it not scale further?

import worldsize

results = worldsize.Study.from_file("quickstart").run()
print(results.table())
results = worldsize.load("runs/quickstart")
worldsize.project([{"workers": 1, "samples_per_s": 410}, {"workers": 2, "samples_per_s": 800}], workers=[4, 8])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldsize.answer.predict.table_projection import Projection, project
    from worldsize.answer.results import Results, load
    from worldsize.errors import WorldsizeError
    from worldsize.study.study import Study

__version__ = "0.1.0"
__all__ = ["Projection", "Results", "Study", "WorldsizeError", "__version__", "load", "project"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: a worker imports this package too and needs none of it."""
    if name in ("Results", "load"):
        from worldsize.answer import results

        return getattr(results, name)
    if name == "Study":
        from worldsize.study.study import Study

        return Study
    if name in ("Projection", "project"):
        from worldsize.answer.predict import table_projection

        return getattr(table_projection, name)
    if name == "WorldsizeError":
        from worldsize.errors import WorldsizeError

        return WorldsizeError
    raise AttributeError(f"module 'worldsize' has no attribute {name!r}")
