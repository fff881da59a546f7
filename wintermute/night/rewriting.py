"""List of memories at night: a short list is rewritten as a whole, a longer one is only exported.

lines ─ one question ─▶ a list ─ nothing lost that must stay? ─▶ replaced, within the loss limit
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import ClassVar

from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import LINES, LIST, Decision, DecisionState, digest_of
from wintermute.db import Transaction
from wintermute.errors import ContextTooLarge, ModelError
from wintermute.forgetting.executors import DecisionKind, Kinds
from wintermute.llm.json_answer import InvalidAnswer
from wintermute.llm.tokens import estimate
from wintermute.memory.archive import active_count
from wintermute.memory.fact import Fact, NewFact, key, listed, refusal, retirements
from wintermute.memory.lexical_overlap import Successors, are_made_of, successors
from wintermute.memory.review import add_uses, has_equal
from wintermute.messages import Reply, json_in
from wintermute.night.dedup import merged_fact, origins_of, sources_of
from wintermute.night.pipeline import ALWAYS_ALLOWED, ROLE, PhaseStep, PhaseWork, answer_or_step
from wintermute.stores import Stores
from wintermute.templates import fill
from wintermute.text import untagged
from wintermute.work.data_folder import DataFolder

AGAIN = "That cannot be used: {error}. Answer once more, with the list alone, one fact per line."
LARGE = "the list is longer than a model can be shown at once"
LONGER = 1.5
"""Factor by which a rewritten list may be longer than the old one."""
UNWANTED: tuple[DecisionState, ...] = ("undone", "refused")
MOST_NAMED = 5
"""Memories that a notice quotes."""
FEWEST = 2
"""Lines that a list needs to be rewritten."""


class Export:
    """Phase that writes the most used facts to their file, after facts were tidied (M-061)."""

    name: ClassVar = "export"
    use: ClassVar = "write the list of memories"
    kinds: ClassVar[Kinds] = ()

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield one step with the number of facts and of lines."""
        facts = await active_count(self._stores.database, work.scope)
        text = await self._stores.memories.text(work.scope)
        yield PhaseStep(counts=(facts, len(text.splitlines())))


def parse_list(reply: Reply, old: Sequence[Fact]) -> list[str]:
    """Return the lines of an answer if they may replace these facts (M-062). Raises: Unfit."""
    if not reply.is_whole:
        raise InvalidAnswer("it was cut off before its end")
    if problem := refusal([(fact.text, fact.protected) for fact in old], reply.text):
        raise InvalidAnswer(problem, "the list would lose required lines, or is no list")
    if json_in(reply.text, reply) is not reply:
        raise InvalidAnswer("it is JSON, not one fact per line")
    lines = listed(reply.text)
    if len(reply.text) > LONGER * sum(len(fact.text) + 1 for fact in old):
        raise InvalidAnswer("it is much longer than what it is made from")
    known = {key(fact.text) for fact in old}
    new = [line for line in lines if key(line) not in known]
    if not all(are_made_of(line, [fact.text for fact in old]) for line in new):
        raise InvalidAnswer(
            "a line says something that is not in the others, or uses another language"
        )
    return lines


async def rewrite_list(stores: Stores, tx: Transaction, item: Decision, why: Reason) -> bool:
    """Replace facts by a rewritten list, if all of them are unchanged (M-062).

    Facts with an end, or from outside, are not part of the list. Returns False if a fact was changed meanwhile,
    or another one has the text of a new line.
    """
    old, lines = item.plan["old"], item.plan["lines"]
    facts = await stores.facts.living(tx, item.scope, list(old))
    if {fact.id: fact.text for fact in facts} != old or any(map(_is_excluded, facts)):
        return False
    if await stores.decisions.waiting(item.scope, LINES, tx):
        return False
    known = [(fact.text, fact.protected) for fact in facts]  # they may be protected by now
    if await asyncio.to_thread(refusal, known, "\n".join(lines)):
        return False
    if any([await has_equal(tx, item.scope, key(line), list(old)) for line in lines]):
        return False
    new, successors_of = await asyncio.to_thread(rewritten_facts, facts, lines)
    made = await stores.facts.supersede(tx, why, new, successors_of)
    for n, successor in enumerate(made.facts):
        await add_uses(tx, successor.id, [old for old, at in successors_of.items() if at == n])
    return True


async def remove_lines(stores: Stores, tx: Transaction, item: Decision, why: Reason) -> bool:
    """Retire memories whose lines were all deleted from the file, after a person's yes (M-090).

    If the lines come back, a new question is asked.
    """
    gone = await stores.facts.retire_unrecorded(tx, item.scope, item.plan["ids"], "edit")
    await stores.changes.record(tx, why, retirements(gone))
    return True


SHORTER = DecisionKind(
    *(LIST, "memory list tidied", "memory lists tidied"),
    *("Tidy the list of memories?", "list of memories tidied", rewrite_list),
)
REMOVED = DecisionKind(
    *(LINES, "removal of lines confirmed", "removals of lines confirmed"),
    *("Remove these memories?", "memories removed", remove_lines),
)


class ListRewriting:
    """Phase that rewrites a scope's list, once for each state of it (M-062)."""

    name: ClassVar = "memories"
    use: ClassVar = "tidy the list of memories"
    kinds: ClassVar[Kinds] = (SHORTER, REMOVED)

    def __init__(self, own: DataFolder) -> None:
        self._stores = own.stores
        self._template = own.texts.dream_memories

    async def size(self, scope: str) -> int:
        """Count lines."""
        return await self._stores.facts.count(scope)

    async def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield at most one rewritten list. Facts with an end or from outside keep their own lines.

        So does a line that a person restored or refused to lose: no later list removes it.
        """
        if not work.dry:
            await self._stores.memories.text(work.scope)  # reads edits made by hand
        kept = await self._refused_lines(work.scope)
        if new := await self._stores.nights.not_yet_asked(work.scope, kept):
            yield PhaseStep(judged=tuple(new))  # digests are kept longer than items
        if await self._stores.decisions.waiting(work.scope, LINES):
            return  # a person may be about to remove some of them (M-090)
        live = await self._stores.facts.live(work.scope)
        candidates = [fact for fact in live if not _is_excluded(fact)]
        texts = [fact.text for fact in candidates]
        if not await self._stores.nights.not_yet_asked(work.scope, [digest := _digest(texts)]):
            return
        free = (
            await self._stores.nights.not_yet_asked(work.scope, [_line(text) for text in texts])
            - kept
        )
        old = [fact for fact in candidates if _line(fact.text) in free]
        if len(old) < FEWEST:
            return
        lines = await answer_or_step(self._ask(work, old), (digest,), _unchanged)
        if isinstance(lines, PhaseStep):
            yield lines
            return
        # The new list is not asked about again.
        after = [*lines, *(text for text in texts if _line(text) not in free)]
        yield PhaseStep(_item(old, lines, digest), judged=(digest, _digest(after)))

    async def _refused_lines(self, scope: str) -> set[str]:
        """Return digests of the lines that a person refused to lose."""
        items = await self._stores.decisions.listed(
            self._stores.database, scope=scope, states=UNWANTED
        )
        return {_line(text) for item in items if item.phase == self.name for text in item.before}

    async def _ask(self, work: PhaseWork, old: Sequence[Fact]) -> list[str]:
        shown = "\n".join(fact.text for fact in old)
        question = fill(self._template.text(), {"content": untagged(shown)})
        if estimate(question) > work.models.window(ROLE):
            raise ContextTooLarge(LARGE)
        return await work.models.checked_answer(
            *(ROLE, question, lambda reply: parse_list(reply, old), AGAIN),
            sources=sources_of(self._stores, old),
        )


def _unchanged(problem: ModelError) -> str:
    return LARGE if isinstance(problem, ContextTooLarge) else f"the list stays as it is: {problem}"


def _is_excluded(fact: Fact) -> bool:
    """Decide if a fact has an end or may come from outside, so that it is not rewritten (L-037)."""
    return fact.taint or fact.valid_to is not None


def _digest(lines: Sequence[str]) -> str:
    return digest_of("list", *map(key, lines))


def _line(text: str) -> str:
    return digest_of("line", key(text))


def _item(old: Sequence[Fact], lines: Sequence[str], digest: str) -> tuple[Decision, ...]:
    """Return the decision; none if only the order of lines changed."""
    kept, known = {key(line) for line in lines}, {key(fact.text) for fact in old}
    gone = [fact for fact in old if key(fact.text) not in kept]
    new = [line for line in lines if key(line) not in known]
    if not gone and not new:
        return ()
    new_list = Successors(lines)
    lost = [fact for fact in gone if not new_list.cover(fact.text)]
    loses = max(len(lost), len(gone) - len(new), 0)
    return (
        Decision(
            kind=LIST,
            before=tuple(fact.text for fact in gone),
            after="\n".join(new if loses <= ALWAYS_ALLOWED else lines),
            reason=f"{len(lines)} lines say what {len(old)} said",
            plan={"lines": [*lines], "old": {fact.id: fact.text for fact in old}},
            evidence=origins_of(gone),
            loses=loses,
            digest=digest,
        ),
    )


def rewritten_facts(
    old: Sequence[Fact], lines: Sequence[str]
) -> tuple[list[NewFact], dict[str, int | None]]:
    """Return the facts of a new list, and for each old fact the index of its successor.

    A line takes age and speaker from the facts that it replaces, or from all removed facts if it replaces none.
    """
    names = [key(line) for line in lines]
    known = {key(fact.text): fact for fact in old}
    gone = [fact for name, fact in known.items() if name not in names]
    indexes = successors([fact.text for fact in gone], lines)
    fresh = []
    for n, line in enumerate(lines):
        replaced = [fact for fact, index in zip(gone, indexes, strict=True) if index == n]
        replaced += [known[names[n]]] if names[n] in known else []
        fresh.append(merged_fact(replaced or gone or old, line))
    return fresh, {fact.id: index for fact, index in zip(gone, indexes, strict=True)}


async def ask_about_lines(tx: Transaction, stores: Stores, wish: Decision) -> Decision | None:
    """Ask a person to confirm the removal of memories whose lines are missing; None if all are gone already."""
    facts = await stores.facts.living(tx, wish.scope, wish.plan["ids"])
    if not facts:
        await stores.decisions.move(tx, wish, "outdated")
        return None
    day = stores.facts.now().astimezone(stores.tasks.zone).date()
    night = await stores.nights.begin(tx, day, "asked", wish.scope, LINES)
    assert night is not None  # a night for the reason "asked" always begins
    texts = tuple(fact.text for fact in facts[:MOST_NAMED])
    where, wanted = (night.id, wish.scope, LINES), replace(wish, before=texts)
    [item] = await stores.decisions.number(tx, where, [wanted])
    await stores.nights.end(tx, night.id)
    return item
