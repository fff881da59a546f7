"""Core update: facts that must always be known go on the page that is in every prompt.

    new facts of one batch ─┐
    core.md ────────────────┴▶ model ─▶ page ─ form, protected bullets ───┬▶ change set, then the file
                                                                          ╰▶ proposal: core.md stays

The facts stay as they are in any case (M-049 to M-053).
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import text_proposal
from wintermute.db import Transaction
from wintermute.errors import MemoryFileUnusable, QuestionWithdrawn
from wintermute.jobs import Job
from wintermute.llm.background import BackgroundModels
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import InvalidAnswer, require_keys
from wintermute.memory.core import EMPTY_CORE, lost_bullets, page_problem, unowned_bullets
from wintermute.memory.core_pages import CorePage
from wintermute.memory.fact import Fact
from wintermute.messages import Json
from wintermute.secret_shapes import without_secrets
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.text import shortened
from wintermute.work.jobs import JobDone, JobPutOff

NAME = "core"
ROLE = "reconstruction"
SUMMARY = "core.md"
RETRY_AFTER = timedelta(hours=1)
"""Pause before an unusable page is tried again."""
NOTHING = "- (none)"
SHOWN = 200
WOULD_REMOVE = "it would remove what a person wrote or said: {bullets}"

log = logging.getLogger(__name__)


def proposed_page(found: Json) -> str | None:
    """Return the page that an answer proposes; None: no change. Raises: Unfit (M-052, M-072)."""
    require_keys(found, "should_update", "core_markdown")
    wants, page = found["should_update"], found["core_markdown"]
    if not isinstance(wants, bool):
        raise InvalidAnswer('"should_update" must be true or false')
    if not wants:
        return None
    if not isinstance(page, str):
        raise InvalidAnswer('"core_markdown" must be the text of the whole page')
    if problem := page_problem(page):
        raise InvalidAnswer(f'"core_markdown": {problem}', '"core_markdown" is no whole page')
    return f"{page.rstrip()}\n"


@dataclass(frozen=True, slots=True)
class CoreUpdate:
    """The core update after a batch: its new facts are the ids in the job's `args` (M-040, M-046)."""

    stores: Stores
    models: BackgroundModels
    template: Template

    async def update(self, job: Job) -> JobDone | JobPutOff:
        """Ask the model once. Raises: ModelError; AnswerUnusable for an invalid page; QuestionWithdrawn."""
        pages = self.stores.core_pages
        if job.progress.get("set"):  # stored before a crash
            return JobDone()
        facts = await self._new(job)
        if not facts:
            return JobDone()
        await self.models.require_idle(ROLE)
        try:
            page = await pages.found(job.scope)
        except MemoryFileUnusable as problem:
            log.warning("core not updated scope=%s reason=%s", job.scope, problem)
            return JobPutOff(
                self.stores.facts.now() + RETRY_AFTER, "core.md cannot be used as it is"
            )
        sources = QuestionSources(
            tuple(fact.id for fact in facts), partial(self._is_unchanged, job, page, facts)
        )
        text = await self._asked(page, facts, sources)
        # The store does so too, but a proposal needs it as well, and the comparison below.
        text = text and without_secrets(text, page.text or "")
        if text is None or text == page.text:
            return JobDone()
        await self.stores.model_calls.require(sources)
        return await self._changed(job, page, text, facts, sources)

    async def _new(self, job: Job) -> list[Fact]:
        """Return the facts that are still remembered and true, without untrusted ones."""
        named = job.args.get("facts", [])
        found = await self.stores.facts.living(self.stores.database, job.scope, named)
        now = self.stores.facts.now()
        return [
            fact
            for fact in found
            if not (fact.valid_to and fact.valid_to <= now) and not fact.taint
        ]

    async def _is_unchanged(
        self, job: Job, page: CorePage, facts: Sequence[Fact], tx: Transaction
    ) -> bool:
        """Check whether no fact was forgotten, retired or reworded since it was read."""
        there = await self.stores.facts.living(tx, job.scope, [fact.id for fact in facts])
        same = {fact.id: fact.text for fact in there} == {fact.id: fact.text for fact in facts}
        return (
            same
            and await self._is_page(job.scope, page)
            and await self.stores.jobs.exists(tx, job.id)
        )

    async def _is_page(self, scope: str, page: CorePage) -> bool:
        """Check whether nobody edited the page, and nothing was cut from it."""
        with suppress(MemoryFileUnusable):
            return await self.stores.core_pages.raw(scope) == page
        return False

    async def _asked(
        self, page: CorePage, facts: Sequence[Fact], sources: QuestionSources
    ) -> str | None:
        values = {
            "current_core_markdown": (page.text or EMPTY_CORE).strip(),
            "candidate_new_memories": "\n".join(f"- {fact.text}" for fact in facts),
        }
        return await self.models.answer_in_json(
            *(ROLE, self.template.text(), values, proposed_page), sources=sources
        )

    async def _changed(
        self, job: Job, page: CorePage, text: str, facts: Sequence[Fact], sources: QuestionSources
    ) -> JobDone:
        """Replace the page, or keep it and store a proposal.

        Raises: MemoryFileUnusable; QuestionWithdrawn, and nothing is changed.
        """
        pages, before = self.stores.core_pages, page.text or ""
        unowned = await pages.unowned(job.scope, before)
        only_adds = "small" in self.models.sizes(ROLE)
        if gone := lost_bullets(before, text, () if only_adds else unowned):
            log.warning(
                "core not updated scope=%s reason=%d bullets would go", job.scope, len(gone)
            )
            offer = partial(self._offer, scope=job.scope, text=text, gone=gone, sources=sources)
            return JobDone(offer)
        why = Reason(
            "reconstruction", job.scope, evidence=tuple(fact.id for fact in facts), summary=SUMMARY
        )
        explicit = [fact.text for fact in facts if fact.protected]
        may_go = unowned_bullets(before, text, unowned, explicit)

        async def noted(tx: Transaction, set_id: str) -> None:
            if not await sources.stand(tx):
                raise QuestionWithdrawn("a fact was retracted while the page was made")
            await self.stores.decisions.outdate_text(tx, job.scope, "core", job.scope)
            await self.stores.jobs.save_progress(tx, job.id, {"set": set_id})

        if await pages.replace(why, text, page, may_go, noted) is None:
            log.info("core not updated scope=%s reason=it was edited meanwhile", job.scope)
        return JobDone()

    async def _offer(
        self,
        tx: Transaction,
        *,
        scope: str,
        text: str,
        gone: Sequence[str],
        sources: QuestionSources,
    ) -> None:
        if not await sources.stand(tx):
            return
        quoted = "; ".join(f'"{shortened(bullet, SHOWN)}"' for bullet in gone)
        reason = WOULD_REMOVE.format(bullets=quoted)
        await self.stores.decisions.outdate_text(tx, scope, "core", scope, but=text)
        await self.stores.decisions.propose(tx, scope, text_proposal("core", scope, text, reason))
