"""Consolidation: a conversation becomes pages that link, by work that counts only when it is clean.

    raw material ─ copied word for word ─▶ agent ─▶ changes ─▶ verdict ─┬▶ rejected: nothing changed
                                                                        ├▶ proposals
                                                                        ╰▶ recorded, then in place

A job folder says what came of it, whenever we are killed (W-058 to W-068).
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, tzinfo
from functools import partial
from shlex import quote

from wintermute.clock import Clock
from wintermute.config.secrets import Redaction
from wintermute.errors import (
    AnswerUnusable,
    ConfigurationError,
    QuestionWithdrawn,
    StoreChanged,
    WintermuteError,
)
from wintermute.files import to_its_end
from wintermute.pages.agents import REPORT, PageAgent, PageTask, PageWork, sweep_copies
from wintermute.pages.raw_material import Consolidations, RawMaterial, Talk
from wintermute.secret_shapes import secret_kind, without_secrets
from wintermute.wiki.folder import FileChange, StoreFolder
from wintermute.wiki.links import INDEX, RAW, is_page, name_of
from wintermute.wiki.page_jobs import (
    JOB,
    JobStatus,
    SeenPages,
    WikiJob,
    alone,
    begin,
    is_under_way,
    keep_raw,
    listed_jobs,
    marked_outside,
    note,
    patch,
    put_in_place,
    raw_path,
    sweep,
    text_at,
    unrecorded,
    written_change,
    written_lines,
)
from wintermute.wiki.store import WikiStore
from wintermute.wiki.verdict import PageVerdict, StoreView, judged

DIFF, PROPOSED = "diff.patch", "proposed.patch"
OUT, ERR = "agent.stdout.txt", "agent.stderr.txt"
MOST_TOLD = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a job would do. `diff`: as `patch` reads it; `refused`: why it would do nothing."""

    diff: str
    verdict: PageVerdict
    refused: str


class Consolidation:
    """Makes pages of conversations in one store."""

    def __init__(
        self,
        store: WikiStore,
        agents: Mapping[str, PageAgent],
        clock: Clock,
        zone: tzinfo | None,
        kept: Consolidations | None,
        redact: Redaction,
    ) -> None:
        """`kept`: where it is recorded, if that is the store of a configuration."""
        self._store = store
        self._files = store.files
        self._agents = agents
        self._clock = clock
        self._zone = zone
        self._kept = kept
        self._redact = redact

    async def consolidate(
        self, material: RawMaterial, agent: str, *, wait: bool = False
    ) -> WikiJob | None:
        """Make pages of a conversation; the job, whatever came of it. None: nothing new was said.

        Raises: ConfigurationError for an agent that nobody knows; StoreBusy unless it may `wait`;
        StoreMissing, StoreUnusable; WintermuteError for what is no conversation.
        """
        worker = self.agent(agent)
        async with alone(self._files, self._clock, wait=wait):
            await to_its_end(partial(_prepared, self._files))
            if self._kept is not None:
                await self._kept.settle(self._files)
            talk = await material.read()
            if talk is None:
                return None
            job = WikiJob("", agent, talk.named)
            job = await to_its_end(partial(begin, self._files, job, self._now()))
            log.info("consolidation began job=%s agent=%s", job.name, agent)
            job = await self._worked(job, talk, worker)
            log.info("consolidation over job=%s status=%s", job.name, job.status)
            return job

    async def preview(self, material: RawMaterial, agent: str) -> Preview | None:
        """What a job would do, without a trace of it in the store. Raises: as `consolidate`."""
        worker = self.agent(agent)
        talk = await material.read()
        if talk is None:
            return None
        raw = await to_its_end(partial(self._raw, talk))
        task = await self._task(talk, WikiJob("", agent, raw_copy=raw))
        done = await self._judged(task, await worker.pages(task))
        changes = done.work.changes if done.refused else done.verdict.changes
        proposed = [page.change for page in done.verdict.proposed]
        return Preview(self._redact(patch((*changes, *proposed))), done.verdict, done.refused)

    def agent(self, name: str) -> PageAgent:
        """Who is called so. Raises: ConfigurationError (W-063)."""
        if name not in self._agents:
            raise ConfigurationError(f"no command configured for agent '{name}'")
        return self._agents[name]

    def _now(self) -> datetime:
        return self._clock.now().astimezone(self._zone)

    async def _task(self, talk: Talk, job: WikiJob) -> PageTask:
        """What the agent is given: the store as it is now."""
        view = await to_its_end(partial(_viewed, self._store))
        return PageTask(talk, job.raw_copy, job, self._store, view, self._now().date())

    async def _worked(self, job: WikiJob, talk: Talk, worker: PageAgent) -> WikiJob:
        """Let the agent work, and do what it wants as far as that may be."""
        done = _Done(PageWork(exit_code=1), PageVerdict())
        try:
            job = await self._copied(job, talk)
            seen = await to_its_end(partial(SeenPages, self._files))
            task = await self._task(talk, job)
            done = _Done(await worker.pages(task), PageVerdict())
            done = await self._judged(task, done.work)
            if not done.refused:
                return await self._placed(job, talk, done, seen)
            failed = replace(job, reason=done.refused)
            if done.work.failed:
                return await self._ended(failed, talk, done)
            return await self._ended(replace(failed, status="rejected"), talk, done)
        except (StoreChanged, QuestionWithdrawn) as problem:  # it may show what is forgotten by now
            status: JobStatus = "rejected" if isinstance(problem, StoreChanged) else "failed"
            await to_its_end(partial(note, self._files, job, dict.fromkeys(self._texts(done), "")))
            ended = replace(job, status=status, reason=str(problem))
            return await self._ended(ended, talk, _Done(PageWork(exit_code=1), PageVerdict()))
        except AnswerUnusable as problem:
            rejected = replace(job, status="rejected", reason=str(problem))
            return await self._ended(rejected, talk, done)
        except WintermuteError as problem:
            return await self._ended(replace(job, reason=str(problem)), talk, done)
        except BaseException:
            await self._ended(replace(job, reason="stopped before its end"), talk, done)
            raise

    async def _copied(self, job: WikiJob, talk: Talk) -> WikiJob:
        """The conversation stands in the store word for word, and everybody knows where (W-059)."""
        job = replace(job, raw_copy=await to_its_end(partial(self._raw, talk)))
        await to_its_end(partial(note, self._files, job, {JOB: job.as_json()}))
        if self._kept is not None:
            await self._kept.begun(job, talk)
        await to_its_end(partial(_keep, self._files, job.raw_copy, talk))
        return job

    def _raw(self, talk: Talk) -> str:
        if talk.named.startswith(f"{RAW}/"):
            return talk.named  # a copy already: what was made of it is made anew
        if talk.part is None and (left := self._left_copy(talk)):
            return left
        return raw_path(self._files, talk.name, self._now().date())

    def _left_copy(self, talk: Talk) -> str:
        """That of an attempt of which nothing came, if it says the same; "": there is none."""
        for job in listed_jobs(self._files):
            if job.conversation == talk.named and job.raw_copy:
                here = StoreFolder(self._files.root / job.raw_copy)
                same = all(text_at(here, name) == text for name, text in talk.files)
                return job.raw_copy if same and job.status != "applied" else ""
        return ""

    async def _judged(self, task: PageTask, work: PageWork) -> "_Done":
        ours = [each.path for each in work.changes if self._hides(each.after or "")]
        reasons = tuple(f"{path} would hold a secret of the configuration" for path in ours)
        work = await to_its_end(partial(_safe, work))
        if work.failed or work.objections:
            return _Done(work, PageVerdict(reasons=work.objections))
        verdict = await to_its_end(partial(_verdict, task, work))
        return _Done(work, PageVerdict(reasons=reasons) if reasons else verdict)

    def _hides(self, text: str) -> bool:
        return self._redact(text) != text

    async def _placed(self, job: WikiJob, talk: Talk, done: "_Done", seen: SeenPages) -> WikiJob:
        """Record it and put it in place. Raises: StoreChanged; QuestionWithdrawn."""
        changes, proposed = done.verdict.changes, done.verdict.proposed
        end = self._now().isoformat(timespec="seconds")
        job = replace(job, end=end, exit_code=0, proposed=tuple(p.change.path for p in proposed))
        await to_its_end(partial(note, self._files, job, self._texts(done)))
        recording = unrecorded
        if self._kept is not None:
            lines = done.work.lines
            recording = partial(self._kept.recording, job, talk, changes, proposed, lines)
        said = replace(job, status="applied", reason="")
        beside = partial(_beside, self._files, said, talk, done, self._report(said, done))
        job = await put_in_place(self._files, job, changes, beside, seen, recording)
        if self._kept is not None:
            with _told_later(job):
                await self._kept.settled(job.name)
        return job

    async def _ended(self, job: WikiJob, talk: Talk, done: "_Done") -> WikiJob:
        """Nothing came of it, and its folder says why."""
        if await to_its_end(partial(is_under_way, self._files, job)):
            return job  # whoever comes next finishes it
        if talk.part is not None:
            job = replace(job, raw_copy="")
        end, code = self._now().isoformat(timespec="seconds"), done.work.exit_code or 1
        job = replace(job, end=end, exit_code=code, reason=self._redact(job.reason))
        texts = {**self._texts(done), REPORT: self._report(job, done), JOB: job.as_json()}
        with _told_later(job):
            await to_its_end(partial(note, self._files, job, texts))
            if self._kept is not None:
                await self._kept.dropped(self._files, job.name)
        return job

    def _texts(self, done: "_Done") -> dict[str, str]:
        """What an agent printed, and what it wanted."""
        work, verdict = done.work, done.verdict
        texts = {
            OUT: work.stdout,
            ERR: work.stderr,
            DIFF: patch(work.changes if done.refused else verdict.changes),
        }
        if verdict.proposed:
            texts[PROPOSED] = patch(page.change for page in verdict.proposed)
        return {name: self._redact(text) for name, text in texts.items()}

    def _report(self, job: WikiJob, done: "_Done") -> str:
        lines = [f"# {job.conversation}: {job.status}", ""]
        lines += [job.reason, ""] if job.reason else []
        if job.status == "applied":
            lines += [f"- {change.path}" for change in done.verdict.changes]
        lines += [f"- {p.change.path} waits for you: {p.reason}" for p in done.verdict.proposed]
        if done.verdict.proposed:
            patch_file = quote(str(self._files.root / job.folder / PROPOSED))
            root = quote(str(self._files.root))
            lines += ["", f"What it would become: `patch -p1 -d {root} < {patch_file}` takes it."]
        if done.work.report.strip():
            lines += ["", f"## What {job.agent} says", "", done.work.report.strip()]
        return self._redact("\n".join(lines).rstrip() + "\n")


@dataclass(frozen=True, slots=True)
class _Done:
    """What an agent did, and what may become of it."""

    work: PageWork
    verdict: PageVerdict

    @property
    def refused(self) -> str:
        """Why nothing of it may be done; "": it may."""
        return self.work.failed or "; ".join(self.verdict.reasons[:MOST_TOLD])


@contextmanager
def _told_later(job: WikiJob) -> Iterator[None]:
    """A block whose failure the next job makes good: what it finds tells how this one ended."""
    try:
        yield
    except WintermuteError as problem:
        log.warning("consolidation not noted job=%s reason=%s", job.name, problem)


def _prepared(files: StoreFolder) -> None:
    with files.reading():  # what a kill interrupted is finished by that
        sweep(files)
    sweep_copies()


def _viewed(store: WikiStore) -> StoreView:
    with store.files.reading():
        return StoreView(store.pages(), store.tree().names, store.files.presence)


def _keep(files: StoreFolder, raw: str, talk: Talk) -> None:
    if (files.root / raw).is_dir():
        return
    with files.writing():
        keep_raw(files, raw, talk.files, "" if talk.part else talk.named)


def _verdict(task: PageTask, work: PageWork) -> PageVerdict:
    files = task.store.files
    return judged(
        task.view,
        work.changes,
        today=task.today,
        ours={change.path: written_lines(files, change.path) for change in work.changes},
        plan=work.plan,
        index=text_at(files, INDEX) or "",
        files=[f"{task.raw}/{name}" for name, _ in task.talk.files],
        outside=task.talk.is_outside,
    )


def _safe(work: PageWork) -> PageWork:
    """Hide secrets in it, but for those that a person wrote into a page (M-083)."""
    if any(secret_kind(name_of(each.path)) for each in work.changes):
        return PageWork(objections=("the name of a page gives a secret away",))
    changes = tuple(
        replace(each, after=each.after and without_secrets(each.after, each.before or ""))
        for each in work.changes
    )
    stdout, stderr, report = map(without_secrets, (work.stdout, work.stderr, work.report))
    return replace(work, changes=changes, stdout=stdout, stderr=stderr, report=report)


def _beside(
    files: StoreFolder, job: WikiJob, talk: Talk, done: _Done, report: str
) -> list[FileChange]:
    """What changes with the pages: whose lines they have, what is from outside, and what is said."""
    here = StoreFolder(files.root / job.raw_copy)
    if any(text_at(here, name) != text for name, text in talk.files):
        raise StoreChanged("what was said was changed meanwhile")
    found = [written_change(files, change) for change in done.verdict.changes]
    if talk.is_outside:
        pages = [each.path for each in done.verdict.changes if is_page(each.path)]
        found.append(marked_outside(files, [job.raw_copy, *pages]))
    path = f"{job.folder}/{REPORT}"
    return [*found, FileChange(path, text_at(files, path), report)]
