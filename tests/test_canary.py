"""A secret of the configuration shows up nowhere, whoever says it (L-050, L-089)."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import Calls, Fail, ModelServer, Seen, Step, Text, Use
from tests.world.user import MatrixUser

KEY = "sk-0canary0\"'/9"


def repeats(seen: Seen) -> Step | None:
    """A model that says, calls and fails with the key."""
    if seen.messages[-1]["role"] == "tool":
        return Text(f"I found {KEY} there.")
    said = seen.last_user
    if "read" in said:
        return Calls((Use("read_file", {"path": f"notes/{KEY}.txt"}), Use("read_file", _note())))
    if "remember" in said:
        return Calls((Use("append_memory", {"entry": f"The key is {KEY}."}),))
    if "hand out" in said:
        return Calls((Use("call_agent", {"intent": f"Say {KEY}", "context": KEY}),))
    if "fail" in said:
        return Fail(400, {"error": {"message": f"wrong key {KEY}"}})
    return Text(f"You said: {KEY}")


def _note() -> dict[str, str]:
    return {"path": "data/skills/note.md"}


async def test_a_secret_appears_nowhere_whoever_repeats_it(
    homeserver: Homeserver,
    person: Callable[[str], MatrixUser],
    fresh: Callable[[str], str],
    model: ModelServer,
    tmp_path: Path,
) -> None:
    """L-089: not in requests, log, database, room, exports or errors."""
    login = homeserver.user(fresh("bot"))
    model.keyed(repeats)
    async with person("ann") as ann:
        backend = {"base_url": model.url, "model": "scripted", "api_key": {"file": "key"}}
        config = write_settings(
            tmp_path / "bot",
            homeserver.url,
            login,
            model.url,
            ann.user_id,
            llm={"backends": {"scripted": backend}, "record": True},
            loop={"max_turns": 4},
        )
        (tmp_path / "bot" / "key").write_text(KEY)
        skills = tmp_path / "bot" / "data" / "skills"
        skills.mkdir()
        (skills / "note.md").write_text(f"A note\n\nThe key is {KEY}.\n")
        asked = ["hello", f"my key is {KEY}", "read it", "remember it", "hand out", "fail"]
        async with Bot(config) as bot:
            room = await ann.create_room(invite=[login.user_id], encrypted=True)
            await ann.wait_joined(room, login.user_id)
            for text in (*asked, "/memory", "/status"):
                await ann.send(room, text)
            answers = await ann.wait_for_count(room, login.user_id, len(asked) + 2)
            assert await bot.stop() == 0
            logged = "\n".join(bot.log)
    said = "\n".join(answer.body for answer in answers)
    sent = json.dumps([seen.body for seen in model.requests], ensure_ascii=False)
    shown = [_command(config, *words, room) for words in (("show",), ("export",), ("replay",))]
    bundle = tmp_path / "bundle.json"
    _command(config, "export", "--bundle", str(bundle), room)
    kept = [path.read_bytes() for path in (tmp_path / "bot" / "data").glob("wintermute.db*")]
    for text in (said, sent, logged, *shown, bundle.read_text()):
        assert "0canary0" not in text
    assert not any(b"0canary0" in content for content in kept)
    assert "[secret]" in said
    assert all("[secret]" in text for text in (sent, *shown[:2], bundle.read_text()))


def _command(config: Path, *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "wintermute", "--config", str(config), "loom", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ),  # noqa: TID251
    )
    return ran.stdout + ran.stderr
