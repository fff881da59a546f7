"""What becomes of facts by an item of a night, if they are still what they were when it was planned."""

from collections.abc import Sequence

from wintermute.changes.change_sets import Reason
from wintermute.changes.decisions import Decision
from wintermute.db import Transaction
from wintermute.memory.fact import Fact, NewFact, key, last_said
from wintermute.memory.review import hand_down_use, is_said_elsewhere, looked_at, take_place
from wintermute.night.contradictions import may_end
from wintermute.night.dedup import are_as_known, origins_of
from wintermute.stores import Stores


def merged_fact(members: Sequence[Fact], text: str) -> NewFact:
    """What stands for all of these; the person's own words stay protected in any generation.

    What says just what one of them does is that one, and came from nowhere else.
    """
    speakers = {fact.speaker for fact in members}
    known = any(key(fact.text) == key(text) for fact in members)
    own = any(fact.protected for fact in members)
    return NewFact(
        members[0].scope,
        text,
        "dreaming_merge",
        speakers.pop() if len(speakers) == 1 else None,
        () if known else origins_of(members),
        at=max(fact.created_at for fact in members),
        valid_from=min(fact.valid_from for fact in members),
        taint=members[0].taint,
        protected=own,
        said_at=last_said(members, own=own),
    )


def are_apart(facts: Sequence[Fact]) -> bool:
    """Whether by now one has an end, or comes from outside and another does not."""
    return len({fact.taint for fact in facts}) > 1 or any(fact.valid_to for fact in facts)


async def is_overtaken(
    stores: Stores,
    tx: Transaction,
    item: Decision,
    why: Reason,
    losers: Sequence[Fact],
    winners: Sequence[Fact],
) -> bool:
    """Whether what would end was said again since the answer: then it is asked about anew.

    But not where a person has said yes: that is their newest word.
    """
    if why.cause != "night" or all(may_end(one, other) for one in losers for other in winners):
        return False
    await stores.nights.take_back(tx, stores.decisions, item)
    await looked_at(tx, (), [fact.id for fact in (*losers, *winners)])
    return True


class MergeFacts:
    """One text in the place of several: stored first, then they are retired, or have ended (M-057)."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def do(self, tx: Transaction, item: Decision, why: Reason) -> bool:
        """False where one of them is another by now, or something else says just that."""
        facts, texts = self._stores.facts, _texts(item)
        text, ended = item.plan["text"], item.plan["ended"]
        members = await facts.living(tx, item.scope, list(texts))
        if not members or not await are_as_known(self._stores, tx, item.scope, texts):
            return False
        if are_apart(members) or await is_said_elsewhere(tx, item.scope, key(text), list(texts)):
            return False
        losers = [fact for fact in members if fact.id in ended]
        winners = [fact for fact in members if fact.id not in ended]
        if await is_overtaken(self._stores, tx, item, why, losers, winners):
            return False
        over = dict.fromkeys(ended, 0)
        heirs = dict.fromkeys([name for name in texts if name not in over], 0)
        done = await facts.supersede(tx, why, [merged_fact(members, text)], heirs, over)
        [heir] = done.facts
        gone = [*(fact.id for fact in done.retired), *done.ended]
        await hand_down_use(tx, heir.id, gone)
        is_new = done.outcomes[0] != "known"
        await take_place(tx, heir.id, gone if is_new else [heir.id, *gone])
        return True


class EndFact:
    """A fact is true no longer, and says what is since, if anything is (M-074)."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def do(self, tx: Transaction, item: Decision, why: Reason) -> bool:
        """False where one of the two is another by now, or has an end."""
        facts, texts = self._stores.facts, _texts(item)
        stays = {each["id"]: each["text"] for each in [item.plan["winner"]] if each}
        if not await are_as_known(self._stores, tx, item.scope, texts | stays):
            return False
        losers = await facts.living(tx, item.scope, list(texts))
        heirs = await facts.living(tx, item.scope, list(stays))
        if are_apart([*losers, *heirs]):
            return False
        if await is_overtaken(self._stores, tx, item, why, losers, heirs):
            return False
        now = facts.now()
        for loser in losers:
            until, heir = next(((each.last_said, each.id) for each in heirs), (now, None))
            until = until if loser.valid_from < until <= now else now
            await facts.end(tx, why, loser.id, until, heir)
        return True


def _texts(item: Decision) -> dict[str, str]:
    return {each["id"]: each["text"] for each in item.plan["members"]}
