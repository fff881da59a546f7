"""Idle conversations at night: the owner's chats become pages, long conversations are folded.

A chat is idle after six hours without a message. The cursor of the consolidation takes each message once. Pages
that lost text to `forget` are written again, and changes that need approval are asked about.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import ClassVar

from wintermute.changes.change_sets import ItemKind
from wintermute.changes.decisions import OPEN, PAGE_LINES, Decision, digest_of
from wintermute.changes.texts import text_in
from wintermute.clock import Clock, stamp
from wintermute.conversation.model_requests import Folding
from wintermute.db.text_match import ERASED
from wintermute.errors import StorageBlocked, StoreBusy, WintermuteError
from wintermute.files import run_uncancelled
from wintermute.forgetting.executors import DecisionKind, Kinds
from wintermute.forgetting.forget_jobs import forget_lines
from wintermute.forgetting.forget_pages import CONSOLIDATE_AGAIN, GONE
from wintermute.loom.records import BranchView
from wintermute.night.pipeline import PhaseStep, PhaseWork
from wintermute.pages.agents import BUILTIN
from wintermute.pages.consolidation import Consolidation
from wintermute.pages.page_lines import withheld_places
from wintermute.pages.page_writer import PageWriter, WriterPrompts
from wintermute.pages.sources import (
    ChatPart,
    ChatSource,
    Consolidations,
    ConversationSource,
    FolderSource,
)
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.text import counted
from wintermute.wiki.conversations import ConversationFolder, MessageFile
from wintermute.wiki.links import RAW, is_page, links_in
from wintermute.wiki.page_jobs import WikiJob, read_job, text_at
from wintermute.work.data_folder import DataFolder

QUIET = timedelta(hours=6)
MEANWHILE = "meanwhile"
"""Last word of a job's reason if somebody else's edit stopped it."""
MOST_AGAIN = 5
"""The most pages that one night writes again."""
HALF = 0.5
BEFORE = "done before the night was interrupted"
ASKED: tuple[ItemKind, ...] = ("page", "core")
SHARED = "they share words with a deleted message, and I do not read them until you answer"
WRITTEN = DecisionKind(
    *("page", "page updated", "pages updated", "Write these pages?", "pages written"),
    is_named=True,
)
LINES_GO = DecisionKind(
    *(PAGE_LINES, "question about your lines answered", "questions about your lines answered"),
    *("Remove these lines from your pages?", "lines of yours removed", forget_lines),
)
FILES_CHANGE = (
    DecisionKind("page changed", "page changed", "pages changed", "Change this page?"),
    DecisionKind("page removed", "page removed", "pages removed", "Remove this page?"),
    DecisionKind(
        *("core changed", "core memory changed", "core memories changed"),
        asks="Change the core memory?",
    ),
)
SUMMED_UP = DecisionKind(
    *("fold", "conversation summed up", "conversations summed up"),
    *("Sum up this conversation?", "long conversation summed up"),
)

log = logging.getLogger(__name__)


async def idle_conversations(stores: Stores, scope: str, clock: Clock) -> list[str]:
    """Return a scope's conversations in which somebody once spoke, but nobody for six hours."""
    return await stores.database.scalars(
        "SELECT c.id FROM conversations c JOIN inbox i ON i.conversation_id = c.id"
        " AND i.kind IN ('message', 'command') WHERE c.scope = ? AND c.kind IN ('room', 'terminal')"
        " GROUP BY c.id HAVING max(i.received_at) <= ? ORDER BY c.id",
        (scope, stamp(clock.now() - QUIET)),
    )


class PagesPhase:
    """Phase that makes pages of the owner's idle chats (W-058)."""

    name: ClassVar = "pages"
    use: ClassVar = "update pages"
    kinds: ClassVar[Kinds] = (WRITTEN, LINES_GO, *FILES_CHANGE)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        plan, page = (
            Template(own.stores.prompts, f"consolidation/{name}.md", own.texts.kept)
            for name in ("plan", "page")
        )
        self._prompts = WriterPrompts(own.texts.consolidation, plan, page)
        self._backend = own.config.wiki.model  # replaces the models of the role
        self._redact = own.redact
        self._clock = own.clock
        self._records = Consolidations(own.stores, own.clock)

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield one step with the number of pages and the open questions, also those of this night."""
        if not self._has_pages(work.scope):
            yield PhaseStep(results=await self._open_questions(work.scope))
            return
        kept = Consolidations(self._stores, self._clock, work.night.id)
        before, asked = await self._count(), list[Decision]()
        after, done = before, list[PhaseStep]()
        try:
            async for step in self._jobs(self._consolidation(work, kept), work.scope):
                done.append(step)
            asked = await self._open_questions(work.scope)
            after = await self._count()
        except WintermuteError as problem:  # earlier results are reported all the same
            done.append(_failed_step(problem))
        # Read from the store: the program may have been killed after some of the jobs.
        made = await run_uncancelled(partial(self._applied_jobs, await kept.of_night()))
        yield PhaseStep(
            results=[*made, *asked],
            note="; ".join(dict.fromkeys(step.note for step in done if step.note)),
            unfinished=any(step.unfinished for step in done),
            counts=(before, after),
            failed=any(step.failed for step in done) and not work.models.spent,
        )

    def _has_pages(self, scope: str) -> bool:
        return scope == self._stores.owner.scope and self._stores.wiki.exists

    async def _jobs(self, by: Consolidation, scope: str) -> AsyncIterator[PhaseStep]:
        """Run all jobs. A chat that gave nothing usable is not tried again until it has new messages.

        Raises: WintermuteError for a problem that concerns several jobs.
        """
        async for part in self._new_parts(scope):
            digest = _chat_digest(part)
            if await self._stores.nights.not_yet_asked(scope, [digest]):
                yield (step := await _run_job(by, ChatSource(self._records, part.conversation_id)))
                if step.note and not step.unfinished:
                    async with self._stores.database.transaction() as tx:
                        await self._stores.nights.mark_asked(tx, scope, [digest])
        for page, raws in await self._incomplete():
            talks = [
                FolderSource(self._stores.wiki.root, self._folder(r), self._records) for r in raws
            ]
            steps = [await _run_job(by, talk) for talk in talks]
            for step in steps:
                yield step
            if not any(step.unfinished for step in steps):
                await self._mark_rewritten(page)

    async def _new_parts(self, scope: str) -> AsyncIterator[ChatPart]:
        """Yield the new messages of each chat that can become a page."""
        for name in await idle_conversations(self._stores, scope, self._clock):
            part = await self._records.unread(name)
            if self._records.transcript(name, part) is not None:
                yield part

    async def foreseen(self, work: PhaseWork) -> str:
        """Announce the number of chats that would become pages and of pages to be rewritten."""
        if not self._has_pages(work.scope):
            return ""
        chats = [_chat_digest(part) async for part in self._new_parts(work.scope)]
        fresh, again = (
            await self._stores.nights.not_yet_asked(work.scope, chats),
            await self._incomplete(),
        )
        would = [f"{counted(len(fresh), 'chat')} would become pages"] if fresh else []
        would += [f"{counted(len(again), 'page')} would be rewritten"] if again else []
        return f"{'; '.join(would)}: not tried here" if would else ""

    def _applied_jobs(self, names: Sequence[str]) -> list[Decision]:
        """Return decisions for those of these jobs whose pages are in place."""
        wiki = self._stores.wiki
        jobs = [read_job(wiki.files, name) for name in names]
        return [
            _job_decision(job, wiki.is_outside(job.raw_copy))
            for job in jobs
            if job and job.status == "applied" and job.changed_files
        ]

    def _consolidation(self, work: PhaseWork, kept: Consolidations) -> Consolidation:
        writer = PageWriter(work.models, self._prompts, kept, backend=self._backend)
        agents = {BUILTIN: writer}
        store, zone = self._stores.wiki, self._stores.tasks.zone
        return Consolidation(store, agents, self._clock, zone, kept, self._redact)

    async def _incomplete(self) -> list[tuple[str, list[str]]]:
        """Return the pages that lost text, each with the conversations that it still cites."""
        rows = await self._stores.database.rows(
            "SELECT args ->> '$.page' AS page FROM jobs WHERE name = ? AND state = 'waiting'"
            " GROUP BY page ORDER BY min(created_at) LIMIT ?",
            (CONSOLIDATE_AGAIN, MOST_AGAIN),
        )
        pages = [str(row["page"]) for row in rows]
        return [(page, await run_uncancelled(partial(self._citing_text, page))) for page in pages]

    def _citing_text(self, page: str) -> list[str]:
        """Return the raw conversations that a page cites and that still have text."""
        text = text_at(self._stores.wiki.files, page) or ""
        cited = dict.fromkeys(link.rpartition("/")[0] for link in links_in(text))
        found = [raw for raw in cited if raw.startswith(f"{RAW}/")]
        return [raw for raw in found if any(map(_has_text, self._folder(raw).messages()))]

    def _folder(self, raw: str) -> ConversationFolder:
        return ConversationFolder(self._stores.wiki.root, raw)

    async def _mark_rewritten(self, page: str) -> None:
        async with self._stores.database.transaction() as tx:
            await tx.execute(
                "UPDATE jobs SET state = 'done', ended_at = ? WHERE name = ? AND args ->> '$.page' = ?"
                " AND state = 'waiting'",
                (stamp(self._clock.now()), CONSOLIDATE_AGAIN, page),
            )

    async def _count(self) -> int:
        def counted() -> int:
            with self._stores.wiki.files.reading():
                return sum(map(is_page, self._stores.wiki.pages()))

        return await run_uncancelled(counted)

    async def _open_questions(self, scope: str) -> list[Decision]:
        """Return the decisions that wait for a person and that no earlier night asked about."""
        decisions = list[Decision]()
        for kind in ASKED:
            for each in await self._stores.decisions.waiting(scope, kind):
                if (file := each.file) is None or each.night:
                    continue
                item, text = file["item"], file["text"]
                current = text_in(await self._stores.placing.files[kind].state(item))
                if current != text:
                    outside = kind == "page" and await run_uncancelled(
                        partial(self._stores.wiki.is_outside, item, text or "")
                    )
                    plan = {"files": [file | {"was": current}], "outside": outside}
                    decisions.append(replace(each, plan=plan))
        if self._has_pages(scope):
            decisions += await self._lines_question(scope)
        return decisions

    async def _lines_question(self, scope: str) -> list[Decision]:
        """Return one question for all withheld lines that no open question covers (M-082)."""
        places = await run_uncancelled(partial(withheld_places, self._stores.wiki))
        open_ = await self._stores.decisions.listed(self._stores.database, scope=scope, states=OPEN)
        waiting = {name for item in open_ for name in item.plan.get("lines", ())}
        said = tuple(place for place, name in places if name not in waiting)
        if not said:
            return []
        plan = {"lines": sorted({name for _, name in places} - waiting)}
        return [Decision(PAGE_LINES, said, "", SHARED, plan, state="open")]


async def _run_job(by: Consolidation, talk: ConversationSource) -> PhaseStep:
    """Run one job. `left`: the next night tries again, for the store changed or the model is away.

    Raises: StorageBlocked.
    """
    try:
        job = await by.consolidate(talk, BUILTIN)
    except StorageBlocked:
        raise
    except WintermuteError as problem:
        return _failed_step(problem)
    if job is None or job.status == "applied":
        return PhaseStep()
    failed = job.status == "failed"
    left = failed or job.reason.endswith(MEANWHILE)
    return PhaseStep(
        note=f"{job.folder} {job.status}: {job.reason}", unfinished=left, failed=failed
    )


def _failed_step(problem: WintermuteError) -> PhaseStep:
    """Return a step that failed and is tried again the next night."""
    return PhaseStep(note=str(problem), unfinished=True, failed=not isinstance(problem, StoreBusy))


def _chat_digest(part: ChatPart) -> str:
    rows = [row.event_id for row in part.rows]
    return digest_of("chat", part.conversation_id, str(part.upto), *rows)


def _has_text(message: MessageFile) -> bool:
    return message.text.strip() not in ("", GONE, ERASED)


def _source(conversation: str) -> str:
    """Return the name of a page's source for people; a chat is "a chat", since its id says nothing."""
    if conversation.startswith(f"{RAW}/"):
        return "their remaining sources"
    return "a chat" if conversation.startswith("conv_") else conversation


def _job_decision(job: WikiJob, outside: bool) -> Decision:
    pages = [path for path in job.changed_files if is_page(path)]
    return Decision(
        WRITTEN.name,
        (),
        ", ".join(pages or job.changed_files),
        f"from {_source(job.conversation)}; {job.folder}/report.md has details",
        {"outside": outside},
        evidence=(job.raw_copy,),
        state="done",
        change_set=job.change_set,
    )


class FoldIdle:
    """Phase that folds idle conversations which fill more than half of the limit for folding."""

    name: ClassVar = "folds"
    use: ClassVar = "sum up long conversations"
    kinds: ClassVar[Kinds] = (SUMMED_UP,)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._own = own
        self._clock = own.clock

    def _folding(self, work: PhaseWork) -> Folding:
        template, config = self._own.texts.compaction, self._own.config
        hidden = config.tools.ephemeral
        return Folding(
            *(self._stores, work.models, template, config.context, hidden, work.night.id)
        )

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield one step with the long conversations before and after. An unusable summary is not asked for again."""
        folding, problems = self._folding(work), ""
        # Folds before a kill were not reported yet.
        done = dict.fromkeys(await self._stores.folds.of_night(work.night.id, work.scope), BEFORE)
        branches = {*done}
        try:
            async for branch, past, digest in self._long(folding, work.scope):
                branches.add(branch)
                if text := await self._fold(work, folding, branch, past, digest):
                    done[branch] = text
        except WintermuteError as problem:  # earlier results are reported all the same
            problems = str(problem)
        away, spent = work.models.away, work.models.spent
        yield PhaseStep(
            results=[
                Decision(SUMMED_UP.name, (), "", text, {}, state="done") for text in done.values()
            ],
            note="; ".join(filter(None, (away, problems))),
            unfinished=spent,
            counts=(len(branches), len(branches) - len(done)),
            failed=bool(problems) or (bool(away) and not spent),
        )

    async def _fold(
        self, work: PhaseWork, folding: Folding, branch: str, past: BranchView, digest: str
    ) -> str:
        """Fold one conversation and describe the result; "" if nothing changed."""
        if not await self._stores.nights.not_yet_asked(work.scope, [digest]):
            return ""
        work.models.away = ""
        folded = await folding.fold(past, branch, None, "size")
        if folded is not None:
            before, now = folding.measured(past), folding.measured(folded)
            return f"{before} before, {now} now; all that was said is kept"
        if not work.models.away:
            async with self._stores.database.transaction() as tx:
                await self._stores.nights.mark_asked(tx, work.scope, [digest])
        return ""

    async def foreseen(self, work: PhaseWork) -> str:
        """Announce the number of conversations that would be summed up."""
        digests = [digest async for *_, digest in self._long(self._folding(work), work.scope)]
        fresh = await self._stores.nights.not_yet_asked(work.scope, digests)
        would = f"{counted(len(fresh), 'long conversation')} would be summed up: not tried here"
        return would if fresh else ""

    async def _long(
        self, folding: Folding, scope: str
    ) -> AsyncIterator[tuple[str, BranchView, str]]:
        """Yield each long conversation: its branch, its history and a digest of its state."""
        for conversation_id in await idle_conversations(self._stores, scope, self._clock):
            async with self._stores.database.transaction() as tx:
                branch = await self._stores.conversations.current_branch(tx, conversation_id)
            past = await folding.past(branch)
            if folding.is_long(past, HALF) and folding.old(past, "size"):
                yield (
                    branch,
                    past,
                    digest_of("fold", branch, past.casts[-1].id, folding.measured(past)),
                )
