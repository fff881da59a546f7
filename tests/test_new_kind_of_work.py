"""A new kind of work, whole: a function, a policy, and what becomes of it."""

from pathlib import Path

from tests.world.house import ANN, ROOM, house_at_work
from tests.world.model import ModelServer
from wintermute.clock import Clock
from wintermute.conversation.state import Speaker
from wintermute.db import Transaction
from wintermute.jobs import Job
from wintermute.stores import Stores
from wintermute.work.jobs import JobDone, JobPolicy, StoredJobs


async def test_a_function_and_a_policy_are_a_new_kind_of_work(
    tmp_path: Path, model: ModelServer
) -> None:
    """Exactly once by its key; its end, what follows and what is said are one transaction."""

    async def greet(job: Job) -> JobDone:
        async def store(tx: Transaction) -> tuple[str]:
            home = await house.stores.conversations.in_room(tx, ROOM, job.scope)
            text = f"Good morning, {job.args['name']}."
            await house.stores.outbox.enqueue(tx, home, text, kind="notice", meant_for=job.scope)
            return (home,)

        return JobDone(store)

    def greeting(stores: Stores, speaker: Speaker, clock: Clock) -> StoredJobs:
        return StoredJobs(stores, "greeting", greet, JobPolicy(), speaker, clock)

    async with house_at_work(tmp_path, model.url, kinds=[greeting]) as house:
        await house.incoming("hello")
        await house.said(1)
        for _ in range(2):
            async with house.database.transaction() as tx:
                await house.stores.jobs.enqueue(
                    tx, "greeting", "monday", f"person:{ANN}", {"name": "Ann"}
                )
        house.runner.wake("greeting")
        assert (await house.said(2))[1:] == ["Good morning, Ann."]
        assert [row["state"] for row in await house.rows("SELECT state FROM jobs")] == ["done"]
