"""Says how large a workload of the user's own is, for the driver, which does not import torch.

python -m worldsize.worker.describe '{"name": "mine:task"}'
"""

from __future__ import annotations

import json
import sys

from worldsize.data.folders import cache_root
from worldsize.data.sets import data_root
from worldsize.errors import WorldsizeError
from worldsize.spec import WorkloadSpec
from worldsize.worker.workloads import Places, own


def main() -> None:
    spec = WorkloadSpec.model_validate_json(sys.argv[1])
    workload = own.load(spec, Places(data=data_root(), cache=cache_root()))
    described = own.describe(spec)
    parameters = sum(parameter.numel() for parameter in workload.build_model().parameters())
    facts = {
        "title": f"your own {spec.name}",
        "train_samples": len(workload.train),
        "test_samples": len(workload.test),
        "metric": next(iter(workload.measures), "loss"),
        "metrics": ["loss", *workload.measures],
        "higher_is_better": bool(described.get("higher_is_better", bool(workload.measures))),
        # Six operations a parameter and sample: right for dense layers, a start for others.
        "train_flop_per_sample": 6.0 * parameters,
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    try:
        main()
    except WorldsizeError as error:
        sys.exit(str(error))
