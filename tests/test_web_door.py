"""The web door: how somebody comes in, stays, and is sent away; what it takes, and from whom."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest
from playwright.async_api import expect

from tests.world.browser import accessible, browsing
from tests.world.clock import WITHIN, FakeClock
from tests.world.furnished import raw
from tests.world.house import open_house
from tests.world.model import ModelServer, Text
from tests.world.web import NewDoor, Served, changed, stranger, web_served
from tests.world.web import door as door
from wintermute.clock import stamp
from wintermute.config.schema import Secret

TOKEN = "a token of more than twenty characters"
PUBLIC = "https://wintermute.example.org"
JSON = {"Content-Type": "application/json"}


def _stored(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.glob("wintermute.db*"))


async def test_a_browser_comes_in_by_token_or_address_only(door: NewDoor, tmp_path: Path) -> None:
    """V-006, V-007, V-008, W-069, W-076: and nothing secret stays anywhere."""
    web = await door(is_idle=True, clock=(clock := FakeClock()))
    async with stranger(web) as ann, stranger(web) as other:
        answer = await ann.get("/sessions")
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert 'for="token"' in (await ann.get("/login")).text
        entered = await changed(ann, "/login", {"token": web.token})
        cookie = entered.headers["set-cookie"]
        assert entered.status_code == 204
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert "Secure" not in cookie
        assert "(this browser)" in (await ann.get("/sessions")).text
        address = await web.login_address()
        for purpose in ({"Sec-Purpose": "prefetch;prerender"}, {"X-Moz": "prefetch"}):
            assert (await other.get(address, headers=purpose)).status_code == 403
        assert (await other.head(address)).status_code == 405
        assert not other.cookies
        entered = await other.get(address)
        assert (entered.status_code, 'content="0; url=/"' in entered.text) == (200, True)
        assert (await other.get("/sessions")).status_code == 200
        async with stranger(web) as thief:
            used = await thief.get(address)
            assert (used.status_code, "works once" in used.text) == (403, True)
            stale = await web.login_address()
            clock.advance(601)
            assert (await thief.get(stale)).status_code == 403
            early = await web.login_address()
            clock.advance(-3600)  # the machine's clock is set right
            assert (await thief.get(early)).status_code == 403
            assert not thief.cookies
        kept = _stored(tmp_path)
        for secret in (web.token, address.rpartition("/")[2], *ann.cookies.values()):
            assert secret.encode() not in kept
        assert (tmp_path / "web.token").stat().st_mode & 0o777 == 0o600


async def test_a_session_ends_alone_with_all_or_by_age(tmp_path: Path, model: ModelServer) -> None:
    """V-008: it outlives a restart of the door, and nothing of what ends it."""
    clock = FakeClock()
    async with (
        open_house(tmp_path, model.url, clock=clock) as house,
        httpx2.AsyncClient(timeout=WITHIN) as ann,
    ):

        async def is_in(web: Served) -> bool:
            return (await ann.get(f"{web.base}/sessions")).status_code == 200

        async with web_served(house) as web:
            await ann.get(await web.login_address())
        async with web_served(house, token=Secret(TOKEN)) as web:
            assert not await is_in(web)
            assert (await web.get("/sessions")).status_code == 200
        async with web_served(house) as web:
            assert await is_in(web)  # the jar knows no ports, and the cookie no restart
            for days in (29, 29, 31):
                clock.advance(timedelta(days=days).total_seconds())
                assert await is_in(web) is (days < 30)
            await ann.get(await web.login_address())
            clock.advance(-timedelta(days=400).total_seconds())
            assert await is_in(web)
            clock.advance(timedelta(days=31).total_seconds())
            assert not await is_in(web)  # a clock set back makes nobody live longer
            await ann.get(await web.login_address())
            before, now = await web.login_address(), stamp(clock.now())
            async with house.database.transaction() as tx:
                copy = "INSERT INTO rollbacks (evidence, since, noticed_at) VALUES ('s', ?, ?)"
                await tx.execute(copy, (now, now))
            assert not await is_in(web)
            assert (await ann.get(before)).status_code == 403
            async with stranger(web) as bob:
                await ann.get(await web.login_address())
                await bob.get(await web.login_address())
                assert (await web.get("/sessions")).text.count("data-end=") == 3
                own = (await house.one("SELECT max(seq) AS seq FROM web_sessions"))["seq"]
                assert (await changed(bob, f"/api/sessions/{own}/end", {})).json() == {"ended": 1}
                assert (await bob.get("/sessions")).status_code == 303
                assert await is_in(web)
                gone = await web.post(f"/api/sessions/{own}/end", {})
                assert (gone.status_code, set(gone.json())) == (404, {"error", "what_to_do"})
                await web.post("/api/sessions/end", {})
                assert not await is_in(web)


async def test_the_streams_of_a_session_end_with_it_and_no_others(door: NewDoor) -> None:
    """V-004, V-008: by the button, and where the session is gone, before anything more is told."""
    web, said = await door(), "/api/chats/first/messages"
    async with stranger(web) as ann, stranger(web) as bob, stranger(web) as eve:
        for each in (ann, eve, bob):
            await each.get(await web.login_address())
        await changed(ann, said, {"key": "1", "text": "hello"})
        hers, gone, his = [
            each.stream("GET", "/api/chats/first/stream") for each in (ann, eve, bob)
        ]
        async with hers as answer, gone as old, his as ended, asyncio.timeout(WITHIN):
            assert {each.status_code for each in (answer, old, ended)} == {200}
            heard, lost = answer.aiter_lines(), old.aiter_lines()
            await anext(lost)
            own = (await web.house.one("SELECT max(seq) AS seq FROM web_sessions"))["seq"]
            await changed(bob, f"/api/sessions/{own}/end", {})
            await ended.aread()  # to its end, which is one in order
            async with web.house.database.transaction() as tx:
                await tx.execute("DELETE FROM web_sessions WHERE seq = ?", (own - 1,))
            await changed(ann, said, {"key": "2", "text": "still here"})
            assert "still here" not in "".join([line async for line in lost])
            while "still here" not in await anext(heard):
                pass
            await changed(ann, "/api/sessions/end", {})
            async for _ in heard:
                pass


@pytest.mark.slow  # for it waits as long as the door does
async def test_who_does_not_read_is_cut_off_when_the_session_ends(door: NewDoor) -> None:
    """V-008: an end that waits to be read would keep the request for ever."""
    web = await door(is_idle=True)
    async with stranger(web) as ann:
        for n in range(20):
            await web.post("/api/chats/first/messages", {"key": str(n), "text": "& " * 30_000})
        entered = await ann.get(await web.login_address())
        cookie = entered.headers["set-cookie"].partition(";")[0]
        host, port = web.base.removeprefix("http://").split(":")
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect((host, int(port)))
            stream = "GET /api/chats/first/stream HTTP/1.1"
            slow.sendall(f"{stream}\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode())
            slow.setblocking(False)
            async with asyncio.timeout(WITHIN):
                assert await asyncio.get_running_loop().sock_recv(slow, 9) == b"HTTP/1.1 "
                assert _is_connected(slow)
                await web.post("/api/sessions/end", {})
                while _is_connected(slow):  # noqa: ASYNC110  no event tells of it
                    await asyncio.sleep(0.05)


def _is_connected(client: socket.socket) -> bool:
    """Ask the kernel if the door still holds its end of a connection."""
    ends = f":{client.getpeername()[1]:04X} ", f":{client.getsockname()[1]:04X} 01 "
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return any(all(end in line for end in ends) for line in lines)


async def test_wrong_tokens_are_slowed_down_and_nobody_else_is(door: NewDoor) -> None:
    """V-007: five a minute in all, as Bearer too; sessions and login addresses go on."""
    web = await door(is_idle=True, clock=(clock := FakeClock()))
    async with stranger(web) as ann, stranger(web) as eve:
        await ann.get(await web.login_address())
        for n in range(5):
            refused = await (
                changed(eve, "/login", {"token": "wrong"})
                if n % 2
                else eve.get("/wiki", headers={"Authorization": "Bearer wrong"})
            )
            assert (refused.status_code, web.token in refused.text) == (401, False)
        clock.advance(20)
        for slowed in (await changed(eve, "/login", {"token": web.token}), await web.get("/wiki")):
            assert (slowed.status_code, slowed.headers["retry-after"]) == (429, "40")
            assert "40 seconds" in slowed.text
        assert (await ann.get("/sessions")).status_code == 200
        assert (await eve.get(await web.login_address())).status_code == 200
        clock.advance(40)
        assert (await web.get("/sessions")).status_code == 200


OURS = {"Origin": "{base}"}
LET_IN = 404
"""There is no session of number 0."""
CHANGES: tuple[tuple[Mapping[str, str], str, int], ...] = (
    (JSON | OURS, "{}", LET_IN),
    (JSON | {"Sec-Fetch-Site": "same-origin"}, "{}", LET_IN),
    (JSON | {"Origin": PUBLIC}, "{}", LET_IN),
    (JSON, "{}", 403),
    (JSON | {"Origin": "null"}, "{}", 403),
    (JSON | {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, "{}", 403),
    (JSON | {"Origin": "http://127.0.0.1:1"}, "{}", 403),
    (JSON | {"Origin": "https://{host}"}, "{}", 403),
    (JSON | {"Origin": "http://[::1"}, "{}", 403),
    (JSON | {"Sec-Fetch-Site": "same-site"}, "{}", 403),
    (JSON | OURS | {"Sec-Fetch-Site": "cross-site"}, "{}", 403),
    (JSON | {"X-Forwarded-Host": "evil.example", "Origin": "http://evil.example"}, "{}", 403),
    (OURS | {"Content-Type": "application/x-www-form-urlencoded"}, "a=b", 403),
    (OURS | {"Content-Type": "text/plain"}, "{}", 403),
    (OURS, "{}", 403),
)
BODIES: tuple[tuple[Mapping[str, str], str, int], ...] = (
    ({}, '{"a": [1, "\\u00e9"]}', LET_IN),
    ({}, "{", 400),
    ({}, '{"a": NaN}', 400),
    ({}, '{"a": "\\ud800"}', 400),
    ({}, '{"a\\u0000": 1}', 400),
    ({}, '{"a": "\xff"}', 400),
    ({}, "[" * 100_000, 400),
    ({}, "[" * 40 + "]" * 40, 400),
    ({}, f"[{'[],' * 333_000}[]]", 400),
    ({}, f"[{'[],' * 100}[]]", LET_IN),
    ({}, " " * 1_000_001, 413),
    ({"Content-Length": "99999999999999999999"}, "", 413),
    ({"Content-Length": "-1"}, "", 400),
    ({"X-Long": "x" * 20_000}, "{}", 431),
    ({"Upgrade": "websocket", "Connection": "Upgrade, close"}, "{}", 400),
)


async def test_a_change_comes_from_our_pages_as_json(tmp_path: Path, model: ModelServer) -> None:
    """V-009, V-011, V-012, W-070: with a cookie; a token needs no origin, and JSON all the same."""
    async with (
        open_house(tmp_path, model.url) as house,
        web_served(house, public_url=PUBLIC) as web,
        stranger(web) as ann,
    ):
        host = web.base.removeprefix("http://")
        for asked, is_secure in (
            ({"Host": PUBLIC.removeprefix("https://")}, True),
            ({"X-Forwarded-Proto": "https"}, True),
            ({}, False),
        ):
            entered = await ann.get(await web.login_address(), headers=asked)
            cookie, *attributes = entered.headers["set-cookie"].split("; ")
            assert ("Secure" in attributes) is is_secure, asked
        for size, status in ((8_100, 400), (8_200, 413), (1_000_000, 413)):
            strange = b'{"a": "%s"}' % (b"x" * size)
            head = {**JSON, "Origin": web.base}
            assert (await raw(web, "POST", "/login", head, strange)).status == status, size

        async def sent(head: Mapping[str, str], body: str) -> int:
            answer = await raw(web, "POST", "/api/sessions/0/end", head, body.encode("latin-1"))
            assert answer.status == 400 or set(json.loads(answer.body)) == {"error", "what_to_do"}
            return answer.status

        token = {"Authorization": f"Bearer {web.token}"}
        for given, body, status in CHANGES:
            head = {name: text.format(base=web.base, host=host) for name, text in given.items()}
            assert await sent(head | {"Cookie": cookie}, body) == status, given
            is_json = given.get("Content-Type") == "application/json"
            assert await sent(head | token, body) == (LET_IN if is_json else 403), given
        for given, body, status in BODIES:
            assert await sent({**JSON, **token, **given}, body) == status, (given, body[:40])


@pytest.mark.slow  # for it waits as long as the door does
async def test_slow_senders_and_crowds_hold_up_no_room(door: NewDoor, model: ModelServer) -> None:
    """V-012: a head or a body that does not arrive, more connections than anybody needs."""
    model.script(Text("There you are."))
    web = await door()
    address = web.base.removeprefix("http://").split(":")
    head = f"POST /login HTTP/1.1\r\nHost: {address[0]}\r\nOrigin: http://{address[0]}\r\n"
    starts = (
        "",
        "GET",
        head,
        f"{head}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n1",
    )
    slow = [await asyncio.open_connection(*address) for _ in starts * 60]
    for (_, writer), start in zip(slow, starts * 60, strict=True):
        writer.write(start.encode())
    await web.house.incoming("Is anybody there?")
    assert await web.house.said(1) == ["There you are."]
    async with asyncio.timeout(20):
        ends = await asyncio.gather(*(_end(reader) for reader, _ in slow))
    assert {end.split(b"\r\n")[0] for end in ends} <= {b"", b"HTTP/1.1 408 Request Timeout"}
    for _, writer in slow:
        writer.close()
    assert (await web.get("/sessions")).status_code == 200


async def _end(reader: asyncio.StreamReader) -> bytes:
    with suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_a_bug_disturbs_nothing_else(door: NewDoor, caplog: pytest.LogCaptureFixture) -> None:
    """V-005: in a page, in the API, and in the checks themselves."""
    web = await door(is_idle=True)
    async with stranger(web) as ann:
        await ann.get(await web.login_address())
        async with web.house.database.transaction() as tx:
            await tx.execute("DROP TABLE web_sessions")
        for broken in (await web.get("/sessions"), await ann.get("/wiki")):
            assert (broken.status_code, "Wintermute made a mistake" in broken.text) == (500, True)
            assert "default-src 'none'" in broken.headers["content-security-policy"]
        told = await web.post("/api/sessions/end", {})
        assert (told.status_code, set(told.json())) == (500, {"error", "what_to_do"})
        assert [record.name for record in caplog.records if record.exc_info] == (
            ["wintermute.web.app"] * 3
        )
        assert "web_sessions" in caplog.text
        assert (await web.get("/wiki")).status_code == 200


@asynccontextmanager
async def another_site(link: str) -> AsyncIterator[str]:
    """A site under another name, with a link."""
    page = f'<!doctype html><title>Elsewhere</title><link rel="icon" href="data:,"><a href="{link}">go</a>'
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"{head}{page}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/"


@pytest.mark.slow
async def test_a_real_browser_comes_in_from_another_site(door: NewDoor, chromium: str) -> None:
    """V-006, V-007, V-008, V-010: a strict cookie stays behind at a link elsewhere, and does not matter."""
    web = await door(is_idle=True)
    async with (
        browsing(
            web, chromium, ["401", "DISCONNECTED", "left the host: http://localhost:"]
        ) as browser,
        another_site(await web.login_address()) as inviting,
        another_site(f"{web.base}/sessions") as linking,
    ):
        profile = await browser.profile(logged_in=False)
        page = await profile.new_page()
        await page.goto(inviting)
        await page.get_by_role("link").click()
        await page.wait_for_url(f"{web.base}/")
        await page.goto(linking)
        await page.get_by_role("link").click()
        await expect(page.get_by_role("button", name="Log out session")).to_be_visible()
        assert await page.evaluate("document.referrer") in ("", f"{web.base}/sessions")
        assert await accessible(page) == []
        await profile.set_offline(True)
        await page.get_by_role("button", name="Log out session").click()
        await expect(page.get_by_role("alert")).to_contain_text("No session was ended.")
        await profile.set_offline(False)
        await page.get_by_role("button", name="Log out session").click()
        await page.wait_for_url(f"{web.base}/login")
        await page.goto(linking)  # without a session the page loads itself once, not for ever
        await page.get_by_role("link").click()
        await page.wait_for_url(f"{web.base}/login")
        assert await accessible(page) == []
        await page.get_by_label("Token").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_contain_text("This is not the token.")
        await page.get_by_label("Token").fill(web.token)
        await page.keyboard.press("Enter")
        await page.wait_for_url(f"{web.base}/")
        bare = await browser.profile(logged_in=False, java_script_enabled=False)
        plain = await bare.new_page()
        await plain.goto(await web.login_address())
        await plain.wait_for_url(f"{web.base}/")
