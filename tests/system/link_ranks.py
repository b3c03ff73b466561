"""One of several ranks: measure the links and write the result to FOLDER/rankN.json.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=PORT python -m tests.system.link_ranks FOLDER BUDGET_S HOST ...
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from worldsize.folder.files import write_json
from worldsize.worker.measure.links import measure_links
from worldsize.worker.parallel.team import Crew


def main() -> None:
    torch.set_num_threads(1)
    folder, budget_s, hosts = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    crew = Crew("cpu", "gloo", [])
    groups = len(dist.distributed_c10d._world.pg_map)
    began = time.perf_counter()
    sweep = measure_links(crew.rank, hosts, crew.device, budget_s=budget_s)
    took_s = time.perf_counter() - began
    result = {
        "sweep": sweep.model_dump(mode="json") if sweep else None,
        "took_s": took_s,
        "groups_left": len(dist.distributed_c10d._world.pg_map) - groups,
    }
    write_json(folder / f"rank{crew.rank}.json", result)
    crew.leave()
    sys.stdout.flush()
    os._exit(0)  # gloo's destructors sometimes abort


if __name__ == "__main__":
    main()
