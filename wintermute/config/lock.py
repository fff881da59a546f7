"""One daemon per data folder: a lock that dies with its process, and the number of its holder."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from wintermute.errors import ConfigurationError, DataFolderInUse, DiskFull, WintermuteError

NAME = "wintermute.lock"
PROBE = "wintermute.room"
ENOUGH = 1 << 20
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def hold(data_dir: Path) -> Iterator[None]:
    """Keep every other process of ours out of this folder.

    Raises: DataFolderInUse with the holder's process number; ConfigurationError when the folder
    is missing or not ours to write; DiskFull.
    """
    try:
        descriptor = os.open(data_dir / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unusable(data_dir, error) from error
    try:
        _take(descriptor, data_dir)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)  # gives the lock back; the file stays, or two could hold two files


def holder(data_dir: Path) -> int | None:
    """The process that holds the folder: None when nobody does, 0 when it did not say yet."""
    try:
        descriptor = os.open(data_dir / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(data_dir, error) from error
    try:
        return None if _locked(descriptor) else _read(descriptor)
    finally:
        os.close(descriptor)


def started(data_dir: Path) -> datetime | None:
    """When the process that holds the folder took it; None when nobody holds it."""
    if holder(data_dir) is None:
        return None
    return datetime.fromtimestamp((data_dir / NAME).stat().st_mtime, UTC)


def _take(descriptor: int, data_dir: Path) -> None:
    """Get the lock and write our number. One start at a time, by a lock on the folder itself."""
    try:
        folder = os.open(data_dir, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not _locked(descriptor):
                raise DataFolderInUse(
                    f"another Wintermute (process {_read(descriptor) or 'unknown'}) uses the data"
                    f" folder {data_dir}: stop it first"
                )
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # at most, a `holder` finishes its look
        finally:
            os.close(folder)
        os.ftruncate(descriptor, 0)
        _write_number(descriptor)
    except OSError as error:
        raise _unusable(data_dir, error) from error


def _write_number(descriptor: int) -> None:
    """A full disk does not keep us away: it is waited for like any other, and the lock is ours."""
    try:
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def has_room(data_dir: Path) -> bool:
    """Whether a megabyte can be written here now; quotas and limits count, not only the disk."""
    probe = data_dir / PROBE
    try:
        with probe.open("wb", buffering=0) as file:
            room = file.write(bytes(ENOUGH)) == ENOUGH
            os.fsync(file.fileno())
    except OSError:
        room = False
    with suppress(OSError):  # on a disk that has become read-only there is none
        probe.unlink(missing_ok=True)
    return room


def _unusable(data_dir: Path, error: OSError) -> WintermuteError:
    if error.errno in NO_ROOM:
        return DiskFull(
            f"the data folder {data_dir} is full ({error.strerror}): make room on its disk"
        )
    if isinstance(error, FileNotFoundError):
        return ConfigurationError(
            f"the data folder {data_dir} does not exist: make it with `wintermute init DIR`, or"
            " correct data_dir"
        )
    return ConfigurationError(
        f"the data folder {data_dir} cannot be used ({error.strerror}): it must be writable for the"
        " user who runs Wintermute"
    )


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0
