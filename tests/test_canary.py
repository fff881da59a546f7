"""A secret of the configuration shows up nowhere, whoever says it (L-050, L-089)."""

import json
from pathlib import Path

from tests.replay import replayed
from tests.world.model import Calls, Fail, ModelServer, Seen, Step, Text, Use
from tests.world.scene import NewBot, NewPerson, NewRoom

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
    person: NewPerson, bot: NewBot, room: NewRoom, model: ModelServer, tmp_path: Path
) -> None:
    """L-089: not in requests, log, database, room, exports or errors."""
    model.keyed(repeats)
    ann = await person("ann")
    backend = {"base_url": model.url, "model": "scripted", "api_key": {"file": "key"}}
    llm = {"backends": {"scripted": backend}, "record": True}
    daemon = await bot(ann, start=False, llm=llm, loop={"max_turns": 4})
    (daemon.config.parent / "key").write_text(KEY)
    (daemon.data / "skills").mkdir()
    (daemon.data / "skills" / "note.md").write_text(f"A note\n\nThe key is {KEY}.\n")
    await daemon.start()
    chat = await room(ann, daemon, encrypted=True)
    asked = ["hello", f"my key is {KEY}", "read it", "remember it", "hand out", "fail"]
    for text in (*asked, "/memory", "/status"):
        await ann.send(chat, text)
    answers = await ann.wait_for_count(chat, daemon.user_id, len(asked) + 2)
    assert await daemon.stop() == 0
    said = "\n".join(answer.body for answer in answers)
    sent = json.dumps([seen.body for seen in model.requests], ensure_ascii=False)
    logged = "\n".join(daemon.log)
    shown = [(await daemon.command("loom", verb, chat))[1] for verb in ("show", "export")]
    shown.append("\n".join(await replayed(daemon.data, chat)))
    bundle = tmp_path / "bundle.json"
    await daemon.command("loom", "export", "--bundle", str(bundle), chat)
    kept = [path.read_bytes() for path in daemon.data.glob("wintermute.db*")]
    for text in (said, sent, logged, *shown, bundle.read_text()):
        assert "0canary0" not in text
    assert not any(b"0canary0" in content for content in kept)
    assert "[secret]" in said
    assert all("[secret]" in text for text in (sent, *shown[:2], bundle.read_text()))
