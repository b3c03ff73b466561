"""The data behind a report: the results of a study and everything derived from them, computed once and on demand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from worldsize.answer import curves, timeline
from worldsize.answer.curves import Curve, NoiseOverTime, Trained
from worldsize.answer.from_records import TrialResult
from worldsize.answer.laws import LawRow, VariantBatchModel, batch_models, scaling_laws
from worldsize.answer.predict.predict import Outlook, Prediction, outlook
from worldsize.answer.predict.prices import PricePoint, price_points
from worldsize.answer.reruns import TrialRuns, trial_runs
from worldsize.answer.results import Results


@dataclass(frozen=True, eq=False)
class Evidence:
    results: Results

    @cached_property
    def outlook(self) -> Outlook | None:
        """The projection beyond the largest measured count, at the recommended place."""
        row = self.results.answer.row
        return outlook(self.results.by_place[row.setting.place]) if row else None

    @cached_property
    def prediction(self) -> Prediction | None:
        return self.outlook[0] if self.outlook else None

    @cached_property
    def prices(self) -> list[PricePoint]:
        return price_points(self.prediction) if self.prediction else []

    @cached_property
    def _ended(self) -> list[TrialResult]:
        return curves.ended(self.results)

    @cached_property
    def _by_variant(self) -> curves.Groups:
        return curves.by_variant(self._ended)

    @cached_property
    def training(self) -> list[Trained]:
        return curves.training(self.results, self._by_variant)

    @cached_property
    def curves(self) -> list[Curve]:
        return curves.curves(self.results, self._by_variant)

    @cached_property
    def launches(self) -> list[timeline.LaunchTime]:
        return timeline.launches(self.results)

    @cached_property
    def one_step(self) -> timeline.OneStep | None:
        return timeline.one_step(self.results, self._ended)

    @cached_property
    def telemetry(self) -> timeline.Telemetry | None:
        return timeline.telemetry(self.results, self._ended)

    @cached_property
    def noise_over_time(self) -> list[NoiseOverTime]:
        return curves.noise_over_time(self.results, self._by_variant)

    @cached_property
    def laws(self) -> list[LawRow]:
        return scaling_laws(self.results)

    @cached_property
    def batch_models(self) -> list[VariantBatchModel]:
        return batch_models(self.results)

    @cached_property
    def trial_runs(self) -> TrialRuns:
        return trial_runs(self.results)
