"""`wintermute loom`: what was said and done, in the terminal, also beside a running daemon."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.full_config import full_config
from tests.replay import replayed
from tests.world.house import PROMPTS, Gate, House, open_house
from tests.world.model import Calls, ModelServer, Text, Use
from tests.world.terminal import PASSWORD, Terminal
from wintermute.cli.loom import mask_people, mask_texts
from wintermute.config.schema import SubSessionSettings as Limits
from wintermute.conversation.toolbox import Caller
from wintermute.errors import WintermuteError
from wintermute.loom.conversations import Rewards
from wintermute.messages import Json

ROOM = "!room:test"
OWNER = "@you:example.org"
HOSTILE = "\x1b[2Jgone\u202e backwards\ncast_1  2026-01-01 00:00:00  owner\r\x07"
USE = Calls((Use("echo", {"say": "hi"}, "call_1"), Use("nope", {}, "call_2")), "Let me see.")


@pytest.fixture
def terminal(terminal: Terminal) -> Terminal:
    """One whose prompts are those of a house."""
    shutil.copytree(PROMPTS, terminal.data / "prompts")
    return terminal


def house_of(terminal: Terminal, model: ModelServer, *gates: Gate, **more: Any) -> Any:
    """The loop on the data folder of the terminal."""
    more = {"prompts": terminal.data / "prompts", "owner": OWNER, **more}
    return open_house(terminal.data, model.url, gates=gates, **more)


async def tell(house: House, *messages: str) -> None:
    """Say these one after the other."""
    for message in messages:
        await house.incoming(message, room=ROOM, sender=OWNER)
        await house.settled()


async def ids(house: House, table: str) -> list[str]:
    return [row["id"] for row in await house.rows(f"SELECT id FROM {table} ORDER BY seq")]


def exported(terminal: Terminal, *words: str) -> list[Json]:
    return [json.loads(line) for line in terminal.says("loom", "export", *words).splitlines()]


async def test_branches_are_listed_newest_first(terminal: Terminal, model: ModelServer) -> None:
    """L-049: beside a loop at work."""
    assert terminal.says("loom", "list") == "Nothing was said.\n"
    async with house_of(terminal, model) as house, house.working():
        await tell(house, "a", "b", "/new", "c")
        old, new = await ids(house, "branches")
        listed = terminal.json("loom", "list")
        lines = terminal.says("loom", "list").splitlines()
        (only,) = terminal.json("loom", "list", "--limit", "1")
    assert [branch["id"] for branch in listed] == [new, old]
    assert [branch["reason"] for branch in listed] == ["new", "start"]
    assert [(branch["casts"], branch["turns"], branch["tokens"]) for branch in listed] == [
        (1, 1, 110),
        (2, 2, 220),
    ]
    assert only == listed[0]
    assert lines[1].startswith(f"{old}  room  {ROOM}  start  2 casts  2 turns  220 tokens  ")
    assert lines[1].endswith("  -")


async def test_a_branch_is_shown_cast_by_cast(terminal: Terminal, model: ModelServer) -> None:
    """L-047, L-049: with the sums of its tokens, rewards, children and edits."""
    model.script(USE, Text("Done."))
    async with house_of(terminal, model, Gate()) as house, house.working():
        await tell(house, "hello", "and?")
        (branch,) = await ids(house, "branches")
        casts, turns = await ids(house, "casts"), await ids(house, "turns")
        row = await house.one("SELECT event_id, conversation_id FROM inbox ORDER BY seq LIMIT 1")
        rewards = Rewards(house.database, house.clock, lambda prefix: f"{prefix}_1")
        async with house.database.transaction() as tx:
            await rewards.add(tx, casts[0], 1, OWNER, "$thumb")
            await house.stores.edits.note(
                tx, "$edit", row["event_id"], row["conversation_id"], OWNER, "hullo"
            )
            _, child = await house.conversations.open_below(
                tx, casts[0], turns[0], f"person:{OWNER}", 1, outlives=True
            )
        said = terminal.says("loom", "show", branch)
        story = terminal.json("loom", "show", ROOM)
        below = terminal.says("loom", "show", child)
        listed = terminal.says("loom", "list")
    assert "  > hello\n  > edited, not answered: hullo\n" in said
    assert f"  {turns[0]}  scripted/scripted  100 in, 10 out, " in said
    assert (
        '\n    Let me see.\n    echo {"say": "hi"} -> hi\n    nope {} -> error: unknown tool'
        in said
    )
    assert f"    began {child} (waiting)\n" in said
    assert "\n    Done.\n    reward +1\n  terminated (text): 2 turns, 200 in, 20 out, " in said
    assert "\nin all: 2 casts, 3 turns, 300 in, 30 out, " in said
    assert [cast["id"] for cast in story["casts"]] == casts
    assert story["casts"][0]["sums"]["tokens_in"] == 200
    assert f"asked for by {turns[0]}" in below
    assert f"{child}  sub_session  below {turns[0]}  start  0 casts" in listed


async def test_hostile_text_stays_text(terminal: Terminal, model: ModelServer) -> None:
    """L-049: nothing in it moves the cursor or passes for a line of ours."""
    model.script(Calls((Use("echo", {"say": HOSTILE}),), HOSTILE), Text(HOSTILE))
    async with house_of(terminal, model, Gate()) as house, house.working():
        await tell(house, HOSTILE)
        for words in (("show", ROOM), ("show", ROOM, "--json"), ("export", ROOM), ("list",)):
            said = terminal.says("loom", *words)
            assert not {"\x1b", "\u202e", "\r", "\x07"} & set(said)
            assert not [line for line in said.splitlines() if line.startswith("cast_1 ")]


async def test_an_export_has_one_turn_in_each_line(terminal: Terminal, model: ModelServer) -> None:
    """L-027, L-045, L-049: in order, with all that is known of it."""
    model.script(USE, Text("Done."))
    async with house_of(terminal, model, Gate()) as house, house.working():
        await tell(house, "hello", "and?")
        (branch,) = await ids(house, "branches")
        turns = await ids(house, "turns")
        first, second, third = exported(terminal, branch)
    assert [first["id"], second["id"], third["id"]] == turns
    assert [first["parent_id"], second["parent_id"], third["parent_id"]] == [None, *turns[:2]]
    assert [line.get("intent") for line in (first, second, third)] == ["hello", None, "and?"]
    assert ("state" in first, second["state"], second["reason"]) == (False, "terminated", "text")
    assert (second["result"], third["utterance"]) == ("Done.", "echo: and?")
    assert first["observations"][0] == {
        "gate": "echo",
        "args": {"say": "hi"},
        "result": "hi",
        "is_error": False,
        "tool_call_id": "call_1",
    }
    assert first["observations"][1]["is_error"]
    assert first["branch"] == first["thread"] == branch
    assert (first["model"], first["tokens_in"], first["tokens_cached"]) == ("scripted", 100, 0)
    wanted = {"cast", "entity_id", "backend", "tokens_out", "ms", "created_at", "error", "rewards"}
    assert wanted < first.keys()
    assert len(first["prompt_hash"]) == 64


@pytest.mark.breaks("fork")
async def test_a_fork_has_all_up_to_its_turn(terminal: Terminal, model: ModelServer) -> None:
    """L-049, L-052, L-053: made beside a loop at work, which goes on there; no tool runs again."""
    gate = Gate()
    model.script(USE, Text("one"), Text("two"), Text("three"))
    async with house_of(terminal, model, gate) as house, house.working():
        await tell(house, "a", "b")
        (old,) = await ids(house, "branches")
        turns = await ids(house, "turns")
        before = exported(terminal, old)
        said = terminal.says("loom", "fork", turns[1])
        new = (await ids(house, "branches"))[-1]
        await tell(house, "c")
        assert exported(terminal, old) == before
        forked = exported(terminal, new)
        shown = terminal.says("loom", "show", new)
    assert said.startswith(f"{new} goes on from {turns[1]}; {old} stays as it is.\n")
    assert [line["id"] for line in forked[:2]] == turns[:2]
    assert [line["utterance"] for line in forked] == ["Let me see.", "one", "three"]
    assert forked[2]["parent_id"] == turns[1]
    assert [line["branch"] for line in forked] == [old, old, new]
    assert len(gate.taken) == 1
    asked = json.dumps(model.requests[-1].body["messages"])
    assert "Let me see." in asked
    assert '"two"' not in asked
    assert f"goes on from {turns[1]}\n" in shown
    assert "in all: 1 cast, 1 turn" in shown


async def test_others_words_are_not_forked_to_a_room(
    terminal: Terminal, model: ModelServer
) -> None:
    """L-052, M-010: somebody came in since; nor is a sub-session's turn, where nobody speaks."""
    async with house_of(terminal, model) as house, house.working():
        await tell(house, "a")
        (turn,) = await ids(house, "turns")
        (cast,) = await ids(house, "casts")
        async with house.database.transaction() as tx:
            await house.conversations.in_room(tx, ROOM, f"room:{ROOM}")
        refused = terminal.refuses("loom", "fork", turn)
        branches = await ids(house, "branches")
        async with house.database.transaction() as tx:
            _, child = await house.conversations.open_below(tx, cast, turn, "s", 1, outlives=True)
            work = await house.casts.start(tx, child, None, "Find it.", "system", {})
            row = await house.one("SELECT * FROM turns")
            await tx.execute(
                "INSERT INTO turns (id, cast_id, entity_id, utterance, calls, finish_reason,"
                " backend, model, tokens_in, tokens_out, tokens_cached, ms, created_at)"
                " VALUES ('turn_2', ?, 'e', '', '[]', '', '', '', 0, 0, 0, 0, ?)",
                (work.id, row["created_at"]),
            )
        below = terminal.refuses("loom", "fork", "turn_2")
    assert f"belongs to person:{OWNER}" in refused
    assert "must not see it" in refused
    assert len(branches) == 2
    assert below.endswith(f"fork {turn}, which asked for it")


async def test_no_secret_is_in_an_export(terminal: Terminal, model: ModelServer) -> None:
    """L-089: also when a tool gave it, and it was stored before it was a secret."""

    async def leaks(_caller: Caller, _args: Json) -> object:
        return {"env": f"PASSWORD={PASSWORD}", "list": [PASSWORD] * 60}

    model.script(Calls((Use("leak", {}),)), Text(f"It is {PASSWORD}."))
    async with house_of(terminal, model, Gate("leak", leaks), record=True) as house:
        async with house.working():
            await tell(house, "what is it?")
            (branch,) = await ids(house, "branches")
        bundle, output = terminal.folder / "bundle.json", terminal.folder / "turns.jsonl"
        texts = [
            terminal.says("loom", *words)
            for words in (("show", branch), ("show", branch, "--json"), ("export", branch))
        ]
        terminal.says("loom", "export", branch, "--output", output)
        terminal.says("loom", "export", branch, "--bundle", bundle)
    for text in (*texts, output.read_text(), bundle.read_text()):
        assert PASSWORD not in text
        assert "[secret]" in text


async def test_a_bundle_has_what_a_problem_needs(terminal: Terminal, model: ModelServer) -> None:
    """L-088: one file, which only its owner may read; what is there is not overwritten."""
    async with house_of(terminal, model, record=True) as house, house.working():
        await tell(house, "hello")
        (branch,) = await ids(house, "branches")
    path = terminal.folder / "bundle.json"
    assert terminal.says("loom", "export", branch, "--bundle", path) == ""
    bundle = json.loads(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    (cast,) = bundle["casts"]
    (turn,) = cast["turns"]
    assert (cast["intent"], turn["utterance"]) == ("hello", "echo: hello")
    names = [piece["name"] for piece in bundle["prompts"][turn["prompt_hash"]]]
    assert names == ["Core Instructions"]
    assert cast["block"].startswith("<context>\n# Current Time\n")
    (call,) = bundle["model_calls"]
    assert call["request"]["messages"][1]["content"] == f"hello\n\n{cast['block']}"
    assert call["answer"]["text"] == "echo: hello"
    assert {"wintermute", "python", "branch", "folds", "edits"} < bundle.keys()
    before = path.read_bytes()
    for option in ("--bundle", "--output"):
        assert "exists" in terminal.refuses("loom", "export", branch, option, path)
    assert path.read_bytes() == before


async def test_a_bundle_names_nobody_when_asked(terminal: Terminal, model: ModelServer) -> None:
    """L-088: the same word for the same person everywhere; or no text at all."""
    async with house_of(terminal, model, record=True) as house, house.working():
        await house.incoming(f"tell @bob:test in {ROOM}", room=ROOM, sender=OWNER, name="Zoë")
        await house.settled()
        await house.incoming("Zoë is here, not Zoësch", room=ROOM, sender=OWNER, name="Zoë")
        await house.settled()
        (branch,) = await ids(house, "branches")
    nameless, textless = terminal.folder / "a.json", terminal.folder / "b.json"
    terminal.says("loom", "export", branch, "--bundle", nameless, "--without-people")
    terminal.says("loom", "export", branch, "--bundle", textless, "--without-texts")
    text, bundle = nameless.read_text(), json.loads(nameless.read_text())
    assert not [name for name in (OWNER, "@bob:test", ROOM) if name in text]
    assert bundle["branch"]["scope"] == "person:person1"
    assert bundle["branch"]["room_id"] == "room1"
    assert bundle["casts"][0]["intent"] == "tell person2 in room1"
    assert bundle["casts"][1]["intent"] == "person1 is here, not Zoësch"
    (first, _) = json.loads(textless.read_text())["casts"]
    assert first["intent"] == f"[{len(f'tell @bob:test in {ROOM}')} characters]"
    assert "is here" not in textless.read_text()
    assert "echo:" not in textless.read_text()


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("show", "nope"), 1, "no branch nope: `wintermute loom list`"),
        (("export", "nope"), 1, "no branch nope"),
        (("fork", "nope"), 1, "no turn nope: `wintermute loom show"),
        (("list", "--limit", "0"), 2, "0 is not in the range"),
        (("export", "x", "--output", "a", "--bundle", "b"), 2, "either --output or --bundle"),
        (("show",), 2, "BRANCH"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    terminal: Terminal, words: tuple[str, ...], code: int, told: str
) -> None:
    """L-082."""
    assert told in terminal.refuses("loom", *words, code=code)


async def tool(*words: str | Path) -> tuple[int, list[str]]:
    """Run `python -m tests.replay`: its exit code, and the lines it wrote."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.replay", *words),
        cwd=PROMPTS.parent.parent,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode().splitlines()


@pytest.mark.slow
async def test_a_branch_is_run_again_offline(terminal: Terminal, model: ModelServer) -> None:
    """L-088: the configured model is at an address that refuses; exit 1 with what is different."""
    config = full_config().replace("127.0.0.1:8080", "127.0.0.1:9")
    (terminal.folder / "config.yaml").write_text(config)
    model.script(Calls((Use("append_memory", {"text": "Likes tea"}),)), Text("Noted."))
    async with (
        house_of(terminal, model, record=True, sub_sessions=Limits()) as house,
        house.working(),
    ):
        await tell(house, "I like tea", "and?")
        (branch,) = await ids(house, "branches")
        turns = await ids(house, "turns")
        assert await tool(terminal.data, branch) == (0, ["no divergence"])
        assert await tool(terminal.data, ROOM) == (0, ["no divergence"])
        path = terminal.data / "prompts" / "BASE_PROMPT.txt"
        path.write_text(path.read_text().replace(".", "!", 1))
        code, lines = await tool(terminal.data, branch)
    assert (code, lines[0]) == (1, f"{turns[0]}: message 1 (system)")
    code, lines = await tool(terminal.data, "nope")
    assert (code, "no branch nope" in lines[-1]) == (2, True)


async def test_what_has_no_record_says_what_to_do(terminal: Terminal, model: ModelServer) -> None:
    """L-088."""
    async with house_of(terminal, model) as house, house.working():
        await tell(house, "hello")
        (branch,) = await ids(house, "branches")
        with pytest.raises(WintermuteError, match="was not recorded"):
            await replayed(terminal.data, branch)


def test_masks_find_people_wherever_they_stand() -> None:
    """L-088: ids in texts, keys and addresses; names alone, in any case."""
    value = {
        "@ann:example.org": "https://matrix.to/#/%40ann%3Aexample.org ANN, Annabel; @eve:[::1]:8448.",
        "n": [1, None, True, "#hall:example.org, !r:example.org"],
    }
    people = [("@ann:example.org", "Ann"), ("@bot:example.org", "Bot (old)")]
    masked = mask_people(value, people, ["!r:example.org"], {"@bot:example.org": "bot"})
    assert masked == {
        "person1": "https://matrix.to/#/person1 person1, Annabel; person2.",
        "n": [1, None, True, "room2, room1"],
    }


def test_masks_leave_the_shape_of_texts() -> None:
    """L-088: arguments as well, whose names a model may have made up."""
    value = {
        "gate": "echo",
        "args": {"secret": ["abc", 7]},
        "result": "four",
        "tools": [{"text": "x"}],
    }
    assert mask_texts(value) == {
        "gate": "echo",
        "args": [["[3 characters]", 7]],
        "result": "[4 characters]",
        "tools": [{"text": "x"}],
    }
