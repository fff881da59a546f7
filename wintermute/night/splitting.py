"""Splitting: one long text becomes the single facts that it tells; what to do with them is not decided here."""

import logging
from collections.abc import Sequence
from functools import partial
from textwrap import wrap

from wintermute.changes.change_sets import Reason
from wintermute.db import Transaction
from wintermute.errors import AnswerUnusable, ModelError, ToolFailed
from wintermute.jobs import Job
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import Unfit, answer_in_json, only, texts
from wintermute.llm.models import Models
from wintermute.memory.fact import LONGEST, Fact, NewFact, are_grounded, entries, entry, retirements
from wintermute.memory.secret_shapes import secret_kind
from wintermute.messages import Json
from wintermute.night.quiet import UNTIL_THEN, Quiet
from wintermute.night.reconstruction import normalised
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.work.jobs import JobDone, JobPutOff

ROLE = "harvest"
"""Of a transcript the same stage is the harvest."""
CHUNK = 6_000
"""Characters of a question."""

log = logging.getLogger(__name__)


def contents_of(found: Json, raw: str) -> tuple[str, ...]:
    """What an answer picked, if it stands in the text (M-044). Raises: Unfit."""
    only(found, "contents")
    try:
        lines = normalised([entry(text) for text in texts(found, "contents")])
    except ToolFailed as problem:
        raise Unfit(str(problem)) from problem
    if not are_grounded(lines, [raw]):
        raise Unfit("a fact says what the text does not, or in another language")
    return tuple(line for line in lines if not secret_kind(line))


class Splitting:
    """Asks a model for the facts of a text."""

    def __init__(self, stores: Stores, models: Models, template: Template) -> None:
        self._stores = stores
        self._models = models
        self._template = template

    async def split(self, text: str, sources: QuestionSources | None = None) -> list[str]:
        """The facts; where an answer cannot be used, that part as it is (M-045).

        Raises: ModelError; QuestionWithdrawn.
        """
        found: list[str] = []
        for part in chunks(text):
            try:
                found += await answer_in_json(
                    *(self._models, ROLE, self._template.text(), {"raw_input": part}),
                    lambda answer, part=part: contents_of(answer, part),  # type: ignore[misc]  # bound now
                    sources=sources,
                )
            except AnswerUnusable as problem:
                log.warning("text stays whole reason=%s", problem)
                found += entries(part)
        return normalised(found)

    async def split_or_whole(self, text: str) -> list[str]:
        """The same; where no model answers, the text as it is."""
        try:
            return await self.split(text)
        except ModelError as problem:
            log.warning("text stays whole reason=%s", problem)
            return normalised(entries(text))


class SplitLater:
    """Takes apart, while nobody waits, what was too long for one fact and was kept as it is."""

    def __init__(self, stores: Stores, work: Splitting, quiet: Quiet) -> None:
        self._stores = stores
        self._work = work
        self._quiet = quiet

    async def take_apart(self, job: Job) -> JobDone | JobPutOff:
        """The facts take the place of the text; it stays where none is found.

        Raises: ModelError; QuestionWithdrawn.
        """
        if until := await self._quiet.until(ROLE):
            return JobPutOff(until, UNTIL_THEN)
        async with self._stores.database.transaction() as tx:
            whole = await self._stores.facts.living(tx, job.scope, job.args["facts"])
        if not whole:
            return JobDone()
        names = tuple(fact.id for fact in whole)
        sources = QuestionSources(names, partial(self._is_unchanged, job, names))
        found = await self._work.split(str(job.args["text"]), sources)
        return JobDone(partial(self._store, job=job, found=found)) if found else JobDone()

    async def _is_unchanged(self, job: Job, names: Sequence[str], tx: Transaction) -> bool:
        """Whether nothing of the text was taken back or forgotten since."""
        there = await self._stores.facts.living(tx, job.scope, names)
        return len(there) == len(names) and await self._stores.jobs.is_there(tx, job.id)

    async def _store(self, tx: Transaction, *, job: Job, found: Sequence[str]) -> None:
        """In the change set of the text, so that both are taken back by one gesture (M-076).

        Nothing of a text that was taken back or forgotten meanwhile.
        """
        facts, changes = self._stores.facts, self._stores.changes
        whole = await facts.living(tx, job.scope, job.args["facts"])
        if not whole:
            return
        taken = await facts.take(tx, new_facts(whole[0], found))
        stay = {done.fact.id for done in taken}
        names = [fact.id for fact in whole if fact.id not in stay]
        gone = await facts.retire_unrecorded(tx, job.scope, names, "tool")
        done = [*(each.change for each in taken if each.change), *retirements(gone)]
        known = await changes.get(job.args["set"] or "")
        if known is None:
            await changes.record(tx, Reason("tool", job.scope, evidence=whole[0].origins), done)
        else:
            await changes.extend(tx, known.id, done)


def new_facts(like: Fact | NewFact, lines: Sequence[str]) -> list[NewFact]:
    """What was picked of a text, as facts of the same kind; none that gives a secret away."""
    return [
        NewFact(
            *(like.scope, line, like.source, like.speaker, like.origins),
            valid_to=like.valid_to,
            taint=like.taint,
            queued=True,
        )
        for line in lines
        if len(line) <= LONGEST and not secret_kind(line)
    ]


def chunks(text: str) -> list[str]:
    """A text in parts of whole paragraphs as far as they fit; none of one without a word."""
    parts: list[str] = []
    for paragraph in text.split("\n\n"):
        for piece in wrap(paragraph, CHUNK, replace_whitespace=False) or [""]:
            if parts and len(parts[-1]) + len(piece) + 2 <= CHUNK:
                parts[-1] = f"{parts[-1]}\n\n{piece}"
            else:
                parts.append(piece)
    return [part.strip() for part in parts if entries(part)]
