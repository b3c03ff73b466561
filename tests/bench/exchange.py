"""All-reduces with bare gloo, without worldsize: what a ring costs as its threads run out of cores."""

from __future__ import annotations

import os
import socket
import time

import numpy as np
import torch
from torch import distributed, multiprocessing

COUNTS = (2, 3, 4, 6, 8, 10, 12, 14, 16)
SIZES = (1_024, 65_536, 434_472, 940_584, 3_304_448)
REPEATS = 25


def sweep(most: int | None = None) -> None:
    """Print the median time of rank 0 in ms, by processes and bytes."""
    most = most or min(os.cpu_count() or 2, COUNTS[-1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print("| processes | " + " | ".join(f"{size:,} bytes, ms" for size in SIZES) + " |")
    print("| --- " * (len(SIZES) + 1) + "|", flush=True)
    multiprocessing.spawn(_rank, args=(most, port), nprocs=most)


def _rank(rank: int, most: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=most)
    groups = {count: distributed.new_group(list(range(count))) for count in COUNTS if count <= most}
    for count, group in groups.items():
        distributed.barrier()
        if rank < count:
            cells = [f"{_median_ms(size, group):.2f}" for size in SIZES]
            if rank == 0:
                print(f"| {count} | " + " | ".join(cells) + " |", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


def _median_ms(size: int, group: object) -> float:
    values, times = torch.zeros(size // 4), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        distributed.all_reduce(values, group=group)
        times.append(time.perf_counter() - began)
    return float(np.median(times[3:])) * 1e3
