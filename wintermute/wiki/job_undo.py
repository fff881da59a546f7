"""Undo of jobs: their changes of pages are reverted, except where a person edited since.

The undo is a job itself, so it is recorded and can be undone as well.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from wintermute.changes.change_sets import Change
from wintermute.changes.texts import TextItems, state_of, text_in
from wintermute.changes.undo import reverted
from wintermute.errors import FileUnusable, StoreChanged, WintermuteError
from wintermute.files import run_uncancelled
from wintermute.ids import new_id
from wintermute.wiki.folder import FileChange, StoreFolder, disk_errors
from wintermute.wiki.links import INDEX, JOBS, links_in, name_of
from wintermute.wiki.page_jobs import (
    JOB,
    UNDO,
    UNDOING,
    WRITTEN,
    SeenPages,
    WikiJob,
    begin,
    discard,
    find_job,
    is_being_applied,
    listed_jobs,
    patch,
    put_in_place,
    recorded,
    text_at,
    unrecorded,
    write_job_files,
    written_change,
    written_lines,
)
from wintermute.wiki.verdict import lines_of, path_problem

NOTHING = "nothing is left to undo"
CHANGED = "saved meanwhile: try again"

RecordingUndo = Callable[[WikiJob, Sequence[FileChange]], AbstractAsyncContextManager[str | None]]
"""Transaction that records the undo of a job with these changes."""


@dataclass(frozen=True, slots=True)
class JobUndo:
    """Changes that undo a job. `kept`: pages that keep part of it, because they were edited since."""

    wanted: WikiJob
    changes: tuple[FileChange, ...] = ()
    kept: tuple[str, ...] = ()
    beside: tuple[FileChange, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """True if the pages have nothing left of the job."""
        return not (self.changes or self.kept)


def compute_undo(files: StoreFolder, wanted: WikiJob) -> JobUndo:
    """Compute the pages without a job by a three-way merge. Raises: WintermuteError."""
    later = _later(files, wanted)
    changes: list[FileChange] = []
    beside: list[FileChange] = []
    kept: list[str] = []
    done = _changes_of(files, wanted)
    for change in done:
        if path_problem(change.path):
            continue
        now = text_at(files, change.path)
        merged = reverted(
            state_of(change.before),
            state_of(change.after),
            state_of(now),
            [each for each in later if each.item == change.path],
        )
        text = merged.state["text"] if merged.state else None
        if text != now:
            back = FileChange(change.path, now, text)
            changes.append(back)
            beside.append(_lines_back(files, back, done))
        if merged.kept:
            kept.append(change.path)
    if INDEX in kept and (index := _index_back(files, changes)):
        changes.append(index)
        beside.append(_lines_back(files, index, done))
    return JobUndo(wanted, tuple(changes), tuple(kept), tuple(beside))


def _index_back(files: StoreFolder, changes: Sequence[FileChange]) -> FileChange | None:
    """Return an edited index without our lines about removed pages; None if it stays."""
    now = text_at(files, INDEX) or ""
    gone = {name_of(each.path) for each in changes if each.after is None}
    ours = written_lines(files, INDEX)

    def goes(line: str) -> bool:
        names = {name_of(link) for link in links_in(line)}
        return " ".join(line.split()) in ours and bool(names) and names <= gone

    left = "".join(line for line in now.splitlines(keepends=True) if not goes(line))
    return None if left == now else FileChange(INDEX, now, left)


def _lines_back(files: StoreFolder, back: FileChange, done: Sequence[FileChange]) -> FileChange:
    """Return the change of the record of our own lines that goes with an undo."""
    path = f"{WRITTEN}/{back.path}"
    earlier = next((each.before or "" for each in done if each.path == path), "")
    ours = written_lines(files, back.path) | set(earlier.splitlines())
    return written_change(
        files, back, [line for line in lines_of(back.after or "") if line in ours]
    )


def _later(files: StoreFolder, wanted: WikiJob) -> list[Change]:
    """Return the changes of newer jobs that were not undone."""
    newer: list[WikiJob] = []
    for job in listed_jobs(files):
        if job.name == wanted.name:
            break
        if job.status == "applied":
            newer.append(job)
    undone = {job.undoes for job in newer}
    changes: list[Change] = []
    for job in newer:
        if job.undoes is None and job.name not in undone:
            with suppress(WintermuteError):
                changes += recorded(_changes_of(files, job))
    return changes


def _changes_of(files: StoreFolder, job: WikiJob) -> tuple[FileChange, ...]:
    try:
        return files.changes_of(job.name)
    except (FileUnusable, FileNotFoundError) as problem:
        raise WintermuteError(
            f"{job.folder} no longer has a record of its changes: {problem}"
        ) from problem


def choose_undo(files: StoreFolder, name: str | None) -> JobUndo:
    """Compute the undo of the named job; None: of the newest one with something left to undo.

    Raises: WintermuteError if there is none, or it changed nothing.
    """
    if name is not None:
        wanted = find_job(files, name)
        if wanted.status != "applied":
            raise WintermuteError(f"{wanted.folder} changed nothing: {wanted.reason}")
        return compute_undo(files, wanted)
    undone = {job.undoes for job in listed_jobs(files) if job.status == "applied"}
    for job in listed_jobs(files):
        if job.status == "applied" and job.undoes is None and job.name not in undone:
            back = compute_undo(files, job)
            if not back.is_nothing:
                return back
    raise WintermuteError(NOTHING)


@dataclass(frozen=True, slots=True)
class UndoneJob:
    """Result of an undo: its job, the changes, and pages that keep part of the undone job."""

    job: WikiJob
    changes: tuple[FileChange, ...]
    kept: tuple[str, ...]


async def undo_job(
    files: StoreFolder, name: str | None, now: datetime, recording: RecordingUndo | None = None
) -> UndoneJob:
    """Undo a job as far as its pages were not edited since (W-067).

    Raises: WintermuteError, also if nothing of it can be undone; StoreChanged.
    """
    seen = await run_uncancelled(partial(SeenPages, files))
    back = await run_uncancelled(partial(_choose_locked, files, name))
    if not back.changes:
        edited = ", ".join(back.kept)
        raise WintermuteError(
            f"{back.wanted.folder}: its pages were changed since and stay: {edited}"
            if back.kept
            else f"{back.wanted.folder}: {NOTHING}"
        )
    wanted = back.wanted
    job = WikiJob("", UNDO, wanted.conversation, undoes=wanted.name)
    job = await run_uncancelled(partial(begin, files, job, now))
    record = partial(recording, wanted, back.changes) if recording else unrecorded
    ended = replace(job, end=now.isoformat(timespec="seconds"), exit_code=0)
    texts = {"diff.patch": patch(back.changes), "report.md": _report(back)}
    await run_uncancelled(partial(write_job_files, files, job, texts))
    try:
        done = await put_in_place(files, ended, back.changes, lambda: back.beside, seen, record)
    except WintermuteError as problem:
        if not is_being_applied(files, job):
            failed = replace(ended, reason=str(problem), exit_code=1)
            with suppress(WintermuteError):
                write_job_files(files, failed, {JOB: failed.as_json()})
        raise
    return UndoneJob(done, back.changes, back.kept)


def _choose_locked(files: StoreFolder, name: str | None) -> JobUndo:
    with files.reading():
        return choose_undo(files, name)


def _report(back: JobUndo) -> str:
    lines = [f"# {back.wanted.folder} is taken back", ""]
    lines += [f"- {change.path}" for change in back.changes]
    lines += [f"- {path} was changed since: that stays" for path in back.kept]
    return "\n".join(lines) + "\n"


def page_items(files: StoreFolder) -> TextItems:
    """Return the pages as undoable items: kind `page`, by path."""
    return TextItems(partial(text_at, files), partial(_prepare, files), files.reading)


@contextmanager
def _prepare(files: StoreFolder, changes: Sequence[Change]) -> Iterator[Callable[[], None]]:
    """Stage all pages for the journal of the store, which puts all or none in place.

    Raises: StoreUnusable; StoreChanged for a page that was saved meanwhile, also at the moment of placing.
    """
    name = f"{UNDOING}{new_id('page')}"
    wanted = [FileChange(c.item, text_in(c.before), text_in(c.after)) for c in changes]
    try:
        with disk_errors(files.root):
            _check_unchanged(files, wanted)
            files.stage(name, [*wanted, *(_lines_change(files, each) for each in wanted)])
        yield partial(_place, files, name, wanted)
    finally:
        # Kept while changes are being put in place: the next lock finishes them.
        if not is_being_applied(files, WikiJob(name, UNDO)):
            discard(files, JOBS, name)


def _check_unchanged(files: StoreFolder, wanted: Sequence[FileChange]) -> None:
    for change in wanted:
        if problem := path_problem(change.path):
            raise WintermuteError(f"{change.path} {problem}: it is not written")
        if text_at(files, change.path) != change.before:
            raise StoreChanged(f"{change.path}: {CHANGED}")


def _lines_change(files: StoreFolder, change: FileChange) -> FileChange:
    ours = written_lines(files, change.path)
    return written_change(
        files, change, [line for line in lines_of(change.after or "") if line in ours]
    )


def _place(files: StoreFolder, name: str, wanted: Sequence[FileChange]) -> None:
    with files.writing():
        _check_unchanged(files, wanted)
        edited = files.apply(name)
    if unplaced := [change.path for change in wanted if change.path in edited]:
        raise StoreChanged(f"{', '.join(unplaced)}: {CHANGED}")
