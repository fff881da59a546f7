"""Jobs: once by their key, over failures, outages, crashes and restarts; who fails stops alone."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.world.clock import FakeClock, until_so
from tests.world.house import ANN, House, open_house
from tests.world.model import ModelServer
from tests.world.schema import traces_of
from tests.world.story import Story
from wintermute.cli.night_report import tidying_of
from wintermute.clock import Clock
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.db.eraser import erase
from wintermute.errors import BudgetSpent, HomeserverUnavailable, ModelUnavailable, ToolFailed
from wintermute.jobs import ERASED_JOBS, KEPT, Job
from wintermute.messages import Json
from wintermute.night.phases import USES
from wintermute.stores import Stores
from wintermute.work.jobs import JobDone, JobFailed, JobPolicy, StoredJobs
from wintermute.work.runner import JobType

OWNER = f"person:{ANN}"
BOB = "person:@bob:test"


@dataclass
class Bench:
    """What a test makes of its jobs: `do` by their key, and which were begun."""

    do: Callable[[str], Awaitable[JobDone | JobFailed]]
    policy: JobPolicy = field(default_factory=JobPolicy)
    begun: list[str] = field(default_factory=list)

    async def function(self, job: Job) -> JobDone | JobFailed:
        self.begun.append(job.key)
        return await self.do(job.key)

    def kind(self, stores: Stores, speaker: Speaker, clock: Clock) -> JobType[Job]:
        return StoredJobs(stores, "tidy", self.function, self.policy, speaker, clock)


def opened(
    folder: Path, model: ModelServer, bench: Bench, clock: Clock | None = None
) -> AbstractAsyncContextManager[House]:
    return open_house(folder, model.url, kinds=[bench.kind], clock=clock or FakeClock())


async def owe(house: House, *keys: str, scope: str = OWNER) -> None:
    async with house.database.transaction() as tx:
        for key in keys:
            await house.stores.jobs.enqueue(tx, "tidy", key, scope)
    house.runner.wake("tidy")


async def became(house: House, **states: str) -> None:
    """Wait until the jobs are in these states."""

    async def so() -> bool:
        rows = await house.rows("SELECT key, state FROM jobs")
        return {row["key"]: row["state"] for row in rows} == states

    await until_so(so)


async def well(_key: str) -> JobDone:
    return JobDone()


async def talked(house: House) -> None:
    """There is a room in which its owner can be told something."""
    await house.incoming("hello")
    await house.said(1)


async def test_people_hear_of_each_job_and_step_in_their_own_words(story: Story) -> None:
    """U-014: there are words for all of them."""
    async with opened(story.folder, story.model, Bench(well)) as house:
        kinds = [kind for kind in house.runner.job_types if isinstance(kind, StoredJobs)]
        assert [kind.name for kind in kinds if kind.policy.use == JobPolicy().use] == ["tidy"]
        assert {*tidying_of(house.stores, house.config, house.models).phases} <= {*USES}


async def test_three_equal_failures_stop_a_series_and_only_that(story: Story) -> None:
    """U-014: its owner hears no name of a job, and where to find it."""

    async def do(key: str) -> JobDone:
        if key.startswith("ann"):
            raise ToolFailed("no such file {x}")
        return JobDone()

    bench = Bench(do)
    async with opened(story.folder, story.model, bench) as house, house.working():
        await talked(house)
        await owe(house, "ann 1")
        await became(house, **{"ann 1": "failed"})
        await owe(house, "ann 2")
        await owe(house, "bob 1", scope=BOB)
        await became(house, **{"ann 1": "failed", "ann 2": "waiting", "bob 1": "done"})
        assert bench.begun == ["ann 1"] * 3 + ["bob 1"]
        assert (await house.said(2))[1:] == [
            "I couldn't finish some work in the background: it failed three times. I'll try again after"
            " the next restart; `/status` has details."
        ]
        await house.incoming("/status", direct=True)
        assert (
            "- **jobs** (fail): 0 running, 1 waiting, 1 stopped: tidy of @ann:test: no such file {x}"
            in (await house.said(3))[2]
        )
    bench.do = well
    async with opened(story.folder, story.model, bench) as house, house.working():
        await became(house, **{"ann 1": "done", "ann 2": "done", "bob 1": "done"})


@pytest.mark.parametrize("times", [5, 6, 12])
async def test_six_failures_that_differ_stop_a_series(story: Story, times: int) -> None:
    """And each is waited for longer than the one before, up to an hour; so it is told once."""
    bench, clock = Bench(well), FakeClock()
    begun_at = list[float]()

    async def do(_key: str) -> JobDone:
        begun_at.append(clock.monotonic())
        if len(bench.begun) <= times:
            raise ToolFailed(f"for reason {len(bench.begun) % 2}")
        return JobDone()

    bench.do = do
    async with opened(story.folder, story.model, bench, clock) as house, house.working():
        await talked(house)
        await owe(house, "a")
        await became(house, a="done" if times < 6 else "failed")
        assert len(bench.begun) == 6
        pauses = [round((then - now) / 60) for now, then in pairwise(begun_at)]
        assert pauses == [1, 4, 16, 64, 64]
        told = [] if times < 6 else ["it failed six times"]
        said = [text.partition(": ")[2] for text in (await house.spoken())[1:]]
        assert [text.partition(". ")[0] for text in said] == told


@pytest.mark.parametrize(
    "error", [ModelUnavailable("away"), BudgetSpent("spent", None), HomeserverUnavailable("away")]
)
async def test_a_server_that_is_away_counts_for_nobody(story: Story, error: Exception) -> None:
    bench = Bench(well)

    async def do(_key: str) -> JobDone:
        if len(bench.begun) < 9:
            raise error
        return JobDone()

    bench.do = do
    async with opened(story.folder, story.model, bench) as house, house.working():
        await owe(house, "a")
        await became(house, a="done")
        assert await house.rows("SELECT attempts, last_error FROM jobs") == [
            {"attempts": 0, "last_error": None}
        ]


async def test_a_bug_in_one_job_ends_no_other_and_is_told_without_its_words(story: Story) -> None:
    async def do(key: str) -> JobDone:
        if key == "bad":
            raise KeyError("a private thing")
        return JobDone()

    async with opened(story.folder, story.model, Bench(do)) as house, house.working():
        await talked(house)
        await owe(house, "bad", scope=BOB)
        await owe(house, "good")
        await became(house, bad="failed", good="done")
        said = (await house.said(2))[1]
        assert said.startswith(
            "I couldn't finish some work in the background: it failed three times."
        )
        assert "private" not in said
        [note] = await house.rows("SELECT state FROM health WHERE part = 'casts'")
        assert note["state"] == "fail"


async def test_a_bug_in_what_follows_from_a_job_stores_nothing_of_it(story: Story) -> None:
    async def store(tx: Transaction) -> None:
        await tx.execute("INSERT INTO single_values (name, value) VALUES ('half', 1)")
        raise KeyError

    async def do(key: str) -> JobDone:
        return JobDone(store if key == "bad" else None)

    async with opened(story.folder, story.model, Bench(do)) as house, house.working():
        await owe(house, "bad", scope=BOB)
        await owe(house, "good")
        await became(house, bad="failed", good="done")
        assert await house.rows("SELECT 1 FROM single_values WHERE name = 'half'") == []


async def test_what_takes_too_long_has_failed(story: Story) -> None:
    async def do(_key: str) -> JobDone:
        await asyncio.Event().wait()
        return JobDone()

    bench = Bench(do, JobPolicy(max_seconds=0.05))
    async with opened(story.folder, story.model, bench) as house, house.working():
        await owe(house, "a")
        await became(house, a="failed")
        [row] = await house.rows("SELECT last_error FROM jobs")
        assert row["last_error"] == "it took longer than 0 seconds"


@pytest.mark.parametrize("at_once", [1, 3])
async def test_no_more_are_at_work_than_there_are_places(story: Story, at_once: int) -> None:
    full, go_on = asyncio.Event(), asyncio.Event()
    at_work: list[int] = []
    now = 0

    async def do(_key: str) -> JobDone:
        nonlocal now
        now += 1
        at_work.append(now)
        if now == at_once:
            full.set()
        await go_on.wait()
        now -= 1
        return JobDone()

    keys = [f"k{n}" for n in range(7)]
    async with (
        opened(story.folder, story.model, Bench(do, JobPolicy(at_once))) as house,
        house.working(),
    ):
        await owe(house, *keys)
        await full.wait()
        go_on.set()
        await became(house, **dict.fromkeys(keys, "done"))
        assert max(at_work) == at_once


async def hang(_key: str) -> JobDone:
    await asyncio.Event().wait()
    return JobDone()


async def begun(house: House, bench: Bench, n: int) -> None:
    """Wait until so many were begun."""

    async def so() -> bool:
        await house.rows("SELECT 1")
        return len(bench.begun) >= n

    await until_so(so)


@pytest.mark.slow
async def test_three_crashes_put_a_job_off_and_ordinary_restarts_do_not(story: Story) -> None:
    """M-095: what a kill leaves behind is a copy of the folder as it was at that moment."""
    bench, clock = Bench(hang), FakeClock()
    folders: Sequence[Path] = [story.folder / str(n) for n in range(5)]
    folders[0].mkdir()
    async with opened(folders[0], story.model, bench) as house, house.working():
        await talked(house)
        await owe(house, "a")
        await begun(house, bench, 1)
    for n in range(4):
        async with opened(folders[0], story.model, bench) as house, house.working():
            await begun(house, bench, n + 2)
    for n, (folder, after) in enumerate(pairwise(folders[:4])):
        async with opened(folder, story.model, bench, clock) as house, house.working():
            await begun(house, bench, n + 6)
            shutil.copytree(folder, after)
    for _ in range(2):  # and no start tries it again before its time
        async with opened(folders[3], story.model, bench, clock) as house, house.working():
            await became(house, a="waiting")
            assert (await house.said(2))[1:] == [
                "I couldn't finish some work in the background: it made me crash three times. I'll"
                " try again in an hour, then in a day, then every week."
            ]
    clock.advance(3600)
    async with opened(folders[3], story.model, bench, clock) as house, house.working():
        await begun(house, bench, 9)
        shutil.copytree(folders[3], folders[4])
    bench.do = well
    clock.advance(23 * 3600)
    async with opened(folders[4], story.model, bench, clock) as house, house.working():
        await owe(house, "b")
        await became(house, a="waiting", b="done")
    clock.advance(3600)
    async with opened(folders[4], story.model, bench, clock) as house, house.working():
        await became(house, a="done", b="done")


PERSISTS = JobPolicy(persists=True)


@pytest.mark.parametrize("failures", [0, 1])
async def test_three_crashes_leave_one_attempt_an_hour(story: Story, failures: int) -> None:
    """M-030: what holds a text that must not stay is never left lying; its owner is told once.

    M-095: no start brings it forward, also where it had failed before.
    """

    async def do(key: str) -> JobDone | JobFailed:
        return await hang(key) if len(bench.begun) > failures else JobFailed("locked")

    bench, clock = Bench(do, PERSISTS), FakeClock()
    folders: Sequence[Path] = [story.folder / str(n) for n in range(5)]
    folders[0].mkdir()
    async with opened(folders[0], story.model, bench, clock) as house, house.working():
        await talked(house)
        await owe(house, "a")
        await begun(house, bench, 1 + failures)
        shutil.copytree(folders[0], folders[1])
    for n in (1, 2):
        async with opened(folders[n], story.model, bench, clock) as house, house.working():
            await begun(house, bench, n + 1 + failures)
            shutil.copytree(folders[n], folders[n + 1])
    bench.do = well
    others = dict[str, str]()
    for n in range(2):
        async with opened(folders[3], story.model, bench, clock) as house, house.working():
            others[f"b{n}"] = "done"
            await owe(house, *others)
            await became(house, a="waiting", **others)
            assert (await house.said(2))[1:] == [
                "I couldn't finish some work in the background: it made me crash three times. I'll"
                " try again every hour."
            ]
    clock.advance(3600)
    async with opened(folders[3], story.model, bench, clock) as house, house.working():
        await became(house, a="done", **others)


async def test_one_that_persists_is_never_stopped_by_failures(story: Story) -> None:
    """M-030: the next of its kind goes on, and it is tried again without a new start."""

    async def do(key: str) -> JobDone | JobFailed:
        return JobFailed("the shed is locked") if key == "a" and len(bench.begun) < 6 else JobDone()

    bench, clock = Bench(do, PERSISTS), FakeClock()
    async with opened(story.folder, story.model, bench, clock) as house, house.working():
        await talked(house)
        await owe(house, "a")
        await begun(house, bench, 1)
        for n in range(4):
            await became(house, a="waiting")
            clock.advance(3900)
            house.runner.wake("tidy")
            await begun(house, bench, n + 2)
        await owe(house, "b")
        await became(house, a="waiting", b="done")
        await house.incoming("/status", direct=True)
        assert "(warn): 0 running, 1 waiting, 1 tried again: tidy" in (await house.said(3))[2]
        clock.advance(3900)
        house.runner.wake("tidy")
        await became(house, a="done", b="done")
        assert (await house.said(3))[1:2] == [
            "I couldn't finish some work in the background: it failed three times. I'll keep trying;"
            " `/status` has details."
        ]


async def test_a_job_goes_on_where_it_was(story: Story) -> None:
    found: list[Json] = []

    async def function(job: Job) -> JobDone:
        found.append(job.progress)
        if not job.progress:
            async with house.database.transaction() as tx:
                await house.stores.jobs.save_progress(tx, job.id, {"page": 7})
            await asyncio.Event().wait()
        return JobDone()

    def kind(stores: Stores, speaker: Speaker, clock: Clock) -> JobType[Job]:
        return StoredJobs(stores, "tidy", function, JobPolicy(), speaker, clock)

    async with story.at_work(kinds=[kind]) as house:
        await owe(house, "a")
        await until_so(lambda: has_progress(house))
    async with story.at_work(kinds=[kind]) as house:
        await became(house, a="done")
    assert found == [{}, {"page": 7}]


async def has_progress(house: House) -> bool:
    return bool(await house.rows("SELECT 1 FROM jobs WHERE progress <> '{}'"))


async def test_what_was_cancelled_below_a_job_gives_its_place_back(story: Story) -> None:
    async def do(key: str) -> JobDone:
        if key == "bad":
            raise asyncio.CancelledError
        return JobDone()

    async with opened(story.folder, story.model, Bench(do)) as house, house.working():
        await owe(house, "bad", scope=BOB)
        await owe(house, "good")
        await became(house, bad="failed", good="done")


async def test_nothing_follows_from_what_was_forgotten_while_it_was_done(story: Story) -> None:
    forgotten = asyncio.Event()

    async def do(_key: str) -> JobDone:
        async def store(tx: Transaction) -> None:
            await tx.execute("INSERT INTO single_values (name, value) VALUES ('learnt', 1)")

        await forgotten.wait()
        return JobDone(store)

    bench = Bench(do)
    async with opened(story.folder, story.model, bench) as house, house.working():
        await talked(house)
        args = {"text": "the shed opens with 4711"}
        async with house.database.transaction() as tx:
            await house.stores.jobs.enqueue(tx, "tidy", "a", OWNER, args)
        house.runner.wake("tidy")
        await begun(house, bench, 1)
        said = await traces_of(house.database, [args["text"]])
        async with house.database.transaction() as tx:
            await erase(tx, ERASED_JOBS, said)
        forgotten.set()
        await owe(house, "b")
        await became(house, b="done")
        assert [
            row["value"]
            for row in await house.rows("SELECT value FROM single_values WHERE name = 'learnt'")
        ] == [1]


async def test_what_was_done_long_ago_goes(story: Story) -> None:
    clock = FakeClock()
    async with opened(story.folder, story.model, Bench(well), clock) as house, house.working():
        await owe(house, "a")
        await became(house, a="done")
        clock.advance((KEPT + timedelta(days=1)).total_seconds())
        await owe(house, "b")
        await became(house, b="done")
