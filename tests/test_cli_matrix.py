"""`wintermute matrix verify`, `trust` and `reset-crypto --identity`, as somebody at the machine uses them."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.world.bot import Bot
from tests.world.malformed import WRONG
from tests.world.proxy import Action, Answer, Proxy, Request
from tests.world.scene import NewBot, NewCurrent, NewPerson, NewRoom
from wintermute.cli.matrix import NOT_RUNNING
from wintermute.matrix.signing import FILE, NEXT, keep_seeds, new_seeds

pytestmark = pytest.mark.slow

Json = dict[str, Any]
PAGE = "https://account.example.org/approve"


async def identity(daemon: Bot) -> str:
    """The master key that is kept."""
    kept = json.loads((daemon.data / "matrix" / "cross-signing.json").read_text())
    return str(kept["master"]["public"])


async def facts(daemon: Bot, *words: str) -> dict[str, Json]:
    """What a command says, by name."""
    _, said = await daemon.command(*words, "--json")
    return {fact["name"]: fact for fact in json.loads(said)}


async def test_verify_shows_who_we_are(current: NewCurrent, bot: NewBot, room: NewRoom) -> None:
    """Issue 13: user, device, fingerprints and state; `check` and `status` say the same."""
    ann = await current("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    await ann.send(chat, "hello")
    await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    shown = await facts(daemon, "matrix", "verify", "--show")
    master = await ann.master_key(daemon.user_id)
    assert shown["user"]["text"] == daemon.user_id
    assert str(master) in shown["identity"]["text"].replace(" ", "")
    assert ann.user_id in shown["people"]["text"]
    kept = json.loads((daemon.data / "matrix" / "session.json").read_text())
    assert kept["device_id"] in shown["device"]["text"]
    for command in (("check",), ("status",)):
        said = await facts(daemon, *command)
        assert said["identity"]["state"] == "ok", said["identity"]
        assert said["people"]["state"] == "ok", said["people"]


HEARS_CTRL_C = (  # which the children of a shell in the background do not
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from wintermute.cli.main import cli; cli()"
)


async def at_the_machine(daemon: Bot) -> asyncio.subprocess.Process:
    """`wintermute matrix verify`, typed where no password can be read; it waits."""
    (daemon.config.parent / "password").unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HEARS_CTRL_C, "--config", str(daemon.config), "matrix", "verify"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"Waiting up to ten minutes")
    return process


@pytest.mark.parametrize("same", [True, False])
async def test_a_person_compares_at_the_machine(
    current: NewCurrent, bot: NewBot, room: NewRoom, *, same: bool
) -> None:
    """U-025: the emojis of both; no answer is asked again, a no ends the verification before the client can say yes."""
    ann = await current("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    process = await at_the_machine(daemon)
    check = await ann.verify(daemon.user_id, room=chat)
    await check.until("ready")
    await check.start()
    emojis = await check.emojis()
    assert process.stdout is not None
    shown = (await process.stdout.readuntil(b"[y/n]: ")).decode()
    assert all(sign in shown for sign, _ in emojis)
    assert process.stdin is not None
    process.stdin.write(b"\nperhaps\n" + (b"y\n" if same else b"n\n"))
    if same:
        await check.confirm()
        await check.until("done")
    else:
        ended = (
            "SELECT 1 FROM verifications WHERE code = 'm.mismatched_sas' AND phase = 'cancelled'"
        )
        await daemon.until(lambda: bool(daemon.rows(ended)))
    out, err = (each.decode() for each in await process.communicate())
    assert (process.returncode, "done" in out, "cancelled" in err) == (not same, same, not same)
    assert await ann.trusts(daemon.user_id) == same


async def test_who_waits_in_vain_is_told_why_and_can_leave(person: NewPerson, bot: NewBot) -> None:
    """U-025: no daemon runs; Ctrl-C."""
    daemon = await bot(await person("ann"))
    assert await daemon.stop() == 0
    process = await at_the_machine(daemon)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    said = err.decode()
    assert (said.startswith(NOT_RUNNING), said.endswith("Aborted!\n")) == (True, True), said
    assert process.returncode == 1


async def test_check_names_who_has_no_identity(person: NewPerson, bot: NewBot) -> None:
    """X-034."""
    ann = await person("ann")
    daemon = await bot(ann)
    said = (await facts(daemon, "check"))["people"]
    assert said["state"] == "warn"
    assert ann.user_id in said["text"]


async def test_nobody_is_trusted_who_did_not_change(current: NewCurrent, bot: NewBot) -> None:
    """X-035."""
    ann = await current("ann")
    daemon = await bot(ann)
    for user, words in ((ann.user_id, "has not changed"), ("@eve:test", "saw no identity of")):
        code, said = await daemon.command("matrix", "trust", user)
        assert (code, words in said) == (1, True), said


async def test_a_password_makes_a_new_one(current: NewCurrent, bot: NewBot, room: NewRoom) -> None:
    """X-017: only so; the old one is kept with a date, and clients see the new one."""
    ann = await current("ann")
    daemon = await bot(ann)
    chat = await room(ann, daemon, encrypted=True)
    before = await identity(daemon)
    code, _ = await daemon.command("matrix", "reset-crypto", "--identity")
    assert code == 1  # the daemon runs
    assert await daemon.stop() == 0
    code, said = await daemon.command("matrix", "reset-crypto", "--identity")
    assert code == 0, said
    after = await identity(daemon)
    assert after != before
    assert after in said.replace(" ", "")
    folder = daemon.data / "matrix"
    assert [file.name[:25] for file in folder.glob("*.until-*")] == ["cross-signing.json.until-"]
    assert not (folder / "cross-signing.next.json").exists()
    await daemon.start()
    await ann.send(chat, "hello")
    answer = await ann.wait_for(chat, lambda m: m.body == "echo: hello")
    assert answer.shield is None
    assert await ann.master_key(daemon.user_id) == after


async def test_a_new_one_waits_to_be_approved(person: NewPerson, bot: NewBot, proxy: Proxy) -> None:
    """Issue 13: the page of the stage, then the same session again; a wrong yes changes nothing."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    assert await daemon.stop() == 0
    before = await identity(daemon)
    asked: list[Json] = []

    def approval(request: Request) -> Action:
        if "device_signing" not in request.path:
            return None
        asked.append(request.json)
        if len(asked) > 1:
            return Answer(403, {"errcode": "M_FORBIDDEN", "error": "no"})
        stage = "org.matrix.cross_signing_reset"
        params = {stage: {"url": PAGE}}
        return Answer(401, {"flows": [{"stages": [stage]}], "params": params, "session": "s1"})

    proxy.before = approval
    code, said = await daemon.command("matrix", "reset-crypto", "--identity")
    assert (code, PAGE in said) == (1, True), said
    assert [request.get("auth") for request in asked] == [None, {"session": "s1"}, None]
    assert len({json.dumps(request["self_signing_key"]) for request in asked}) == 1
    assert await identity(daemon) == before


async def test_without_encryption_no_identity_is_replaced(person: NewPerson, bot: NewBot) -> None:
    """X-017: in a line that says why, also where there was one before."""
    daemon = await bot(await person("ann"))
    assert await daemon.stop() == 0
    before = await identity(daemon)
    config = daemon.config.read_text()
    assert '"encryption": "preferred"' in config
    daemon.config.write_text(config.replace('"preferred"', '"off"', 1))
    code, said = await daemon.command("matrix", "reset-crypto", "--identity")
    assert (code, "matrix.encryption" in said, len(said.splitlines())) == (2, True, 1), said
    assert await identity(daemon) == before


def nobody(served: Json, _user: str) -> object:
    return {}


def not_ours(served: Json, user: str) -> object:
    return served | {"device_keys": {user: served["device_keys"][user]}}


def failed(served: Json, user: str) -> object:
    return served | {"failures": {user.partition(":")[2]: {}}}


@pytest.mark.parametrize("change", [nobody, not_ours, failed])
async def test_check_says_of_whom_nothing_is_known(
    change: Callable[[Json, str], object], current: NewCurrent, bot: NewBot, proxy: Proxy
) -> None:
    """X-034: an answer that does not name somebody says nothing of them."""
    ann = await current("ann")
    daemon = await bot(ann, via=proxy.url)
    proxy.after = lambda request, status, body: (
        Answer(status, change(json.loads(body), daemon.user_id))
        if "keys/query" in request.path
        else None
    )
    said = await facts(daemon, "check")
    assert said["people"]["state"] == "warn"
    assert f"not known now: {ann.user_id}" in said["people"]["text"]
    known = change is not_ours
    assert ("not known now" not in said["identity"]["text"]) == known


async def test_check_bears_any_answer_on_keys(person: NewPerson, bot: NewBot, proxy: Proxy) -> None:
    """X-022."""
    ann = await person("ann")
    daemon = await bot(ann, via=proxy.url)
    us = daemon.user_id
    for served in (
        {"device_keys": ["x"], "master_keys": 7},
        {"device_keys": {us: ["x"], ann.user_id: 7}, "master_keys": {us: True}},
        {"device_keys": {us: {}}, "master_keys": {us: WRONG[7]}, "failures": "x"},
    ):
        proxy.before = lambda request, said=served: (  # type: ignore[misc]  # a default
            Answer(200, said) if "keys/query" in request.path else None
        )
        found = await facts(daemon, "check")
        assert {found[name]["state"] for name in ("identity", "people")} <= {"warn", "fail"}


async def test_check_tells_a_lost_identity_and_open_files(person: NewPerson, bot: NewBot) -> None:
    """X-017: and which file is to be closed, also that of an identity to come."""
    daemon = await bot(await person("ann"))
    assert await daemon.stop() == 0
    folder = daemon.data / "matrix"
    keep_seeds(folder, new_seeds(daemon.user_id), NEXT)
    (folder / NEXT).chmod(0o644)
    assert f"chmod 600 {folder / NEXT}" in (await facts(daemon, "check"))["identity"]["text"]
    (folder / FILE).unlink()
    said = (await facts(daemon, "check"))["identity"]
    assert (said["state"], "seeds are not here" in said["text"]) == ("fail", True)
    (folder / NEXT).replace(folder / FILE)
    said = (await facts(daemon, "check"))["identity"]
    assert (said["state"], "than the one here" in said["text"]) == ("fail", True)
