"""A message in a real Matrix room gets an answer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.user import MatrixUser

Person = Callable[[str], MatrixUser]


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
async def test_a_message_is_answered_once_and_in_order(
    encrypted: bool,
    homeserver: Homeserver,
    person: Person,
    fresh: Callable[[str], str],
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """X-001, X-002, X-015."""
    bot_login = homeserver.user(fresh("bot"))
    async with person("ann") as ann:
        config = write_settings(tmp_path / "bot", homeserver.url, bot_login, model.url, ann.user_id)
        async with Bot(config) as bot:
            room = await ann.create_room(invite=[bot_login.user_id], encrypted=encrypted)
            await ann.wait_joined(room, bot_login.user_id)
            for n in range(3):
                await ann.send(room, f"hello {n}")
            answers = await ann.wait_for_count(room, bot_login.user_id, 3)
            assert [answer.body for answer in answers] == [f"echo: hello {n}" for n in range(3)]
            assert all(answer.encrypted == encrypted for answer in answers)
            assert await bot.stop() == 0
