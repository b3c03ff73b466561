"""The least that a distributed script does: import torch, join gloo, one step of the same model. Writes when it was."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from worldsize.worker.workloads.digits import load, small_cnn

torch.set_num_threads(1)
dist.init_process_group("gloo")
data = load()
model = DistributedDataParallel(small_cnn())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loss = cross_entropy(model(data.prepare(data.train.inputs[:64])), data.train.targets[:64])
loss.backward()
optimizer.step()
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(str(time.time()))
dist.destroy_process_group()
