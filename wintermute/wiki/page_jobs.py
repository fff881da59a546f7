"""Jobs that make or change pages, each with a folder of records: `sleep/YYYYMMDD-HHMMSS/`.

    job.json            task, time and result             report.md    the same for people
    diff.patch          changes, made or only proposed    agent.*.txt  output of an agent
    changes.json, output/                                 files to put in place, see `folder`
    ../written/PAGE     lines of a page written by us: all others are a person's

A job counts as failed until its pages are put in place: its new status is one of the files of that step, so an
interrupted job says that it was interrupted.
"""

import json
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    suppress,
)
from dataclasses import asdict, dataclass, fields, replace
from datetime import date, datetime
from difflib import unified_diff
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, get_args

from wintermute.changes.change_sets import Change
from wintermute.changes.texts import state_of
from wintermute.clock import Clock
from wintermute.errors import FileUnusable, StoreBusy, StoreChanged, StoreUnusable, WintermuteError
from wintermute.files import (
    CREATE,
    PART,
    entered,
    folder_of,
    lock_descriptor,
    restore_saves,
    run_uncancelled,
)
from wintermute.ids import new_id
from wintermute.messages import Json
from wintermute.wiki.conversations import delist, enlist
from wintermute.wiki.folder import APPLYING, FileChange, StoreFolder, disk_errors
from wintermute.wiki.links import INDEX, JOBS, OUTSIDE, PAGE_FOLDERS, RAW
from wintermute.wiki.store import SETTLED
from wintermute.wiki.verdict import UNLINKABLE, ours_after

JOB = "job.json"
WRITTEN = f"{JOBS}/written"
INTERRUPTED = "interrupted"
UNDO = "undo"
"""Agent of jobs that undo others."""
NAME = re.compile(r"(\d{8}-\d{6})(?:-(\d+))?")
UNDOING = ".undo_"
"""Prefix of folders with pages that an undo will put in place."""
STALE = 3_600 * 10**9
"""Nanoseconds after which a partial file is not written any more."""
PAUSE = 0.2

JobStatus = Literal["applied", "rejected", "failed"]

Stamp = tuple[int, int, int, int]
Recording = Callable[[], AbstractAsyncContextManager[str | None]]
"""Transaction that records the coming changes; it gives the id of their change set."""


@dataclass(frozen=True, slots=True)
class WikiJob:
    """Record of one job (W-060). `start` and `end` are ISO times with their zone."""

    name: str
    agent: str
    conversation: str = ""
    raw_copy: str = ""
    start: str = ""
    end: str | None = None
    exit_code: int | None = None
    status: JobStatus = "failed"
    reason: str = INTERRUPTED
    changed_files: tuple[str, ...] = ()
    proposed: tuple[str, ...] = ()
    change_set: str | None = None
    undoes: str | None = None

    @property
    def folder(self) -> str:
        """Path of its folder in the store."""
        return f"{JOBS}/{self.name}"

    @property
    def file(self) -> str:
        """Path of its record."""
        return f"{self.folder}/{JOB}"

    @property
    def is_open(self) -> bool:
        """True if the job is running, or was killed."""
        return self.status == "failed" and self.reason == INTERRUPTED

    def as_json(self) -> str:
        """Return the content of its record."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def begin(files: StoreFolder, job: WikiJob, now: datetime) -> WikiJob:
    """Create the folder of a job, named by the local time, with status interrupted. Raises: StoreUnusable."""
    stem, n = f"{now:%Y%m%d-%H%M%S}", 1
    name = stem
    with disk_errors(files.root):
        while not files.make_folder(f"{JOBS}/{name}"):
            n += 1
            name = f"{stem}-{n}"
        job = replace(job, name=name, start=now.isoformat(timespec="seconds"))
        files.put(job.file, job.as_json())
    return job


def write_job_files(files: StoreFolder, job: WikiJob, texts: Mapping[str, str]) -> None:
    """Write files into the folder of a job. Raises: StoreUnusable."""
    with disk_errors(files.root):
        for name, text in texts.items():
            files.put(f"{job.folder}/{name}", text)


def listed_jobs(files: StoreFolder) -> tuple[WikiJob, ...]:
    """Return all jobs with a readable record, the newest first."""
    return tuple(job for name in job_names(files) if (job := read_job(files, name)))


def job_names(files: StoreFolder) -> list[str]:
    """Return the names of job folders, the newest first."""
    matches = filter(None, map(NAME.fullmatch, names_in(files, JOBS)))
    return [m[0] for m in sorted(matches, key=lambda m: (m[1], int(m[2] or 1)), reverse=True)]


def names_in(files: StoreFolder, folder: str) -> frozenset[str]:
    """Return the entries of a folder in a store; none if it does not exist."""
    with (
        suppress(OSError),
        folder_of(files.root, [*folder.split("/"), ""]) as opened,
        os.scandir(opened) as entries,
    ):
        return frozenset(entry.name for entry in entries)
    return frozenset()


def read_job(files: StoreFolder, name: str) -> WikiJob | None:
    """Return the job of a folder; None if it has no readable record."""
    with suppress(FileUnusable, FileNotFoundError, ValueError, TypeError, RecursionError):
        values: Json = json.loads(files.exact_text(f"{JOBS}/{name}/{JOB}"))
        given = {each.name: values[each.name] for each in fields(WikiJob) if each.name in values}
        lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
        job = replace(WikiJob(**given | lists), name=name)
        return job if _is_valid(job) else None
    return None


def _is_valid(job: WikiJob) -> bool:
    """Check the values of a record, which another program may have written. Raises: ValueError."""
    texts = (job.agent, job.conversation, job.raw_copy, job.start, job.status, job.reason)
    named = (*job.changed_files, *job.proposed)
    return (
        all(isinstance(each, str) for each in (*texts, *named))
        and job.status in get_args(JobStatus)
        and datetime.fromisoformat(job.start).tzinfo is not None
    )


@asynccontextmanager
async def job_lock(files: StoreFolder, clock: Clock, *, wait: bool) -> AsyncIterator[None]:
    """Lock a store against other jobs that make pages (W-068).

    Raises: StoreBusy, naming the running job, unless it may `wait`.
    """
    with disk_errors(files.root), folder_of(files.root, (JOBS, ""), make=True) as opened:
        folder = os.dup(opened)
    try:
        while True:
            try:
                lock_descriptor(folder)
                break
            except BlockingIOError:
                if not wait:
                    raise StoreBusy(_busy_message(files)) from None
            await clock.sleep(PAUSE)
        yield
    finally:
        os.close(folder)


def _busy_message(files: StoreFolder) -> str:
    job = next((job for job in listed_jobs(files) if job.is_open), None)
    name = f"{job.folder} ({job.agent}, since {job.start})" if job else "another job"
    return f"{name} is working on {files.root}: try again when it is done, or add --wait"


class SeenPages:
    """State of all pages and the index at one moment, by file stamps or digests."""

    def __init__(self, files: StoreFolder) -> None:
        self._files = files
        now = time.time_ns()
        self._stamps = dict(_stamps(files))
        fresh = [path for path, stamp in self._stamps.items() if now - max(stamp[:2]) < SETTLED]
        self._content = {path: self._digest(path) for path in fresh}

    def changed(self) -> tuple[str, ...]:
        """Return the paths that were changed, added or removed since, sorted."""
        now = dict(_stamps(self._files))
        changed = {path for path, stamp in now.items() if self._stamps.get(path) != stamp}
        changed |= self._stamps.keys() - now.keys()
        same = self._content.keys() - changed
        return tuple(
            sorted(changed | {path for path in same if self._digest(path) != self._content[path]})
        )

    def _digest(self, path: str) -> bytes:
        with suppress(FileUnusable):
            return blake2b(self._files.content(path) or b"").digest()
        return b""


def _stamps(files: StoreFolder) -> Iterator[tuple[str, Stamp]]:
    """Yield every page and the index with a stamp that changes with each write."""
    ahead = [*PAGE_FOLDERS]
    while ahead:
        at = ahead.pop()
        with (
            suppress(OSError),
            folder_of(files.root, [*at.split("/"), ""]) as folder,
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    ahead.append(f"{at}/{entry.name}")
                else:
                    yield f"{at}/{entry.name}", _stamp(entry.stat(follow_symlinks=False))
    parts = INDEX.split("/")
    with suppress(OSError), folder_of(files.root, parts) as folder:
        yield INDEX, _stamp(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def raw_name(name: str) -> str:
    """Return the name for a raw copy: only characters that a link can hold."""
    plain = "".join("-" if mark in UNLINKABLE or not mark.isprintable() else mark for mark in name)
    return plain.strip(" .")[:100] or "conversation"


def raw_path(files: StoreFolder, name: str, day: date) -> str:
    """Return the path for the next raw copy of this name (W-059)."""
    at = f"{RAW}/{day:%Y%m%d}"
    n, free, taken = 0, name, names_in(files, at)
    while free in taken:
        n += 1
        free = f"{name}-{n}"
    return f"{at}/{free}"


def keep_raw(
    files: StoreFolder, path: str, messages: Iterable[tuple[str, str]], conversation: str = ""
) -> None:
    """Copy a conversation, file by file, and list the copy (W-059).

    `path`: as returned by `raw_path`. `conversation`: its own path, to be listed as well. The copy is written
    whole or not at all. Within `StoreFolder.writing`. Raises: StoreUnusable.
    """
    parts, part = path.split("/"), f"{PART}{new_id('raw')}"
    with disk_errors(files.root), folder_of(files.root, parts, make=True) as folder:
        try:
            os.mkdir(part, dir_fd=folder)
            with folder_of(files.root, [*parts[:-1], part, ""]) as inner:
                _write_all(inner, messages)
            os.rename(part, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True, dir_fd=folder)
        enlist(files, *filter(None, (conversation, path)))


def _write_all(folder: int, files: Iterable[tuple[str, str]]) -> None:
    """Write all files first and sync them together, which is faster than one by one."""
    with ExitStack() as opened:
        written = []
        for name, text in files:
            descriptor = os.open(name, CREATE, 0o666, dir_fd=folder)
            file = opened.enter_context(os.fdopen(descriptor, "wb"))
            file.write(text.encode())
            file.flush()
            written.append(descriptor)
        for descriptor in (*written, folder):
            os.fsync(descriptor)


def drop_raw(files: StoreFolder, path: str) -> None:
    """Remove a raw copy whose job had no result. Within `StoreFolder.writing`. Raises: StoreUnusable."""
    parts = path.split("/")
    if len(parts) != 3 or parts[0] != RAW:
        return
    with disk_errors(files.root):
        delist(files, path)
        with suppress(FileNotFoundError), folder_of(files.root, parts) as folder:
            shutil.rmtree(parts[-1], dir_fd=folder)
            os.fsync(folder)


def numbered(messages: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield file names for messages of roles and texts: `0001-user.md` (W-036)."""
    for n, (role, text) in enumerate(messages, 1):
        yield f"{n:04}-{role}.md", f"{text}\n"


def written_lines(files: StoreFolder, path: str) -> frozenset[str]:
    """Return the lines of a page written by us."""
    return frozenset((text_at(files, f"{WRITTEN}/{path}") or "").splitlines())


def text_at(files: StoreFolder, path: str) -> str | None:
    """Return the exact text of a file; None if it does not exist or is no text."""
    try:
        return files.exact_text(path)
    except (FileNotFoundError, FileUnusable):
        return None


def written_change(
    files: StoreFolder, change: FileChange, ours: Iterable[str] | None = None
) -> FileChange:
    """Return the change of the record of our own lines that goes with a change of a page.

    `ours`: candidates for our lines; None: the recorded ones, and those that the change adds.
    """
    path = f"{WRITTEN}/{change.path}"
    before = text_at(files, path)
    if ours is None:
        ours = ours_after(change.before, change.after or "", set((before or "").splitlines()))
    lines = "".join(f"{line}\n" for line in ours)
    return FileChange(path, before, lines or None)


def marked_untrusted(files: StoreFolder, paths: Iterable[str]) -> FileChange:
    """Return the change that adds paths to the list of untrusted ones. Raises: StoreUnusable."""
    before = text_at(files, OUTSIDE)
    return FileChange(OUTSIDE, before, _listing([*untrusted_paths(files), *paths]))


def untrusted_paths(files: StoreFolder) -> tuple[str, ...]:
    """Return the raw copies and pages that may contain text from outside. Raises: StoreUnusable."""
    paths: Any = []
    with suppress(FileNotFoundError):
        try:
            paths = json.loads(files.exact_text(OUTSIDE))
        except (ValueError, FileUnusable) as error:
            raise StoreUnusable(
                f"{files.root / OUTSIDE}: is no list of paths: correct it"
            ) from error
    if not isinstance(paths, list) or not all(isinstance(each, str) for each in paths):
        raise StoreUnusable(f"{files.root / OUTSIDE}: is no list of paths: correct it")
    return tuple(paths)


def _listing(paths: Sequence[str]) -> str:
    return json.dumps(list(dict.fromkeys(paths)), indent=2, ensure_ascii=False) + "\n"


def patch(changes: Iterable[FileChange]) -> str:
    """Return changes as a unified diff, for people and for `patch -p1`."""
    return "".join(line for change in changes for line in _hunks(change))


def _hunks(change: FileChange) -> Iterator[str]:
    before, after = (text or "" for text in (change.before, change.after))
    names = (
        "/dev/null" if change.before is None else f"a/{change.path}",
        "/dev/null" if change.after is None else f"b/{change.path}",
    )
    lines = unified_diff(_lines(before), _lines(after), *names)
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    found = text.split("\n")
    return [*(f"{line}\n" for line in found[:-1]), *filter(None, found[-1:])]


def recorded(changes: Iterable[FileChange], evidence: tuple[str, ...] = ()) -> list[Change]:
    """Convert changes for the record of change sets."""
    return [
        Change("page", each.path, state_of(each.before), state_of(each.after), evidence)
        for each in changes
    ]


@asynccontextmanager
async def unrecorded() -> AsyncIterator[str | None]:
    """Record nothing, for a store without a database."""
    yield None


async def put_in_place(
    files: StoreFolder,
    job: WikiJob,
    changes: Sequence[FileChange],
    beside: Callable[[], Sequence[FileChange]],
    seen: SeenPages,
    recording: Recording = unrecorded,
) -> WikiJob:
    """Make all these changes or none, even after a kill; return the finished job.

    `beside`: function for other files to change, called under the lock. The record is on the disk first; one
    without an effect is recognised by the pages.

    Raises: StoreChanged, StoreUnusable, and errors of the recording; then nothing was changed.
    """
    paths = tuple(change.path for change in changes)
    job = replace(job, status="applied", reason="", changed_files=paths)
    async with AsyncExitStack() as held:
        async with recording() as set_id:
            await held.enter_async_context(entered(files.writing()))
            if await run_uncancelled(seen.changed):
                raise StoreChanged("store changed meanwhile")
            done = replace(job, change_set=set_id)
            stage = partial(_stage, files, done, changes, beside)
            await run_uncancelled(stage)
        edited = await run_uncancelled(partial(_apply_staged, files, job.name))
        if edited:  # saved by somebody at the same moment
            stay = tuple(path for path in paths if path not in edited)
            said = f"edited meanwhile, so left as it is: {', '.join(edited)}"
            done = replace(done, changed_files=stay, reason=said)
            await run_uncancelled(partial(write_job_files, files, done, {JOB: done.as_json()}))
    return done


def _stage(
    files: StoreFolder,
    done: WikiJob,
    changes: Sequence[FileChange],
    beside: Callable[[], Sequence[FileChange]],
) -> None:
    with disk_errors(files.root):
        last = FileChange(done.file, text_at(files, done.file), done.as_json())
        files.stage(done.name, (*changes, *beside(), last))


def _apply_staged(files: StoreFolder, job: str) -> tuple[str, ...]:
    with disk_errors(files.root):
        return files.apply(job)


def is_being_applied(files: StoreFolder, job: WikiJob) -> bool:
    """Check if the job's staged changes are being put in place; the next lock finishes them."""
    return (text_at(files, APPLYING) or "").strip() == job.name


def sweep(files: StoreFolder) -> None:
    """Remove copies, partial files and undo folders left by kills. The caller holds `job_lock`.

    Young undo folders stay, for they may be in use: only copies are made by jobs alone.
    """
    at_work = (text_at(files, APPLYING) or "").strip()
    before = time.time_ns() - STALE
    for at, folders, _ in os.walk(files.root):
        below = Path(at).relative_to(files.root).as_posix()
        for name in folders:
            undoing = below == JOBS and name.startswith(UNDOING) and name != at_work
            if name.startswith(PART) or (undoing and _is_old(Path(at) / name, before)):
                discard(files, below, name)
        restore_saves(Path(at))
        folders[:] = [name for name in folders if not name.startswith(".")]


def _is_old(path: Path, before: int) -> bool:
    with suppress(OSError):
        return path.lstat().st_mtime_ns < before
    return False


def discard(files: StoreFolder, at: str, name: str) -> None:
    """Delete a folder within another, with its content."""
    with suppress(OSError), folder_of(files.root, [*at.split("/"), name]) as folder:
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def find_job(files: StoreFolder, name: str) -> WikiJob:
    """Find a job by the name of its folder. Raises: WintermuteError."""
    job = read_job(files, name.rstrip("/").removeprefix(f"{JOBS}/"))
    if job is None or not NAME.fullmatch(job.name):
        raise WintermuteError(f"no job {name}: look for its name in {files.root / JOBS}")
    return job
