"""The homeserver refuses the bot's account until a person does something: all waits, and goes on by itself."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.world.bot import Bot, said
from tests.world.clock import WITHIN
from tests.world.duties import is_send
from tests.world.proxy import Answer, Proxy, Request, pass_before
from tests.world.scene import NewBot, NewPerson, NewRoom
from wintermute.errors import AccountBlocked, HomeserverUnavailable
from wintermute.matrix.http import refuse

TERMS = "https://hs.example/_matrix/consent?u=bot&h=0a1b"
CONSENT = Answer(403, {"errcode": "M_CONSENT_NOT_GIVEN", "error": "no", "consent_uri": TERMS})
LOCKED = Answer(401, {"errcode": "M_USER_LOCKED", "error": "locked", "soft_logout": True})


@pytest.mark.parametrize(
    ("status", "more", "told"),
    [
        (403, {"errcode": "M_CONSENT_NOT_GIVEN", "consent_uri": TERMS}, f"them: {TERMS}"),
        (
            400,
            {"errcode": "M_RESOURCE_LIMIT_EXCEEDED", "admin_contact": "mailto:ann@hs.example"},
            "admin: mailto:ann@hs.example",
        ),
        (401, {"errcode": "M_USER_LOCKED", "soft_logout": True}, "locked the bot's account"),
        (401, {"errcode": "M_USER_LOCKED"}, "locked the bot's account"),
        (401, {"errcode": "M_CONSENT_NOT_GIVEN", "soft_logout": True}, "accept them"),
        (403, {"errcode": "M_USER_SUSPENDED", "admin_contact": "@root:hs.example"}, "@root:hs.ex"),
        (429, {"errcode": "M_USER_SUSPENDED", "retry_after_ms": 5}, "suspended"),
    ],
)
def test_a_refusal_of_the_account_waits_a_minute_and_names_the_address(
    status: int, more: dict[str, object], told: str
) -> None:
    """F-046: the code decides, not the status beside it; no login is wanted."""
    with pytest.raises(AccountBlocked) as caught:
        refuse(status, more)
    assert told in str(caught.value)
    assert caught.value.retry_after == 60


@pytest.mark.parametrize(
    "address",
    [
        *(
            "javascript:alert(1)",
            "https://a b",
            "https://a\x1b[31m",
            "https://a)[x](b",
            "",
            7,
            None,
        ),
        *(f"https://{'a' * 600}", "https://a\nYou are free now", "say yes", ["https://a"]),
    ],
)
def test_an_address_that_could_say_something_else_is_left_out(address: object) -> None:
    """F-046: it is shown in terminals and in chats, as Markdown."""
    with pytest.raises(AccountBlocked) as caught:
        refuse(403, {"errcode": "M_CONSENT_NOT_GIVEN", "consent_uri": address, "error": "<b>"})
    assert str(caught.value).endswith("accept them")


def test_a_code_that_is_none_is_no_refusal_of_the_account() -> None:
    """F-046: it may be anything."""
    with pytest.raises(HomeserverUnavailable) as caught:
        refuse(400, {"errcode": ["M_USER_LOCKED"]})
    assert not isinstance(caught.value, AccountBlocked)


def messages_taken(daemon: Bot) -> int:
    return len(daemon.rows("SELECT 1 FROM inbox WHERE kind = 'message'"))


async def minutes_pass(daemon: Bot, true: Callable[[], bool]) -> None:
    """Let minutes pass until something is so: who has just been refused sleeps from then on."""
    async with asyncio.timeout(WITHIN):
        while not true():
            daemon.pass_time(61)
            with suppress(TimeoutError):
                await daemon.until(true, within=0.5)


async def status(daemon: Bot) -> str:
    return (await daemon.command("status", "--all"))[1]


async def test_what_waits_for_the_account_arrives_in_order_without_a_restart(
    person: NewPerson, bot: NewBot, room: NewRoom, proxy: Proxy
) -> None:
    """F-046: refused sends, then refused syncs."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    chat = await room(ann, daemon, encrypted=True)
    pid, logins = daemon.pid, len(proxy.seen("POST", "/login"))
    proxy.before = lambda request: CONSENT if is_send(request) else None
    for text in ("one", "two"):
        await ann.send(chat, text)
    await daemon.until(lambda: len(daemon.rows("SELECT 1 FROM outbox WHERE kind = 'reply'")) == 2)
    await daemon.logged("send delayed")
    assert TERMS in await status(daemon)
    tried = len([r for r in proxy.requests if is_send(r)])
    await minutes_pass(daemon, lambda: len([r for r in proxy.requests if is_send(r)]) > tried)
    proxy.before = pass_before
    await minutes_pass(
        daemon, lambda: not daemon.rows("SELECT 1 FROM outbox WHERE state = 'waiting'")
    )
    assert TERMS not in await status(daemon)

    def locked(request: Request) -> Answer | None:
        return LOCKED if request.path.endswith(("/sync", "/login")) else None

    proxy.before = locked
    await ann.send(chat, "three")  # by the poll that was open already
    await daemon.logged("locked the bot's account")
    await ann.send(chat, "four")
    assert "locked the bot's account" in await status(daemon)
    proxy.before = pass_before
    await minutes_pass(daemon, lambda: messages_taken(daemon) == 4)
    await ann.wait_for_count(chat, daemon.user_id, 4)
    echoes = [f"echo: {text}" for text in ("one", "two", "three", "four")]
    assert await said(ann, chat, daemon.user_id) == echoes
    assert (daemon.pid, len(proxy.seen("POST", "/login"))) == (pid, logins)
