"""Files of a store: locks, atomic writes, and atomic changes of several files.

    stage ─▶ sleep/JOB/changes.json, output/N ─▶ apply ─▶ sleep/applying ─▶ each in its place

Daemon, commands and web pages share a store: each write replaces one file by another, under a lock. Files that
belong together are all on the disk before the first is put in place. If a kill interrupts that, the next one to
take the lock finishes it before reading anything (W-007, W-064).
"""

import errno
import json
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote

from wintermute.errors import FileUnusable, StoreMissing, StoreUnusable
from wintermute.files import FOLDER, READ, Old, folder_of, lock_descriptor, replace
from wintermute.wiki.links import INDEX, JOBS, Presence, legible
from wintermute.wiki.pages import MOST_BYTES

APPLYING = f"{JOBS}/applying"
"""File with the name of the job whose changes are being put in place."""
CHANGES = "changes.json"
OUTPUT = "output"
PATIENCE, WRITERS_SHARE = 5.0, 6
"""Seconds that a reader waits for the lock, and factor for a writer; nobody should hold it that long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileChange:
    """Change of a file, with its exact text before and after. None: the file does not exist."""

    path: str
    before: str | None
    after: str | None


class StoreFolder:
    """Files below one folder, by relative paths. No link below it is followed."""

    def __init__(self, root: Path, patience: float = PATIENCE) -> None:
        """`patience`: seconds to wait for another program's lock before an error."""
        self.root = root
        self._patience = patience

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the store for writing. Must not be nested, nor within `reading`.

        Raises: StoreMissing, StoreUnusable.
        """
        with self._locked(), disk_errors(self.root):
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Lock the store for reading. Raises: StoreMissing (W-005)."""
        with self._locked(shared=True):
            if self.presence(INDEX) != "file":
                raise StoreMissing(missing(self.root))
            yield

    @contextmanager
    def _locked(self, *, shared: bool = False) -> Iterator[None]:
        try:
            folder = os.open(self.root, FOLDER)
        except (FileNotFoundError, NotADirectoryError, ValueError) as error:
            raise StoreMissing(missing(self.root)) from error
        except OSError as error:
            raise StoreUnusable(f"{self.root} cannot be read: {error.strerror}") from error
        try:
            self._take_lock(folder, shared=shared)
            if self.presence(APPLYING) == "file":
                self._take_lock(folder, shared=False)
                with disk_errors(self.root):
                    self._finish()
            yield
        finally:
            os.close(folder)

    def _take_lock(self, folder: int, *, shared: bool) -> None:
        """Take the lock, or raise StoreUnusable if another program, such as a stopped one, keeps it."""
        patience = self._patience * (1 if shared else WRITERS_SHARE)
        try:
            lock_descriptor(folder, shared=shared, patience=patience)
        except BlockingIOError as error:
            raise StoreUnusable(
                f"{self.root} is held by another program for over {patience:g} seconds:"
                " see which one writes there (`fuser` names it), then try again"
            ) from error

    def stage(self, job: str, changes: Sequence[FileChange]) -> None:
        """Write all that `apply` will put in place, so that a full disk cannot stop it half way.

        Raises: OSError for a full disk or a folder without permission.
        """
        for n, change in enumerate(changes):
            if change.after is not None:
                self.put(f"{JOBS}/{job}/{OUTPUT}/{n}", change.after)
            self._check_writable(change)
        values = [asdict(each) for each in changes]
        self.put(f"{JOBS}/{job}/{CHANGES}", json.dumps(values, ensure_ascii=False, indent=1) + "\n")

    def _check_writable(self, change: FileChange) -> None:
        parts = change.path.split("/")
        with (
            suppress(FileNotFoundError),  # no folder, so nothing to remove
            folder_of(self.root, parts, make=change.after is not None) as folder,
        ):
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
                raise OSError(errno.EACCES, f"{change.path}: Permission denied")

    def apply(self, job: str) -> tuple[str, ...]:
        """Put all staged changes in place or none; after a kill, the next lock finishes this.

        Within `writing`. Returns the paths of files that somebody edited meanwhile and that stay as they are.
        Raises: StoreUnusable; OSError.
        """
        changes = self._read_staged(job)
        self.put(APPLYING, job)
        try:
            return self._finish()
        except OSError:
            self._revert(job, changes)
            raise

    def _revert(self, job: str, changes: Sequence[FileChange]) -> None:
        """Revert the changes already put in place; if that fails too, they are finished later."""
        for change in changes:
            with suppress(FileUnusable):
                if change.before == change.after or self._text(change.path) != change.after:
                    continue
                if change.before is None:
                    self.remove(change.path)
                else:
                    self.put(change.path, change.before)
        self.remove(APPLYING)
        log.warning("pages not put in place, all is as before store=%s job=%s", self.root, job)

    def _read_staged(self, job: str) -> tuple[FileChange, ...]:
        try:
            return self.changes_of(job)
        except (FileUnusable, FileNotFoundError) as problem:
            problem_text = f"{JOBS}/{legible(job)} has no usable {CHANGES}"
            raise StoreUnusable(f"{self.root}: {problem_text}, so nothing was changed") from problem

    def _finish(self) -> tuple[str, ...]:
        try:
            job = self.exact_text(APPLYING).strip()
        except FileNotFoundError:  # another process has finished it
            return ()
        try:
            changes = self.changes_of(job)
        except (FileUnusable, FileNotFoundError) as problem:
            problem_text = f"names {legible(job)!r}, which has no usable {CHANGES}: delete it"
            raise StoreUnusable(f"{self.root / APPLYING} {problem_text}") from problem
        edited = []
        for n, change in enumerate(changes):
            try:
                placed = self._place(change, f"{JOBS}/{job}/{OUTPUT}/{n}")
            except OSError as error:
                raise OSError(error.errno, f"{change.path}: {error.strerror}") from error
            edited += [] if placed else [change.path]
        self.remove(APPLYING)
        return tuple(edited)

    def _place(self, change: FileChange, staged: str) -> bool:
        try:
            now = self._text(change.path)
        except FileUnusable:
            return False
        if now == change.after:
            self.remove(staged)
            return True
        if now != change.before:
            return False
        if change.after is None:
            self.remove(change.path)
            return True
        from_, to = staged.split("/"), change.path.split("/")
        with (
            folder_of(self.root, from_) as source,
            folder_of(self.root, to, make=True) as target,
        ):
            with suppress(FileNotFoundError):
                state = os.stat(to[-1], dir_fd=target, follow_symlinks=False)
                os.chmod(from_[-1], state.st_mode & 0o777, dir_fd=source)
            os.replace(from_[-1], to[-1], src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)
        return True

    def changes_of(self, job: str) -> tuple[FileChange, ...]:
        """Return the changes of a job, made or only wanted. Raises: FileNotFoundError, FileUnusable."""
        path = f"{JOBS}/{job}/{CHANGES}"
        try:
            changes = tuple(FileChange(**each) for each in json.loads(self.exact_text(path)))
        except (ValueError, TypeError, RecursionError) as error:
            raise FileUnusable("holds no list of changes") from error
        if not all(map(_is_change, changes)):
            raise FileUnusable("holds no list of changes")
        return changes

    def put(self, path: str, text: str) -> None:
        """Replace a file atomically. Raises: OSError."""
        self._replace(path, text.encode())

    def replace_if_unchanged(self, path: str, before: bytes, after: bytes) -> bool:
        """Replace a file's content unless it was saved meanwhile; True if it was replaced.

        Raises: OSError, FileUnusable.
        """
        return self._replace(path, after, before)

    def remove(self, path: str) -> None:
        """Delete a file if it exists. Raises: OSError."""
        with suppress(FileNotFoundError):
            self._replace(path, None)

    def _replace(self, path: str, content: bytes | None, seen: Old = ...) -> bool:
        parts = path.split("/")
        with folder_of(self.root, parts, make=content is not None) as folder:
            return replace(Path(parts[-1]), content, seen, folder=folder)

    def make_folder(self, path: str) -> bool:
        """Create a folder and its parents; False if it exists. Raises: OSError."""
        parts = path.split("/")
        with folder_of(self.root, parts, make=True) as folder:
            try:
                os.mkdir(parts[-1], dir_fd=folder)
            except FileExistsError:
                return False
            os.fsync(folder)
        return True

    def content(self, path: str) -> bytes | None:
        """Return the bytes of a plain file; None: there is none. Raises: FileUnusable for anything else."""
        parts = path.split("/")
        try:
            with folder_of(self.root, parts) as folder:
                return content_in(folder, parts[-1])
        except FileNotFoundError:
            return None
        except OSError as error:
            raise FileUnusable(f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise FileUnusable("has a name that is not UTF-8") from error

    def _text(self, path: str) -> str | None:
        content = self.content(path)
        if content is None:
            return None
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise FileUnusable(f"is not UTF-8 at byte {error.start}") from error

    def exact_text(self, path: str) -> str:
        """Return the exact text of a file. Raises: FileNotFoundError, FileUnusable."""
        text = self._text(path)
        if text is None:
            raise FileNotFoundError(errno.ENOENT, "does not exist", path)
        return text

    def presence(self, path: str) -> Presence:
        """Check what is at a path, without following a link in any part of it (W-019)."""
        try:
            parts = path.split("/")
            with folder_of(self.root, parts, guard=_no_link) as folder:
                state = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            return "link" if error.errno == errno.ELOOP else "none"
        except ValueError:
            return "none"
        return "file" if stat.S_ISREG(state.st_mode) else "none"


def _is_change(found: FileChange) -> bool:
    """Check the types of a change from a file, which another program may have written."""
    texts = (found.before, found.after)
    return isinstance(found.path, str) and all(
        each is None or isinstance(each, str) for each in texts
    )


def _no_link(folder: int, entry: str, _writing: bool, /) -> None:
    if stat.S_ISLNK(os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, "is a link", entry)


def content_in(folder: int, name: str) -> bytes:
    """Return the bytes of a plain file in an open folder. Raises: OSError, FileUnusable."""
    descriptor = os.open(name, READ, dir_fd=folder)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise FileUnusable("is no plain file: not opened")
        if state.st_size > MOST_BYTES:
            raise FileUnusable(f"has over {MOST_BYTES:,} bytes: not read")
        return os.read(descriptor, state.st_size)
    finally:
        os.close(descriptor)


def missing(root: Path) -> str:
    """Return the message for a missing store (W-005)."""
    return f"{root} is no wiki store: `wintermute wiki init --store {quote(str(root))}` makes one"


@contextmanager
def disk_errors(root: Path) -> Iterator[None]:
    """Turn errors of the disk into StoreUnusable with a message."""
    try:
        yield
    except OSError as error:
        raise StoreUnusable(f"{root} cannot be written: {error.strerror or error}") from error
