"""Stands in for the workers of a launch: every trial has a word and a record, and takes a second."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from worldsize.record import TrialRecord
from worldsize.store import StudyFolder, read_json

TRIAL_S = 1.0

folder, launch = StudyFolder(Path(sys.argv[1])), sys.argv[2]
for trial_id in read_json(folder.launch(launch) / "launch.json")["trials"]:
    with (folder.trial(trial_id) / "events.jsonl").open("a") as events:
        for step in range(2):
            time.sleep(TRIAL_S / 2)
            line = {"event": "progress", "at": time.time(), "step": step, "samples_per_s": 100.0}
            events.write(json.dumps(line) + "\n")
            events.flush()
        record = TrialRecord(trial=trial_id, outcome="finished", launch=launch, started_at=time.time(), wall_s=TRIAL_S)
        folder.write_record(record)
        events.write(json.dumps({"event": "end", "at": time.time(), "outcome": "finished"}) + "\n")
