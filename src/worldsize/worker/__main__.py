"""Run one rank of a launch: read trial specs, write records.

torchrun --standalone --nproc-per-node N -m worldsize.worker STUDY_FOLDER LAUNCH
mpirun -np N python -m worldsize.worker STUDY_FOLDER LAUNCH
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from worldsize.machine import tie_to_parent


def main() -> None:
    # This comes first, before torch is imported. torchrun puts each rank into its own session, so killing torchrun's
    # process group would leave the ranks running.
    tie_to_parent(os.getppid())
    from worldsize.folder.launches import LaunchFolder
    from worldsize.folder.study_folder import StudyFolder
    from worldsize.worker import process

    folder, launch_id = StudyFolder(Path(sys.argv[1])), sys.argv[2]
    os.environ.update(process.place(os.environ, folder.launch(launch_id)))
    os.environ["WORLDSIZE_DATA"] = LaunchFolder(folder.launch(launch_id)).prepared().data  # for users' own workloads
    rank = int(os.environ["RANK"])
    process.redirect_output(folder.launch(launch_id) / f"rank{rank:02d}.log")
    session = None
    try:
        from worldsize.worker.session import Session

        session = Session(folder, launch_id)
        session.run()
    except BaseException as error:
        trial_id, step = session.position() if session else (None, None)
        path = folder.launch(launch_id)
        process.write_failure(path, rank, trial_id, step, error, out_of_memory=_out_of_memory(error))
        os._exit(1)
    # All records are written. Skip native destructors: they are not needed, and gloo's sometimes abort.
    sys.stdout.flush()
    os._exit(0)


def _out_of_memory(error: BaseException) -> bool:
    try:
        from worldsize.worker.measure.memory import is_out_of_memory
    except Exception:  # torch could not be imported, which is the failure
        return isinstance(error, MemoryError)
    return is_out_of_memory(error)


if __name__ == "__main__":
    main()
