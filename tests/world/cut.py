"""What a store looks like after a process was killed at each step of what it did with files.

    python -m tests.world.cut apply STORE OUT       stages the changes of OUT/changes.json, applies them
    python -m tests.world.cut finish STORE OUT      looks into the store, which finishes what was begun

`OUT/1`, `OUT/2`… are copies of the store in which the process was killed before its first step, its
second…; in the last one it came to its end. A step opens a file to write, makes, renames, removes or
changes one, or brings it to the disk.
"""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wintermute.wiki.folder import FileChange, StoreFolder

JOB = "20260504-010000"
CHANGING = ("os.mkdir", "os.rename", "os.remove", "os.chmod", "os.rmdir", "os.link", "os.truncate")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def cut(work: str, store: Path, out: Path, changes: Sequence[FileChange] = ()) -> list[Path]:
    """The copies, each killed a step later than the one before; the last one is whole."""
    out.mkdir()
    (out / "changes.json").write_text(json.dumps([asdict(each) for each in changes]))
    words = [sys.executable, "-m", "tests.world.cut", work, str(store), str(out)]
    subprocess.run(words, check=True, cwd=Path(__file__).parent.parent.parent)
    return sorted(
        (each for each in out.iterdir() if each.is_dir()), key=lambda each: int(each.name)
    )


def apply(store: Path, changes: Sequence[FileChange]) -> None:
    """As a job does, but for thinking."""
    files = StoreFolder(store)
    with files.writing():
        files.stage(JOB, changes)
        files.apply(JOB)


def finish(store: Path, _: Sequence[FileChange]) -> None:
    """As whoever comes next."""
    with StoreFolder(store).reading():
        pass


def die_at(step: int) -> None:
    """Let this process be killed before its n-th step from now on."""
    steps = itertools.count(1)
    fsync = os.fsync

    def note() -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGING or (event == "open" and arguments[2] & WRITING):
            note()

    def synced(descriptor: int) -> None:
        note()
        fsync(descriptor)

    sys.addaudithook(heard)
    os.fsync = synced  # type: ignore[assignment]  # the interpreter tells nothing of it


def survives(step: int, work: Callable[[], None]) -> bool:
    """Whether a process came to its end before that step."""
    child = os.fork()
    if child == 0:
        die_at(step)
        work()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def main(work: str, store: Path, out: Path) -> None:
    """All copies, until the process needs no more steps."""
    changes = [FileChange(**each) for each in json.loads((out / "changes.json").read_text())]
    do = {"apply": apply, "finish": finish}[work]
    for step in itertools.count(1):
        copy = out / str(step)
        shutil.copytree(store, copy)
        if survives(step, lambda copy=copy: do(copy, changes)):  # type: ignore[misc]  # bound at once
            return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
