"""Pipeline of one night: scope by scope, the owner first, and each scope gets its turn.

    for each scope:  harvest and reconstruction of the day
                     dedup ─▶ contradictions ─▶ stale ─▶ loss limit ─▶ applied, or questions ─▶ export
                     tasks ─▶ skills ─▶ pages ─▶ folds
    at the end:      housekeeping

A phase plans decisions, and each is stored when it is found. They are applied only when the whole group has
run, because the loss limit counts all of them. A phase that works by itself reports its results at its end. A
crash therefore loses nothing: no question is asked twice, and the next run applies stored plans. A phase that
fails is reported, and the next one runs.
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
from wintermute.forgetting.executors import Executors, Kinds
from wintermute.llm.background import BackgroundModels
from wintermute.memory.archive import active_count
from wintermute.memory.review import mark_compared, scopes_with_news
from wintermute.memory.similarity import ComparedFacts, FactSimilarity
from wintermute.work.data_folder import DataFolder

ROLE = "dreaming"
LOCK = "night.lock"
MOST_TRIES = 2
"""Crashes that may interrupt a phase before the night goes on without it."""
EVERYWHERE = ""
"""Scope of the work that belongs to no single scope."""
OWNERS_SHARE = 0.5
"""Smallest part of a night's budget that the owner's scope gets."""
LOOKED_BACK = 100
"""Earlier nights that are read to find the scope whose turn it is."""
MOST_LOST, ALWAYS_ALLOWED, MOST_LOST_IN_A_WEEK = 0.2, 3, 0.3
"""Part of its facts that a scope may lose in a night, number always allowed, and part in seven nights."""

log = logging.getLogger(__name__)
T = TypeVar("T")

Progress = Callable[[str, str], None]
"""Callback that gets the scope and the name of each phase as it begins."""


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """Input of a phase. `so_far`: decisions of this night and scope, by this phase and earlier ones."""

    night: Night
    scope: str
    models: BackgroundModels
    likeness: FactSimilarity
    answers: Answers
    so_far: Sequence[Decision] = ()
    dry: bool = False
    """True in a dry run: nothing may change, and edits made by hand are not read in either."""
    calls: int = 0
    """Model calls of the night before this phase."""

    async def compared(self) -> ComparedFacts:
        """Compare new facts with similar ones; the result is shared by all phases of a group."""
        return await self.likeness.compared(self.scope, self.night.began_at, dry=self.dry)

    @property
    def asks_small_model(self) -> bool:
        """True if the role's model is small. Its answers are only proposals to a person."""
        return "small" in self.models.sizes(ROLE)

    def needs_approval(self, item: Decision) -> bool:
        """Decide if a person must approve: small models' answers, open questions, disputed changes."""
        said = self.asks_small_model and self.models.calls > self.calls
        return said or item.state == "open" or self.answers.disputes(item)


@dataclass(frozen=True, slots=True)
class PhaseStep:
    """Result of one step of a phase; it is stored in one transaction.

    `items`: planned decisions. `results`: decisions that are done already or are asked as they are. `judged`:
    digests of questions that need not be asked again. `looked_at`: facts whose neighbours were compared.
    `waiting`: those of them with an open comparison. `by_words`: those of `looked_at` to be compared by meaning
    later. `note`: remark for the report. `unfinished`: more work than this night may do. `counts`: sizes before and
    after, for a phase that works by itself. `failed`: the phase failed, although the results here are valid.
    """

    items: Sequence[Decision] = ()
    results: Sequence[Decision] = ()
    judged: tuple[str, ...] = ()
    looked_at: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    by_words: tuple[str, ...] = ()
    note: str = ""
    unfinished: bool = False
    counts: tuple[int, int] = (0, 0)
    failed: bool = False


async def answer_or_step(
    answer: Awaitable[T], judged: Sequence[str], note: Callable[[ModelError], str]
) -> T | PhaseStep:
    """Wait for an answer. If it is unusable, return a step with a note, so that it is not asked again."""
    try:
        return await answer
    except QuestionWithdrawn:
        return PhaseStep()
    except (AnswerUnusable, ContextTooLarge) as problem:
        step = PhaseStep(judged=tuple(judged), note=note(problem))
        log.warning("night question unanswered note=%s reason=%s", step.note, problem)
        return step


class NightPhase(Protocol):
    """Phase of a night. `use`: its purpose, as the report says it after "I couldn't"."""

    name: ClassVar[str]
    use: ClassVar[str]
    kinds: ClassVar[Kinds]
    """Decision kinds that the phase registers."""

    def __init__(self, own: DataFolder) -> None: ...

    def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield results. Raises: WintermuteError; results yielded before stay valid."""
        ...


@runtime_checkable
class PlanningPhase(Protocol):
    """Phase that only plans decisions, so a dry run can execute it. Other phases do their own work."""

    async def size(self, scope: str) -> int:
        """Count the items of a scope, for "before" and "after" in the report."""
        ...


@runtime_checkable
class ForecastPhase(Protocol):
    """Phase that does its own work and can announce its input, but not its result."""

    async def foreseen(self, work: PhaseWork) -> str:
        """Describe the work of this phase without a change; "" if there is none."""
        ...


@runtime_checkable
class BacklogPhase(Protocol):
    """Phase that may have scopes waiting when a night begins (M-093)."""

    async def waiting(self) -> set[str]:
        """Return the waiting scopes."""
        ...


def loss_limit_reason(losses: int, count: int, lost_lately: int) -> str:
    """Explain why a scope would lose too many facts in one night; "" if it may lose them (M-081).

    `lost_lately`: facts lost in the nights of the last seven days.
    """
    if losses > ALWAYS_ALLOWED and losses > MOST_LOST * count:
        return f"{losses} of {count} memories would go at once"
    before = count + lost_lately
    if losses + lost_lately > max(ALWAYS_ALLOWED, MOST_LOST_IN_A_WEEK * before):
        return (
            f"with them {losses + lost_lately} of {before} memories would be gone in seven nights"
        )
    return ""


def ignore_progress(_scope: str, _phase: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class NightRun:
    """Running night. `items`, `tallies`: collected in memory only, for a dry run."""

    night: Night
    models: BackgroundModels
    progress: Progress
    dry: bool = False
    items: list[Decision] = field(default_factory=list)
    tallies: list[PhaseTally] = field(default_factory=list)


class NightPipeline:
    """Runs the phases of a night and resumes where a crash interrupted it."""

    def __init__(
        self,
        own: DataFolder,
        groups: Sequence[Sequence[NightPhase]],
        closing: Sequence[NightPhase],
        executors: Executors,
        budget: int | None,
    ) -> None:
        """`groups`: phases that share a loss limit. `closing`: phases that run once a night. `budget`: tokens
        of one night."""
        self._stores = own.stores
        self._models = own.models
        self._groups = groups
        self._closing = closing
        self.executors = executors
        self._budget = budget
        settings, args = own.config.dreaming, (own.stores.database, own.stores.facts)
        least, same = settings.contradiction_similarity, settings.dedup_similarity
        self._likeness = partial(FactSimilarity, *args, own.stores.meaning, least, same)

    @property
    def _all_phases(self) -> list[NightPhase]:
        return [phase for group in (*self._groups, self._closing) for phase in group]

    @property
    def phases(self) -> tuple[str, ...]:
        """Names of all phases, in order."""
        return tuple(phase.name for phase in self._all_phases)

    async def run_night(self, night: Night, progress: Progress = ignore_progress) -> Night:
        """Run a night to its end, or finish an interrupted one. The caller holds `night_lock`."""
        await self._run_phases(self._new_run(night, progress))
        for item in await self._stores.decisions.listed(
            self._stores.database, night.id, states=PLANNED
        ):
            await self._revert(item)  # its phase was interrupted too often
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.end(tx, night.id)
        ended = await self._stores.nights.named(night.id)
        assert ended is not None
        return ended

    async def preview(
        self, night: Night, progress: Progress = ignore_progress
    ) -> tuple[Night, list[Decision]]:
        """Return the decisions that `run_night` would make, without a change; only undoable ones are listed."""
        run = self._new_run(night, progress, dry=True)
        await self._run_phases(run)
        cost = replace(night, calls=run.models.calls, tokens=run.models.used, usd=run.models.usd)
        tried = {phase.name for phase in self._all_phases if isinstance(phase, PlanningPhase)}
        phases = tuple(each for each in run.tallies if each.note or each.name in tried)
        return replace(cost, state="done", phases=phases), run.items

    def _new_run(self, night: Night, progress: Progress, *, dry: bool = False) -> NightRun:
        spent = night.calls, night.tokens, night.usd
        asked = BackgroundModels(self._models, most=self._budget, spent=spent)
        return NightRun(night, asked, progress, dry)

    async def _run_phases(self, run: NightRun) -> None:
        async for scope in self._in_turn(run):
            for group in self._groups:
                await self._run_group(run, scope, group)
        if run.night.scope == "":
            for phase in self._closing:
                await self._run_group(run, EVERYWHERE, [phase])

    async def scopes(self, night: Night) -> list[str]:
        """Return the scopes of a night in the order of their turns."""
        return (await self._turns(night))[0]

    async def _in_turn(self, run: NightRun) -> AsyncIterator[str]:
        """Yield each scope after its token share is set.

        The remaining tokens are divided among the scopes that are known to wait.
        """
        scopes, waiting = await self._turns(run.night)
        for n, scope in enumerate(scopes):
            share = 1 / (len(waiting.intersection(scopes[n + 1 :])) + 1)
            is_owner = scope == self._stores.owner.scope
            run.models.allow(max(share, OWNERS_SHARE) if is_owner else share)
            yield scope

    async def _turns(self, night: Night) -> tuple[list[str], set[str]]:
        """Return the scopes in order, and those that wait.

        The owner comes first, then the scope with the oldest turn; of two equal ones, the unfinished one. A
        scope had a turn if a model was asked about it or nothing was left to do. A scope waits if a night left
        work in it, or if it has new facts.
        """
        ages, seen, left = dict[str, int](), set[str](), set[str]()
        for turn in await self._stores.nights.turns(night.id, LOOKED_BACK):
            left |= {turn.scope} if turn.is_left and turn.scope not in seen else set()
            seen.add(turn.scope)
            if not turn.is_left or turn.calls:
                ages.setdefault(turn.scope, turn.age)
        waiting = left | await scopes_with_news(self._stores.database, night.began_at)
        for phase in self._all_phases:
            waiting |= await phase.waiting() if isinstance(phase, BacklogPhase) else set()
        if night.scope:
            return [night.scope], waiting
        owner, known = self._stores.owner.scope, set(await self._stores.facts.scopes())
        known |= {*await self._stores.tasks.scopes(), *await self._stores.conversations.scopes()}
        others = sorted(
            known - {owner}, key=lambda s: (-ages.get(s, LOOKED_BACK), s not in left, s)
        )
        return [owner, *others], waiting

    async def _run_group(self, run: NightRun, scope: str, group: Sequence[NightPhase]) -> None:
        """Run the phases of a group, then apply their decisions or ask about them."""
        earlier = {} if run.dry else await self._stores.nights.tallies(run.night.id, scope)
        finished = {name for name, tally in earlier.items() if tally.status != "running"}
        ran, likeness = list[tuple[NightPhase, PhaseTally, list[Decision]]](), self._likeness()
        for phase in group:
            if run.night.phase in ("", phase.name) and phase.name not in finished:
                run.progress(scope, phase.name)
                tally = await self._mark_running(run, scope, phase.name, earlier.get(phase.name))
                ran.append((phase, *await self._run_phase(run, tally, phase, likeness)))
        reasons = await self._limit(run, scope, [phase.name for phase in group])
        for phase, tally, results in ran:
            tally = replace(tally, note=_joined(tally.note, reasons.get(phase.name, "")))
            tally = await self._apply(run, tally, phase)
            log.info("night phase name=%s status=%s", tally.name, tally.status)
            run.tallies.append(tally)
            await self._note(run, tally, results)

    async def _mark_running(
        self, run: NightRun, scope: str, name: str, known: PhaseTally | None
    ) -> PhaseTally:
        """Store that a phase is running, so that a phase that always crashes is skipped in the end."""
        tally = PhaseTally(scope, name, "running", tries=known.tries + 1 if known else 1)
        if tally.tries > MOST_TRIES:
            tally = replace(tally, status="failed", note="interrupted twice, so it was skipped")
        await self._note(run, tally)
        return tally

    async def _run_phase(
        self, run: NightRun, tally: PhaseTally, phase: NightPhase, likeness: FactSimilarity
    ) -> tuple[PhaseTally, list[Decision]]:
        """Run a phase and store each step; return its tally and its own results."""
        if tally.status != "running":
            return tally, []
        notes, results, before = list[str](), list[Decision](), run.models.calls
        answers = await self._stores.decisions.answered(tally.scope)
        so_far = await self._decisions_so_far(run, tally.scope)
        given = run.night, tally.scope, run.models, likeness, answers
        work, tally = PhaseWork(*given, so_far, run.dry, before), replace(tally, status="ok")
        try:
            async for step in _steps(work, phase):
                await self._store_step(run, work, phase.name, step)
                results += step.results
                notes.append(step.note)
                status = "failed" if step.failed else "left" if step.unfinished else tally.status
                counts = step.counts
                tally = replace(tally, status=status, before=counts[0], after=counts[1])
        except WintermuteError as problem:
            status = "left" if isinstance(problem, BudgetSpent) else "failed"
            named, how = "night phase %s name=%s scope=%s reason=%s", (status, phase.name)
            log.warning(named, *how, tally.scope, problem)
            tally, notes = replace(tally, status=status), [*notes, str(problem)]
        return replace(tally, note=_joined(*notes), calls=run.models.calls - before), results

    async def _store_step(
        self, run: NightRun, work: PhaseWork, phase: str, step: PhaseStep
    ) -> None:
        wanted = [
            replace(item, state="open") if work.needs_approval(item) else item
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
            await self._stores.nights.mark_asked(tx, scope, [*digests, *step.judged], now)
            await mark_compared(tx, step.looked_at, step.waiting, step.by_words)
            await self._spend(tx, run)

    async def _decisions_so_far(self, run: NightRun, scope: str) -> list[Decision]:
        if run.dry:
            return [item for item in run.items if item.scope == scope]
        return await self._stores.decisions.listed(self._stores.database, run.night.id, scope)

    async def _limit(self, run: NightRun, scope: str, names: Sequence[str]) -> Mapping[str, str]:
        """Turn all planned decisions of a group into questions if they exceed the loss limit.

        Returns the reason for each phase.
        """
        losing = [
            item
            for item in await self._decisions_so_far(run, scope)
            if item.state == "planned" and item.loses and item.phase in names
        ]
        if not losing:
            return {}
        count = await active_count(self._stores.database, scope)
        async with self._stores.database.transaction() as tx:
            lost_lately = await self._stores.decisions.lost(tx, scope)
        if not (
            excess := loss_limit_reason(sum(item.loses for item in losing), count, lost_lately)
        ):
            return {}
        log.warning("night exceeds its loss limit scope=%s reason=%s", scope, excess)
        if run.dry:
            run.items[:] = [replace(i, state="open") if i in losing else i for i in run.items]
        else:
            async with self._stores.database.transaction() as tx:
                for item in losing:
                    await self._stores.decisions.move(tx, item, "open")
        return {item.phase: f"asked, not done: {excess}" for item in losing}

    async def _apply(self, run: NightRun, tally: PhaseTally, phase: NightPhase) -> PhaseTally:
        """Apply a phase's planned decisions one by one, so that one failure does not stop the others.

        The next night finds the failed ones again.
        """
        if not isinstance(phase, PlanningPhase):
            return tally
        before = await phase.size(tally.scope)
        tally = replace(tally, before=before, after=before)
        if run.dry or tally.tries > MOST_TRIES:  # one of these decisions may crash the program
            return tally
        notes, status = [tally.note], tally.status
        for item in await self._decisions_so_far(run, tally.scope):
            if item.phase != phase.name or item.state != "planned":
                continue
            try:
                await self.executors.apply(item)
            except WintermuteError as problem:
                log.warning("decision not applied id=%s reason=%s", item.id, problem)
                status, notes = "failed", [*notes, f"{item.id} was not done: {problem}"]
                await self._revert(item)
        note, after = _joined(*notes), await phase.size(tally.scope)
        return replace(tally, status=status, after=after, note=note)

    async def _revert(self, item: Decision) -> None:
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.close_unapplied(tx, self._stores.decisions, item)
            members = [each["id"] for each in item.plan.get("members", ())]
            await mark_compared(tx, (), members)

    async def _note(
        self, run: NightRun, tally: PhaseTally, results: Sequence[Decision] = ()
    ) -> None:
        if run.dry:
            return
        where = (run.night.id, tally.scope, tally.name)
        async with self._stores.database.transaction() as tx:
            await self._stores.decisions.number(tx, where, results)
            await self._stores.nights.note(tx, run.night.id, tally)
            await self._spend(tx, run)

    async def _spend(self, tx: Transaction, run: NightRun) -> None:
        asked = run.models
        await self._stores.nights.spend(tx, run.night.id, asked.calls, asked.used, asked.usd)


def _joined(*notes: str) -> str:
    return "; ".join(dict.fromkeys(note for note in notes if note))


def _steps(work: PhaseWork, phase: NightPhase) -> AsyncIterator[PhaseStep]:
    tried = not work.dry or isinstance(phase, PlanningPhase)
    return phase.steps(work) if tried else _forecast(work, phase)


async def _forecast(work: PhaseWork, phase: NightPhase) -> AsyncIterator[PhaseStep]:
    if isinstance(phase, ForecastPhase):
        yield PhaseStep(note=await phase.foreseen(work))


@asynccontextmanager
async def night_lock(data_dir: Path) -> AsyncIterator[None]:
    """Lock this data folder against another night. Raises: StoreBusy, naming the process."""

    def under_way(pid: int) -> WintermuteError:
        return StoreBusy(
            f"a night is under way (process {pid or 'unknown'}): `wintermute night list` shows it;"
            " try again when it is over"
        )

    with claimed(data_dir, LOCK, under_way):
        yield


def is_night_running(data_dir: Path) -> bool:
    """Check if a process runs a night on this data folder now."""
    return holder(data_dir, LOCK) is not None
