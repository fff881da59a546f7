"""Consolidation: an agent turns a conversation into linked pages, which are checked before they are stored.

    conversation ─ raw copy ─▶ agent ─▶ changes ─▶ check ───┬▶ rejected: nothing changes
                                                            ├▶ proposals: a person must approve
                                                            ╰▶ recorded, then put in place

The job folder has the result, also if the program is killed at any moment (W-058 to W-068).
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
MAX_REASONS = 20
"""Number of reasons to report if changes are rejected."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preview:
    """Result that a job would have. `diff`: in the format of `patch`; `refused`: reason if it would change nothing."""

    diff: str
    verdict: PageVerdict
    refused: str


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Work of an agent, and the result of its check."""

    work: PageWork
    verdict: PageVerdict

    @property
    def refusal(self) -> str:
        """Reason why no change may be applied; "" if they may."""
        return self.work.failed or "; ".join(self.verdict.reasons[:MAX_REASONS])


NO_OUTCOME = _Outcome(PageWork(exit_code=1), PageVerdict())
"""Outcome of a job whose agent has not answered."""


class Consolidation:
    """Turns conversations into pages of one wiki."""

    def __init__(
        self,
        store: WikiStore,
        agents: Mapping[str, PageAgent],
        clock: Clock,
        zone: tzinfo | None,
        records: Consolidations | None,
        redact: Redaction,
    ) -> None:
        """`records`: database records of this wiki; None: a wiki folder without a database."""
        self._store = store
        self._files = store.files
        self._agents = agents
        self._clock = clock
        self._zone = zone
        self._records = records
        self._redact = redact

    async def consolidate(
        self, source: ConversationSource, agent: str, *, wait: bool = False
    ) -> WikiJob | None:
        """Turn a conversation into pages. Return the job when it has ended, with any status; None if there is nothing new.

        Raises: ConfigurationError for an unknown agent; StoreBusy, unless `wait`, during another job; StoreMissing,
        StoreUnusable; WintermuteError if this is no conversation.
        """
        page_agent = self.agent(agent)
        async with job_lock(self._files, self._clock, wait=wait):
            await run_uncancelled(partial(_prepare, self._files))
            if self._records is not None:
                await self._records.settle_interrupted(self._files)
            transcript = await source.read()
            if transcript is None:
                return None
            job = WikiJob("", agent, transcript.named)
            job = await run_uncancelled(partial(begin, self._files, job, self._now()))
            log.info("consolidation started job=%s agent=%s", job.name, agent)
            job = await self._run_agent(job, transcript, page_agent)
            log.info("consolidation ended job=%s status=%s", job.name, job.status)
            return job

    async def preview(self, source: ConversationSource, agent: str) -> Preview | None:
        """Return the result that a job would have; the store stays as it is. Raises: as `consolidate`."""
        page_agent = self.agent(agent)
        transcript = await source.read()
        if transcript is None:
            return None
        raw = await run_uncancelled(partial(self._raw_copy_path, transcript))
        task = await self._task(transcript, WikiJob("", agent, raw_copy=raw))
        outcome = await self._judge(task, await page_agent.pages(task))
        changes = outcome.work.changes if outcome.refusal else outcome.verdict.changes
        proposed = [page.change for page in outcome.verdict.proposed]
        return Preview(self._redact(patch((*changes, *proposed))), outcome.verdict, outcome.refusal)

    def agent(self, name: str) -> PageAgent:
        """Return the agent with this name. Raises: ConfigurationError (W-063)."""
        if name not in self._agents:
            raise ConfigurationError(
                f"no command configured for agent '{name}': add it to wiki.agent_cmds"
            )
        return self._agents[name]

    def _now(self) -> datetime:
        return self._clock.now().astimezone(self._zone)

    async def _task(self, transcript: SourceTranscript, job: WikiJob) -> PageTask:
        """Return the input of the agent: the store as it is now."""
        view = await run_uncancelled(partial(_view, self._store))
        return PageTask(transcript, job.raw_copy, job, self._store, view, self._now().date())

    async def _run_agent(
        self, job: WikiJob, transcript: SourceTranscript, agent: PageAgent
    ) -> WikiJob:
        """Run the agent, and apply its changes if they are allowed."""
        outcome = NO_OUTCOME
        try:
            job = await self._write_raw(job, transcript)
            seen = await run_uncancelled(partial(SeenPages, self._files))
            task = await self._task(transcript, job)
            outcome = _Outcome(await agent.pages(task), PageVerdict())
            outcome = await self._judge(task, outcome.work)
            if not outcome.refusal:
                return await self._apply(job, transcript, outcome, seen)
            ending: JobStatus = "failed" if outcome.work.failed else "rejected"
            job = replace(job, status=ending, reason=outcome.refusal)
            return await self._end_unchanged(job, transcript, outcome)
        except (StoreChanged, QuestionWithdrawn) as problem:
            # Empty the output files: they may have text that a person had erased meanwhile.
            status: JobStatus = "rejected" if isinstance(problem, StoreChanged) else "failed"
            await run_uncancelled(
                partial(write_job_files, self._files, job, dict.fromkeys(self._texts(outcome), ""))
            )
            ended = replace(job, status=status, reason=str(problem))
            return await self._end_unchanged(ended, transcript, NO_OUTCOME)
        except AnswerUnusable as problem:
            rejected = replace(job, status="rejected", reason=str(problem))
            return await self._end_unchanged(rejected, transcript, outcome)
        except WintermuteError as problem:
            failed = replace(job, status="failed", reason=str(problem))
            return await self._end_unchanged(failed, transcript, outcome)
        except BaseException:
            stopped = replace(job, status="failed", reason="stopped before its end")
            await self._end_unchanged(stopped, transcript, outcome)
            raise

    async def _write_raw(self, job: WikiJob, transcript: SourceTranscript) -> WikiJob:
        """Record the path of the raw copy, then write the copy (W-059)."""
        job = replace(job, raw_copy=await run_uncancelled(partial(self._raw_copy_path, transcript)))
        await run_uncancelled(partial(write_job_files, self._files, job, {JOB: job.as_json()}))
        if self._records is not None:
            await self._records.record_begun(job, transcript)
        await run_uncancelled(partial(_write_raw_copy, self._files, job.raw_copy, transcript))
        return job

    def _raw_copy_path(self, transcript: SourceTranscript) -> str:
        if transcript.named.startswith(f"{RAW}/"):
            return transcript.named  # the source is a raw copy: only its pages are written again
        if transcript.part is None and (left := self._reusable_copy(transcript)):
            return left
        return raw_path(self._files, transcript.name, self._now().date())

    def _reusable_copy(self, transcript: SourceTranscript) -> str:
        """Return the raw copy of an earlier job without result if it has the same text; else ""."""
        for job in listed_jobs(self._files):
            if job.conversation == transcript.named and job.raw_copy:
                copy = StoreFolder(self._files.root / job.raw_copy)
                same = all(text_at(copy, name) == text for name, text in transcript.files)
                return job.raw_copy if same and job.status != "applied" else ""
        return ""

    async def _judge(self, task: PageTask, work: PageWork) -> _Outcome:
        revealing = [change.path for change in work.changes if self._has_secret(change.after or "")]
        reasons = tuple(
            f"{path} would hold a secret of the configuration: erase it from the conversation"
            for path in revealing
        )
        work = await run_uncancelled(partial(_remove_secrets, work))
        if work.failed or work.objections:
            return _Outcome(work, PageVerdict(reasons=work.objections))
        verdict = await run_uncancelled(partial(_verdict, task, work))
        return _Outcome(work, PageVerdict(reasons=reasons) if reasons else verdict)

    def _has_secret(self, text: str) -> bool:
        return self._redact(text) != text

    async def _apply(
        self, job: WikiJob, transcript: SourceTranscript, outcome: _Outcome, seen: SeenPages
    ) -> WikiJob:
        """Record the changes and put the files in place. Raises: StoreChanged; QuestionWithdrawn."""
        changes, proposed = outcome.verdict.changes, outcome.verdict.proposed
        end = self._now().isoformat(timespec="seconds")
        job = replace(job, end=end, exit_code=0, proposed=tuple(p.change.path for p in proposed))
        await run_uncancelled(partial(write_job_files, self._files, job, self._texts(outcome)))
        record = unrecorded
        if self._records is not None:
            lines = outcome.work.lines
            record = partial(self._records.recording, job, transcript, changes, proposed, lines)
        applied = replace(job, status="applied", reason="")
        accompanying = partial(
            _accompanying_changes,
            self._files,
            applied,
            transcript,
            outcome,
            self._report(applied, outcome),
        )
        job = await put_in_place(self._files, job, changes, accompanying, seen, record)
        if self._records is not None:
            with _logged_failure(job):
                await self._records.mark_settled(job.name)
        return job

    async def _end_unchanged(
        self, job: WikiJob, transcript: SourceTranscript, outcome: _Outcome
    ) -> WikiJob:
        """End a job without changes, and write the reason to its folder."""
        if await run_uncancelled(partial(is_being_applied, self._files, job)):
            return job  # its changes are being put in place: the next job finishes that
        if transcript.part is not None:  # a chat: `drop` removes its raw copy
            job = replace(job, raw_copy="")
        end, code = self._now().isoformat(timespec="seconds"), outcome.work.exit_code or 1
        job = replace(job, end=end, exit_code=code, reason=self._redact(job.reason))
        texts = {**self._texts(outcome), REPORT: self._report(job, outcome), JOB: job.as_json()}
        with _logged_failure(job):
            await run_uncancelled(partial(write_job_files, self._files, job, texts))
            if self._records is not None:
                await self._records.drop(self._files, job.name)
        return job

    def _texts(self, outcome: _Outcome) -> dict[str, str]:
        """Return an agent's output and patches, as files of the job."""
        work, verdict = outcome.work, outcome.verdict
        texts = {
            OUT: work.stdout,
            ERR: work.stderr,
            DIFF: patch(work.changes if outcome.refusal else verdict.changes),
        }
        if verdict.proposed:
            texts[PROPOSED] = patch(page.change for page in verdict.proposed)
        return {name: self._redact(text) for name, text in texts.items()}

    def _report(self, job: WikiJob, outcome: _Outcome) -> str:
        lines = [f"# {job.conversation}: {job.status}", ""]
        lines += [job.reason, ""] if job.reason else []
        if job.status == "applied":
            lines += [f"- {change.path}" for change in outcome.verdict.changes]
        lines += [
            f"- {p.change.path} needs your approval: {p.reason}" for p in outcome.verdict.proposed
        ]
        if outcome.verdict.proposed:
            patch_file = quote(str(self._files.root / job.folder / PROPOSED))
            root = quote(str(self._files.root))
            lines += ["", f"To accept it, run: `patch -p1 -d {root} < {patch_file}`"]
        if outcome.work.report.strip():
            lines += ["", f"## What {job.agent} says", "", outcome.work.report.strip()]
        return self._redact("\n".join(lines).rstrip() + "\n")


@contextmanager
def _logged_failure(job: WikiJob) -> Iterator[None]:
    """Log an error instead of raising it: the next job repairs the record of this one."""
    try:
        yield
    except WintermuteError as problem:
        log.warning("consolidation result not recorded job=%s reason=%s", job.name, problem)


def _prepare(files: StoreFolder) -> None:
    with files.reading():  # finishes an interrupted write
        sweep(files)
    sweep_copies()


def _view(store: WikiStore) -> StoreView:
    with store.files.reading():
        return StoreView(store.pages(), store.tree().names, store.files.presence)


def _write_raw_copy(files: StoreFolder, raw: str, transcript: SourceTranscript) -> None:
    if (files.root / raw).is_dir():
        return
    with files.writing():
        keep_raw(files, raw, transcript.files, "" if transcript.part else transcript.named)


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
        return PageWork(
            objections=("the name of a page would contain a secret, so no page was changed",)
        )
    changes = tuple(
        replace(each, after=each.after and without_secrets(each.after, each.before or ""))
        for each in work.changes
    )
    stdout, stderr, report = map(without_secrets, (work.stdout, work.stderr, work.report))
    return replace(work, changes=changes, stdout=stdout, stderr=stderr, report=report)


def _accompanying_changes(
    files: StoreFolder, job: WikiJob, transcript: SourceTranscript, outcome: _Outcome, report: str
) -> list[FileChange]:
    """Return the files that change with the pages: lines written by Wintermute, taint marks and the report."""
    here = StoreFolder(files.root / job.raw_copy)
    if any(text_at(here, name) != text for name, text in transcript.files):
        raise StoreChanged("messages were changed meanwhile; the next run reads them again")
    changes = [written_change(files, change) for change in outcome.verdict.changes]
    if transcript.is_outside:
        pages = [each.path for each in outcome.verdict.changes if is_page(each.path)]
        changes.append(marked_untrusted(files, [job.raw_copy, *pages]))
    path = f"{job.folder}/{REPORT}"
    return [*changes, FileChange(path, text_at(files, path), report)]
