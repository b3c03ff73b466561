"""worldsize: how many GPUs should train this model, with which batch and rate, and why does it not scale further?

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
    from worldsize.answer.predict.predict import predict_study as predict
    from worldsize.answer.predict.table_projection import Projection, project
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
    "predict": "answer.predict.predict:predict_study",
    "project": "answer.predict.table_projection",
    "write_report": "report.write.publish",
}
"""Public name -> the module it comes from, and its name there if that is another."""


def __getattr__(name: str) -> Any:
    """Load a public name on first use: a worker imports this package too and needs none of them."""
    if name not in HOMES:
        raise AttributeError(f"module 'worldsize' has no attribute {name!r}")
    module, _, inside = HOMES[name].partition(":")
    return getattr(import_module(f"worldsize.{module}"), inside or name)


def __dir__() -> list[str]:
    return sorted(__all__)
