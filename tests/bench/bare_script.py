"""A minimal distributed script: import torch, join gloo, run one step of the same model. Writes the time of its end."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from worldsize.spec.workload import WorkloadSpec
from worldsize.worker import workloads
from worldsize.worker.workloads.base import batch

torch.set_num_threads(1)
dist.init_process_group("gloo")
data = workloads.load(WorkloadSpec(name="digits"), workloads.DataFolders(data=Path(), cache=Path()))
model = DistributedDataParallel(data.build_model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
inputs, labels = batch(data.train, torch.arange(64), torch.device("cpu"))
loss = cross_entropy(model(data.prepare(inputs)), labels)
loss.backward()
optimizer.step()
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(str(time.time()))
dist.destroy_process_group()
