"""Random lives of rooms: nothing is said to somebody it was not made for, whoever comes and goes.

A longer run, with seeds of its own, is a part of `make torture`.
"""

import pytest

from tests.world.lives import Life
from tests.world.model import ModelServer
from tests.world.proxy import Proxy
from tests.world.scene import NewBot, NewPerson

pytestmark = pytest.mark.slow

STEPS = 30


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.breaks("redaction", "fork", "edit", perhaps=True)
async def test_nobody_reads_what_was_not_made_for_them(
    seed: int, person: NewPerson, bot: NewBot, model: ModelServer, proxy: Proxy
) -> None:
    """F-001, F-002, F-003, F-004, X-037, X-056: in clear and encrypted, through kills, outages and lost answers."""
    people = await person("ann"), await person("ben"), await person("eve")
    daemon = await bot(people[0], via=proxy.url, matrix={"allowed_users": [people[1].user_id]})
    life = Life(seed, people, daemon, model, proxy)
    await life.furnish()
    await life.run(STEPS)
    problems = life.problems()
    assert not problems, "\n".join(problems)
    assert life.worth() >= 5, life.summary()
    assert life.grew() > 0, life.summary()
