"""The lock file of a data folder, with the number of its process: one daemon and one night per folder."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from wintermute.errors import ConfigurationError, DataFolderInUse, DiskFull, WintermuteError
from wintermute.files import LOCK_FILE, lock_descriptor, locked

NAME = "wintermute.lock"
PROBE = "wintermute.room"
ENOUGH = 1 << 20
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def hold(data_dir: Path) -> AbstractContextManager[None]:
    """Lock this folder against all other processes of ours.

    Raises: DataFolderInUse with the holder's process number; ConfigurationError if the folder is
    missing or not writable; DiskFull.
    """
    return claimed(
        data_dir,
        NAME,
        lambda pid: DataFolderInUse(
            f"another Wintermute (process {pid or 'unknown'}) uses the data folder {data_dir}: stop"
            " it first"
        ),
    )


@contextmanager
def claimed(data_dir: Path, name: str, refusal: Callable[[int], WintermuteError]) -> Iterator[None]:
    """Hold a lock file that names our process; `refusal` gets its holder. Raises: as `hold`.

    The file is never deleted, or two processes could hold two files.
    """
    with _usable(data_dir):
        descriptor = os.open(data_dir / name, LOCK_FILE, 0o600)
    try:
        with _usable(data_dir), locked(data_dir, patience=None):  # one start at a time
            if _is_locked(descriptor):
                raise refusal(_read(descriptor))
            lock_descriptor(
                descriptor, patience=None
            )  # waits at most for a `holder` that is reading
            os.ftruncate(descriptor, 0)
            _write_number(descriptor)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(data_dir: Path, name: str = NAME) -> int | None:
    """Return the process that holds a lock file: None for nobody, 0 if it has not written its number yet."""
    with _usable(data_dir):
        try:
            descriptor = os.open(data_dir / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
    try:
        return _read(descriptor) if _is_locked(descriptor) else None
    finally:
        os.close(descriptor)


def started(data_dir: Path) -> datetime | None:
    """Return when the folder was locked by its present holder; None if there is none."""
    if holder(data_dir) is None:
        return None
    return datetime.fromtimestamp((data_dir / NAME).stat().st_mtime, UTC)


def _write_number(descriptor: int) -> None:
    """Write our process number. On a full disk the lock is ours all the same; the daemon waits for room."""
    try:
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def has_room(data_dir: Path) -> bool:
    """Return True if a megabyte can be written here now; quotas and limits count, not only the disk."""
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


@contextmanager
def _usable(data_dir: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise DiskFull(
                f"the data folder {data_dir} is full ({error.strerror}): make room on its disk"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise ConfigurationError(
                f"the data folder {data_dir} does not exist: make it with `wintermute init DIR`, or"
                " correct data_dir"
            ) from error
        raise ConfigurationError(
            f"the data folder {data_dir} cannot be used ({error.strerror}): it must be writable for"
            " the user who runs Wintermute"
        ) from error


def _is_locked(descriptor: int) -> bool:
    try:
        lock_descriptor(descriptor, shared=True)
    except BlockingIOError:
        return True
    return False


def _read(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0
