"""Every route of the web door, by the table of the application: who is let in, with what, and what is told."""

import asyncio
import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.world.furnished import CHAT, SECRET, Furnished, NewHome, raw
from tests.world.furnished import furnish as furnish
from tests.world.web import door as door
from tests.world.web import stranger, web_served

OPEN = {"/healthz", "/login", "/login/{key}", "/static"}
"""Addresses that answer without a session; each is here because somebody decided it (V-006)."""
JSON = {"Content-Type": "application/json"}
PROBLEM = {"error", "what_to_do"}
TRAVERSAL = """
    ../secret ../../secret.md semantic/../../secret ..%2fsecret %2e%2e%2fsecret.md . .. %2e ~root CON
    %2e%2e/%2e%2e/secret ..%5csecret ..%252fsecret ....//secret %2e%2e%00/secret %20 %00 meta/outside.json
    secret.md%00.md %c0%ae%c0%ae/secret %ed%a0%80 %ff%fe //secret /etc/passwd %2fetc%2fpasswd semantic/Pipe
    file:%2f%2f/etc/passwd semantic/Link semantic/Linked/secret %3cscript%3e %f0%9f%9a%80
"""
OTHERS, GROUPS = "CANARY-OF-BOB", "CANARY-OF-THE-GROUP"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
ENDLESS = "/(stream|generate)$"


async def test_every_route_wants_a_session_and_is_described(furnish: NewHome) -> None:
    """V-006, V-031, W-070: by the route table, so that a new route cannot be forgotten."""
    home = await furnish()
    assert {route.path for route in home.routes} >= {"/", "/wiki", "/healthz", "/static"}
    assert not [
        route for route in home.routes if route.threads
    ]  # V-029: each waits for a busy loop
    for route in home.routes:
        if route.path in OPEN:
            continue
        head, body = JSON | {"Origin": home.web.base}, b"" if route.method == "GET" else b"{}"
        for cookie in ("", "wintermute=wrong", "wintermute=" + "x" * 5000):
            asked = route.method, home.address(route), head | {"Cookie": cookie}, body
            answer = await raw(home.web, *asked)
            if route.is_api or route.method != "GET":
                assert (answer.status, set(json.loads(answer.body))) == (401, PROBLEM), route
            else:
                assert (answer.status, answer.head["location"]) == (303, "/login"), route
    health = await raw(home.web, "GET", "/healthz")
    assert (health.status, health.body.strip()) == (200, "ok")
    described = (await home.web.get("/openapi.json")).json()["paths"]
    known = {(verb.upper(), path) for path, verbs in described.items() for verb in verbs}
    plain = {(r.method, r.path.replace(":path}", "}")) for r in home.routes if r.is_api}
    assert plain - known == {("GET", "/openapi.json")}
    for path, verbs in described.items():
        for verb, operation in verbs.items():
            assert "401" in operation["responses"], (verb, path)
            assert operation["description"], (verb, path)


async def test_each_answer_has_its_headers_and_a_foreign_host_none(furnish: NewHome) -> None:
    """V-009, V-010: pages, JSON and errors; a foreign name is told what to write into the configuration."""
    home = await furnish()
    bearer = {"Authorization": f"Bearer {home.web.token}"}
    gets = [home.address(route) for route in home.routes if route.method == "GET"]
    strange = "/nothing-here", "/api/nothing-here", "/static/none.js", "/wiki/no/Page"
    for address in (*gets, *strange):
        kept = {"x-content-type-options": "nosniff", "referrer-policy": "same-origin"}
        if address.startswith("/login/"):
            kept["referrer-policy"] = "no-referrer"  # V-007: the key is in the address
        if not address.startswith("/static"):
            kept["cache-control"] = "no-store"
        for head in ({}, bearer, bearer | {"Host": "evil.test"}):
            answer = await raw(home.web, "GET", address, head)
            assert answer.head.items() >= kept.items(), address
            assert "Host" not in head or answer.status == 403, address
            policy = answer.head["content-security-policy"]
            for rule in (
                *("default-src 'none'", "frame-ancestors 'none'"),
                "require-trusted-types-for 'script'",
            ):
                assert rule in policy
            assert "unsafe" not in policy
            assert not [name for name in answer.head if name.startswith("access-control")]
            assert "server" not in answer.head
    for host in ("evil.test:8080", "127.0.0.1.evil.test", "localhost@evil.test", ""):
        for address in ("/", "/api/graph", "/login"):
            answer = await raw(home.web, "GET", address, bearer | {"Host": host})
            assert answer.status in ((403,) if host else (400, 403)), (host, address)
            there = f"public_url: http://{host}" if "evil.test:8080" in host else "public_url"
            assert there in answer.body or not host
            if answer.body[:1] == "<" and host:
                assert "<code>public_url:" in answer.body
                assert 'class="places"' not in answer.body
                assert "`" not in answer.body
    for good in ("localhost:9", "127.0.0.1", "[::1]:1345"):
        assert (await raw(home.web, "GET", "/wiki", bearer | {"Host": good})).status == 200, good


@pytest.mark.slow
async def test_no_path_leads_out_and_none_is_a_bug(furnish: NewHome, tmp_path: Path) -> None:
    """V-012, W-071, W-077: dots, encodings, links, a pipe that would hang, names that no file has."""
    home = await furnish()
    folder = home.pages.root / "semantic"
    (folder / "Link.md").symlink_to(tmp_path / "secret.md")
    (folder / "Linked").symlink_to(tmp_path)
    os.mkfifo(folder / "Pipe.md")
    head = JSON | {"Authorization": f"Bearer {home.web.token}", "Origin": home.web.base}
    writing = [route for route in home.routes if "{" in route.path and route.method != "GET"]
    for each in (*TRAVERSAL.split(), "a" * 4000, "a/" * 1000):
        asked = [("GET", address) for address in (*home.asked(each), f"/static/{each}")]
        for method, target in (*asked, *((route.method, route.at(each)) for route in writing)):
            answer = await raw(home.web, method, target, head, b"" if method == "GET" else b"{}")
            assert answer.status < 500, (method, target, answer.body)
            assert SECRET not in answer.body, (method, target)
            assert "root:" not in answer.body, (method, target)


async def test_no_page_shows_what_others_said_or_were_told(furnish: NewHome) -> None:
    """V-030, V-016, W-050: their conversations are nowhere; at the door of a store are none of the owner's."""
    home = await furnish()
    house, bob = home.web.house, "@bob:test"
    for text, room, scope in (
        (OTHERS, "!bob:test", f"person:{bob}"),
        (GROUPS, "!group:test", "room:!group:test"),
    ):
        who = partial(house.incoming, sender=bob, name=OTHERS, origin="other", direct=False)
        await who(text, room=room, scope=scope)
        await house.settled()
    of_others = "SELECT id, room_id FROM conversations WHERE scope <> ?"
    theirs = await house.rows(of_others, house.stores.owner.scope)
    assert {row["room_id"] for row in theirs} == {"!bob:test", "!group:test"}
    outbox = json.dumps(await house.rows("SELECT body FROM outbox"))
    assert (OTHERS in outbox, GROUPS in outbox) == (True, True)
    asked = [home.address(route) for route in home.routes if route.method == "GET"]
    for word in ("CANARY", OTHERS, *(row["id"] for row in theirs)):
        asked += home.asked(word)
    shown = 0
    for address in asked:
        if "/stream" not in address and not address.startswith("/static"):
            text = (await home.web.get(address)).text
            for word in (OTHERS, GROUPS):
                assert word in address or word not in text, address
            shown += "echo: hello" in text
    assert shown
    given = {"key": "key_1", "text": "hello"}
    async with web_served(house, is_store=True) as store:
        for row in theirs:
            api = f"/api/chats/{row['id']}"
            for address in (f"/chat/{row['id']}", f"{api}/messages", f"{api}/stream"):
                assert (await home.web.get(address)).status_code == 404, address
            answer = await home.web.post(f"{api}/messages", given)
            assert answer.status_code in (403, 404)
        for page in ("/", "/chat", f"/chat/{CHAT}"):
            found = await store.get(page)
            assert (found.status_code, found.headers["location"]) == (303, "/conversations")
        for path in ("", f"/{CHAT}/messages", f"/{CHAT}/stream"):
            assert (await store.get(f"/api/chats{path}")).status_code == 404
        assert (await store.post(f"/api/chats/{CHAT}/messages", given)).status_code == 404


async def made_up(home: Furnished, schema: Path, without: str, *more: str) -> str:
    """Ask made-up requests of each described route without those; what was wrong."""
    words = (
        *("run", str(schema), "--url", home.web.base, "--checks", CHECKS, *more),
        *("--max-examples", "20", "--phases", "examples,coverage,fuzzing", "--seed", "1"),
        *("--exclude-path-regex", without, "--suppress-health-check", "all"),
        *("--request-timeout", "20", "--no-color", "--warnings", "off", "--continue-on-failure"),
    )
    program, pipe = Path(sys.executable).with_name("schemathesis"), asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program, *words, cwd=schema.parent, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode()
    return "" if process.returncode == 0 else output


@pytest.mark.slow
async def test_made_up_requests_find_no_bug(furnish: NewHome, tmp_path: Path) -> None:
    """V-031: with a session and without one."""
    home = await furnish()
    schema = tmp_path / "asked" / "openapi.json"
    schema.parent.mkdir()
    schema.write_text((await home.web.get("/openapi.json")).text)
    assert await made_up(home, schema, ENDLESS) == ""
    async with stranger(home.web) as ann:
        entered = await ann.get(await home.web.login_address())
        cookie = entered.headers["set-cookie"].partition(";")[0]
        head = ("-H", f"Cookie: {cookie}", "-H", f"Origin: {home.web.base}")
        found = await made_up(home, schema, ENDLESS + "|^/(api/sessions|login)", *head)
        assert found == "", found
        assert (await ann.get("/api/chats")).status_code == 200  # so were those before it
