"""One daemon per data folder."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from wintermute.config.lock import hold, holder
from wintermute.errors import ConfigurationError, DataFolderInUse

HOLD = """
import sys
from pathlib import Path
from wintermute.config.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_holder_is_refused_and_told_the_process(tmp_path: Path) -> None:
    with hold(tmp_path):
        assert holder(tmp_path) == os.getpid()
        with (
            pytest.raises(DataFolderInUse, match=rf"process {os.getpid()}.*{tmp_path}"),
            hold(tmp_path),
        ):
            pass
        assert holder(tmp_path) == os.getpid()
    assert holder(tmp_path) is None
    with hold(tmp_path):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert holder(tmp_path) == process.pid
        process.kill()
        process.wait()
    assert holder(tmp_path) is None
    with hold(tmp_path):
        assert holder(tmp_path) == os.getpid()


def test_a_folder_nobody_ever_used_has_no_holder(tmp_path: Path) -> None:
    assert holder(tmp_path) is None
    assert holder(tmp_path / "nowhere") is None


def test_asking_who_holds_a_folder_never_keeps_a_start_away(tmp_path: Path) -> None:
    with hold(tmp_path):
        pass
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            holder(tmp_path)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for _ in range(300):
            with hold(tmp_path):
                pass
    finally:
        done.set()
        asker.join()


def test_of_starts_at_the_same_moment_one_succeeds(tmp_path: Path) -> None:
    rounds, starts = 30, 4
    together = threading.Barrier(starts, timeout=30)
    refused = []

    def start() -> None:
        for _ in range(rounds):
            together.wait()
            try:
                with hold(tmp_path):
                    together.wait()
            except DataFolderInUse as error:
                refused.append(error)
                together.wait()

    threads = [threading.Thread(target=start, daemon=True) for _ in range(starts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == rounds * (starts - 1)


def test_a_folder_that_is_missing_or_not_usable_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigurationError, match="does not exist: make it with"),
        hold(tmp_path / "x"),
    ):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be used"), hold(tmp_path / "file"):
        pass
    (tmp_path / "wintermute.lock").symlink_to(tmp_path / "file")
    with pytest.raises(ConfigurationError, match="cannot be used"), hold(tmp_path):
        pass
