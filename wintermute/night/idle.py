"""What nobody speaks in any more: chats of the owner become pages, long conversations are folded.

A chat is idle after six quiet hours; each message is taken once, by the cursor of the consolidation.
What forgetting has left incomplete is made anew, and what waits for a person's word is asked.
"""

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from wintermute.changes.change_sets import ItemKind
from wintermute.changes.proposals import Proposal
from wintermute.clock import Clock, stamp
from wintermute.config.secrets import Redaction
from wintermute.conversation.asking import Folding
from wintermute.db.traces import ERASED
from wintermute.errors import StoreBusy
from wintermute.files import to_its_end
from wintermute.night.agents import BUILTIN
from wintermute.night.consolidation import Consolidation
from wintermute.night.forget_pages import CONSOLIDATE_AGAIN, GONE
from wintermute.night.nights import ItemState, Nights, Planned, digest_of
from wintermute.night.page_writer import PageModel, PageWriter, WriterPrompts
from wintermute.night.raw_material import ChatTalk, Consolidations, FolderTalk, RawMaterial
from wintermute.night.tidying import ChoreDone, PhaseWork
from wintermute.stores import Stores
from wintermute.wiki.conversations import ConversationFolder, MessageFile
from wintermute.wiki.links import RAW, is_page, links_in
from wintermute.wiki.page_jobs import WikiJob, text_at

QUIET = timedelta(hours=6)
MOST_AGAIN = 5
"""Pages that are made anew in one night."""
HALF = 0.5
ASKED: tuple[ItemKind, ...] = ("page", "core")
Item = tuple[Planned, ItemState, str | None]

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
        nights: Nights,
        prompts: WriterPrompts,
        backend: str | None,
        redact: Redaction,
        clock: Clock,
    ) -> None:
        """`backend`: who is asked instead of the models of the role."""
        self._stores = stores
        self._nights = nights
        self._prompts = prompts
        self._backend = backend
        self._redact = redact
        self._clock = clock
        self._kept = Consolidations(stores, clock)

    async def do(self, work: PhaseWork) -> ChoreDone:
        """The number of pages. What was rejected is tried again the next night (W-066)."""
        items = await self._asked(work.scope)
        if work.scope != self._stores.owner.scope or not self._stores.wiki.exists:
            return ChoreDone(items=tuple(items))
        before, notes = await self._count(), list[str]()
        consolidation = self._consolidation(work)
        for conversation_id in await idle(self._stores, work.scope, self._clock):
            part = await self._kept.unread(conversation_id)
            if self._kept.talk(conversation_id, part) is not None:
                chat = ChatTalk(self._kept, conversation_id)
                await self._made(consolidation, chat, items, notes)
        for page, raws in await self._again():
            talks = [FolderTalk(self._stores.wiki.root, self._folder(r), self._kept) for r in raws]
            made = [await self._made(consolidation, talk, items, notes) for talk in talks]
            if all(made):
                await self._done_again(page)
        note = "; ".join(dict.fromkeys(notes))
        return ChoreDone(before, await self._count(), note, bool(notes), tuple(items))

    def _consolidation(self, work: PhaseWork) -> Consolidation:
        model = PageModel(work.models, self._backend)
        agents = {BUILTIN: PageWriter(model, self._prompts, self._kept)}
        store, zone = self._stores.wiki, self._stores.tasks.zone
        return Consolidation(store, agents, self._clock, zone, self._kept, self._redact)

    async def _made(
        self, by: Consolidation, talk: RawMaterial, items: list[Item], notes: list[str]
    ) -> bool:
        """Whether it was made; what people should know of it."""
        try:
            job = await by.consolidate(talk, BUILTIN)
        except StoreBusy as problem:
            notes.append(str(problem))
            return False
        if job is None:
            return True
        if job.status != "applied":
            notes.append(f"{job.folder} {job.status}: {job.reason}")
            return False
        if job.changed_files:
            items.append((_of_job(job), "done", job.change_set))
        return True

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

    async def _asked(self, scope: str) -> list[Item]:
        """What waits for a person's word and was not asked by a night before."""
        found: list[Item] = []
        for kind in ASKED:
            for each in await self._stores.proposals.open_in(scope, kind):
                digest = digest_of("proposal", each.id)
                if not await self._nights.unjudged(scope, [digest]):
                    continue
                item = each.item or scope
                state = await self._stores.undo.files[kind].state(item)
                now = None if state is None else str(state["text"])
                text = each.text or None
                if now != text:
                    found.append((_question(each, item, now, text, digest), "open", None))
        return found


def _says(message: MessageFile) -> bool:
    return message.text.strip() not in ("", GONE, ERASED)


def _of_job(job: WikiJob) -> Planned:
    pages = [path for path in job.changed_files if is_page(path)]
    return Planned(
        "pages made",
        (job.conversation,),
        ", ".join(pages or job.changed_files),
        f"what was said became pages: {job.folder}/report.md",
        {},
        evidence=(job.raw_copy,),
    )


def _question(each: Proposal, item: str, now: str | None, text: str | None, digest: str) -> Planned:
    plan = {"files": [{"kind": each.kind, "item": item, "was": now, "text": text}]}
    return Planned(
        f"{each.kind} removed" if text is None else f"{each.kind} changed",
        (item if each.kind == "page" else "core memory",),
        text or "",
        each.reason,
        plan | {"proposal": each.id},
        question=True,
        digest=digest,
    )


class Folds:
    """Folds idle conversations that fill more than half of what makes an answer fold them first."""

    name = "folds"

    def __init__(
        self, stores: Stores, folding: Callable[[PhaseWork], Folding], clock: Clock
    ) -> None:
        self._stores = stores
        self._folding = folding
        self._clock = clock

    async def do(self, work: PhaseWork) -> ChoreDone:
        """How many were too long, and still are."""
        folding, long, left = self._folding(work), 0, 0
        for conversation_id in await idle(self._stores, work.scope, self._clock):
            async with self._stores.database.transaction() as tx:
                branch = await self._stores.conversations.current_branch(tx, conversation_id)
            past = await folding.past(branch)
            if not folding.is_long(past, HALF) or not folding.old(past, "size"):
                continue
            long += 1
            left += await folding.fold(past, branch, None, "size") is None
        return ChoreDone(long, left)
