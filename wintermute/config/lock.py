"""One daemon per data folder, and one night: a lock file that holds the number of its process."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from wintermute.errors import ConfigurationError, DataFolderInUse, DiskFull, WintermuteError
from wintermute.files import LOCK_FILE, locked, take

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

    def in_use(pid: int) -> WintermuteError:
        return DataFolderInUse(
            f"another Wintermute (process {pid or 'unknown'}) uses the data folder {data_dir}: stop"
            " it first"
        )

    with ExitStack() as stack:
        try:
            stack.enter_context(claimed(data_dir / NAME, in_use))
        except OSError as error:
            raise _unusable(data_dir, error) from error
        yield


def holder(data_dir: Path) -> int | None:
    """The process that holds the folder: None when nobody does, 0 when it did not say yet."""
    try:
        return claimant(data_dir / NAME)
    except OSError as error:
        raise _unusable(data_dir, error) from error


@contextmanager
def claimed(path: Path, refusal: Callable[[int], WintermuteError]) -> Iterator[None]:
    """Hold a lock file, which names our process; another holder's number is refused. Raises: OSError.

    The file stays, or two could hold two files.
    """
    descriptor = os.open(path, LOCK_FILE, 0o600)
    try:
        with locked(path.parent, patience=None):  # one start at a time
            if _is_locked(descriptor):
                raise refusal(_read(descriptor))
            take(descriptor, patience=None)  # at most, a `claimant` finishes its look
        os.ftruncate(descriptor, 0)
        _write_number(descriptor)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def claimant(path: Path) -> int | None:
    """The process that holds a lock file: as `holder`. Raises: OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _read(descriptor) if _is_locked(descriptor) else None
    finally:
        os.close(descriptor)


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


def _is_locked(descriptor: int) -> bool:
    try:
        take(descriptor, shared=True)
    except BlockingIOError:
        return True
    return False


def _read(descriptor: int) -> int:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else 0
