"""Taking back what was done to pages: where a person changed something since, that stays.

A job of its own takes another back, so that what it did is on record, and can be taken back as well.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from wintermute.changes.change_sets import Change
from wintermute.changes.texts import TextItems, state_of, text_in
from wintermute.changes.undo import without
from wintermute.errors import FileUnusable, StoreChanged, WintermuteError
from wintermute.files import to_its_end
from wintermute.ids import new_id
from wintermute.wiki.folder import FileChange, StoreFolder, told
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
    is_under_way,
    listed_jobs,
    note,
    patch,
    put_in_place,
    recorded,
    text_at,
    unrecorded,
    written_change,
    written_lines,
)
from wintermute.wiki.verdict import lines_of, path_problem

NOTHING = "nothing is left to take back"
CHANGED = "saved meanwhile: try again"

RecordingBack = Callable[[WikiJob, Sequence[FileChange]], AbstractAsyncContextManager[str | None]]
"""A transaction that records that a job is taken back, by these changes."""


@dataclass(frozen=True, slots=True)
class WayBack:
    """What takes a job back. `kept`: the pages that keep something of it, as they were changed since."""

    wanted: WikiJob
    changes: tuple[FileChange, ...] = ()
    kept: tuple[str, ...] = ()
    beside: tuple[FileChange, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether the pages are as if it had never been."""
        return not (self.changes or self.kept)


def way_back(files: StoreFolder, wanted: WikiJob) -> WayBack:
    """How the pages would be without a job, three-way. Raises: WintermuteError."""
    later = _later(files, wanted)
    changes: list[FileChange] = []
    beside: list[FileChange] = []
    kept: list[str] = []
    done = _changes_of(files, wanted)
    for change in done:
        if path_problem(change.path):
            continue
        now = text_at(files, change.path)
        merged = without(
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
    return WayBack(wanted, tuple(changes), tuple(kept), tuple(beside))


def _index_back(files: StoreFolder, changes: Sequence[FileChange]) -> FileChange | None:
    """The index as somebody left it since, without our lines about pages that go; None: as it is."""
    now = text_at(files, INDEX) or ""
    gone = {name_of(each.path) for each in changes if each.after is None}
    ours = written_lines(files, INDEX)

    def goes(line: str) -> bool:
        names = {name_of(link) for link in links_in(line)}
        return " ".join(line.split()) in ours and bool(names) and names <= gone

    left = "".join(line for line in now.splitlines(keepends=True) if not goes(line))
    return None if left == now else FileChange(INDEX, now, left)


def _lines_back(files: StoreFolder, back: FileChange, done: Sequence[FileChange]) -> FileChange:
    """Which lines of a page are ours once it has gone back."""
    path = f"{WRITTEN}/{back.path}"
    earlier = next((each.before or "" for each in done if each.path == path), "")
    ours = written_lines(files, back.path) | set(earlier.splitlines())
    return written_change(
        files, back, [line for line in lines_of(back.after or "") if line in ours]
    )


def _later(files: StoreFolder, wanted: WikiJob) -> list[Change]:
    """What other jobs did since, and nobody took back."""
    newer: list[WikiJob] = []
    for job in listed_jobs(files):
        if job.name == wanted.name:
            break
        if job.status == "applied":
            newer.append(job)
    undone = {job.undoes for job in newer}
    found: list[Change] = []
    for job in newer:
        if job.undoes is None and job.name not in undone:
            with suppress(WintermuteError):
                found += recorded(_changes_of(files, job))
    return found


def _changes_of(files: StoreFolder, job: WikiJob) -> tuple[FileChange, ...]:
    try:
        return files.changes_of(job.name)
    except (FileUnusable, FileNotFoundError) as problem:
        raise WintermuteError(
            f"{job.folder} does not say any more what it changed: {problem}"
        ) from problem


def chosen(files: StoreFolder, name: str | None) -> WayBack:
    """How to take back the job of this name; None: the newest one that left something.

    Raises: WintermuteError when there is none, or it changed nothing.
    """
    if name is not None:
        wanted = find_job(files, name)
        if wanted.status != "applied":
            raise WintermuteError(f"{wanted.folder} changed nothing: {wanted.reason}")
        return way_back(files, wanted)
    undone = {job.undoes for job in listed_jobs(files) if job.status == "applied"}
    for job in listed_jobs(files):
        if job.status == "applied" and job.undoes is None and job.name not in undone:
            found = way_back(files, job)
            if not found.is_nothing:
                return found
    raise WintermuteError(NOTHING)


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What was taken back, and the pages of which something stays."""

    job: WikiJob
    changes: tuple[FileChange, ...]
    kept: tuple[str, ...]


async def take_back(
    files: StoreFolder, name: str | None, now: datetime, recording: RecordingBack | None = None
) -> TakenBack:
    """Take a job back as far as nobody changed its pages since (W-067).

    Raises: WintermuteError, also where nothing of it can be taken back; StoreChanged.
    """
    seen = await to_its_end(partial(SeenPages, files))
    back = await to_its_end(partial(_chosen, files, name))
    if not back.changes:
        edited = ", ".join(back.kept)
        raise WintermuteError(
            f"{back.wanted.folder}: its pages were changed since and stay: {edited}"
            if back.kept
            else f"{back.wanted.folder}: {NOTHING}"
        )
    wanted = back.wanted
    job = WikiJob("", UNDO, wanted.conversation, undoes=wanted.name)
    job = await to_its_end(partial(begin, files, job, now))
    record = partial(recording, wanted, back.changes) if recording else unrecorded
    ended = replace(job, end=now.isoformat(timespec="seconds"), exit_code=0)
    texts = {"diff.patch": patch(back.changes), "report.md": _report(back)}
    await to_its_end(partial(note, files, job, texts))
    try:
        done = await put_in_place(files, ended, back.changes, lambda: back.beside, seen, record)
    except WintermuteError as problem:
        if not is_under_way(files, job):
            failed = replace(ended, reason=str(problem), exit_code=1)
            with suppress(WintermuteError):
                note(files, failed, {JOB: failed.as_json()})
        raise
    return TakenBack(done, back.changes, back.kept)


def _chosen(files: StoreFolder, name: str | None) -> WayBack:
    with files.reading():
        return chosen(files, name)


def _report(back: WayBack) -> str:
    lines = [f"# {back.wanted.folder} is taken back", ""]
    lines += [f"- {change.path}" for change in back.changes]
    lines += [f"- {path} was changed since: that stays" for path in back.kept]
    return "\n".join(lines) + "\n"


def page_items(files: StoreFolder) -> TextItems:
    """Give the pages as items that can be undone: kind `page`, by their paths in the store."""
    return TextItems(partial(text_at, files), partial(_prepared, files), files.reading)


@contextmanager
def _prepared(files: StoreFolder, changes: Sequence[Change]) -> Iterator[Callable[[], None]]:
    """Stage all pages, which are put in place by the journal of the store: all, or none.

    Raises: StoreUnusable; StoreChanged for what was saved meanwhile, also when it is put in place.
    """
    name = f"{UNDOING}{new_id('page')}"
    wanted = [FileChange(c.item, text_in(c.before), text_in(c.after)) for c in changes]
    try:
        with told(files.root):
            _prove(files, wanted)
            files.stage(name, [*wanted, *(_beside(files, each) for each in wanted)])
        yield partial(_place, files, name, wanted)
    finally:
        # Not while it is being put in place: whoever comes next finishes that.
        if not is_under_way(files, WikiJob(name, UNDO)):
            discard(files, JOBS, name)


def _prove(files: StoreFolder, wanted: Sequence[FileChange]) -> None:
    for change in wanted:
        if problem := path_problem(change.path):
            raise WintermuteError(f"{change.path} {problem}: it is not written")
        if text_at(files, change.path) != change.before:
            raise StoreChanged(f"{change.path}: {CHANGED}")


def _beside(files: StoreFolder, change: FileChange) -> FileChange:
    ours = written_lines(files, change.path)
    return written_change(
        files, change, [line for line in lines_of(change.after or "") if line in ours]
    )


def _place(files: StoreFolder, name: str, wanted: Sequence[FileChange]) -> None:
    with files.writing():
        _prove(files, wanted)
        edited = files.apply(name)
    if told_of := [change.path for change in wanted if change.path in edited]:
        raise StoreChanged(f"{', '.join(told_of)}: {CHANGED}")
