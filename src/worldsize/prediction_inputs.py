"""What a projection takes from a study: steps by cause, the machine they ran on, and the time above the step."""

from __future__ import annotations

from collections import Counter

from worldsize.analysis.breakdown import WAITING
from worldsize.analysis.ground import Ground, Timed, threads_a_core
from worldsize.analysis.link import Link
from worldsize.analysis.network import Network, Wire
from worldsize.analysis.points import Setting
from worldsize.analysis.wall import Above
from worldsize.record import TrialRecord
from worldsize.results import Results
from worldsize.store import read_json, whole

START = ("process start", "process end")


def timed(results: Results, like: Setting) -> list[Timed]:
    """Every measured setting of this strategy and precision, whatever its batch."""
    step_s = {row.setting: row.step_s.value for row in results.rows}
    cores = {setting: found.process_cores for setting, found in results.hardware}
    found = []
    for each in results.steps:
        setting = each.setting
        if (setting.strategy, setting.precision) != (like.strategy, like.precision):
            continue
        whole = each.parts.step_s.value
        apart = sum(each.parts.spans[name].value for name in ("communication", WAITING) if name in each.parts.spans)
        # The step is a median, its parts are means: the parts keep their shares.
        scale = step_s[setting] / whole
        used = cores.get(setting)
        found.append(
            Timed(
                workers=setting.workers,
                batch_per_worker=setting.batch_per_worker,
                accumulation=setting.accumulation,
                step_s=step_s[setting],
                busy_s=(whole - apart) * scale,
                load_s=each.parts.spans["data"].value * scale if "data" in each.parts.spans else 0.0,
                cores=used / setting.workers if used and _on_cpu(results) else None,
            )
        )
    return found


def ground(results: Results, like: Setting, workers_per_node: int | None) -> Ground:
    """The machine as the records tell of it."""
    record = _any_record(results)
    facts = record.environment if record else {}
    hosts = facts.get("hosts")
    on_hosts = Counter(map(str, hosts)) if isinstance(hosts, list) else Counter()
    a_host = max(on_hosts.values(), default=0)
    cores, gpus = facts.get("cores"), facts.get("gpus")
    threads = results.spec.threads
    most = max((row.setting.workers for row in results.rows), default=1)
    shared_cores = cores if isinstance(cores, int) and _on_cpu(results) else None
    places = max(shared_cores // threads, 1) if shared_cores else most
    if isinstance(gpus, int):
        places = gpus
    # Several hosts show how many each takes; one may have been made to take more than it has room for.
    places = workers_per_node or (a_host if len(on_hosts) > 1 else max(places, a_host))
    return Ground(
        places=places,
        cores=shared_cores,
        network=_probed(results.links, places, shared_cores),
        payload_bytes=_payload(results, like),
    )


def above(results: Results, places: int) -> list[Above]:
    """Of every training trial that ended by itself. The probe of the interconnect is ours, not the training's."""
    found = []
    for trial_id, record in results.records.items():
        trial = results.trials[trial_id]
        if trial.kind != "train" or record.outcome == "failed" or not record.epochs:
            continue
        phases = record.phases_s
        evaluated = max(sum(bool(epoch.test) for epoch in record.epochs), 1)
        found.append(
            Above(
                workers=trial.workers,
                on_node=min(trial.workers, places),
                start_s=_start_s(results, record),
                preparation_s=phases.get("preparation", 0.0) + phases.get("warm-up", 0.0),
                evaluation_s=(phases.get("evaluation", 0.0) + phases.get("gaps", 0.0)) / evaluated,
                saving_s=phases.get("saving", 0.0),
            )
        )
    return found


def _start_s(results: Results, record: TrialRecord) -> float:
    """Paid once a launch; a training alone would pay all of it."""
    path = results.folder.launch(record.launch) / "end.json"
    with whole(path):
        phases = (read_json(path)["phases_s"] if path.exists() else None) or {}
        return sum(float(phases.get(name, 0.0)) for name in START)


def _probed(links: list[tuple[str, Link]], places: int, cores: int | None) -> Network | None:
    """Of each kind the group with most workers, inside a node one whose threads had a core each where there is one;
    what two numbers do not describe is left out."""
    inside, across = (
        [link for kind, link in links if kind == wanted and not link.is_poor] for wanted in ("inside", "across")
    )
    if not inside and not across:
        return None
    freest = max(inside, key=lambda link: (-threads_a_core(link.workers, cores), link.workers), default=None)
    widest = max(across, key=lambda link: link.workers, default=None)
    return Network(
        # In a crowd a link reads slower by about its threads a core: 16 workers on 16 cores had 1.6 to 2.1 times the
        # latency of 6, and 1 / 1.8 of their rate.
        inside=_wire(freest, crowd=threads_a_core(freest.workers, cores)) if freest else None,
        # One rank of each node took part: it had the node's link for itself.
        across=_wire(widest, shared=True) if widest else None,
        workers_per_node=places,
        source="measured",
    )


def _wire(link: Link, *, crowd: float = 1.0, shared: bool = False) -> Wire:
    return Wire(
        latency_s=link.latency_s.value / crowd,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s.value * crowd,
        shared_by_node=shared,
    )


def _payload(results: Results, like: Setting) -> float | None:
    for trial_id, record in results.records.items():
        trial = results.trials[trial_id]
        if (trial.strategy.label, trial.precision) != (like.strategy, like.precision):
            continue
        found = record.exchange.get("bytes") or record.compute.get("gradient_bytes")
        if isinstance(found, float | int):
            return float(found)
    return None


def _any_record(results: Results) -> TrialRecord | None:
    """Of the trial with most workers: its hosts are all there are."""
    ended = [record for record in results.records.values() if record.environment]
    return max(ended, key=lambda record: results.trials[record.trial].workers, default=None)


def _on_cpu(results: Results) -> bool:
    record = _any_record(results)
    return record is not None and record.environment.get("device") == "cpu"
