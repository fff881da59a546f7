"""Jobs: what made or changed pages, each with a folder that says what it did: `sleep/YYYYMMDD-HHMMSS/`.

    job.json            what, when, and what came of it    report.md    the same for people
    diff.patch          what was changed, or would be      agent.*.txt  what an agent printed
    changes.json, output/                                  what is put in place, see `folder`
    ../written/PAGE     the lines of a page that we wrote: all others are a person's

What a kill interrupts says so: a job has failed until the step that puts its pages in place, and is
one of the files of that step.
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
from wintermute.files import CREATE, PART, entered, folder_of, mend, take, to_its_end
from wintermute.ids import new_id
from wintermute.messages import Json
from wintermute.wiki.conversations import delist, enlist
from wintermute.wiki.folder import APPLYING, FileChange, StoreFolder, told
from wintermute.wiki.links import INDEX, JOBS, OUTSIDE, PAGE_FOLDERS, RAW
from wintermute.wiki.store import SETTLED
from wintermute.wiki.verdict import UNLINKABLE, ours_after

JOB = "job.json"
WRITTEN = f"{JOBS}/written"
INTERRUPTED = "interrupted"
UNDO = "undo"
"""The agent of jobs that take others back."""
NAME = re.compile(r"(\d{8}-\d{6})(?:-(\d+))?")
UNDOING = ".undo_"
"""How folders are called in which pages are prepared that an undo puts in place."""
STALE = 3_600 * 10**9
"""Nanoseconds after which nobody writes a part any more."""
PAUSE = 0.2

JobStatus = Literal["applied", "rejected", "failed"]

Stamp = tuple[int, int, int, int]
Recording = Callable[[], AbstractAsyncContextManager[str | None]]
"""A transaction that records what is about to be put in place: the id of its change set."""


@dataclass(frozen=True, slots=True)
class WikiJob:
    """What one job did (W-060). `start` and `end` are ISO times with their zone."""

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
        """Where it stands in the store."""
        return f"{JOBS}/{self.name}"

    @property
    def file(self) -> str:
        """What says what came of it."""
        return f"{self.folder}/{JOB}"

    @property
    def is_open(self) -> bool:
        """Whether it is at work, or was killed at it."""
        return self.status == "failed" and self.reason == INTERRUPTED

    def as_json(self) -> str:
        """What its file holds."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def begin(files: StoreFolder, job: WikiJob, now: datetime) -> WikiJob:
    """Make the folder of a job, by the local time; it stands there as interrupted. Raises: StoreUnusable."""
    stem, n = f"{now:%Y%m%d-%H%M%S}", 1
    name = stem
    with told(files.root):
        while not files.make_folder(f"{JOBS}/{name}"):
            n += 1
            name = f"{stem}-{n}"
        job = replace(job, name=name, start=now.isoformat(timespec="seconds"))
        files.put(job.file, job.as_json())
    return job


def note(files: StoreFolder, job: WikiJob, texts: Mapping[str, str]) -> None:
    """Write more files into the folder of a job, by their names. Raises: StoreUnusable."""
    with told(files.root):
        for name, text in texts.items():
            files.put(f"{job.folder}/{name}", text)


def listed_jobs(files: StoreFolder) -> tuple[WikiJob, ...]:
    """All jobs whose file can be read, the newest first."""
    return tuple(job for name in job_names(files) if (job := read_job(files, name)))


def job_names(files: StoreFolder) -> list[str]:
    """The names of the folders of jobs, the newest first."""
    matches = filter(None, map(NAME.fullmatch, names_in(files, JOBS)))
    return [m[0] for m in sorted(matches, key=lambda m: (m[1], int(m[2] or 1)), reverse=True)]


def names_in(files: StoreFolder, folder: str) -> frozenset[str]:
    """What stands in a folder of a store; nothing where there is none."""
    with (
        suppress(OSError),
        folder_of(files.root, [*folder.split("/"), ""]) as opened,
        os.scandir(opened) as entries,
    ):
        return frozenset(entry.name for entry in entries)
    return frozenset()


def read_job(files: StoreFolder, name: str) -> WikiJob | None:
    """A job by the name of its folder; None: there is none that can be read."""
    with suppress(FileUnusable, FileNotFoundError, ValueError, TypeError, RecursionError):
        values: Json = json.loads(files.exact(f"{JOBS}/{name}/{JOB}"))
        given = {each.name: values[each.name] for each in fields(WikiJob) if each.name in values}
        lists = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
        job = replace(WikiJob(**given | lists), name=name)
        return job if _is_sound(job) else None
    return None


def _is_sound(job: WikiJob) -> bool:
    """Whether its file may be ours: another program may have written it. Raises: ValueError."""
    texts = (job.agent, job.conversation, job.raw_copy, job.start, job.status, job.reason)
    named = (*job.changed_files, *job.proposed)
    return (
        all(isinstance(each, str) for each in (*texts, *named))
        and job.status in get_args(JobStatus)
        and datetime.fromisoformat(job.start).tzinfo is not None
    )


@asynccontextmanager
async def alone(files: StoreFolder, clock: Clock, *, wait: bool) -> AsyncIterator[None]:
    """A block in which no other job makes pages of a store (W-068).

    Raises: StoreBusy, naming who is at work, unless it may `wait`.
    """
    with told(files.root), folder_of(files.root, (JOBS, ""), make=True) as opened:
        folder = os.dup(opened)
    try:
        while True:
            try:
                take(folder)
                break
            except BlockingIOError:
                if not wait:
                    raise StoreBusy(_who(files)) from None
            await clock.sleep(PAUSE)
        yield
    finally:
        os.close(folder)


def _who(files: StoreFolder) -> str:
    job = next((job for job in listed_jobs(files) if job.is_open), None)
    name = f"{job.folder} ({job.agent}, since {job.start})" if job else "another job"
    return f"{name} is working on {files.root}: try again when it is done, or add --wait"


class SeenPages:
    """All pages and the index as they were when this was made: a stamp each, or their bytes."""

    def __init__(self, files: StoreFolder) -> None:
        self._files = files
        now = time.time_ns()
        self._stamps = dict(_stamps(files))
        fresh = [path for path, stamp in self._stamps.items() if now - max(stamp[:2]) < SETTLED]
        self._content = {path: self._digest(path) for path in fresh}

    def changed(self) -> tuple[str, ...]:
        """What is another by now, new or gone, sorted."""
        now = dict(_stamps(self._files))
        found = {path for path, stamp in now.items() if self._stamps.get(path) != stamp}
        found |= self._stamps.keys() - now.keys()
        same = self._content.keys() - found
        return tuple(
            sorted(found | {path for path in same if self._digest(path) != self._content[path]})
        )

    def _digest(self, path: str) -> bytes:
        with suppress(FileUnusable):
            return blake2b(self._files.content(path) or b"").digest()
        return b""


def _stamps(files: StoreFolder) -> Iterator[tuple[str, Stamp]]:
    """Every page and the index, with what tells that somebody wrote it."""
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
    """What the raw copy of a conversation is called: nothing that a link cannot hold."""
    plain = "".join("-" if mark in UNLINKABLE or not mark.isprintable() else mark for mark in name)
    return plain.strip(" .")[:100] or "conversation"


def raw_path(files: StoreFolder, name: str, day: date) -> str:
    """Where the next raw copy of this name would stand (W-059)."""
    at = f"{RAW}/{day:%Y%m%d}"
    n, free, taken = 0, name, names_in(files, at)
    while free in taken:
        n += 1
        free = f"{name}-{n}"
    return f"{at}/{free}"


def keep_raw(
    files: StoreFolder, path: str, messages: Iterable[tuple[str, str]], conversation: str = ""
) -> None:
    """Copy a conversation, file by file with their texts, and list the copy (W-059).

    `path`: as `raw_path` gives it. `conversation`: its own path, to be listed as well. The copy is
    there whole or not at all. Within `StoreFolder.writing`. Raises: StoreUnusable.
    """
    parts, part = path.split("/"), f"{PART}{new_id('raw')}"
    with told(files.root), folder_of(files.root, parts, make=True) as folder:
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
    """What is written first and synced after takes the disk once, not once for each file."""
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
    """Take back a raw copy that nothing came of. Within `StoreFolder.writing`. Raises: StoreUnusable."""
    parts = path.split("/")
    if len(parts) != 3 or parts[0] != RAW:
        return
    with told(files.root):
        delist(files, path)
        with suppress(FileNotFoundError), folder_of(files.root, parts) as folder:
            shutil.rmtree(parts[-1], dir_fd=folder)
            os.fsync(folder)


def numbered(messages: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The files of a conversation of roles and texts: `0001-user.md` (W-036)."""
    for n, (role, text) in enumerate(messages, 1):
        yield f"{n:04}-{role}.md", f"{text}\n"


def written_lines(files: StoreFolder, path: str) -> frozenset[str]:
    """The lines of a page that we wrote."""
    return frozenset((text_at(files, f"{WRITTEN}/{path}") or "").splitlines())


def text_at(files: StoreFolder, path: str) -> str | None:
    """The text of a file to the letter; None where there is none that is text."""
    try:
        return files.exact(path)
    except (FileNotFoundError, FileUnusable):
        return None


def written_change(
    files: StoreFolder, change: FileChange, ours: Iterable[str] | None = None
) -> FileChange:
    """What is kept beside a change of a page: which of its lines are ours then.

    `ours`: those that may be; None: those that were, and what the change brings.
    """
    path = f"{WRITTEN}/{change.path}"
    before = text_at(files, path)
    if ours is None:
        ours = ours_after(change.before, change.after or "", set((before or "").splitlines()))
    lines = "".join(f"{line}\n" for line in ours)
    return FileChange(path, before, lines or None)


def marked_outside(files: StoreFolder, paths: Iterable[str]) -> FileChange:
    """The list of what may hold text from outside, with more of it. Raises: StoreUnusable."""
    before = text_at(files, OUTSIDE)
    return FileChange(OUTSIDE, before, _listing([*outside(files), *paths]))


def outside(files: StoreFolder) -> tuple[str, ...]:
    """The raw copies and pages in which text from outside may stand. Raises: StoreUnusable."""
    found: Any = []
    with suppress(FileNotFoundError):
        try:
            found = json.loads(files.exact(OUTSIDE))
        except (ValueError, FileUnusable) as error:
            raise StoreUnusable(
                f"{files.root / OUTSIDE}: is no list of paths: correct it"
            ) from error
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise StoreUnusable(f"{files.root / OUTSIDE}: is no list of paths: correct it")
    return tuple(found)


def _listing(paths: Sequence[str]) -> str:
    return json.dumps(list(dict.fromkeys(paths)), indent=2, ensure_ascii=False) + "\n"


def patch(changes: Iterable[FileChange]) -> str:
    """Changes as a unified diff, for people and for `patch -p1`."""
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
    """The changes as the record of changes has them."""
    return [
        Change("page", each.path, state_of(each.before), state_of(each.after), evidence)
        for each in changes
    ]


@asynccontextmanager
async def unrecorded() -> AsyncIterator[str | None]:
    """For a store without a database."""
    yield None


async def put_in_place(
    files: StoreFolder,
    job: WikiJob,
    changes: Sequence[FileChange],
    beside: Callable[[], Sequence[FileChange]],
    seen: SeenPages,
    recording: Recording = unrecorded,
) -> WikiJob:
    """Make all these changes, whenever we are killed, or none of them; the job as it stands then.

    `beside`: other files that change with them, asked once nobody else writes. The record is on the
    disk first: one without an effect is known by what the pages say.

    Raises: StoreChanged, StoreUnusable, and whatever the recording does; then nothing was changed.
    """
    paths = tuple(change.path for change in changes)
    job = replace(job, status="applied", reason="", changed_files=paths)
    async with AsyncExitStack() as held:
        async with recording() as set_id:
            await held.enter_async_context(entered(files.writing()))
            if await to_its_end(seen.changed):
                raise StoreChanged("store changed meanwhile")
            done = replace(job, change_set=set_id)
            stage = partial(_stage, files, done, changes, beside)
            await to_its_end(stage)
        edited = await to_its_end(partial(_applied, files, job.name))
        if edited:  # saved by somebody in the very moment
            stay = tuple(path for path in paths if path not in edited)
            said = f"edited meanwhile, so left as it is: {', '.join(edited)}"
            done = replace(done, changed_files=stay, reason=said)
            await to_its_end(partial(note, files, done, {JOB: done.as_json()}))
    return done


def _stage(
    files: StoreFolder,
    done: WikiJob,
    changes: Sequence[FileChange],
    beside: Callable[[], Sequence[FileChange]],
) -> None:
    with told(files.root):
        last = FileChange(done.file, text_at(files, done.file), done.as_json())
        files.stage(done.name, (*changes, *beside(), last))


def _applied(files: StoreFolder, job: str) -> tuple[str, ...]:
    with told(files.root):
        return files.apply(job)


def is_under_way(files: StoreFolder, job: WikiJob) -> bool:
    """Whether what it staged is being put in place, so that whoever comes next will finish it."""
    return (text_at(files, APPLYING) or "").strip() == job.name


def sweep(files: StoreFolder) -> None:
    """Remove what kills left of copies, parts, and what an undo had prepared; within `alone`.

    What is young somebody may be making just now: only copies are made by jobs alone.
    """
    at_work = (text_at(files, APPLYING) or "").strip()
    before = time.time_ns() - STALE
    for at, folders, _ in os.walk(files.root):
        below = Path(at).relative_to(files.root).as_posix()
        for name in folders:
            undoing = below == JOBS and name.startswith(UNDOING) and name != at_work
            if name.startswith(PART) or (undoing and _is_old(Path(at) / name, before)):
                discard(files, below, name)
        mend(Path(at))
        folders[:] = [name for name in folders if not name.startswith(".")]


def _is_old(path: Path, before: int) -> bool:
    with suppress(OSError):
        return path.lstat().st_mtime_ns < before
    return False


def discard(files: StoreFolder, at: str, name: str) -> None:
    """Remove a folder that stands in another, with all that is in it."""
    with suppress(OSError), folder_of(files.root, [*at.split("/"), name]) as folder:
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def find_job(files: StoreFolder, name: str) -> WikiJob:
    """The job that somebody names by its folder. Raises: WintermuteError."""
    job = read_job(files, name.rstrip("/").removeprefix(f"{JOBS}/"))
    if job is None or not NAME.fullmatch(job.name):
        raise WintermuteError(f"no job {name}: those there are stand in {files.root / JOBS}")
    return job
