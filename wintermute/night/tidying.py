"""One night, from its first phase to its last: scope by scope, the owner first, nobody starved.

    for each scope:  harvest and reconstruction of the day
                     dedup ─▶ contradictions ─▶ stale ─▶ guard ─▶ applied, or questions ─▶ export
                     tasks ─▶ skills ─▶ pages ─▶ folds
    at the end:      housekeeping

What a phase wants is stored as it is found and done when all of a scope is known, for the guard looks
at all of it. So a kill loses nothing: what was asked is not asked again, and what is planned is done by
whoever goes on. A phase that fails is reported, and the next runs.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from wintermute.changes.nights import (
    Answers,
    ItemState,
    Night,
    NightItem,
    PhaseStatus,
    PhaseTally,
    Planned,
    as_item,
)
from wintermute.config.lock import claimed, holder
from wintermute.db import Transaction
from wintermute.errors import (
    AnswerUnusable,
    BudgetSpent,
    ContextTooLarge,
    ModelError,
    QuestionWithdrawn,
    StoreBusy,
    WintermuteError,
)
from wintermute.forgetting.deeds import Deeds
from wintermute.llm.models import Models
from wintermute.llm.unasked import UnaskedModels
from wintermute.memory.resting import awake_count
from wintermute.memory.review import looked_at, scopes_with_news
from wintermute.stores import Stores

ROLE = "dreaming"
LOCK = "night.lock"
MOST_TRIES = 2
"""How often a phase may be interrupted by a crash before the night goes on without it."""
EVERYWHERE = ""
"""The scope of what belongs to nobody alone."""
PLANNED: tuple[ItemState, ...] = ("planned",)
OWNERS_SHARE = 0.5
"""Of the budget of a night, at least, however many others wait."""
LOOKED_BACK = 100
"""Nights, to tell whose turn it is."""
MOST_LOST, ALWAYS_ALLOWED, MOST_LOST_IN_A_WEEK = 0.2, 3, 0.3
"""Which part of its facts a scope may lose in a night, how many in any case, and in seven nights."""

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """What a phase works on. `so_far`: what is wanted in this scope already, by it and those before."""

    night: Night
    scope: str
    models: UnaskedModels
    so_far: Sequence[NightItem] = ()
    dry: bool = False
    """Nothing may be changed, not even by taking in what was edited by hand."""


@dataclass(frozen=True, slots=True)
class TidyStep:
    """What one step of a phase came to; it is kept whole.

    `judged`: digests of what need not be asked again. `looked_at`: facts whose neighbours were looked
    at. `waiting`: of these something is left to be asked. `by_words`: those of `looked_at` that are to be
    looked at by meaning. `note`: what to know of it. `left`: there is more than a night may do.
    """

    items: tuple[Planned, ...] = ()
    judged: tuple[str, ...] = ()
    looked_at: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    by_words: tuple[str, ...] = ()
    note: str = ""
    left: bool = False


async def answer_or_step(
    answer: Awaitable[T], judged: Sequence[str], note: Callable[[ModelError], str]
) -> T | TidyStep:
    """An answer; where it is of no use, the step that notes so, and that nobody is asked it again."""
    try:
        return await answer
    except QuestionWithdrawn:
        return TidyStep()
    except (AnswerUnusable, ContextTooLarge) as problem:
        step = TidyStep(judged=tuple(judged), note=note(problem))
        log.warning("question of a night in vain note=%s reason=%s", step.note, problem)
        return step


class NightPhase(Protocol):
    """Looks for what could be tidied. It changes nothing: its items do."""

    @property
    def name(self) -> str: ...

    @property
    def asks(self) -> bool:
        """Whether what it wants is a model's word, so that a small one only proposes."""
        ...

    async def size(self, scope: str) -> int:
        """What is counted before and after."""
        ...

    def steps(self, work: PhaseWork) -> AsyncIterator[TidyStep]:
        """Raises: WintermuteError; what came before it counts."""
        ...


ChoreItem = tuple[Planned, ItemState, str | None]
"""An item that people should know of, with its state and change set."""


@dataclass(frozen=True, slots=True)
class ChoreDone:
    """What a chore did. `items`: what people should know, done or asked; with what it changed."""

    before: int = 0
    after: int = 0
    note: str = ""
    left: bool = False
    items: tuple[ChoreItem, ...] = ()
    failed: bool = False
    """Though what is here was done."""


class Chore(Protocol):
    """What does its own work, each step a transaction that can be repeated."""

    @property
    def name(self) -> str: ...

    async def do(self, work: PhaseWork) -> ChoreDone:
        """Raises: WintermuteError."""
        ...


@runtime_checkable
class ForeseenChore(Protocol):
    """A chore that can tell beforehand what it would look at, not what would come of it."""

    async def foreseen(self, work: PhaseWork) -> str:
        """It in words, changing nothing; "": nothing."""
        ...


@runtime_checkable
class AwaitedChore(Protocol):
    """A chore for which some wait already when a night begins (M-093)."""

    async def waiting(self) -> set[str]:
        """Their scopes."""
        ...


@dataclass(frozen=True, slots=True)
class Programme:
    """What a night does. `facts`, `more`: guarded together, and one by one; the rest does its own work.

    `first`, `export`, `last`: before the facts, after them, and behind everything of a scope;
    `closing`: once a night.
    """

    first: Sequence[Chore] = ()
    facts: Sequence[NightPhase] = ()
    export: Sequence[Chore] = ()
    more: Sequence[NightPhase] = ()
    last: Sequence[Chore] = ()
    closing: Sequence[Chore] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All phases in their order, by their names."""
        groups = (self.first, self.facts, self.export, self.more, self.last, self.closing)
        return tuple(each.name for group in groups for each in group)


def guarded(losses: int, count: int, lost_lately: int) -> str:
    """Why a scope may not lose so many of its facts in a night; "": it may (M-081).

    `lost_lately`: by the nights of the last seven days.
    """
    if losses > ALWAYS_ALLOWED and losses > MOST_LOST * count:
        return f"{losses} of {count} memories would go at once"
    before = count + lost_lately
    if losses + lost_lately > max(ALWAYS_ALLOWED, MOST_LOST_IN_A_WEEK * before):
        return (
            f"with them {losses + lost_lately} of {before} memories would be gone in seven nights"
        )
    return ""


@dataclass(frozen=True, slots=True)
class Turns:
    """Whose turn it was when. `newest`: the last night in which a scope was asked about, or had
    nothing left; the larger the later. `left`: had more to do than that night; `waiting`: has now.
    """

    newest: Mapping[str, int]
    left: frozenset[str]
    waiting: frozenset[str]

    def order(self, scope: str) -> tuple[int, bool, str]:
        """Who comes before whom."""
        return self.newest.get(scope, -LOOKED_BACK), scope not in self.left, scope


N = TypeVar("N", NightPhase, Chore)
Progress = Callable[[str, str], None]
"""Told the scope and the name of what begins."""


def unwatched(_scope: str, _phase: str) -> None:
    """Nobody looks on."""


@dataclass(slots=True)
class DryNight:
    """What a night would do, which is stored nowhere."""

    items: list[NightItem] = field(default_factory=list)
    tallies: list[PhaseTally] = field(default_factory=list)


class Tidying:
    """Does the work of a night, from wherever it was left."""

    def __init__(
        self,
        stores: Stores,
        programme: Programme,
        deeds: Deeds,
        models: Models,
        budget: int | None,
    ) -> None:
        """`budget`: tokens of one night."""
        self._stores = stores
        self.deeds = deeds
        self._programme = programme
        self._models = models
        self._budget = budget

    @property
    def phases(self) -> tuple[str, ...]:
        """Their names, in their order."""
        return self._programme.names

    def _models_of(self, night: Night) -> UnaskedModels:
        spent = night.calls, night.tokens, night.usd
        return UnaskedModels(self._models, most=self._budget, spent=spent)

    async def tidy(self, night: Night, progress: Progress = unwatched) -> Night:
        """Work until its end; what a kill left half is gone on with. Within `alone`."""
        asked = self._models_of(night)
        async for scope in self._in_turn(night, asked):
            await self._in_scope(night, scope, asked, progress)
        for chore in self._programme.closing:
            if night.scope == "" and night.phase in ("", chore.name):
                await self._chore(night, EVERYWHERE, chore, asked, progress)
        for item in await self._stores.nights.items(
            self._stores.database, night.id, states=PLANNED
        ):
            await self._take_back(item)  # of what was interrupted too often
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.end(tx, night.id)
        found = await self._stores.nights.named(night.id)
        assert found is not None
        return found

    async def preview(self, night: Night, progress: Progress = unwatched) -> tuple[Night, DryNight]:
        """What `tidy` would do, without a trace of it: only what is found and can be taken back."""
        asked, dry = self._models_of(night), DryNight()
        programme = self._programme
        async for scope in self._in_turn(night, asked):
            await self._foreseen(night, scope, programme.first, asked, dry)
            for group in (programme.facts, *([phase] for phase in programme.more)):
                start, first = len(dry.items), len(dry.tallies)
                for phase in _wanted(night, group):
                    progress(scope, phase.name)
                    await self._looked(night, scope, phase, asked, dry)
                dry.items[start:], guard = await self._judged(scope, dry.items[start:])
                guards = _by_phase(dry.items[start:], guard)
                dry.tallies[first:] = [
                    replace(tally, note=_joined(tally.note, guards.get(tally.name, "")))
                    for tally in dry.tallies[first:]
                ]
            await self._foreseen(night, scope, programme.last, asked, dry)
        cost = replace(night, calls=asked.calls, tokens=asked.used, usd=asked.usd)
        return replace(cost, state="done", phases=tuple(dry.tallies)), dry

    async def _foreseen(
        self,
        night: Night,
        scope: str,
        chores: Sequence[Chore],
        asked: UnaskedModels,
        dry: DryNight,
    ) -> None:
        for chore in _wanted(night, chores):
            if isinstance(chore, ForeseenChore):
                note = await chore.foreseen(PhaseWork(night, scope, asked, dry=True))
                dry.tallies += [PhaseTally(scope, chore.name, "ok", note=note)] if note else []

    async def scopes(self, night: Night) -> list[str]:
        """Whose turn it is, in this order."""
        return await self._scopes(night, await self._turns(night))

    async def _in_turn(self, night: Night, asked: UnaskedModels) -> AsyncIterator[str]:
        """Each scope, once it is allowed its share: the owner, then who waits longest.

        What is left of the tokens is shared by all that are known to wait.
        """
        turns = await self._turns(night)
        scopes = await self._scopes(night, turns)
        for n, scope in enumerate(scopes):
            others = len(turns.waiting.intersection(scopes[n + 1 :]))
            share = 1 / (others + 1)
            is_owner = scope == self._stores.owner.scope
            asked.allow(max(share, OWNERS_SHARE) if is_owner else share)
            yield scope

    async def _turns(self, night: Night) -> "Turns":
        """When it was whose turn, and who waits: by the nights before, and for what is new."""
        newest, seen, left = dict[str, int](), set[str](), set[str]()
        for turn in await self._stores.nights.turns(night.id, LOOKED_BACK):
            left |= {turn.scope} if turn.is_left and turn.scope not in seen else set()
            seen.add(turn.scope)
            if not turn.is_left or turn.calls:
                newest.setdefault(turn.scope, -turn.age)
        new = await scopes_with_news(self._stores.database, night.began_at)
        for chore in self._programme.first:
            new |= await chore.waiting() if isinstance(chore, AwaitedChore) else set()
        return Turns(newest, frozenset(left), frozenset(left | new))

    async def _scopes(self, night: Night, turns: "Turns") -> list[str]:
        """The owner, then those first whose last turn is longest ago, or was not enough."""
        if night.scope:
            return [night.scope]
        owner = self._stores.owner.scope
        known = {
            *await self._stores.facts.scopes(),
            *await self._stores.tasks.scopes(),
            *await self._stores.conversations.scopes(),
        }
        return [owner, *sorted(known - {owner}, key=turns.order)]

    async def _in_scope(
        self, night: Night, scope: str, asked: UnaskedModels, progress: Progress
    ) -> None:
        programme = self._programme
        for chore in _wanted(night, programme.first):
            await self._chore(night, scope, chore, asked, progress)
        await self._group(night, scope, _wanted(night, programme.facts), asked, progress)
        for chore in _wanted(night, programme.export):
            await self._chore(night, scope, chore, asked, progress)
        for phase in _wanted(night, programme.more):
            await self._group(night, scope, [phase], asked, progress)
        for chore in _wanted(night, programme.last):
            await self._chore(night, scope, chore, asked, progress)

    async def _group(
        self,
        night: Night,
        scope: str,
        phases: Sequence[NightPhase],
        asked: UnaskedModels,
        progress: Progress,
    ) -> None:
        """Look in all of them, then do what they want, or ask."""
        known = await self._stores.nights.tallies(night.id, scope)
        open_ = [phase for phase in phases if not _is_over(known.get(phase.name))]
        found: dict[str, PhaseTally] = {}
        for phase in open_:
            progress(scope, phase.name)
            tally = await self._begun(night, scope, phase.name, known.get(phase.name))
            if tally.status == "running":
                tally = await self._looked(night, scope, phase, asked, None)
            found[phase.name] = tally
        guards = await self._settle(night, scope)
        for phase in open_:
            note = _joined(found[phase.name].note, guards.get(phase.name, ""))
            tally = replace(found[phase.name], before=await phase.size(scope), note=note)
            tally = await self._applied(night, tally, phase)
            await self._note(night, tally, asked)

    async def _begun(
        self, night: Night, scope: str, name: str, known: PhaseTally | None
    ) -> PhaseTally:
        """Noted before it begins, so that what crashes for ever is passed over."""
        tally = PhaseTally(scope, name, "running", tries=known.tries + 1 if known else 1)
        if tally.tries > MOST_TRIES:
            tally = replace(tally, status="failed", note="interrupted twice: left out")
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.note(tx, night.id, tally)
        return tally

    async def _looked(
        self,
        night: Night,
        scope: str,
        phase: NightPhase,
        asked: UnaskedModels,
        dry: DryNight | None,
    ) -> PhaseTally:
        """Keep what a phase finds, step by step; what became of it."""
        notes: list[str] = []
        status: PhaseStatus = "ok"
        before = asked.calls
        so_far = dry.items if dry else await self._so_far(night, scope)
        own = [item for item in so_far if item.scope == scope]
        work = PhaseWork(night, scope, asked, own, dry is not None)
        answers = await self._stores.nights.answered(scope)
        try:
            async for step in phase.steps(work):
                await self._keep(work, phase, step, answers, dry)
                notes += [step.note] if step.note else []
                status = "left" if step.left else status
        except BudgetSpent as problem:
            status, notes = "left", [*notes, str(problem)]
        except WintermuteError as problem:
            log.warning("night phase failed name=%s scope=%s reason=%s", phase.name, scope, problem)
            status, notes = "failed", [*notes, str(problem)]
        note, calls = _joined(*notes), asked.calls - before
        tally = PhaseTally(scope, phase.name, status, note=note, calls=calls)
        if dry is not None:
            size = await phase.size(scope)
            dry.tallies.append(replace(tally, before=size, after=size))
        return tally

    async def _keep(
        self,
        work: PhaseWork,
        phase: NightPhase,
        step: TidyStep,
        answers: Answers,
        dry: DryNight | None,
    ) -> None:
        night, scope, asked = work.night, work.scope, work.models
        only_proposes = phase.asks and "small" in self._models.sizes(ROLE)
        wanted: list[tuple[Planned, ItemState]] = [
            (
                item,
                "open" if item.question or only_proposes or answers.disputes(item) else "planned",
            )
            for item in step.items
            if not answers.knows(item)
        ]
        if dry is not None:
            now = self._stores.facts.now()
            for item, state in wanted:
                made = as_item(night.id, scope, phase.name, item, now)
                dry.items.append(replace(made, n=len(dry.items) + 1, state=state))
            return
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.plan_all(
                tx, (night.id, scope, phase.name), wanted, step.judged
            )
            await looked_at(tx, step.looked_at, step.waiting, step.by_words)
            await self._stores.nights.spend(tx, night.id, asked.calls, asked.used, asked.usd)

    async def _so_far(self, night: Night, scope: str) -> list[NightItem]:
        return await self._stores.nights.items(self._stores.database, night.id, scope)

    async def _settle(self, night: Night, scope: str) -> Mapping[str, str]:
        """Beyond the guard nothing of what is planned is done: all of it becomes questions.

        By phase, why it asks.
        """
        planned = await self._stores.nights.items(
            self._stores.database, night.id, scope, states=PLANNED
        )
        judged, guard = await self._judged(scope, planned)
        async with self._stores.database.transaction() as tx:
            for before, after in zip(planned, judged, strict=True):
                if after.state != before.state:
                    await self._stores.nights.move(tx, before, after.state)
        return _by_phase(judged, guard)

    async def _judged(self, scope: str, items: Sequence[NightItem]) -> tuple[list[NightItem], str]:
        """What becomes of these, and why some are asked instead; "": none is."""
        planned = [item for item in items if item.state == "planned"]
        losses = sum(item.loses for item in planned)
        async with self._stores.database.transaction() as tx:
            lately = await self._stores.nights.lost(tx, scope)
        count = await awake_count(self._stores.database, scope)
        if not (reason := guarded(losses, count, lately)):
            return [*items], ""
        log.warning("night guarded scope=%s reason=%s", scope, reason)
        asked = [
            replace(item, state="open") if item.state == "planned" and item.loses else item
            for item in items
        ]
        return asked, reason

    async def _applied(self, night: Night, tally: PhaseTally, phase: NightPhase) -> PhaseTally:
        """Do what is planned of a phase; each item alone, so that one that fails ends no other.

        What fails is found again by the next night.
        """
        notes = [tally.note] if tally.note else []
        status = tally.status
        if tally.tries > MOST_TRIES:  # one of them may be what ends the program
            return replace(tally, after=tally.before)
        for item in await self._stores.nights.items(
            self._stores.database, night.id, tally.scope, states=PLANNED
        ):
            if item.phase != phase.name:
                continue
            try:
                await self.deeds.apply(item)
            except WintermuteError as problem:
                log.warning("item was not done id=%s reason=%s", item.id, problem)
                status, notes = "failed", [*notes, f"{item.id} was not done: {problem}"]
                await self._take_back(item)
        note, after = _joined(*notes), await phase.size(tally.scope)
        return replace(tally, status=status, after=after, note=note)

    async def _take_back(self, item: NightItem) -> None:
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.take_back(tx, item)
            members = [each["id"] for each in item.plan.get("members", ())]
            await looked_at(tx, (), members)

    async def _note(self, night: Night, tally: PhaseTally, asked: UnaskedModels) -> None:
        log.info("night phase name=%s status=%s", tally.name, tally.status)
        async with self._stores.database.transaction() as tx:
            await self._noted(tx, night, tally, asked)

    async def _noted(
        self, tx: Transaction, night: Night, tally: PhaseTally, asked: UnaskedModels
    ) -> None:
        await self._stores.nights.note(tx, night.id, tally)
        await self._stores.nights.spend(tx, night.id, asked.calls, asked.used, asked.usd)

    async def _chore(
        self, night: Night, scope: str, chore: Chore, asked: UnaskedModels, progress: Progress
    ) -> None:
        known = (await self._stores.nights.tallies(night.id, scope)).get(chore.name)
        if _is_over(known):
            return
        progress(scope, chore.name)
        tally = await self._begun(night, scope, chore.name, known)
        if tally.status != "running":
            return
        before = asked.calls
        try:
            done = await chore.do(PhaseWork(night, scope, asked, await self._so_far(night, scope)))
        except WintermuteError as problem:
            spent = isinstance(problem, BudgetSpent)
            how = "is left" if spent else "failed"
            log.warning(
                "night phase %s name=%s scope=%s reason=%s", how, chore.name, scope, problem
            )
            done = ChoreDone(note=str(problem), left=spent, failed=not spent)
        status: PhaseStatus = "failed" if done.failed else "left" if done.left else "ok"
        tally = replace(tally, status=status, before=done.before, after=done.after, note=done.note)
        async with self._stores.database.transaction() as tx:
            for wanted, state, set_id in done.items:
                item = await self._stores.nights.plan(
                    tx, night.id, scope, chore.name, wanted, "planned"
                )
                await self._stores.nights.move(
                    tx, item, state, wanted.plan.get("names", ()), set_id
                )
            await self._noted(tx, night, replace(tally, calls=asked.calls - before), asked)


def _wanted(night: Night, group: Sequence[N]) -> list[N]:
    return [each for each in group if night.phase in ("", each.name)]


def _joined(*notes: str) -> str:
    return "; ".join(dict.fromkeys(note for note in notes if note))


def _by_phase(items: Sequence[NightItem], guard: str) -> Mapping[str, str]:
    """What is noted of the phases that ask because of the guard."""
    note = f"asked, not done: {guard}"
    return {item.phase: note for item in items if guard and item.state == "open" and item.loses}


def _is_over(tally: PhaseTally | None) -> bool:
    return tally is not None and tally.status != "running"


@asynccontextmanager
async def alone(data_dir: Path) -> AsyncIterator[None]:
    """A block in which no other process tidies this data folder. Raises: StoreBusy, saying who does."""

    def under_way(pid: int) -> WintermuteError:
        return StoreBusy(
            f"a night is under way (process {pid or 'unknown'}): `wintermute night list` shows it;"
            " try again when it is over"
        )

    with claimed(data_dir, LOCK, under_way):
        yield


def is_at_work(data_dir: Path) -> bool:
    """Whether a process tidies this data folder now."""
    return holder(data_dir, LOCK) is not None
