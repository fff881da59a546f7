"""Splitting: one long text becomes the single facts that it tells; what to do with them is not decided here."""

import logging
from collections.abc import Sequence
from textwrap import wrap

from wintermute.changes.change_sets import Reason
from wintermute.db import Transaction
from wintermute.errors import AnswerUnusable, ModelError, ToolFailed
from wintermute.jobs import Job
from wintermute.llm.json_answer import Unfit, answer_in_json, only, texts
from wintermute.llm.models import Models
from wintermute.memory.fact import EXPLICIT, LONGEST, NewFact, are_grounded, entries, entry
from wintermute.memory.secret_shapes import secret_kind
from wintermute.messages import Json
from wintermute.night.reconstruction import normalised
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.work.jobs import JobDone

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

    async def split(self, text: str) -> list[str]:
        """The facts; where an answer cannot be used, that part as it is (M-045). Raises: ModelError."""
        found: list[str] = []
        for part in chunks(text):
            try:
                found += await answer_in_json(
                    *(self._models, ROLE, self._template.text(), {"raw_input": part}),
                    lambda answer, part=part: contents_of(answer, part),  # type: ignore[misc]  # bound now
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

    async def take_apart(self, job: Job) -> JobDone:
        """What a person asked to remember and was too long for one fact, as facts."""
        found = await self.split(str(job.args["text"]))
        origins = tuple(job.args.get("origins", ()))

        async def store(tx: Transaction) -> None:
            why = Reason("tool", job.scope, evidence=origins)
            await remember(self._stores, tx, why, found, origins)

        return JobDone(store)


async def remember(
    stores: Stores, tx: Transaction, why: Reason, lines: Sequence[str], origins: Sequence[str] = ()
) -> tuple[int, str | None]:
    """Store what was picked as a person's own words, one change set; how many are new, and its id."""
    new = [
        NewFact(why.scope, line, EXPLICIT, origins=tuple(origins), queued=True)
        for line in lines
        if len(line) <= LONGEST and not secret_kind(line)
    ]
    taken = await stores.facts.take(tx, new)
    changes = [done.change for done in taken if done.change]
    set_id = await stores.changes.record(tx, why, changes) if changes else None
    return len(changes), set_id


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
