"""One night, from its first phase to its last: scope by scope, the owner first, nobody starved.

    for each scope:  harvest and reconstruction of the day
                     dedup ─▶ contradictions ─▶ stale ─▶ guard ─▶ applied, or questions ─▶ export
                     tasks ─▶ skills ─▶ pages ─▶ folds
    at the end:      housekeeping

What a phase wants is stored as it is found and done when all of its group is known, for the guard looks
at all of it; what did its work already tells of it at its end. So a kill loses nothing: what was asked
is not asked again, and what is planned is done by whoever goes on. A phase that fails is reported, and
the next runs.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from wintermute.changes.decisions import PLANNED, Answers, Decision
from wintermute.changes.nights import Night, PhaseTally
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
from wintermute.forgetting.deeds import Deeds, Kinds
from wintermute.llm.unasked import UnaskedModels
from wintermute.memory.likeness import Compared, Likeness
from wintermute.memory.resting import awake_count
from wintermute.memory.review import looked_at, scopes_with_news
from wintermute.work.data_folder import DataFolder

ROLE = "dreaming"
LOCK = "night.lock"
MOST_TRIES = 2
"""How often a phase may be interrupted by a crash before the night goes on without it."""
EVERYWHERE = ""
"""The scope of what belongs to nobody alone."""
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
    likeness: Likeness
    answers: Answers
    so_far: Sequence[Decision] = ()
    dry: bool = False
    """Nothing may be changed, not even by taking in what was edited by hand."""
    calls: int = 0
    """Questions to models before it."""

    async def compared(self) -> Compared:
        """Compare what is new among the facts with what lies near it; once for all phases of a group."""
        return await self.likeness.compared(self.scope, self.night.began_at, dry=self.dry)

    @property
    def is_small(self) -> bool:
        """Tell if a small model is asked, which only proposes."""
        return "small" in self.models.sizes(ROLE)

    def asks(self, item: Decision) -> bool:
        """Tell if a person has to say yes: as for what a small model says, or somebody disputes."""
        said = self.is_small and self.models.calls > self.calls
        return said or item.state == "open" or self.answers.disputes(item)


@dataclass(frozen=True, slots=True)
class TidyStep:
    """What one step of a phase came to; it is kept whole.

    `items`: what is wanted. `told`: what was done already, or is asked as it is. `judged`: digests of
    what need not be asked again. `looked_at`: facts whose neighbours were looked at. `waiting`: of these
    something is left to be asked. `by_words`: those of `looked_at` that are to be looked at by meaning.
    `note`: what to know of it. `left`: there is more than a night may do. `counts`: before and after, of
    what does its own work. `failed`: though what is here was done.
    """

    items: Sequence[Decision] = ()
    told: Sequence[Decision] = ()
    judged: tuple[str, ...] = ()
    looked_at: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    by_words: tuple[str, ...] = ()
    note: str = ""
    left: bool = False
    counts: tuple[int, int] = (0, 0)
    failed: bool = False


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
    """One phase of a night. `use`: what it is for, for people, behind "I couldn't"."""

    name: ClassVar[str]
    use: ClassVar[str]
    kinds: ClassVar[Kinds]
    """Kinds of decisions that it brings with it."""

    def __init__(self, own: DataFolder) -> None: ...

    def steps(self, work: PhaseWork) -> AsyncIterator[TidyStep]:
        """Raises: WintermuteError; what came before it counts."""
        ...


@runtime_checkable
class TriedPhase(Protocol):
    """A phase that changes nothing, for its items do: a dry run tries it. Others do their own work."""

    async def size(self, scope: str) -> int:
        """Count what its tally tells, before and after."""
        ...


@runtime_checkable
class ForeseenPhase(Protocol):
    """One that does its own work and can tell beforehand what it would look at, not what comes of it."""

    async def foreseen(self, work: PhaseWork) -> str:
        """It in words, changing nothing; "": nothing."""
        ...


@runtime_checkable
class AwaitedPhase(Protocol):
    """One for which some wait already when a night begins (M-093)."""

    async def waiting(self) -> set[str]:
        """Their scopes."""
        ...


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


Progress = Callable[[str, str], None]
"""Told the scope and the name of what begins."""


def unwatched(_scope: str, _phase: str) -> None:
    """Nobody looks on."""


@dataclass(frozen=True, slots=True)
class NightRun:
    """A night at work. `items`, `tallies`: of a `dry` one, which is stored nowhere."""

    night: Night
    asked: UnaskedModels
    progress: Progress
    dry: bool = False
    items: list[Decision] = field(default_factory=list)
    tallies: list[PhaseTally] = field(default_factory=list)


class Tidying:
    """Does the work of a night, from wherever it was left."""

    def __init__(
        self,
        own: DataFolder,
        groups: Sequence[Sequence[NightPhase]],
        closing: Sequence[NightPhase],
        deeds: Deeds,
        budget: int | None,
    ) -> None:
        """`groups`: what is guarded together. `closing`: once a night. `budget`: tokens of one night."""
        self._stores = own.stores
        self._models = own.models
        self._groups = groups
        self._closing = closing
        self.deeds = deeds
        self._budget = budget
        wanted, given = own.config.dreaming, (own.stores.database, own.stores.facts)
        least, same = wanted.contradiction_similarity, wanted.dedup_similarity
        self._likeness = partial(Likeness, *given, own.stores.meaning, least, same)

    @property
    def _all(self) -> list[NightPhase]:
        return [phase for group in (*self._groups, self._closing) for phase in group]

    @property
    def phases(self) -> tuple[str, ...]:
        """Their names, in their order."""
        return tuple(phase.name for phase in self._all)

    async def tidy(self, night: Night, progress: Progress = unwatched) -> Night:
        """Work until its end; what a kill left half is gone on with. Within `alone`."""
        await self._work(self._run(night, progress))
        for item in await self._stores.decisions.listed(
            self._stores.database, night.id, states=PLANNED
        ):
            await self._take_back(item)  # of what was interrupted too often
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.end(tx, night.id)
        found = await self._stores.nights.named(night.id)
        assert found is not None
        return found

    async def preview(
        self, night: Night, progress: Progress = unwatched
    ) -> tuple[Night, list[Decision]]:
        """What `tidy` would do, without a trace of it: only what is found and can be taken back."""
        run = self._run(night, progress, dry=True)
        await self._work(run)
        cost = replace(night, calls=run.asked.calls, tokens=run.asked.used, usd=run.asked.usd)
        tried = {phase.name for phase in self._all if isinstance(phase, TriedPhase)}
        phases = tuple(each for each in run.tallies if each.note or each.name in tried)
        return replace(cost, state="done", phases=phases), run.items

    def _run(self, night: Night, progress: Progress, *, dry: bool = False) -> NightRun:
        spent = night.calls, night.tokens, night.usd
        asked = UnaskedModels(self._models, most=self._budget, spent=spent)
        return NightRun(night, asked, progress, dry)

    async def _work(self, run: NightRun) -> None:
        async for scope in self._in_turn(run):
            for group in self._groups:
                await self._group(run, scope, group)
        if run.night.scope == "":
            for phase in self._closing:
                await self._group(run, EVERYWHERE, [phase])

    async def scopes(self, night: Night) -> list[str]:
        """Whose turn it is, in this order."""
        return (await self._turns(night))[0]

    async def _in_turn(self, run: NightRun) -> AsyncIterator[str]:
        """Each scope, once it is allowed its share.

        What is left of the tokens is shared by all that are known to wait.
        """
        scopes, waiting = await self._turns(run.night)
        for n, scope in enumerate(scopes):
            share = 1 / (len(waiting.intersection(scopes[n + 1 :])) + 1)
            is_owner = scope == self._stores.owner.scope
            run.asked.allow(max(share, OWNERS_SHARE) if is_owner else share)
            yield scope

    async def _turns(self, night: Night) -> tuple[list[str], set[str]]:
        """Scopes in their order: the owner's, then whose last turn is longest ago, or was not enough.

        And those that wait: by the nights before, and for what is new. A turn: a scope was asked about,
        or had nothing left.
        """
        ages, seen, left = dict[str, int](), set[str](), set[str]()
        for turn in await self._stores.nights.turns(night.id, LOOKED_BACK):
            left |= {turn.scope} if turn.is_left and turn.scope not in seen else set()
            seen.add(turn.scope)
            if not turn.is_left or turn.calls:
                ages.setdefault(turn.scope, turn.age)
        waiting = left | await scopes_with_news(self._stores.database, night.began_at)
        for phase in self._all:
            waiting |= await phase.waiting() if isinstance(phase, AwaitedPhase) else set()
        if night.scope:
            return [night.scope], waiting
        owner, known = self._stores.owner.scope, set(await self._stores.facts.scopes())
        known |= {*await self._stores.tasks.scopes(), *await self._stores.conversations.scopes()}
        others = sorted(
            known - {owner}, key=lambda s: (-ages.get(s, LOOKED_BACK), s not in left, s)
        )
        return [owner, *others], waiting

    async def _group(self, run: NightRun, scope: str, group: Sequence[NightPhase]) -> None:
        """Look in all of them, then do what they want, or ask."""
        known = {} if run.dry else await self._stores.nights.tallies(run.night.id, scope)
        over = {name for name, tally in known.items() if tally.status != "running"}
        found, likeness = list[tuple[NightPhase, PhaseTally, list[Decision]]](), self._likeness()
        for phase in group:
            if run.night.phase in ("", phase.name) and phase.name not in over:
                run.progress(scope, phase.name)
                tally = await self._begun(run, scope, phase.name, known.get(phase.name))
                found.append((phase, *await self._looked(run, tally, phase, likeness)))
        guards = await self._settle(run, scope, [phase.name for phase in group])
        for phase, tally, told in found:
            tally = replace(tally, note=_joined(tally.note, guards.get(phase.name, "")))
            tally = await self._applied(run, tally, phase)
            log.info("night phase name=%s status=%s", tally.name, tally.status)
            run.tallies.append(tally)
            await self._note(run, tally, told)

    async def _begun(
        self, run: NightRun, scope: str, name: str, known: PhaseTally | None
    ) -> PhaseTally:
        """Noted before it begins, so that what crashes for ever is passed over."""
        tally = PhaseTally(scope, name, "running", tries=known.tries + 1 if known else 1)
        if tally.tries > MOST_TRIES:
            tally = replace(tally, status="failed", note="interrupted twice: left out")
        await self._note(run, tally)
        return tally

    async def _looked(
        self, run: NightRun, tally: PhaseTally, phase: NightPhase, likeness: Likeness
    ) -> tuple[PhaseTally, list[Decision]]:
        """Keep what a phase finds, step by step; what became of it, and what it tells at its end."""
        if tally.status != "running":
            return tally, []
        notes, told, before = list[str](), list[Decision](), run.asked.calls
        answers = await self._stores.decisions.answered(tally.scope)
        so_far = await self._so_far(run, tally.scope)
        given = run.night, tally.scope, run.asked, likeness, answers
        work, tally = PhaseWork(*given, so_far, run.dry, before), replace(tally, status="ok")
        try:
            async for step in _steps(work, phase):
                await self._keep(run, work, phase.name, step)
                told += step.told
                notes.append(step.note)
                status = "failed" if step.failed else "left" if step.left else tally.status
                counts = step.counts
                tally = replace(tally, status=status, before=counts[0], after=counts[1])
        except WintermuteError as problem:
            status = "left" if isinstance(problem, BudgetSpent) else "failed"
            named, how = "night phase %s name=%s scope=%s reason=%s", (status, phase.name)
            log.warning(named, *how, tally.scope, problem)
            tally, notes = replace(tally, status=status), [*notes, str(problem)]
        return replace(tally, note=_joined(*notes), calls=run.asked.calls - before), told

    async def _keep(self, run: NightRun, work: PhaseWork, phase: str, step: TidyStep) -> None:
        wanted = [
            replace(item, state="open") if work.asks(item) else item
            for item in step.items
            if not work.answers.knows(item)
        ]
        night, scope, now = run.night.id, work.scope, self._stores.facts.now()
        if run.dry:
            run.items.extend(
                replace(item, night=night, n=n, scope=scope, phase=phase, at=now)
                for n, item in enumerate(wanted, len(run.items) + 1)
            )
            return
        async with self._stores.database.transaction() as tx:
            digests = [each.digest for each in wanted if each.digest]
            await self._stores.decisions.number(tx, (night, scope, phase), wanted, now)
            await self._stores.nights.judge(tx, scope, [*digests, *step.judged], now)
            await looked_at(tx, step.looked_at, step.waiting, step.by_words)
            await self._spend(tx, run)

    async def _so_far(self, run: NightRun, scope: str) -> list[Decision]:
        if run.dry:
            return [item for item in run.items if item.scope == scope]
        return await self._stores.decisions.listed(self._stores.database, run.night.id, scope)

    async def _settle(self, run: NightRun, scope: str, names: Sequence[str]) -> Mapping[str, str]:
        """Beyond the guard nothing of what these planned is done: all of it becomes questions.

        By phase, why it asks.
        """
        losing = [
            item
            for item in await self._so_far(run, scope)
            if item.state == "planned" and item.loses and item.phase in names
        ]
        if not losing:
            return {}
        count = await awake_count(self._stores.database, scope)
        async with self._stores.database.transaction() as tx:
            lately = await self._stores.decisions.lost(tx, scope)
        if not (guard := guarded(sum(item.loses for item in losing), count, lately)):
            return {}
        log.warning("night guarded scope=%s reason=%s", scope, guard)
        if run.dry:
            run.items[:] = [replace(i, state="open") if i in losing else i for i in run.items]
        else:
            async with self._stores.database.transaction() as tx:
                for item in losing:
                    await self._stores.decisions.move(tx, item, "open")
        return {item.phase: f"asked, not done: {guard}" for item in losing}

    async def _applied(self, run: NightRun, tally: PhaseTally, phase: NightPhase) -> PhaseTally:
        """Do what is planned of a phase; each item alone, so that one that fails ends no other.

        What fails is found again by the next night.
        """
        if not isinstance(phase, TriedPhase):
            return tally
        before = await phase.size(tally.scope)
        tally = replace(tally, before=before, after=before)
        if run.dry or tally.tries > MOST_TRIES:  # one of them may be what ends the program
            return tally
        notes, status = [tally.note], tally.status
        for item in await self._so_far(run, tally.scope):
            if item.phase != phase.name or item.state != "planned":
                continue
            try:
                await self.deeds.apply(item)
            except WintermuteError as problem:
                log.warning("item was not done id=%s reason=%s", item.id, problem)
                status, notes = "failed", [*notes, f"{item.id} was not done: {problem}"]
                await self._take_back(item)
        note, after = _joined(*notes), await phase.size(tally.scope)
        return replace(tally, status=status, after=after, note=note)

    async def _take_back(self, item: Decision) -> None:
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.take_back(tx, self._stores.decisions, item)
            members = [each["id"] for each in item.plan.get("members", ())]
            await looked_at(tx, (), members)

    async def _note(self, run: NightRun, tally: PhaseTally, told: Sequence[Decision] = ()) -> None:
        """Keep what became of a phase, with what it did itself."""
        if run.dry:
            return
        where = (run.night.id, tally.scope, tally.name)
        async with self._stores.database.transaction() as tx:
            await self._stores.decisions.number(tx, where, told)
            await self._stores.nights.note(tx, run.night.id, tally)
            await self._spend(tx, run)

    async def _spend(self, tx: Transaction, run: NightRun) -> None:
        asked = run.asked
        await self._stores.nights.spend(tx, run.night.id, asked.calls, asked.used, asked.usd)


def _joined(*notes: str) -> str:
    return "; ".join(dict.fromkeys(note for note in notes if note))


def _steps(work: PhaseWork, phase: NightPhase) -> AsyncIterator[TidyStep]:
    tried = not work.dry or isinstance(phase, TriedPhase)
    return phase.steps(work) if tried else _foreseen(work, phase)


async def _foreseen(work: PhaseWork, phase: NightPhase) -> AsyncIterator[TidyStep]:
    if isinstance(phase, ForeseenPhase):
        yield TidyStep(note=await phase.foreseen(work))


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
