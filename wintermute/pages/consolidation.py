"""Consolidation: an agent turns a conversation into linked pages, which are checked before they count.

    conversation ─ raw copy ─▶ agent ─▶ changes ─▶ verdict ─┬▶ rejected: nothing changed
                                                            ├▶ proposals
                                                            ╰▶ recorded, then in place

The job folder holds the result, whenever the program is killed (W-058 to W-068).
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
from wintermute.files import run_uncancelled
from wintermute.pages.agents import REPORT, PageAgent, PageTask, PageWork, sweep_copies
from wintermute.pages.sources import Consolidations, ConversationSource, SourceTranscript
from wintermute.secret_shapes import secret_kind, without_secrets
from wintermute.wiki.folder import FileChange, StoreFolder
from wintermute.wiki.links import INDEX, RAW, is_page, name_of
from wintermute.wiki.page_jobs import (
    JOB,
    JobStatus,
    SeenPages,
    WikiJob,
    begin,
    is_being_applied,
    job_lock,
    keep_raw,
    listed_jobs,
    marked_untrusted,
    patch,
    put_in_place,
    raw_path,
    sweep,
    text_at,
    unrecorded,
    write_job_files,
    written_change,
    written_lines,
)
from wintermute.wiki.store import WikiStore
from wintermute.wiki.verdict import PageVerdict, StoreView, judge_changes

DIFF, PROPOSED = "diff.patch", "proposed.patch"
OUT, ERR = "agent.stdout.txt", "agent.stderr.txt"
MOST_TOLD = 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preview:
    """Result that a job would have. `diff`: in the format of `patch`; `refused`: why it would change nothing."""

    diff: str
    verdict: PageVerdict
    refused: str


class Consolidation:
    """Turns conversations into pages of one wiki."""

    def __init__(
        self,
        store: WikiStore,
        agents: Mapping[str, PageAgent],
        clock: Clock,
        zone: tzinfo | None,
        kept: Consolidations | None,
        redact: Redaction,
    ) -> None:
        """`kept`: the store for records, if this is the wiki of a configuration."""
        self._store = store
        self._files = store.files
        self._agents = agents
        self._clock = clock
        self._zone = zone
        self._records = kept
        self._redact = redact

    async def consolidate(
        self, material: ConversationSource, agent: str, *, wait: bool = False
    ) -> WikiJob | None:
        """Turn a conversation into pages; return the finished job, or None if nothing new was said.

        Raises: ConfigurationError for an unknown agent; StoreBusy unless it may `wait`; StoreMissing,
        StoreUnusable; WintermuteError if this is no conversation.
        """
        worker = self.agent(agent)
        async with job_lock(self._files, self._clock, wait=wait):
            await run_uncancelled(partial(_prepare, self._files))
            if self._records is not None:
                await self._records.settle_interrupted(self._files)
            talk = await material.read()
            if talk is None:
                return None
            job = WikiJob("", agent, talk.named)
            job = await run_uncancelled(partial(begin, self._files, job, self._now()))
            log.info("consolidation began job=%s agent=%s", job.name, agent)
            job = await self._run_agent(job, talk, worker)
            log.info("consolidation over job=%s status=%s", job.name, job.status)
            return job

    async def preview(self, material: ConversationSource, agent: str) -> Preview | None:
        """Return the result of a job without a change to the store. Raises: as `consolidate`."""
        worker = self.agent(agent)
        talk = await material.read()
        if talk is None:
            return None
        raw = await run_uncancelled(partial(self._raw_copy_path, talk))
        task = await self._task(talk, WikiJob("", agent, raw_copy=raw))
        done = await self._judge(task, await worker.pages(task))
        changes = done.work.changes if done.refused else done.verdict.changes
        proposed = [page.change for page in done.verdict.proposed]
        return Preview(self._redact(patch((*changes, *proposed))), done.verdict, done.refused)

    def agent(self, name: str) -> PageAgent:
        """Return the agent with this name. Raises: ConfigurationError (W-063)."""
        if name not in self._agents:
            raise ConfigurationError(f"no command configured for agent '{name}'")
        return self._agents[name]

    def _now(self) -> datetime:
        return self._clock.now().astimezone(self._zone)

    async def _task(self, talk: SourceTranscript, job: WikiJob) -> PageTask:
        """Return the input of the agent: the store as it is now."""
        view = await run_uncancelled(partial(_view, self._store))
        return PageTask(talk, job.raw_copy, job, self._store, view, self._now().date())

    async def _run_agent(self, job: WikiJob, talk: SourceTranscript, worker: PageAgent) -> WikiJob:
        """Run the agent, and apply its changes if they are allowed."""
        done = _Done(PageWork(exit_code=1), PageVerdict())
        try:
            job = await self._write_raw(job, talk)
            seen = await run_uncancelled(partial(SeenPages, self._files))
            task = await self._task(talk, job)
            done = _Done(await worker.pages(task), PageVerdict())
            done = await self._judge(task, done.work)
            if not done.refused:
                return await self._apply(job, talk, done, seen)
            failed = replace(job, reason=done.refused)
            if done.work.failed:
                return await self._end_unchanged(failed, talk, done)
            return await self._end_unchanged(replace(failed, status="rejected"), talk, done)
        except (StoreChanged, QuestionWithdrawn) as problem:  # outputs may contain forgotten text
            status: JobStatus = "rejected" if isinstance(problem, StoreChanged) else "failed"
            await run_uncancelled(
                partial(write_job_files, self._files, job, dict.fromkeys(self._texts(done), ""))
            )
            ended = replace(job, status=status, reason=str(problem))
            return await self._end_unchanged(
                ended, talk, _Done(PageWork(exit_code=1), PageVerdict())
            )
        except AnswerUnusable as problem:
            rejected = replace(job, status="rejected", reason=str(problem))
            return await self._end_unchanged(rejected, talk, done)
        except WintermuteError as problem:
            return await self._end_unchanged(replace(job, reason=str(problem)), talk, done)
        except BaseException:
            await self._end_unchanged(replace(job, reason="stopped before its end"), talk, done)
            raise

    async def _write_raw(self, job: WikiJob, talk: SourceTranscript) -> WikiJob:
        """Write the raw copy of the conversation, and record its path first (W-059)."""
        job = replace(job, raw_copy=await run_uncancelled(partial(self._raw_copy_path, talk)))
        await run_uncancelled(partial(write_job_files, self._files, job, {JOB: job.as_json()}))
        if self._records is not None:
            await self._records.record_begun(job, talk)
        await run_uncancelled(partial(_write_raw_copy, self._files, job.raw_copy, talk))
        return job

    def _raw_copy_path(self, talk: SourceTranscript) -> str:
        if talk.named.startswith(f"{RAW}/"):
            return talk.named  # a raw copy already: its pages are written again
        if talk.part is None and (left := self._left_copy(talk)):
            return left
        return raw_path(self._files, talk.name, self._now().date())

    def _left_copy(self, talk: SourceTranscript) -> str:
        """Return the raw copy of an unsuccessful job if it has the same text; else ""."""
        for job in listed_jobs(self._files):
            if job.conversation == talk.named and job.raw_copy:
                copy = StoreFolder(self._files.root / job.raw_copy)
                same = all(text_at(copy, name) == text for name, text in talk.files)
                return job.raw_copy if same and job.status != "applied" else ""
        return ""

    async def _judge(self, task: PageTask, work: PageWork) -> "_Done":
        revealing = [each.path for each in work.changes if self._has_secret(each.after or "")]
        reasons = tuple(f"{path} would hold a secret of the configuration" for path in revealing)
        work = await run_uncancelled(partial(_remove_secrets, work))
        if work.failed or work.objections:
            return _Done(work, PageVerdict(reasons=work.objections))
        verdict = await run_uncancelled(partial(_verdict, task, work))
        return _Done(work, PageVerdict(reasons=reasons) if reasons else verdict)

    def _has_secret(self, text: str) -> bool:
        return self._redact(text) != text

    async def _apply(
        self, job: WikiJob, talk: SourceTranscript, done: "_Done", seen: SeenPages
    ) -> WikiJob:
        """Record the changes and put them in place. Raises: StoreChanged; QuestionWithdrawn."""
        changes, proposed = done.verdict.changes, done.verdict.proposed
        end = self._now().isoformat(timespec="seconds")
        job = replace(job, end=end, exit_code=0, proposed=tuple(p.change.path for p in proposed))
        await run_uncancelled(partial(write_job_files, self._files, job, self._texts(done)))
        record = unrecorded
        if self._records is not None:
            lines = done.work.lines
            record = partial(self._records.recording, job, talk, changes, proposed, lines)
        applied = replace(job, status="applied", reason="")
        beside = partial(_beside, self._files, applied, talk, done, self._report(applied, done))
        job = await put_in_place(self._files, job, changes, beside, seen, record)
        if self._records is not None:
            with _logged_failure(job):
                await self._records.mark_settled(job.name)
        return job

    async def _end_unchanged(self, job: WikiJob, talk: SourceTranscript, done: "_Done") -> WikiJob:
        """End a job without changes, and write the reason to its folder."""
        if await run_uncancelled(partial(is_being_applied, self._files, job)):
            return job  # the next job finishes it
        if talk.part is not None:
            job = replace(job, raw_copy="")
        end, code = self._now().isoformat(timespec="seconds"), done.work.exit_code or 1
        job = replace(job, end=end, exit_code=code, reason=self._redact(job.reason))
        texts = {**self._texts(done), REPORT: self._report(job, done), JOB: job.as_json()}
        with _logged_failure(job):
            await run_uncancelled(partial(write_job_files, self._files, job, texts))
            if self._records is not None:
                await self._records.drop(self._files, job.name)
        return job

    def _texts(self, done: "_Done") -> dict[str, str]:
        """Return an agent's output and patches, as files of the job."""
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
    """Work of an agent, and the verdict on it."""

    work: PageWork
    verdict: PageVerdict

    @property
    def refused(self) -> str:
        """Reason why none of it may be applied; "" if it may."""
        return self.work.failed or "; ".join(self.verdict.reasons[:MOST_TOLD])


@contextmanager
def _logged_failure(job: WikiJob) -> Iterator[None]:
    """Log a failure here and go on: the next job finds the state of this one."""
    try:
        yield
    except WintermuteError as problem:
        log.warning("consolidation not noted job=%s reason=%s", job.name, problem)


def _prepare(files: StoreFolder) -> None:
    with files.reading():  # finishes an interrupted write
        sweep(files)
    sweep_copies()


def _view(store: WikiStore) -> StoreView:
    with store.files.reading():
        return StoreView(store.pages(), store.tree().names, store.files.presence)


def _write_raw_copy(files: StoreFolder, raw: str, talk: SourceTranscript) -> None:
    if (files.root / raw).is_dir():
        return
    with files.writing():
        keep_raw(files, raw, talk.files, "" if talk.part else talk.named)


def _verdict(task: PageTask, work: PageWork) -> PageVerdict:
    files = task.store.files
    return judge_changes(
        task.view,
        work.changes,
        today=task.today,
        ours={change.path: written_lines(files, change.path) for change in work.changes},
        plan=work.plan,
        index=text_at(files, INDEX) or "",
        files=[f"{task.raw}/{name}" for name, _ in task.transcript.files],
        outside=task.transcript.is_outside,
    )


def _remove_secrets(work: PageWork) -> PageWork:
    """Remove secrets from the work, except those that a person wrote into a page (M-083)."""
    if any(secret_kind(name_of(each.path)) for each in work.changes):
        return PageWork(objections=("the name of a page gives a secret away",))
    changes = tuple(
        replace(each, after=each.after and without_secrets(each.after, each.before or ""))
        for each in work.changes
    )
    stdout, stderr, report = map(without_secrets, (work.stdout, work.stderr, work.report))
    return replace(work, changes=changes, stdout=stdout, stderr=stderr, report=report)


def _beside(
    files: StoreFolder, job: WikiJob, talk: SourceTranscript, done: _Done, report: str
) -> list[FileChange]:
    """Return the files that change with the pages: lines written by us, taint marks and the report."""
    here = StoreFolder(files.root / job.raw_copy)
    if any(text_at(here, name) != text for name, text in talk.files):
        raise StoreChanged("messages were changed meanwhile")
    changes = [written_change(files, change) for change in done.verdict.changes]
    if talk.is_outside:
        pages = [each.path for each in done.verdict.changes if is_page(each.path)]
        changes.append(marked_untrusted(files, [job.raw_copy, *pages]))
    path = f"{job.folder}/{REPORT}"
    return [*changes, FileChange(path, text_at(files, path), report)]
