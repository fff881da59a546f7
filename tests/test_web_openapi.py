"""The API as it is described, and asked by a machine that makes up requests from the description."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.world.furnished import Furnished, furnished
from tests.world.model import ModelServer

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
EXAMPLES = 20
ENDLESS = "/(stream|generate)$"


async def test_every_route_for_programs_is_described_with_its_errors(
    tmp_path: Path, model: ModelServer
) -> None:
    """V-031: a route that answers JSON cannot be forgotten; pages are not in it."""
    async with furnished(tmp_path, model) as home:
        described = (await home.web.get("/openapi.json")).json()["paths"]
        known = {(verb.upper(), path) for path, verbs in described.items() for verb in verbs}
        plain = {(r.method, r.path.replace(":path}", "}")) for r in home.routes if r.is_api}
        assert plain - known == {("GET", "/openapi.json")}
        for path, verbs in described.items():
            for verb, operation in verbs.items():
                assert "401" in operation["responses"], (verb, path)
                assert operation["description"], (verb, path)
        assert (
            await home.web.client.get(
                home.web.base + "/openapi.json", headers={"Authorization": ""}
            )
        ).status_code == 401


async def made_up(home: Furnished, schema: Path, without: str, *more: str) -> str:
    """Ask made-up requests of each described route without those; what was wrong."""
    words = (
        *("run", str(schema), "--url", home.web.base, "--checks", CHECKS, *more),
        *("--max-examples", str(EXAMPLES), "--phases", "examples,coverage,fuzzing", "--seed", "1"),
        *("--exclude-path-regex", without, "--suppress-health-check", "all"),
        *("--request-timeout", "20", "--no-color", "--warnings", "off", "--continue-on-failure"),
    )
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("schemathesis")), *words),
        cwd=schema.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    return "" if process.returncode == 0 else output


@pytest.mark.slow
async def test_made_up_requests_find_no_bug_and_no_answer_that_is_not_described(
    tmp_path: Path, model: ModelServer
) -> None:
    """V-031: with a session and without one."""
    async with furnished(tmp_path, model) as home:
        schema = tmp_path / "asked" / "openapi.json"
        schema.parent.mkdir()
        schema.write_text((await home.web.get("/openapi.json")).text)
        assert await made_up(home, schema, ENDLESS) == ""
        entered = await home.web.client.get(await home.web.login_address())
        cookie = entered.headers["set-cookie"].partition(";")[0]
        head = ("-H", f"Cookie: {cookie}", "-H", f"Origin: {home.web.base}")
        found = await made_up(home, schema, ENDLESS + "|^/(api/sessions|login)", *head)
        assert found == "", found
        logged_in = {"Cookie": cookie, "Authorization": ""}
        answer = await home.web.client.get(home.web.base + "/api/chats", headers=logged_in)
        assert answer.status_code == 200  # so were those before it
