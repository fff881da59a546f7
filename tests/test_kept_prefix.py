"""Random lives of a conversation: what a server has read it need not read again, until a fold.

A longer run, with seeds of its own, is a part of `make torture`.
"""

import pytest

from tests.world.growing import Growth
from tests.world.story import Story

pytestmark = pytest.mark.slow

STEPS = 60


@pytest.mark.parametrize("seed", [1, 2])
async def test_only_a_fold_begins_anew(story: Story, seed: int) -> None:
    """Issue 17: 95 % of the words between folds are kept, through calls, edits, nights and restarts."""
    life = Growth(seed, story.folder, story.model)
    await life.run(STEPS)
    problems = life.problems()
    assert not problems, "\n".join(problems)
    assert life.folds >= 1, life.summary()
    assert life.words() > 50_000, life.summary()
    print(life.summary())  # noqa: T201
