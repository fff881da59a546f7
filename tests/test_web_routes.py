"""Every route of the web door, by the table of the application: who is let in, from where, with which path."""

import json
import os
from pathlib import Path

import pytest

from tests.world.furnished import SECRET, furnished, raw
from tests.world.model import ModelServer

OPEN = {"/healthz", "/login", "/login/{key}", "/static"}
"""Addresses that answer without a session; each is here because somebody decided it (V-006)."""
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
}
TRAVERSAL = (
    "../secret",
    "../../secret.md",
    "semantic/../../secret",
    "..%2fsecret",
    "%2e%2e%2fsecret.md",
    "%2e%2e/%2e%2e/secret",
    "..%5csecret",
    "..%252fsecret",
    "....//secret",
    "%2e%2e%00/secret",
    "secret.md%00.md",
    "%c0%ae%c0%ae/secret",
    "%ed%a0%80",
    "%ff%fe",
    "//secret",
    "/etc/passwd",
    "%2fetc%2fpasswd",
    "file:%2f%2f/etc/passwd",
    "semantic/Link",
    "semantic/Linked/secret",
    "semantic/Pipe",
    "meta/outside.json",
    ".",
    "..",
    "%2e",
    "%20",
    "~root",
    "%3cscript%3e",
    "%00",
    "a" * 4000,
    "a/" * 1000,
    "CON",
    "%f0%9f%9a%80",
)


async def test_no_route_answers_without_a_session_but_those_that_are_meant_to(
    tmp_path: Path, model: ModelServer
) -> None:
    """V-006, W-070: by the route table, so that a new route cannot be forgotten."""
    async with furnished(tmp_path, model) as home:
        table = list(home.routes)
        assert {route.path for route in table} >= {"/", "/wiki", *OPEN - {"/login", "/login/{key}"}}
        assert not [route for route in table if route.threads]  # V-029: each waits for a busy loop
        for route in table:
            if route.path in OPEN:
                continue
            address = home.address(route)
            post = {"Origin": home.web.base, "Content-Type": "application/json"}
            body = b"" if route.method == "GET" else b"{}"
            for cookie in ("", "wintermute=wrong", "wintermute=" + "x" * 5000):
                answer = await raw(home.web, route.method, address, post | {"Cookie": cookie}, body)
                if route.is_api or route.method != "GET":
                    assert (answer.status, set(json.loads(answer.body))) == (
                        401,
                        {"error", "what_to_do"},
                    ), route
                else:
                    assert answer.status == 303, route
                    assert answer.head["location"].startswith("/login"), route
        health = await raw(home.web, "GET", "/healthz")
        assert (health.status, health.body.strip()) == (200, "ok")


async def test_each_page_and_answer_has_the_headers_that_keep_strangers_out(
    tmp_path: Path, model: ModelServer
) -> None:
    """V-010, V-009: whatever the answer is, a page, JSON, an error; and nothing allows another origin."""
    async with furnished(tmp_path, model) as home:
        bearer = {"Authorization": f"Bearer {home.web.token}"}
        gets = [home.address(route) for route in home.routes if route.method == "GET"]
        for address in (
            *gets,
            "/nothing-here",
            "/api/nothing-here",
            "/static/none.js",
            "/wiki/no/Page",
        ):
            for head in ({}, bearer, bearer | {"Host": "evil.test"}):
                answer = await raw(home.web, "GET", address, head)
                kept = {k: v for k, v in HEADERS.items() if k != "cache-control"}
                private = not address.startswith("/static")
                if address.startswith("/login/"):
                    kept["referrer-policy"] = "no-referrer"  # V-007: the key is in the address
                for name, value in ((HEADERS | kept) if private else kept).items():
                    assert answer.head.get(name) == value, (address, name)
                policy = answer.head["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "require-trusted-types-for 'script'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "unsafe" not in policy
                assert not [name for name in answer.head if name.startswith("access-control")]
                assert "server" not in answer.head


@pytest.mark.slow
async def test_no_path_leads_out_of_the_folder_and_none_is_a_bug(
    tmp_path: Path, model: ModelServer
) -> None:
    """V-012, W-071, W-077: dots, encodings, links, a pipe that would hang, names that no file has."""
    async with furnished(tmp_path, model) as home:
        folder = home.pages.root / "semantic"
        (folder / "Link.md").symlink_to(tmp_path / "secret.md")
        (folder / "Linked").symlink_to(tmp_path)
        os.mkfifo(folder / "Pipe.md")
        head = {
            "Authorization": f"Bearer {home.web.token}",
            "Origin": home.web.base,
            "Content-Type": "application/json",
        }
        asked = [("GET", address) for each in TRAVERSAL for address in home.asked(each)]
        asked += [("GET", f"/static/{each}") for each in TRAVERSAL]
        asked += [
            (route.method, route.at(each))
            for route in home.routes
            if "{" in route.path and route.method != "GET"
            for each in TRAVERSAL
        ]
        for method, target in asked:
            answer = await raw(home.web, method, target, head, b"" if method == "GET" else b"{}")
            assert answer.status < 500, (method, target, answer.body)
            assert SECRET not in answer.body, (method, target)
            assert "root:" not in answer.body, (method, target)


async def test_a_foreign_host_is_shown_nothing_but_what_to_write_into_the_configuration(
    tmp_path: Path, model: ModelServer
) -> None:
    """V-009: with a session as well, for pages, the API, and files; the port does not matter."""
    async with furnished(tmp_path, model) as home:
        head = {"Authorization": f"Bearer {home.web.token}"}
        for host in ("evil.test:8080", "127.0.0.1.evil.test", "localhost@evil.test", ""):
            for address in ("/", "/wiki", "/api/graph", "/login", "/openapi.json"):
                answer = await raw(home.web, "GET", address, head | {"Host": host})
                assert answer.status in ((403,) if host else (400, 403)), (host, address)
                there = f"public_url: http://{host}" if "evil.test:8080" in host else "public_url"
                assert there in answer.body or not host
                is_page = answer.body[:1] == "<"
                assert not (is_page and host) or "<code>public_url:" in answer.body
                assert not is_page or (
                    'class="places"' not in answer.body and "`" not in answer.body
                )
        for good in ("localhost:9", "127.0.0.1", "[::1]:1345"):
            answer = await raw(home.web, "GET", "/wiki", head | {"Host": good})
            assert answer.status == 200, good
