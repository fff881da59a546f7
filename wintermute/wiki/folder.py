"""The files of a store: who writes, whole or not at all, and what several files belong to.

    stage ─▶ sleep/JOB/changes.json, output/N ─▶ apply ─▶ sleep/applying ─▶ each in its place

Daemon, commands and pages of the web share a store: each write is one file put in place of another,
under a lock. What belongs together is safe on the disk before the first of it is put in place, and
whoever comes next finishes what a kill interrupted, before reading anything (W-007, W-064).
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
from wintermute.files import FOLDER, READ, Old, folder_of, replace, take
from wintermute.wiki.links import INDEX, JOBS, Presence, legible
from wintermute.wiki.pages import MOST_BYTES

APPLYING = f"{JOBS}/applying"
"""Names the job whose changes are being put in place."""
CHANGES = "changes.json"
OUTPUT = "output"
PATIENCE, WRITERS_SHARE = 5.0, 6
"""Seconds, and how many times as long who writes may wait: nobody holds a store for as long."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file of the store that changes, with its text as it is in the file. None: it is not there."""

    path: str
    before: str | None
    after: str | None


class StoreFolder:
    """The files below one folder, by paths relative to it. No link below it is followed."""

    def __init__(self, root: Path, patience: float = PATIENCE) -> None:
        """`patience`: seconds for which another program may hold the store before that is told."""
        self.root = root
        self._patience = patience

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A block in which nobody else writes. Not to be nested, nor with `reading`.

        Raises: StoreMissing, StoreUnusable.
        """
        with self._locked(), told(self.root):
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block in which nobody writes. Raises: StoreMissing (W-005)."""
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
            self._take(folder, shared=shared)
            if self.presence(APPLYING) == "file":
                self._take(folder, shared=False)
                with told(self.root):
                    self._finish()
            yield
        finally:
            os.close(folder)

    def _take(self, folder: int, *, shared: bool) -> None:
        """A lock that somebody holds for ever, such as a program that was stopped, stops nobody."""
        patience = self._patience * (1 if shared else WRITERS_SHARE)
        try:
            take(folder, shared=shared, patience=patience)
        except BlockingIOError as error:
            raise StoreUnusable(
                f"{self.root} is held by another program for over {patience:g} seconds:"
                " see which one writes there (`fuser` names it), then try again"
            ) from error

    def stage(self, job: str, changes: Sequence[FileChange]) -> None:
        """Write all that `apply` then puts in place, so that no disk stops that half way.

        Raises: OSError for a full one, and for a folder that may not be written.
        """
        for n, change in enumerate(changes):
            if change.after is not None:
                self.put(f"{JOBS}/{job}/{OUTPUT}/{n}", change.after)
            self._prove_writable(change)
        values = [asdict(each) for each in changes]
        self.put(f"{JOBS}/{job}/{CHANGES}", json.dumps(values, ensure_ascii=False, indent=1) + "\n")

    def _prove_writable(self, change: FileChange) -> None:
        """Its folder takes files."""
        parts = change.path.split("/")
        with (
            suppress(FileNotFoundError),  # nothing is to be removed there
            folder_of(self.root, parts, make=change.after is not None) as folder,
        ):
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
                raise OSError(errno.EACCES, f"{change.path}: Permission denied")

    def apply(self, job: str) -> tuple[str, ...]:
        """Put all that is staged in place, whenever we are killed: else whoever comes next does.

        Within `writing`. What somebody edited meanwhile stays as it is: those paths. Where it cannot
        be done, nothing of it is. Raises: StoreUnusable; OSError.
        """
        changes = self._staged(job)
        self.put(APPLYING, job)
        try:
            return self._finish()
        except OSError:
            self._take_back(job, changes)
            raise

    def _take_back(self, job: str, changes: Sequence[FileChange]) -> None:
        """What was put in place goes back; what cannot is finished later, as after a kill."""
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

    def _staged(self, job: str) -> tuple[FileChange, ...]:
        try:
            return self.changes_of(job)
        except (FileUnusable, FileNotFoundError) as problem:
            told = f"{JOBS}/{legible(job)} has no usable {CHANGES}"
            raise StoreUnusable(f"{self.root}: {told}, so nothing was changed") from problem

    def _finish(self) -> tuple[str, ...]:
        try:
            job = self.exact(APPLYING).strip()
        except FileNotFoundError:  # somebody else has finished it
            return ()
        try:
            changes = self.changes_of(job)
        except (FileUnusable, FileNotFoundError) as problem:
            told = f"names {legible(job)!r}, which has no usable {CHANGES}: delete it"
            raise StoreUnusable(f"{self.root / APPLYING} {told}") from problem
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
                found = os.stat(to[-1], dir_fd=target, follow_symlinks=False)
                os.chmod(from_[-1], found.st_mode & 0o777, dir_fd=source)
            os.replace(from_[-1], to[-1], src_dir_fd=source, dst_dir_fd=target)
            os.fsync(target)
        return True

    def changes_of(self, job: str) -> tuple[FileChange, ...]:
        """What a job has changed, or wanted to. Raises: FileNotFoundError, FileUnusable."""
        path = f"{JOBS}/{job}/{CHANGES}"
        try:
            found = tuple(FileChange(**each) for each in json.loads(self.exact(path)))
        except (ValueError, TypeError, RecursionError) as error:
            raise FileUnusable("holds no list of changes") from error
        if not all(map(_is_change, found)):
            raise FileUnusable("holds no list of changes")
        return found

    def put(self, path: str, text: str) -> None:
        """Write a file whole: whoever reads it sees what it was or what it is. Raises: OSError."""
        self._replace(path, text.encode())

    def exchange(self, path: str, before: bytes, after: bytes) -> bool:
        """Put a file in the place of what it was, unless that was saved meanwhile; whether it is.

        Raises: OSError, FileUnusable.
        """
        return self._replace(path, after, before)

    def remove(self, path: str) -> None:
        """No such file any more. Raises: OSError."""
        with suppress(FileNotFoundError):
            self._replace(path, None)

    def _replace(self, path: str, content: bytes | None, seen: Old = ...) -> bool:
        parts = path.split("/")
        with folder_of(self.root, parts, make=content is not None) as folder:
            return replace(Path(parts[-1]), content, seen, folder=folder)

    def make_folder(self, path: str) -> bool:
        """Make a folder, and those above it; whether there was none. Raises: OSError."""
        parts = path.split("/")
        with folder_of(self.root, parts, make=True) as folder:
            try:
                os.mkdir(parts[-1], dir_fd=folder)
            except FileExistsError:
                return False
            os.fsync(folder)
        return True

    def content(self, path: str) -> bytes | None:
        """The bytes of a plain file; None: there is none. Raises: FileUnusable for anything else."""
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

    def exact(self, path: str) -> str:
        """The text of a file to the letter. Raises: FileNotFoundError, FileUnusable."""
        text = self._text(path)
        if text is None:
            raise FileNotFoundError(errno.ENOENT, "does not exist", path)
        return text

    def presence(self, path: str) -> Presence:
        """What stands at a path; no link is followed, whatever is in the way (W-019)."""
        try:
            parts = path.split("/")
            with folder_of(self.root, parts, guard=_no_link) as folder:
                found = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            return "link" if error.errno == errno.ELOOP else "none"
        except ValueError:
            return "none"
        return "file" if stat.S_ISREG(found.st_mode) else "none"


def _is_change(found: FileChange) -> bool:
    """Whether what a file said of itself is one: another program may have written it."""
    texts = (found.before, found.after)
    return isinstance(found.path, str) and all(
        each is None or isinstance(each, str) for each in texts
    )


def _no_link(folder: int, entry: str, _writing: bool, /) -> None:
    if stat.S_ISLNK(os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, "is a link", entry)


def content_in(folder: int, name: str) -> bytes:
    """The bytes of a plain file in an open folder. Raises: OSError, FileUnusable."""
    descriptor = os.open(name, READ, dir_fd=folder)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise FileUnusable("is no plain file: not opened")
        if found.st_size > MOST_BYTES:
            raise FileUnusable(f"has over {MOST_BYTES:,} bytes: not read")
        return os.read(descriptor, found.st_size)
    finally:
        os.close(descriptor)


def missing(root: Path) -> str:
    """What to say where no store is (W-005)."""
    return f"{root} is no wiki store: `wintermute wiki init --store {quote(str(root))}` makes one"


@contextmanager
def told(root: Path) -> Iterator[None]:
    """A block in which what the disk refuses is said in words. Raises: StoreUnusable."""
    try:
        yield
    except OSError as error:
        raise StoreUnusable(f"{root} cannot be written: {error.strerror or error}") from error
