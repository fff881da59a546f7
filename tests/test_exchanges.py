"""Somebody who answers the bot at once, each time, is a program: it is answered once a minute."""

from dataclasses import replace
from typing import Any

import pytest

from tests.world.bot import said
from tests.world.forger import Forger
from tests.world.model import ModelServer
from tests.world.proxy import Proxy
from tests.world.scene import Scene
from wintermute.mailbox.rate_limit import RecentExchange, exchange_after

START = 1_700_000_000_000
Step = tuple[str, int]
"""The speaker, "" for the bot, and the milliseconds since the message before."""


def played(*steps: Step) -> RecentExchange:
    exchange, now = RecentExchange(), START
    for sender, later in steps:
        now += later
        exchange = (
            exchange_after(exchange, sender, now) if sender else replace(exchange, said_ms=now)
        )
    return exchange


ROUND: tuple[Step, ...] = (("", 5000), ("bot", 2000))
PACED = ROUND * 10


@pytest.mark.parametrize(
    ("steps", "paced"),
    [
        (ROUND * 9, ""),
        (PACED, "bot"),
        ((("", 0), *(("bot", 100),) * 30), ""),
        ((("", 5000), ("bot", 100), ("bot", 100)) * 10, "bot"),
        ((*ROUND * 9, ("", 5000), ("bot", 2001), *ROUND * 9), ""),
        ((*ROUND * 9, ("ann", 50), *ROUND * 9), ""),
        ((*ROUND * 9, ("ann", 50), *ROUND * 10), "bot"),
        (((("bot", 1),) * 30), ""),
        ((*PACED, ("", 60_000), ("bot", 9000)), "bot"),
        ((*PACED, ("", 60_000), ("bot", 10_000)), "bot"),
        ((*PACED, ("", 60_000), ("bot", 10_001)), ""),
        ((*PACED, ("", 60_000), ("bot", 10_001), *ROUND * 9), ""),
        ((*PACED, ("", 60_000), ("ann", 20_000)), "bot"),
        ((*PACED, ("", 5000), ("bot", -9000)), "bot"),
        ((*ROUND * 9, ("", 5000), ("bot", -1)), ""),
    ],
)
def test_ten_quick_answers_are_those_of_a_program(steps: tuple[Step, ...], paced: str) -> None:
    """F-048."""
    assert played(*steps).paced == paced


class Stamps:
    """Has the homeserver say that each event of the rooms came so long after the one before it."""

    def __init__(self) -> None:
        self.seconds = 1.0
        self._at: dict[str, int] = {}
        self._last = 0

    def __call__(self, _room: str, event: dict[str, Any]) -> dict[str, Any]:
        if event["event_id"] not in self._at:
            self._last = (self._last or event["origin_server_ts"]) + int(self.seconds * 1000)
            self._at[event["event_id"]] = self._last
        return event | {"origin_server_ts": self._at[event["event_id"]]}


async def test_a_program_that_answers_at_once_is_answered_once_a_minute_and_never_left_out(
    scene: Scene, proxy: Proxy, model: ModelServer
) -> None:
    """F-048, X-032: told once; a restart forgets nothing; who takes their time is answered at once."""
    ann = await scene.person("ann")
    daemon = await scene.bot(ann, via=proxy.url)
    chat = await scene.room(ann, daemon)
    stamps = Stamps()
    Forger.at(proxy).change = stamps
    await ann.send(chat, "hello")
    for n in range(9):
        await ann.wait_for_count(chat, daemon.user_id, n + 1)
        await ann.send(chat, f"ping {n}")
    await ann.wait_for_count(chat, daemon.user_id, 10)
    await ann.send(chat, "ping 9")
    await ann.wait_for(chat, lambda m: "once a minute" in m.body)
    await ann.send(chat, "ping 10")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE body = 'ping 10'")))
    await daemon.restart()
    asked = len(model.requests)
    daemon.pass_time(61)
    await ann.wait_for_count(chat, daemon.user_id, 12)
    assert len(model.requests) == asked + 1
    assert all(f"ping {n}" in model.requests[-1].last_user for n in (9, 10))

    await ann.send(chat, "ping 11")
    await daemon.until(lambda: bool(daemon.rows("SELECT 1 FROM inbox WHERE body = 'ping 11'")))
    stamps.seconds = 11
    await ann.send(chat, "now by hand")
    await ann.wait_for_count(chat, daemon.user_id, 13)
    assert "ping 11" in model.requests[-1].last_user
    stamps.seconds = 1
    await ann.send(chat, "and on")
    await ann.wait_for(chat, lambda m: m.body == "echo: and on")
    daemon.pass_time(61)
    await daemon.said_all()
    told = [text for text in await said(ann, chat, daemon.user_id) if "once a minute" in text]
    assert len(told) == 1
    assert not daemon.rows("SELECT 1 FROM inbox WHERE not_before IS NOT NULL")
