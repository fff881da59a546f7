"""What nobody speaks in any more: chats of the owner become pages, long conversations are folded.

A chat is idle after six quiet hours; each message is taken once, by the cursor of the consolidation.
What forgetting has left incomplete is made anew, and what waits for a person's word is asked.
"""

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from wintermute.changes.change_sets import ItemKind
from wintermute.changes.decisions import OPEN, Planned, digest_of
from wintermute.changes.texts import text_in
from wintermute.clock import Clock, stamp
from wintermute.config.secrets import Redaction
from wintermute.conversation.asking import Folding
from wintermute.db.traces import ERASED
from wintermute.errors import StorageBlocked, StoreBusy, WintermuteError
from wintermute.files import to_its_end
from wintermute.forgetting.forget_pages import CONSOLIDATE_AGAIN, GONE
from wintermute.jobs import FORGET
from wintermute.loom.records import BranchView
from wintermute.night.tidying import ChoreDone, ChoreItem, PhaseWork
from wintermute.pages.agents import BUILTIN
from wintermute.pages.consolidation import Consolidation
from wintermute.pages.page_lines import asked_places
from wintermute.pages.page_writer import PageWriter, WriterPrompts
from wintermute.pages.raw_material import (
    ChatPart,
    ChatTalk,
    Consolidations,
    FolderTalk,
    RawMaterial,
)
from wintermute.stores import Stores
from wintermute.text import counted
from wintermute.wiki.conversations import ConversationFolder, MessageFile
from wintermute.wiki.links import RAW, is_page, links_in
from wintermute.wiki.page_jobs import WikiJob, read_job, text_at

QUIET = timedelta(hours=6)
MEANWHILE = "meanwhile"
"""How the reason of a job ends that somebody else was in the way of."""
MOST_AGAIN = 5
"""Pages that are made anew in one night."""
HALF = 0.5
BEFORE = "done before the night was interrupted"
ASKED: tuple[ItemKind, ...] = ("page", "core")
SHARED = "they share words with a deleted message, and I do not read them until you answer"

log = logging.getLogger(__name__)


async def idle(stores: Stores, scope: str, clock: Clock) -> list[str]:
    """The conversations of a scope in which nobody has spoken for six hours, and somebody once did."""
    return await stores.database.scalars(
        "SELECT c.id FROM conversations c JOIN inbox i ON i.conversation_id = c.id"
        " AND i.kind IN ('message', 'command') WHERE c.scope = ? AND c.kind IN ('room', 'terminal')"
        " GROUP BY c.id HAVING max(i.received_at) <= ? ORDER BY c.id",
        (scope, stamp(clock.now() - QUIET)),
    )


class Pages:
    """Makes pages of the owner's idle chats (W-058)."""

    name = "pages"

    def __init__(
        self,
        stores: Stores,
        prompts: WriterPrompts,
        backend: str | None,
        redact: Redaction,
        clock: Clock,
    ) -> None:
        """`backend`: who is asked instead of the models of the role."""
        self._stores = stores
        self._prompts = prompts
        self._backend = backend
        self._redact = redact
        self._clock = clock
        self._kept = Consolidations(stores, clock)

    async def do(self, work: PhaseWork) -> ChoreDone:
        """The number of pages; then what waits for a person is asked, that of this night as well."""
        if work.scope != self._stores.owner.scope or not self._stores.wiki.exists:
            return ChoreDone(items=tuple(await self._asked(work.scope)))
        kept = Consolidations(self._stores, self._clock, work.night.id)
        before, run, asked = (
            await self._count(),
            _Run(self._consolidation(work, kept)),
            list[ChoreItem](),
        )
        after = before
        try:
            await self._work(run, work.scope)
            asked = await self._asked(work.scope)
            after = await self._count()
        except WintermuteError as problem:  # what was done before it is told all the same
            run.ended_by(problem)
        # By what the store says: a kill may have come after some of it.
        made = await to_its_end(partial(self._applied, await kept.of_night()))
        items, note = [*made, *asked], "; ".join(dict.fromkeys(run.notes))
        return ChoreDone(
            *(before, after, note, run.left, tuple(items)),
            failed=run.failed and not work.models.spent,
        )

    async def _work(self, run: "_Run", scope: str) -> None:
        """All of it. Raises: WintermuteError for what is wrong with more than one of them."""
        for conversation_id in await idle(self._stores, scope, self._clock):
            part = await self._kept.unread(conversation_id)
            if self._kept.talk(conversation_id, part) is not None:
                await self._chat(run, scope, part)
        for page, raws in await self._again():
            talks = [FolderTalk(self._stores.wiki.root, self._folder(r), self._kept) for r in raws]
            if not any([(await run.work(talk)).waits for talk in talks]):
                await self._done_again(page)

    async def foreseen(self, work: PhaseWork) -> str:
        """How many chats would become pages, and how many pages would be made anew."""
        if work.scope != self._stores.owner.scope or not self._stores.wiki.exists:
            return ""
        parts = [
            await self._kept.unread(name)
            for name in await idle(self._stores, work.scope, self._clock)
        ]
        chats = [
            _chat_digest(part) for part in parts if self._kept.talk(part.conversation_id, part)
        ]
        fresh, again = await self._stores.nights.unjudged(work.scope, chats), await self._again()
        would = [f"{counted(len(fresh), 'chat')} would become pages"] if fresh else []
        would += [f"{counted(len(again), 'page')} would be written anew"] if again else []
        return f"{'; '.join(would)}: not tried here" if would else ""

    async def _chat(self, run: "_Run", scope: str, part: ChatPart) -> None:
        """One chat; what was of no use is not asked for again until more is said."""
        name, digest = part.conversation_id, _chat_digest(part)
        if not await self._stores.nights.unjudged(scope, [digest]):
            return
        if (await run.work(ChatTalk(self._kept, name))).refused:
            async with self._stores.database.transaction() as tx:
                await self._stores.nights.judge(tx, scope, [digest])

    def _applied(self, names: Sequence[str]) -> list[ChoreItem]:
        """Those of these jobs whose pages are in place, as `names` has them."""
        wiki = self._stores.wiki
        found = [read_job(wiki.files, name) for name in names]
        return [
            _of_job(job, wiki.is_outside(job.raw_copy))
            for job in found
            if job and job.status == "applied" and job.changed_files
        ]

    def _consolidation(self, work: PhaseWork, kept: Consolidations) -> Consolidation:
        writer = PageWriter(work.models, self._prompts, kept, backend=self._backend)
        agents = {BUILTIN: writer}
        store, zone = self._stores.wiki, self._stores.tasks.zone
        return Consolidation(store, agents, self._clock, zone, kept, self._redact)

    async def _again(self) -> list[tuple[str, list[str]]]:
        """The pages that lost something, each with the conversations that it still cites."""
        rows = await self._stores.database.rows(
            "SELECT args ->> '$.page' AS page FROM jobs WHERE name = ? AND state = 'waiting'"
            " GROUP BY page ORDER BY min(created_at) LIMIT ?",
            (CONSOLIDATE_AGAIN, MOST_AGAIN),
        )
        pages = [str(row["page"]) for row in rows]
        return [(page, await to_its_end(partial(self._speaking, page))) for page in pages]

    def _speaking(self, page: str) -> list[str]:
        """The raw conversations that a page cites and that still say something."""
        text = text_at(self._stores.wiki.files, page) or ""
        cited = dict.fromkeys(link.rpartition("/")[0] for link in links_in(text))
        found = [raw for raw in cited if raw.startswith(f"{RAW}/")]
        return [raw for raw in found if any(map(_says, self._folder(raw).messages()))]

    def _folder(self, raw: str) -> ConversationFolder:
        return ConversationFolder(self._stores.wiki.root, raw)

    async def _done_again(self, page: str) -> None:
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

        return await to_its_end(counted)

    async def _asked(self, scope: str) -> list[ChoreItem]:
        """What waits for a person's word and was not asked by a night before."""
        found: list[ChoreItem] = []
        for kind in ASKED:
            for each in await self._stores.decisions.waiting(scope, kind):
                if (file := each.file) is None or each.night:
                    continue
                item, text = file["item"], file["text"]
                now = text_in(await self._stores.placing.files[kind].state(item))
                if now != text:
                    outside = kind == "page" and await to_its_end(
                        partial(self._stores.wiki.is_outside, item, text or "")
                    )
                    plan = {"files": [file | {"was": now}]}
                    wanted = Planned(
                        *(each.kind, each.before, each.after, each.reason, plan),
                        question=True,
                        outside=outside,
                    )
                    found.append(ChoreItem(wanted, "open", waits=each))
        if scope == self._stores.owner.scope and self._stores.wiki.exists:
            found += await self._asked_lines(scope)
        return found

    async def _asked_lines(self, scope: str) -> list[ChoreItem]:
        """One question for all lines that are withheld and that no open one asks about (M-082)."""
        places = await to_its_end(partial(asked_places, self._stores.wiki))
        open_ = await self._stores.decisions.listed(self._stores.database, scope=scope, states=OPEN)
        waiting = {name for item in open_ for name in item.plan.get("lines", ())}
        said = tuple(place for place, name in places if name not in waiting)
        if not said:
            return []
        plan = {"do": FORGET, "lines": sorted({name for _, name in places} - waiting)}
        asked = Planned("page lines", said, "", SHARED, plan, question=True)
        return [ChoreItem(asked, "open")]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of one job. `waits`: the next night tries it again; `refused`: not as it is now."""

    waits: bool = False
    refused: bool = False


class _Run:
    """The jobs of a night, one after the other, and what to know of them."""

    def __init__(self, by: Consolidation) -> None:
        self._by = by
        self.notes: list[str] = []
        self.left = False
        self.failed = False

    async def work(self, talk: RawMaterial) -> _Outcome:
        """One job. A store that changed meanwhile, or a model that is away, says nothing of it (W-066)."""
        try:
            job = await self._by.consolidate(talk, BUILTIN)
        except StorageBlocked:
            raise
        except WintermuteError as problem:
            self.ended_by(problem)
            return _Outcome(waits=True)
        if job is None or job.status == "applied":
            return _Outcome()
        self.notes.append(f"{job.folder} {job.status}: {job.reason}")
        waits = job.status == "failed" or job.reason.endswith(MEANWHILE)
        self.failed = self.failed or job.status == "failed"
        self.left = self.left or waits
        return _Outcome(waits, not waits)

    def ended_by(self, problem: WintermuteError) -> None:
        """Something was not done, and is tried the next night."""
        self.notes.append(str(problem))
        self.failed = self.failed or not isinstance(problem, StoreBusy)
        self.left = True


def _chat_digest(part: ChatPart) -> str:
    rows = [row.event_id for row in part.rows]
    return digest_of("chat", part.conversation_id, str(part.upto), *rows)


def _says(message: MessageFile) -> bool:
    return message.text.strip() not in ("", GONE, ERASED)


def _source(conversation: str) -> str:
    """What pages are made from, for people: a chat has no name that would tell them anything."""
    if conversation.startswith(f"{RAW}/"):
        return "what is still there of what they cite"
    return "what was said in a chat" if conversation.startswith("conv_") else conversation


def _of_job(job: WikiJob, outside: bool) -> ChoreItem:
    pages = [path for path in job.changed_files if is_page(path)]
    wanted = Planned(
        "page",
        (),
        ", ".join(pages or job.changed_files),
        f"from {_source(job.conversation)}; {job.folder}/report.md tells how",
        {},
        evidence=(job.raw_copy,),
        outside=outside,
    )
    return ChoreItem(wanted, change_set=job.change_set)


class FoldIdle:
    """Folds idle conversations that fill more than half of what makes an answer fold them first."""

    name = "folds"

    def __init__(
        self,
        stores: Stores,
        folding: Callable[[PhaseWork], Folding],
        clock: Clock,
    ) -> None:
        self._stores = stores
        self._folding = folding
        self._clock = clock

    async def do(self, work: PhaseWork) -> ChoreDone:
        """How many were too long, and still are. A summary of no use is not asked for again."""
        folding, broken = self._folding(work), ""
        # What a kill came after: nobody was told of it.
        done = dict.fromkeys(await self._stores.folds.of_night(work.night.id, work.scope), BEFORE)
        found = {*done}
        try:
            async for branch, past, digest in self._long(folding, work.scope):
                found.add(branch)
                if told := await self._folded(work, folding, branch, past, digest):
                    done[branch] = told
        except WintermuteError as problem:  # what was done before it is told all the same
            broken = str(problem)
        items: list[ChoreItem] = [
            ChoreItem(Planned("fold", (), "", told, {})) for told in done.values()
        ]
        away, spent = work.models.away, work.models.spent
        note = "; ".join(filter(None, (away, broken)))
        return ChoreDone(
            *(len(found), len(found) - len(done), note, spent, tuple(items)),
            failed=bool(broken) or (bool(away) and not spent),
        )

    async def _folded(
        self, work: PhaseWork, folding: Folding, branch: str, past: BranchView, digest: str
    ) -> str:
        """What came of one that is too long; "": nothing."""
        if not await self._stores.nights.unjudged(work.scope, [digest]):
            return ""
        work.models.away = ""
        folded = await folding.fold(past, branch, None, "size")
        if folded is not None:
            before, now = folding.measured(past), folding.measured(folded)
            return f"{before} before, {now} now; all that was said is kept"
        if not work.models.away:
            async with self._stores.database.transaction() as tx:
                await self._stores.nights.judge(tx, work.scope, [digest])
        return ""

    async def foreseen(self, work: PhaseWork) -> str:
        """How many conversations would be summed up."""
        digests = [digest async for *_, digest in self._long(self._folding(work), work.scope)]
        fresh = await self._stores.nights.unjudged(work.scope, digests)
        would = f"{counted(len(fresh), 'long conversation')} would be summed up: not tried here"
        return would if fresh else ""

    async def _long(
        self, folding: Folding, scope: str
    ) -> AsyncIterator[tuple[str, BranchView, str]]:
        """Each that is too long: its branch, what is said there, and a digest of how it is now."""
        for conversation_id in await idle(self._stores, scope, self._clock):
            async with self._stores.database.transaction() as tx:
                branch = await self._stores.conversations.current_branch(tx, conversation_id)
            past = await folding.past(branch)
            if folding.is_long(past, HALF) and folding.old(past, "size"):
                yield (
                    branch,
                    past,
                    digest_of("fold", branch, past.casts[-1].id, folding.measured(past)),
                )
