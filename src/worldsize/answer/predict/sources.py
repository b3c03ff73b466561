"""`worldsize.predict`: predictions from a study, or from rows of measurements that were made elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import overload

from worldsize.analysis.speed.network import Network
from worldsize.answer.predict.predict import Prediction, predict_study
from worldsize.answer.predict.table import table_of
from worldsize.answer.predict.table_projection import Projection, further, project, project_table
from worldsize.answer.results import Results
from worldsize.errors import InputError, shorten


@overload
def predict(
    source: Results | Path | str,
    workers: Iterable[int] | None = None,
    *,
    batch_per_worker: int | None = None,
    until: float | None = None,
    price: float | None = None,
    budget: float | None = None,
    deadline_s: float | None = None,
    network: str | Network | None = None,
    workers_per_node: int | None = None,
) -> list[Prediction]: ...


@overload
def predict(source: Iterable[Mapping[str, object]], workers: Iterable[int] | None = None) -> list[Projection]: ...


def predict(
    source: Results | Path | str | Iterable[Mapping[str, object]],
    workers: Iterable[int] | None = None,
    *,
    batch_per_worker: int | None = None,
    until: float | None = None,
    price: float | None = None,
    budget: float | None = None,
    deadline_s: float | None = None,
    network: str | Network | None = None,
    workers_per_node: int | None = None,
) -> list[Prediction] | list[Projection]:
    """Predict the performance at worker counts that were never run, with 80 % intervals. This runs nothing.

    `source` is a study or rows of measurements:

    - A study (its folder or its `Results`) gives one `Prediction` per place, because kinds of hardware are never
      pooled. A prediction knows times, costs and the count to choose. `until` asks for the time until the test metric
      is that good (default: the study's own target or epochs). `price` is per worker-hour; `budget` and `deadline_s`
      ask for the fastest and the cheapest count within these limits. `network` describes another network, such as
      "8 x 450GB/s 2us, 50GB/s 5us", or names a preset.
    - Rows give one `Projection` per series and count, in the unit of the measurements. Each row is a mapping with
      `workers` and one of `samples_per_s`, `tokens_per_s`, `step_s`, `epoch_s` and `train_s`; optional are
      `series_id`, `mode` (weak or strong; `step_s` needs it), `batch_per_worker`, `workers_per_node` and `repeat`. For
      a pandas frame pass `frame.to_dict("records")`, for a CSV file `csv.DictReader(file)`. The other arguments need a
      study.

    `workers` lists the counts to ask about (default: 2, 4 and 8 times the largest that was measured; for rows also the
    measured ones). `worldsize.project` is another name of this function.

    >>> worldsize.predict("runs/quickstart", workers=[4, 8], price=2.5)
    >>> worldsize.predict([{"workers": 1, "samples_per_s": 410}, {"workers": 4, "samples_per_s": 1570}], workers=[8])
    """
    if isinstance(source, Path | str) and Path(source).is_file():
        raise InputError(
            f"{source} is a file, not a study folder; for a table, run `worldsize predict {source}`, or pass its rows: "
            "worldsize.predict(csv.DictReader(file))"
        )
    if isinstance(source, Results | Path | str):
        return predict_study(
            source,
            tuple(workers or ()),
            batch_per_worker=batch_per_worker,
            until=until,
            price=price,
            budget=budget,
            deadline_s=deadline_s,
            network=network,
            workers_per_node=workers_per_node,
        )
    if workers_per_node is not None:
        raise InputError(f"workers_per_node={workers_per_node} needs a study; give it in each row instead")
    needs_study = {
        "batch_per_worker": batch_per_worker,
        "until": until,
        "price": price,
        "budget": budget,
        "deadline_s": deadline_s,
        "network": network,
    }
    for name, value in needs_study.items():
        if value is not None:
            raise InputError(f"{name}={shorten(value)} needs a study: rows have only throughput or times; leave it out")
    if workers is not None:
        return project(source, workers)
    table = table_of(source)
    return project_table(table, further(table))
