"""Pipeline of one night: scope by scope, the owner first, then those that have waited longest.

    for each scope:  harvest and reconstruction of the day
                     dedup ─▶ contradictions ─▶ stale ─▶ loss limit ─▶ applied, or open ─▶ export
                     tasks ─▶ skills ─▶ pages ─▶ folds
    at the end:      housekeeping

A phase plans decisions, and each is stored at once. They are applied when all phases of their group (one line
above) have run, because the loss limit counts the decisions of all these phases. A phase without planned decisions
reports its results at its end. A crash therefore loses nothing: no model call is made twice, and the next run applies
the stored decisions. A decision that is open waits for a person's approval. A phase that fails is reported, and the
next one runs.
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
MAX_STARTS = 2
"""Starts of a phase in one night: after as many crashes the night goes on without it."""
ALL_SCOPES = ""
"""Scope of the final phases; as the scope of a night: it runs for all scopes."""
OWNERS_SHARE = 0.5
"""Smallest part of a night's budget that the owner's scope gets."""
LOOKED_BACK = 100
"""Number of earlier nights that are read to put the scopes in order."""
MOST_LOST = 0.2
"""Largest part of its facts that a scope may lose in one night."""
ALWAYS_ALLOWED = 3
"""Number of facts that a scope may lose in a night, however few it has."""
MOST_LOST_IN_A_WEEK = 0.3
"""Largest part of its facts that a scope may lose in seven nights."""

log = logging.getLogger(__name__)
T = TypeVar("T")

Progress = Callable[[str, str], None]
"""Callback that gets the scope and the name of each phase as it begins."""


@dataclass(frozen=True, slots=True)
class PhaseWork:
    """Input of a phase. `so_far`: decisions of this night and scope, by this phase and earlier ones.

    `person_answers`: what people answered to earlier decisions of the scope, and what is still open.
    """

    night: Night
    scope: str
    models: BackgroundModels
    similarity: FactSimilarity
    person_answers: Answers
    so_far: Sequence[Decision] = ()
    dry: bool = False
    """True in a dry run: nothing may change, and edits made by hand are not read in either."""
    calls_before: int = 0
    """Model calls that this night made before this phase."""

    async def compared(self) -> ComparedFacts:
        """Compare new facts with similar ones; the result is shared by all phases of a group."""
        return await self.similarity.compared(self.scope, self.night.began_at, dry=self.dry)

    @property
    def asks_small_model(self) -> bool:
        """True if the role's model is small. A person must approve decisions made from its answers."""
        return "small" in self.models.sizes(ROLE)

    def needs_approval(self, decision: Decision) -> bool:
        """Check if a person must approve: made by a small model, already open, or about a fact somebody wanted to keep."""
        from_small_model = self.asks_small_model and self.models.calls > self.calls_before
        return (
            from_small_model or decision.state == "open" or self.person_answers.disputes(decision)
        )


@dataclass(frozen=True, slots=True)
class PhaseStep:
    """Result of one step of a phase; it is stored in one transaction."""

    items: Sequence[Decision] = ()
    """Planned decisions."""
    results: Sequence[Decision] = ()
    """Decisions that the phase has applied itself, or that are stored as open."""
    judged: tuple[str, ...] = ()
    """Digests of the texts that a model has judged; no night asks about them again."""
    looked_at: tuple[str, ...] = ()
    """Ids of the facts that were compared with similar ones."""
    waiting: tuple[str, ...] = ()
    """Ids of the facts that have similar ones left to compare in the next nights."""
    by_words: tuple[str, ...] = ()
    """Ids out of `looked_at` that were compared by their words only; a later night compares their embeddings."""
    note: str = ""
    """Remark for the report."""
    unfinished: bool = False
    """True if work is left for the next night."""
    counts: tuple[int, int] = (0, 0)
    """Sizes before and after, for a phase without planned decisions."""
    failed: bool = False
    """True if the phase failed, although this result is valid."""


async def answer_or_step(
    answer: Awaitable[T], judged: Sequence[str], note: Callable[[ModelError], str]
) -> T | PhaseStep:
    """Wait for a model's answer. If it is unusable, return a step with a note and `judged`: nothing is asked again."""
    try:
        return await answer
    except QuestionWithdrawn:
        return PhaseStep()
    except (AnswerUnusable, ContextTooLarge) as problem:
        step = PhaseStep(judged=tuple(judged), note=note(problem))
        log.warning("night model answer unusable note=%s reason=%s", step.note, problem)
        return step


class NightPhase(Protocol):
    """Phase of a night. `use`: its purpose after "I couldn't" in the report, as "merge similar memories"."""

    name: ClassVar[str]
    use: ClassVar[str]
    kinds: ClassVar[Kinds]
    """Decision kinds that the phase registers."""

    def __init__(self, folder: DataFolder) -> None: ...

    def steps(self, work: PhaseWork) -> AsyncIterator[PhaseStep]:
        """Yield results. Raises: WintermuteError; results yielded before stay valid."""
        ...


@runtime_checkable
class PlanningPhase(Protocol):
    """Phase that only plans decisions, so a dry run can execute it. Other phases change something themselves."""

    async def size(self, scope: str) -> int:
        """Count the entries of a scope, for "before" and "after" in the report."""
        ...


@runtime_checkable
class ForecastPhase(Protocol):
    """Phase without planned decisions; a dry run reports the work that it would begin."""

    async def foreseen(self, work: PhaseWork) -> str:
        """Describe the work that this phase would do; "" if there is none. It changes nothing."""
        ...


@runtime_checkable
class BacklogPhase(Protocol):
    """Phase that may have work left in some scopes when a night begins (M-093)."""

    async def waiting(self) -> set[str]:
        """Return the scopes with work left."""
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
    """Running night. `planned`: decisions of a dry run, which stores nothing. `tallies`: results of its phases."""

    night: Night
    models: BackgroundModels
    progress: Progress
    dry: bool = False
    planned: list[Decision] = field(default_factory=list)
    tallies: list[PhaseTally] = field(default_factory=list)


class NightPipeline:
    """Runs the phases of a night and resumes where a crash interrupted it."""

    def __init__(
        self,
        folder: DataFolder,
        groups: Sequence[Sequence[NightPhase]],
        final_phases: Sequence[NightPhase],
        executors: Executors,
        token_budget: int | None,
    ) -> None:
        """`groups`: phases that share a loss limit. `final_phases`: run once a night, at its end.

        `token_budget`: tokens of one night; None: no limit.
        """
        self._stores = folder.stores
        self._models = folder.models
        self._groups = groups
        self._final_phases = final_phases
        self.executors = executors
        self._token_budget = token_budget
        self._similarity = partial(
            FactSimilarity,
            folder.stores.database,
            folder.stores.facts,
            folder.stores.meaning,
            folder.config.dreaming.contradiction_similarity,
            folder.config.dreaming.dedup_similarity,
        )

    @property
    def _all_phases(self) -> list[NightPhase]:
        return [phase for group in (*self._groups, self._final_phases) for phase in group]

    @property
    def phases(self) -> tuple[str, ...]:
        """Names of all phases, in order."""
        return tuple(phase.name for phase in self._all_phases)

    async def run_night(self, night: Night, progress: Progress = ignore_progress) -> Night:
        """Run a night to its end, or finish an interrupted one. The caller holds `night_lock`."""
        await self._run_phases(self._new_run(night, progress))
        for decision in await self._stores.decisions.listed(
            self._stores.database, night.id, states=PLANNED
        ):
            await self._close_unapplied(decision)  # its phase was skipped after too many crashes
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.end(tx, night.id)
        ended = await self._stores.nights.named(night.id)
        assert ended is not None
        return ended

    async def preview(
        self, night: Night, progress: Progress = ignore_progress
    ) -> tuple[Night, list[Decision]]:
        """Return the decisions that `run_night` would plan; it changes nothing."""
        run = self._new_run(night, progress, dry=True)
        await self._run_phases(run)
        counted = replace(night, calls=run.models.calls, tokens=run.models.used, usd=run.models.usd)
        planning = {phase.name for phase in self._all_phases if isinstance(phase, PlanningPhase)}
        phases = tuple(tally for tally in run.tallies if tally.note or tally.name in planning)
        return replace(counted, state="done", phases=phases), run.planned

    def _new_run(self, night: Night, progress: Progress, *, dry: bool = False) -> NightRun:
        spent = night.calls, night.tokens, night.usd
        models = BackgroundModels(self._models, most=self._token_budget, spent=spent)
        return NightRun(night, models, progress, dry)

    async def _run_phases(self, run: NightRun) -> None:
        async for scope in self._scopes_with_budget(run):
            for group in self._groups:
                await self._run_group(run, scope, group)
        if run.night.scope == ALL_SCOPES:
            for phase in self._final_phases:
                await self._run_group(run, ALL_SCOPES, [phase])

    async def scopes(self, night: Night) -> list[str]:
        """Return the scopes of a night in order of priority."""
        return (await self._scope_order(night))[0]

    async def _scopes_with_budget(self, run: NightRun) -> AsyncIterator[str]:
        """Yield the scopes in order of priority, and set the tokens that each may use.

        The remaining tokens are divided equally among this scope and the later ones that have work.
        """
        scopes, waiting = await self._scope_order(run.night)
        for n, scope in enumerate(scopes):
            share = 1 / (len(waiting.intersection(scopes[n + 1 :])) + 1)
            is_owner = scope == self._stores.owner.scope
            run.models.allow(max(share, OWNERS_SHARE) if is_owner else share)
            yield scope

    async def _scope_order(self, night: Night) -> tuple[list[str], set[str]]:
        """Return the scopes in order of priority, and those that have work.

        The owner comes first, then the scope whose last service is longest ago; of two equal ones, the one with
        work left. A night served a scope if it called a model for it, or finished its work. A scope has work if
        a night left some, or if it has new facts.
        """
        ages, seen, left = dict[str, int](), set[str](), set[str]()
        for past in await self._stores.nights.turns(night.id, LOOKED_BACK):
            left |= {past.scope} if past.is_left and past.scope not in seen else set()
            seen.add(past.scope)
            if not past.is_left or past.calls:
                ages.setdefault(past.scope, past.age)
        waiting = left | await scopes_with_news(self._stores.database, night.began_at)
        for phase in self._all_phases:
            waiting |= await phase.waiting() if isinstance(phase, BacklogPhase) else set()
        if night.scope:
            return [night.scope], waiting
        owner, known = self._stores.owner.scope, set(await self._stores.facts.scopes())
        known |= {*await self._stores.tasks.scopes(), *await self._stores.conversations.scopes()}
        others = sorted(
            known - {owner},
            key=lambda scope: (-ages.get(scope, LOOKED_BACK), scope not in left, scope),
        )
        return [owner, *others], waiting

    async def _run_group(self, run: NightRun, scope: str, group: Sequence[NightPhase]) -> None:
        """Run the phases of a group, then apply their decisions, or leave them open for a person."""
        earlier = {} if run.dry else await self._stores.nights.tallies(run.night.id, scope)
        finished = {name for name, tally in earlier.items() if tally.status != "running"}
        ran = list[tuple[NightPhase, PhaseTally, list[Decision]]]()
        similarity = self._similarity()
        for phase in group:
            if run.night.phase in ("", phase.name) and phase.name not in finished:
                run.progress(scope, phase.name)
                tally = await self._mark_running(run, scope, phase.name, earlier.get(phase.name))
                ran.append((phase, *await self._run_phase(run, tally, phase, similarity)))
        reasons = await self._apply_loss_limit(run, scope, [phase.name for phase in group])
        for phase, tally, done in ran:
            tally = replace(tally, note=_joined(tally.note, reasons.get(phase.name, "")))
            tally = await self._apply(run, tally, phase)
            log.info("night phase name=%s status=%s", tally.name, tally.status)
            run.tallies.append(tally)
            await self._store_tally(run, tally, done)

    async def _mark_running(
        self, run: NightRun, scope: str, name: str, known: PhaseTally | None
    ) -> PhaseTally:
        """Store the start of a phase, so that a phase that always crashes is skipped after `MAX_STARTS`."""
        tally = PhaseTally(scope, name, "running", tries=known.tries + 1 if known else 1)
        if tally.tries > MAX_STARTS:
            tally = replace(tally, status="failed", note="interrupted twice, so it was skipped")
        await self._store_tally(run, tally)
        return tally

    async def _run_phase(
        self, run: NightRun, tally: PhaseTally, phase: NightPhase, similarity: FactSimilarity
    ) -> tuple[PhaseTally, list[Decision]]:
        """Run a phase and store each step; return its tally, and the decisions that it applied itself."""
        if tally.status != "running":
            return tally, []
        notes, done = list[str](), list[Decision]()
        before = run.models.calls
        answers = await self._stores.decisions.answered(tally.scope)
        so_far = await self._decisions_so_far(run, tally.scope)
        night, models = run.night, run.models
        work = PhaseWork(night, tally.scope, models, similarity, answers, so_far, run.dry, before)
        tally = replace(tally, status="ok")
        try:
            async for step in _steps(work, phase):
                await self._store_step(run, work, phase.name, step)
                done += step.results
                notes.append(step.note)
                status = "failed" if step.failed else "left" if step.unfinished else tally.status
                size_before, size_after = step.counts
                tally = replace(tally, status=status, before=size_before, after=size_after)
        except WintermuteError as problem:
            status = "left" if isinstance(problem, BudgetSpent) else "failed"
            log.warning(
                "night phase %s name=%s scope=%s reason=%s",
                *(status, phase.name, tally.scope, problem),
            )
            tally = replace(tally, status=status)
            notes.append(str(problem))
        return replace(tally, note=_joined(*notes), calls=run.models.calls - before), done

    async def _store_step(
        self, run: NightRun, work: PhaseWork, phase: str, step: PhaseStep
    ) -> None:
        planned = [
            replace(decision, state="open") if work.needs_approval(decision) else decision
            for decision in step.items
            if not work.person_answers.knows(decision)
        ]
        night, scope, now = run.night.id, work.scope, self._stores.facts.now()
        if run.dry:
            run.planned.extend(
                replace(decision, night=night, n=n, scope=scope, phase=phase, at=now)
                for n, decision in enumerate(planned, len(run.planned) + 1)
            )
            return
        async with self._stores.database.transaction() as tx:
            digests = [decision.digest for decision in planned if decision.digest]
            await self._stores.decisions.number(tx, (night, scope, phase), planned, now)
            await self._stores.nights.mark_asked(tx, scope, [*digests, *step.judged], now)
            await mark_compared(tx, step.looked_at, step.waiting, step.by_words)
            await self._record_usage(tx, run)

    async def _decisions_so_far(self, run: NightRun, scope: str) -> list[Decision]:
        if run.dry:
            return [decision for decision in run.planned if decision.scope == scope]
        return await self._stores.decisions.listed(self._stores.database, run.night.id, scope)

    async def _apply_loss_limit(
        self, run: NightRun, scope: str, names: Sequence[str]
    ) -> Mapping[str, str]:
        """Leave all planned decisions of a group open for a person if they exceed the loss limit.

        Return the reason for each phase that has such decisions.
        """
        losing = [
            decision
            for decision in await self._decisions_so_far(run, scope)
            if decision.state == "planned" and decision.loses and decision.phase in names
        ]
        if not losing:
            return {}
        count = await active_count(self._stores.database, scope)
        async with self._stores.database.transaction() as tx:
            lost_lately = await self._stores.decisions.lost(tx, scope)
        losses = sum(decision.loses for decision in losing)
        reason = loss_limit_reason(losses, count, lost_lately)
        if not reason:
            return {}
        log.warning("night exceeds its loss limit scope=%s reason=%s", scope, reason)
        if run.dry:
            run.planned[:] = [replace(i, state="open") if i in losing else i for i in run.planned]
        else:
            async with self._stores.database.transaction() as tx:
                for decision in losing:
                    await self._stores.decisions.move(tx, decision, "open")
        return {decision.phase: f"needs your approval: {reason}" for decision in losing}

    async def _apply(self, run: NightRun, tally: PhaseTally, phase: NightPhase) -> PhaseTally:
        """Apply a phase's planned decisions one by one, so that one failure does not stop the others.

        A decision that could not be applied is closed, and the next night plans it again.
        """
        if not isinstance(phase, PlanningPhase):
            return tally
        before = await phase.size(tally.scope)
        tally = replace(tally, before=before, after=before)
        if run.dry or tally.tries > MAX_STARTS:  # one of these decisions may crash the program
            return tally
        notes = [tally.note]
        status = tally.status
        for decision in await self._decisions_so_far(run, tally.scope):
            if decision.phase != phase.name or decision.state != "planned":
                continue
            try:
                await self.executors.apply(decision)
            except WintermuteError as problem:
                log.warning("decision not applied id=%s reason=%s", decision.id, problem)
                status = "failed"
                notes.append(f"{decision.id} was not done: {problem}")
                await self._close_unapplied(decision)
        after = await phase.size(tally.scope)
        return replace(tally, status=status, after=after, note=_joined(*notes))

    async def _close_unapplied(self, decision: Decision) -> None:
        async with self._stores.database.transaction() as tx:
            await self._stores.nights.close_unapplied(tx, self._stores.decisions, decision)
            members = [member["id"] for member in decision.plan.get("members", ())]
            await mark_compared(tx, (), members)

    async def _store_tally(
        self, run: NightRun, tally: PhaseTally, done: Sequence[Decision] = ()
    ) -> None:
        if run.dry:
            return
        origin = (run.night.id, tally.scope, tally.name)
        async with self._stores.database.transaction() as tx:
            await self._stores.decisions.number(tx, origin, done)
            await self._stores.nights.note(tx, run.night.id, tally)
            await self._record_usage(tx, run)

    async def _record_usage(self, tx: Transaction, run: NightRun) -> None:
        models = run.models
        await self._stores.nights.spend(tx, run.night.id, models.calls, models.used, models.usd)


def _joined(*notes: str) -> str:
    return "; ".join(dict.fromkeys(note for note in notes if note))


def _steps(work: PhaseWork, phase: NightPhase) -> AsyncIterator[PhaseStep]:
    runs = not work.dry or isinstance(phase, PlanningPhase)
    return phase.steps(work) if runs else _forecast(work, phase)


async def _forecast(work: PhaseWork, phase: NightPhase) -> AsyncIterator[PhaseStep]:
    if isinstance(phase, ForecastPhase):
        yield PhaseStep(note=await phase.foreseen(work))


@asynccontextmanager
async def night_lock(data_dir: Path) -> AsyncIterator[None]:
    """Lock this data folder against another night. Raises: StoreBusy, naming the process."""

    def busy_error(pid: int) -> WintermuteError:
        return StoreBusy(
            f"a night is already running (process {pid or 'unknown'}). See `wintermute night list`."
        )

    with claimed(data_dir, LOCK, busy_error):
        yield


def is_night_running(data_dir: Path) -> bool:
    """Check if a process runs a night on this data folder now."""
    return holder(data_dir, LOCK) is not None
