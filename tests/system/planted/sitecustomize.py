"""Plant a fault in workers under test. Python imports this module at start if its folder is on PYTHONPATH.

PLANTED = "what:rank:trial-number:step[:once]", with what = raise | exit0 | kill | slow | stop | hold.
A rank on hold continues once the file PLANTED_MARKER exists.
PLANTED_LIMIT = "rank:bytes" limits the memory that one rank may allocate.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from pathlib import Path


def plant(loop: object, fault: str) -> None:
    what, rank, number, step, *once = fault.split(":")
    real = loop.run_steps  # type: ignore[attr-defined]

    def run_steps(trainer, shares, **more):  # type: ignore[no-untyped-def]
        if trainer.team.rank == int(rank) and trainer.trial.id.startswith(number):
            shares = watched(trainer, shares)
        return real(trainer, shares, **more)

    def watched(trainer, shares):  # type: ignore[no-untyped-def]
        for share in shares:
            if what == "slow":
                time.sleep(0.05)
            elif trainer.step >= int(step):
                act()
            yield share

    def act() -> None:
        marker = Path(os.environ["PLANTED_MARKER"])
        while what == "hold" and not marker.exists():
            time.sleep(0.05)
        if what == "hold" or (once and marker.exists()):
            return
        marker.touch()
        if what == "raise":
            print("about to fail, as planted")
            raise ValueError("planted error on this rank")
        if what == "exit0":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)

    loop.run_steps = run_steps  # type: ignore[attr-defined]


class Planter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]  # noqa: ARG002
        if name != "worldsize.worker.loop":
            return None
        sys.meta_path.remove(self)
        self.spec = importlib.machinery.PathFinder.find_spec(name, path)
        self.real = self.spec.loader
        self.spec.loader = self
        return self.spec

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return self.real.create_module(spec)

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        self.real.exec_module(module)
        plant(module, os.environ["PLANTED"])


if "PLANTED_LIMIT" in os.environ:
    rank, limit = os.environ["PLANTED_LIMIT"].split(":")
    if os.environ.get("RANK") == rank:
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
if "PLANTED" in os.environ:
    sys.meta_path.insert(0, Planter())
