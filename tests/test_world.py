"""The world that other tests stand on does what they take for granted."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.world.clock import WITHIN
from tests.world.homeserver import Homeserver
from tests.world.proxy import Action, Answer, Cut, Hang, Proxy, Request, pass_before
from tests.world.scene import NewName, NewPerson
from tests.world.user import MatrixUser

VERSIONS = "/_matrix/client/versions"


@pytest.fixture
async def web() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.mark.parametrize("encrypted", [False, True])
async def test_what_one_user_says_another_reads(person: NewPerson, encrypted: bool) -> None:
    ann, bob = await person("ann"), await person("bob")
    room = await ann.create_room([bob.user_id], encrypted=encrypted)
    await bob.join(room)
    await ann.wait_joined(room, bob.user_id)

    sent = await ann.send(room, "good morning")
    got = await bob.wait_for(room, lambda message: message.sender == ann.user_id)
    assert (got.event_id, got.body, got.encrypted) == (sent, "good morning", encrypted)

    await bob.send(room, "to you too")
    assert [m.body for m in await ann.wait_for_count(room, bob.user_id, 1)] == ["to you too"]
    assert [m.body for m in await bob.history(room)] == ["good morning", "to you too"]


async def test_a_user_sees_typing_receipts_and_reactions(person: NewPerson) -> None:
    ann, bob = await person("ann"), await person("bob")
    room = await ann.create_room([bob.user_id])
    await bob.join(room)
    sent = await ann.send(room, "look")
    user = f"/_matrix/client/v3/rooms/{room}"

    await bob.api("PUT", f"{user}/typing/{bob.user_id}", {"typing": True, "timeout": 9000})
    await ann.until(lambda: bob.user_id in ann.typing(room))
    await bob.api("PUT", f"{user}/typing/{bob.user_id}", {"typing": False})
    await ann.until(lambda: not ann.typing(room))
    assert frozenset({bob.user_id}) in ann.typing_seen(room)

    await bob.api("POST", f"{user}/receipt/m.read/{sent}", {})
    await ann.until(lambda: ann.receipts(room).get(bob.user_id) == sent)

    reaction = await bob.react(room, sent, "👍")
    await ann.until(lambda: reaction in [event.event_id for event in ann.events(room)])


@pytest.mark.slow
async def test_a_restarted_homeserver_knows_its_users(tmp_path: Path, blank: Path) -> None:
    with Homeserver(tmp_path / "synapse", database=blank) as server:
        login = server.user("ann")
        async with MatrixUser(server.url, login, tmp_path / "ann") as ann:
            room = await ann.create_room()
            await asyncio.to_thread(server.stop, kill=True)
            await asyncio.to_thread(server.start)
            sent = await ann.send(room, "still here")
            await ann.wait_for(room, lambda message: message.event_id == sent)


async def test_the_proxy_carries_a_whole_client_and_notes_its_requests(
    homeserver: Homeserver, person: NewPerson, proxy: Proxy, tmp_path: Path, fresh: NewName
) -> None:
    ann = await person("ann")
    login = homeserver.user(fresh("bob"))
    async with MatrixUser(proxy.url, login, tmp_path / "bob") as bob:
        room = await ann.create_room([bob.user_id], encrypted=True)
        await bob.join(room)
        await ann.wait_joined(room, bob.user_id)
        await bob.send(room, "secret words")
        got = await ann.wait_for(room, lambda message: message.sender == bob.user_id)
        assert got.body == "secret words"
        (sending,) = proxy.seen("PUT", f"/rooms/{room}/send/")
        assert sending.json["algorithm"] == "m.megolm.v1.aes-sha2"
        assert not [r for r in proxy.requests if b"secret words" in r.body]


@pytest.mark.parametrize("after", [None, 0, 10])
async def test_the_proxy_cuts_an_answer_at_the_byte(
    proxy: Proxy, web: aiohttp.ClientSession, after: int | None
) -> None:
    heard: list[int] = []

    def hook(request: Request, status: int, body: bytes) -> Action:
        heard.append(status)
        return Cut(after)

    proxy.after = hook
    got = bytearray()
    with pytest.raises(aiohttp.ClientError):
        await read_into(got, web, proxy.url + VERSIONS)
    assert len(got) == (after or 0)
    assert set(heard) == {200}  # aiohttp itself asks once more when nothing came


async def test_the_proxy_answers_in_the_homeservers_place(
    proxy: Proxy, web: aiohttp.ClientSession
) -> None:
    proxy.before = lambda request: Answer(429, {"errcode": "M_LIMIT_EXCEEDED"})
    async with web.get(proxy.url + VERSIONS) as answer:
        assert (answer.status, await answer.json()) == (429, {"errcode": "M_LIMIT_EXCEEDED"})


async def test_a_proxy_that_is_down_refuses_and_comes_back_on_its_port(
    proxy: Proxy, web: aiohttp.ClientSession
) -> None:
    arrived = asyncio.Event()

    def hook(request: Request) -> Action:
        arrived.set()
        return Hang()

    proxy.before = hook
    async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as tasks:
        hanging = tasks.create_task(failure(web, proxy.url + VERSIONS))
        await arrived.wait()
        await proxy.down()
        assert await hanging
        assert await failure(web, proxy.url + VERSIONS)
    await proxy.up()
    proxy.before = pass_before
    assert not await failure(web, proxy.url + VERSIONS)


async def read_into(got: bytearray, web: aiohttp.ClientSession, url: str) -> None:
    """Collect an answer's body as it comes, to the end or to the break."""
    async with web.get(url) as answer:
        while chunk := await answer.content.readany():
            got += chunk


async def failure(web: aiohttp.ClientSession, url: str) -> bool:
    """Whether a request finds nobody who answers."""
    try:
        async with web.get(url) as answer:
            return answer.status >= 500
    except aiohttp.ClientError:
        return True
