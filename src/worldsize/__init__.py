"""worldsize: how many GPUs should train this model, with which batch and learning rate, and what limits the scaling?

import worldsize

results = worldsize.Study("quickstart").run()
print(results.to_rows())
results = worldsize.load("runs/quickstart")
worldsize.predict(results, workers=[8, 16])
worldsize.write_report(results)

docs/python.md shows every function.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worldsize.answer.comparison import compare_studies as compare
    from worldsize.answer.predict.predict import Prediction
    from worldsize.answer.predict.sources import predict
    from worldsize.answer.predict.sources import predict as project
    from worldsize.answer.predict.table_projection import Projection
    from worldsize.answer.results import Results, load
    from worldsize.errors import WorldsizeError
    from worldsize.exports.study import export
    from worldsize.report.write.publish import write_report
    from worldsize.study.checks import JobOptions
    from worldsize.study.study import Study

__version__ = "0.1.0"
__all__ = [
    "JobOptions",
    "Prediction",
    "Projection",
    "Results",
    "Study",
    "WorldsizeError",
    "__version__",
    "compare",
    "export",
    "load",
    "predict",
    "project",
    "write_report",
]
HOMES = {
    "JobOptions": "study.checks",
    "Prediction": "answer.predict.predict",
    "Projection": "answer.predict.table_projection",
    "Results": "answer.results",
    "Study": "study.study",
    "WorldsizeError": "errors",
    "compare": "answer.comparison:compare_studies",
    "export": "exports.study",
    "load": "answer.results",
    "predict": "answer.predict.sources",
    "project": "answer.predict.sources:predict",
    "write_report": "report.write.publish",
}
"""The module of each public name, followed by its name in that module if it differs."""


def __getattr__(name: str) -> Any:
    """Load a public name on first use. Workers import this package too, but need none of these names."""
    if name not in HOMES:
        raise AttributeError(f"module 'worldsize' has no attribute {name!r}")
    module, _, name_there = HOMES[name].partition(":")
    return getattr(import_module(f"worldsize.{module}"), name_there or name)


def __dir__() -> list[str]:
    return sorted(__all__)
