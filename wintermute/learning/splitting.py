"""Splitting: a model turns one long text into single facts; the caller decides what to do with them."""

import logging
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from textwrap import wrap

from wintermute.changes.change_sets import Reason
from wintermute.db import Transaction
from wintermute.errors import AnswerUnusable, ModelError, ToolFailed
from wintermute.jobs import Job
from wintermute.learning.reconstruction import normalised
from wintermute.llm.background import BackgroundModels
from wintermute.llm.calls import QuestionSources
from wintermute.llm.json_answer import InvalidAnswer, require_keys, text_list
from wintermute.memory.fact import (
    LONGEST,
    Fact,
    NewFact,
    entries,
    entry,
    retirements,
    storable_parts,
)
from wintermute.memory.lexical_overlap import Successors, are_grounded
from wintermute.messages import Json
from wintermute.secret_shapes import secret_kind
from wintermute.stores import Stores
from wintermute.templates import Template
from wintermute.work.jobs import JobDone

ROLE = "harvest"
"""Role of the model; splitting a transcript is the harvest."""
CHUNK = 6_000
"""Characters of a question."""
MOST_TEXT = 200_000
"""Characters of a text that is split at once: some 35 questions."""
PARAGRAPH_END = re.compile(r"\n[ \t]*\n\s*")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*|\n")
# "Dear Ann," and "Yours, Bob" are no statements.
SALUTATION = re.compile(r"(?:[^\W\d_]|[ .'\u2019-]){1,40},")
FAREWELL = re.compile(r"[^\W\d_]+(?: [^\W\d_]+)?,\s*(?:[A-Z\u00c0-\u00de][^\W\d_]*\.? ?){1,2}")

log = logging.getLogger(__name__)


def contents_of(found: Json, raw: str) -> tuple[str, ...]:
    """Return the facts of an answer, if they are in the text (M-044). Raises: Unfit."""
    require_keys(found, "contents")
    try:
        lines = normalised([entry(text) for text in text_list(found, "contents")])
    except ToolFailed as problem:
        raise InvalidAnswer(str(problem)) from problem
    if not are_grounded(lines, [raw]):
        raise InvalidAnswer("a fact says what the text does not, or in another language")
    return tuple(lines)


@dataclass(frozen=True, slots=True)
class SplitText:
    """A part of a text after splitting: its facts, and the sentences that these do not cover."""

    contents: tuple[str, ...]
    rest: tuple[str, ...] = ()


def unsplit(part: str) -> SplitText:
    """Return a part of a text unsplit."""
    return SplitText((), tuple(storable_parts(part)))


def uncovered(part: str, contents: Sequence[str]) -> list[str]:
    """Return the sentences that the facts do not cover, each with the one before, by paragraph (M-039)."""
    said, found = Successors(contents), list[str]()
    paragraphs = [each.strip() for each in PARAGRAPH_END.split(part)]
    if SALUTATION.fullmatch(paragraphs[0]):
        del paragraphs[0]
    if paragraphs and FAREWELL.fullmatch(paragraphs[-1]):
        del paragraphs[-1]
    for paragraph in paragraphs:
        sentences = [each for each in SENTENCE_END.split(paragraph) if entries(each)]
        kept = [not said.cover(each) for each in sentences] + [False]
        # "she" and "there" refer to the sentence before.
        wanted = [text for n, text in enumerate(sentences) if kept[n] or kept[n + 1]]
        found += storable_parts(" ".join(dict.fromkeys(wanted)))
    return found


class Splitting:
    """Asks a model for the facts of a text."""

    def __init__(self, models: BackgroundModels, template: Template) -> None:
        self._models = models
        self._template = template

    async def split(self, part: str, sources: QuestionSources | None = None) -> SplitText:
        """Return the facts of one of the `chunks` of a text; the unsplit part if there are none.

        The part also stays unsplit if an answer is unusable (M-045). Raises: ModelError; QuestionWithdrawn.
        """
        try:
            found = await self._models.answer_in_json(
                *(ROLE, self._template.text(), {"raw_input": part}),
                lambda answer: contents_of(answer, part),
                sources=sources,
            )
        except AnswerUnusable as problem:
            log.warning("text stays whole reason=%s", problem)
            return unsplit(part)
        return SplitText(found, tuple(uncovered(part, found))) if found else unsplit(part)

    async def split_or_whole(self, text: str) -> AsyncIterator[SplitText]:
        """Yield each part when it is done; after a model error all further parts are unsplit."""
        answers = True
        for part in chunks(text):
            done = unsplit(part)
            if answers:
                try:
                    done = await self.split(part)
                except ModelError as problem:
                    log.warning("text stays whole reason=%s", problem)
                    answers = False
            yield done


class DeferredSplitting:
    """Splits, in the background, texts that were too long for one fact and were stored unsplit."""

    def __init__(self, stores: Stores, models: BackgroundModels, template: Template) -> None:
        self._stores = stores
        self._models = models
        self._work = Splitting(models, template)

    async def split(self, job: Job) -> JobDone:
        """Replace the text by its facts and uncovered sentences; it stays if there are no facts.

        Raises: ModelError; QuestionWithdrawn.
        """
        await self._models.require_idle(ROLE)
        async with self._stores.database.transaction() as tx:
            whole = await self._stores.facts.living(tx, job.scope, job.args["facts"])
        if not whole:
            return JobDone()
        names = tuple(fact.id for fact in whole)
        sources = QuestionSources(names, partial(self._is_unchanged, job, names))
        text = str(job.args["text"])
        parts = [await self._work.split(part, sources) for part in chunks(text)]
        if not any(part.contents for part in parts):
            return JobDone()
        found = normalised([line for part in parts for line in (*part.contents, *part.rest)])
        return JobDone(partial(self._store, job=job, found=found))

    async def _is_unchanged(self, job: Job, names: Sequence[str], tx: Transaction) -> bool:
        """Check whether nothing of the text was retracted or forgotten since."""
        there = await self._stores.facts.living(tx, job.scope, names)
        return len(there) == len(names) and await self._stores.jobs.exists(tx, job.id)

    async def _store(self, tx: Transaction, *, job: Job, found: Sequence[str]) -> None:
        """Store the facts in the change set of the text, so that one undo reverts both (M-076).

        Nothing is stored if the text was retracted or forgotten meanwhile.
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
        into = known.id if known else None
        why = Reason("tool", job.scope, evidence=whole[0].origins, into=into)
        await changes.record(tx, why, done)


def new_facts(like: Fact | NewFact, lines: Sequence[str]) -> list[NewFact]:
    """Return facts like this one from the lines of a text."""
    return [
        NewFact(
            *(like.scope, line, like.source, like.speaker, like.origins),
            valid_to=like.valid_to,
            taint=like.taint,
            protected=like.protected,
            queued=True,
        )
        for line in lines
        if len(line) <= LONGEST
    ]


def harmless_paragraphs(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Return a text without paragraphs that hold a secret, and the line and kind of each secret."""
    paragraphs = text.split("\n\n")
    kinds = [secret_kind(each) for each in paragraphs]
    for n in range(1, len(paragraphs)):
        if not (kinds[n - 1] or kinds[n]):  # "the password:" and, below it, the password
            kinds[n - 1] = kinds[n] = secret_kind("\n\n".join(paragraphs[n - 1 : n + 1]))
    begin = list(accumulate((each.count("\n") + 2 for each in paragraphs), initial=1))
    refused = [(line, kind) for line, kind in zip(begin, kinds, strict=False) if kind]
    kept = [each for each, kind in zip(paragraphs, kinds, strict=True) if not kind]
    return "\n\n".join(kept), refused


def chunks(text: str) -> list[str]:
    """Split a text into parts of whole paragraphs, as far as they fit; none for a text without a word."""
    parts: list[str] = []
    for paragraph in text.split("\n\n"):
        for part in wrap(paragraph, CHUNK, replace_whitespace=False) or [""]:
            if parts and len(parts[-1]) + len(part) + 2 <= CHUNK:
                parts[-1] = f"{parts[-1]}\n\n{part}"
            else:
                parts.append(part)
    return [part.strip() for part in parts if entries(part)]
