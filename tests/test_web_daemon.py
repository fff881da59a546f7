"""The web door in the programs that open it: the daemon, `wintermute web`, `wintermute wiki web`."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx2
import pytest

from tests.world.bot import Bot, write_settings
from tests.world.clock import WITHIN
from tests.world.files import files_with
from tests.world.homeserver import Login, free_port
from tests.world.model import ModelServer
from tests.world.scene import NewBot, NewPerson, NewRoom
from tests.world.schema import lay_schema
from tests.world.units import merged, python_of_a_service
from tests.world.warm import Interpreter
from tests.world.web import changed, serving_daemon

WORD = "kakapo"
FRAMEWORK = re.compile(r"\b(fastapi|starlette|uvicorn|jinja2|pydantic)$")
STREAMS = 50
CLOSED = (
    ({"host": "192.0.2.1"}, "192.0.2.1 is no address of this machine"),
    ({"host": "no such host"}, "no such host is no address of this machine"),
    ({"token": {"file": "password"}, "host": "0.0.0.0"}, "web.token: is shorter than 20"),
    ({"token": {"file": "password"}, "public_url": "https://w.example"}, "web.token: is short"),
    ({"public_url": "https://w.example/below"}, "web.public_url: must be text like"),
    ({"token": {"file": "empty"}}, "is empty"),
)


def settings(folder: Path, model: ModelServer, **web: object) -> Path:
    """A configuration whose homeserver nobody needs."""
    login = Login("@bot:test", "token", "DEVICE", "password")
    nowhere = f"http://127.0.0.1:{free_port()}"
    path = write_settings(folder, nowhere, login, model.url, "@ann:test", web=dict(web))
    lay_schema(folder / "data" / "wintermute.db")
    return path


def login_address(said: list[str]) -> str:
    return next(line for line in said if "/login/" in line).split()[-1]


async def say(client: httpx2.AsyncClient, text: str, answer: str) -> None:
    """Send a message, and wait until the page shows words of its answer."""
    new = {"key": text.replace(" ", "-").strip("/"), "text": text}
    sent = await changed(client, "/api/chats/first/messages", new)
    assert sent.status_code == 202, sent.text
    async with asyncio.timeout(WITHIN):
        while answer not in (await client.get("/chat/first")).text:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_command_serves_and_answers_while_no_daemon_runs(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    """V-002, V-003, V-011, W-050, W-069: the folder locked; a second one logs in to the first."""
    (tmp_path / "empty").write_text("")
    for web, why in CLOSED:
        closed = await python.command("--config", str(settings(tmp_path, model, **web)), "web")
        (line,) = closed.stderr.decode().splitlines()
        assert (closed.returncode in (1, 2), why in line) == (True, True), line
    config, port, other = settings(tmp_path, model), free_port(), str(tmp_path / "other")
    given, base = ("--port", str(port)), f"http://127.0.0.1:{port}"
    async with serving_daemon(python, config, "web", *given) as said:
        assert any("Reminders, tasks and nights wait" in line for line in said)
        async with httpx2.AsyncClient(base_url=base, timeout=WITHIN) as ann:
            assert (await ann.get(login_address(said))).status_code == 200
            await say(ann, "hello", "echo: hello")
            for path in ("/chat", "/wiki", "/sessions"):
                page = (await ann.get(path)).text
                assert "Reminders, tasks and nights wait until you start" in page, path
        second = await python.command("--config", str(config), "web", *given)
        assert b"--host and --port have no effect" in second.stderr
        address = login_address(second.stdout.decode().splitlines())
        assert (second.returncode, address[:-43]) == (0, f"{base}/login/")
        for words in (("chat",), ("wiki", "web", "--store", other, *given)):
            refused = await python.command("--config", str(config), *words)
            assert refused.returncode == 1
        assert f"port {port} on 127.0.0.1 is taken" in (told := refused.stderr.decode())
        assert "set --port" in told
        await python.command("wiki", "init", "--store", other)
        beside = "wiki", "web", "--store", other, "--port", str(free_port())
        async with serving_daemon(python, config, *beside) as said, httpx2.AsyncClient() as ann:
            address = login_address(said)
            assert (await ann.get(address)).status_code == 200
            home = await ann.get(address.partition("/login")[0], follow_redirects=True)
            assert (home.status_code, home.url.path) == (200, "/conversations")
    exposed = "wiki", "web", "--host", "0.0.0.0", *given
    async with serving_daemon(python, config, *exposed) as said:
        assert any("other machines can reach the pages on 0.0.0.0" in line for line in said)
        assert login_address(said).startswith(base)


@pytest.mark.slow
async def test_words_are_forgotten_while_no_daemon_runs(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    """V-002, M-084: also where the command is ended in the middle of it, by the next one."""
    config, port = settings(tmp_path, model), free_port()
    base, jobs = f"http://127.0.0.1:{port}", "SELECT state FROM jobs WHERE name = 'forget'"
    async with httpx2.AsyncClient(base_url=base, timeout=WITHIN) as ann:
        async with serving_daemon(python, config, "web", "--port", str(port)) as said:
            assert (await ann.get(login_address(said))).status_code == 200
            await say(ann, f"my bird is a {WORD}", f"echo: my bird is a {WORD}")
            await say(ann, f"/forget {WORD}", "1 message of yours")
            await say(ann, "/forget yes", "I forget it for good")
        async with serving_daemon(python, config, "web", "--port", str(port)):
            async with asyncio.timeout(WITHIN):
                while Bot(config).rows(jobs) != [{"state": "done"}]:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert WORD not in (await ann.get("/chat/first")).text
    assert (await python.command("--config", str(config), "memory", "forget")).returncode == 0
    assert files_with(tmp_path / "data", WORD) == []


@pytest.mark.slow
async def test_a_broken_token_a_missing_extra_and_an_open_host_are_told_by_each_command(
    tmp_path: Path, model: ModelServer, python: Interpreter
) -> None:
    """V-003, V-011: of the host not if `public_url` is on this machine, as for a container."""
    web = {"enabled": True, "port": free_port(), "host": "0.0.0.0"}
    config, token = settings(tmp_path, model, **web), tmp_path / "data" / "web.token"
    done = await python.command("--config", str(config), "check")
    assert "warn  web: other machines" in done.stdout.decode()
    settings(tmp_path, model, **web, public_url="http://127.0.0.1:1345")
    done = await python.command("--config", str(config), "check")
    assert "ok    web: at http" in done.stdout.decode()
    hide = "import sys; sys.modules['fastapi'] = None; from wintermute.cli.main import main; main()"
    for command in ("web", "status"):
        words = [sys.executable, "-c", hide, "--config", str(config), command]
        run = partial(subprocess.run, words, capture_output=True, text=True, check=False)
        ended = await asyncio.to_thread(run)
        told = "pip install 'wintermute[web]'" in ended.stdout + ended.stderr
        assert (ended.returncode, told) == (1, True), command
    for content in ("", "short", "\xff"):
        token.write_text(content, "latin-1")
        for command in ("web", "status", "check"):
            done = await python.command("--config", str(config), command)
            assert done.returncode == 1
            assert "web.token" in (done.stdout + done.stderr).decode(), (content, command)


async def test_the_daemon_serves_beside_its_rooms_and_leaves_in_time(
    tmp_path: Path, person: NewPerson, bot: NewBot, room: NewRoom
) -> None:
    """V-002, V-003, V-004: a taken port first; SIGHUP; fifty streams open at the end."""
    ann, port = await person("ann"), free_port()
    with socket.create_server(("127.0.0.1", port)):
        daemon = await bot(ann, web={"enabled": True, "port": port})
        chat = await room(ann, daemon)
        await daemon.logged("web door not opened")
        code, told = await daemon.command("web")
        assert (code, f"port {port} on 127.0.0.1 is taken" in told) == (1, True)
        assert "web.enabled" in told
        assert f"fail  web: port {port}" in (await daemon.command("status", "--all"))[1]
        await ann.send(chat, "still there?")
        await ann.wait_for(chat, lambda m: m.body == "echo: still there?")
    os.kill(daemon.pid, signal.SIGHUP)
    await daemon.logged("web door open")
    code, told = await daemon.command("web")
    assert code == 0
    base = f"http://127.0.0.1:{port}"
    limits = httpx2.Limits(max_connections=STREAMS + 10)
    async with httpx2.AsyncClient(base_url=base, timeout=WITHIN, limits=limits) as client:
        assert (await client.get(login_address(told.splitlines()))).status_code == 200
        settled = json.loads(daemon.config.read_text())
        daemon.config.write_text(json.dumps(merged(settled, {"log": {"level": "info"}})))
        began = len(daemon.log)
        os.kill(daemon.pid, signal.SIGHUP)
        await daemon.until(lambda: any("web door open" in line for line in daemon.log[began:]))
        assert (await client.get("/sessions")).status_code == 200
        assert f"ok    web: serves {base}" in (await daemon.command("status", "--all"))[1]
        await say(client, "hello", "echo: hello")
        async with asyncio.TaskGroup() as group:
            begun = asyncio.Semaphore(0)
            watching = [group.create_task(watch(client, begun)) for _ in range(STREAMS)]
            for _ in range(STREAMS):
                await begun.acquire()
            assert await daemon.stop() == 0
        assert all(task.result() for task in watching)
    assert not any("Traceback" in line for line in daemon.log)
    assert daemon.rows("SELECT 1 FROM single_values WHERE name = 'web address'") == []


async def watch(client: httpx2.AsyncClient, begun: asyncio.Semaphore) -> bool:
    """Read a stream to its end, which has to be one in order."""
    async with client.stream("GET", "/api/chats/first/stream") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        begun.release()
        async for _ in stream.aiter_bytes():
            pass
    return True


@pytest.mark.slow
async def test_the_framework_loads_late(tmp_path: Path, person: NewPerson, bot: NewBot) -> None:
    """V-001."""
    ann = await person("ann")
    for enabled in (False, True):
        warm = await bot(ann, start=False, web={"enabled": enabled, "port": free_port()})
        python = python_of_a_service(tmp_path, PYTHONPROFILEIMPORTTIME="1")
        async with Bot(warm.config, python) as daemon:
            if enabled:
                await daemon.logged("web door open")
            ready = next(n for n, line in enumerate(daemon.log) if " ready device=" in line)
            assert not any(FRAMEWORK.search(line) for line in daemon.log[:ready])
            await daemon.stop()
            assert any(FRAMEWORK.search(line) for line in daemon.log[ready:]) is enabled
