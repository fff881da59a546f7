"""`wintermute memory search`, `latest`, `stats`, `why`, and what was true once, in the terminal."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.world.embedder import needs_the_model
from tests.world.terminal import Terminal
from wintermute.changes.change_sets import Reason
from wintermute.clock import SystemClock
from wintermute.db import open_database
from wintermute.ids import new_id
from wintermute.memory.exchange import MOST_PROBLEMS
from wintermute.memory.ranking import Query
from wintermute.messages import Incoming
from wintermute.owner import Owner
from wintermute.stores import Stores

YOU = "person:@you:example.org"
BOB = "person:@bob:example.org"


@pytest.fixture(params=["flat_file", "fts5"])
def memories(terminal: Terminal, request: pytest.FixtureRequest) -> Terminal:
    """A terminal whose memories are kept in one of the ways that need nothing else."""
    config = terminal.folder / "config.yaml"
    text, found = re.subn(r"(?m)^  backend: \w+", f"  backend: {request.param}", config.read_text())
    assert found == 1
    config.write_text(text)
    return terminal


def lines(*values: object) -> bytes:
    return b"".join(json.dumps(value).encode() + b"\n" for value in values)


def texts_found(found: Any) -> list[str]:
    return [each["text"] for each in found]


@needs_the_model
def test_a_question_that_says_nothing_finds_nobody(terminal: Terminal) -> None:
    """M-096: whatever its letters are like. A person is told that the embedder starts, a pipe is not."""
    config = terminal.folder / "config.yaml"
    text = re.sub(r"(?m)^  backend: \w+", "  backend: local_vector", config.read_text())
    config.write_text(text)
    terminal.says("memory", "add", "Knows Nowak")
    assert terminal.run("memory", "rebuild-index").returncode == 0
    assert terminal.says("memory", "search", "and now?") == "Nothing fits.\n"
    found, shown = terminal.at_screen("memory", "search", "who is Nowak?")
    assert "Nowak" in found
    assert shown == "Starting the embedding model. This takes a few seconds.\r\n"


def test_a_whole_word_weighs_more_and_what_stands_beside_it_says_so(terminal: Terminal) -> None:
    """M-096."""
    said = ("Our gardens are old", "Yes, since 1920", "I like gardening", "Tea is fine")
    for n, text in enumerate(said):
        given = {"id": f"f{n}", "text": text, "at": f"2026-01-0{n + 1}T12:00:00Z", "speaker": "Ann"}
        terminal.says("memory", "import", "-", given=lines(given))
    hits = terminal.json("memory", "search", "gardens")["hits"]
    assert [(hit["id"], hit["beside"]) for hit in hits[:2]] == [("f0", False), ("f2", False)]
    told = terminal.says("memory", "search", "gardens")
    assert [line.endswith(" (said beside what was looked for)") for line in told.splitlines()] == [
        hit["beside"] for hit in hits
    ]
    assert {hit["id"] for hit in hits if hit["beside"]} <= {"f1", "f3"}


@pytest.mark.slow
def test_a_search_finds_what_fits_and_nothing_else(memories: Terminal) -> None:
    """M-069, M-010: with score, source and day; without a query the newest."""
    for n, text in enumerate(("Likes green tea", "Has a dog", "Drinks tea with milk")):
        given = {"id": f"f{n}", "text": text, "at": f"2026-01-0{n + 1}T12:00:00Z"}
        memories.says("memory", "import", "-", given=lines(given))
    memories.says("memory", "add", "Hates tea", "--scope", BOB)
    hits = memories.json("memory", "search", "tea please")["hits"]
    assert {hit["id"] for hit in hits} == {"f0", "f2"}
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    (first,) = (hit for hit in hits if hit["id"] == "f0")
    assert (first["text"], first["source"]) == ("Likes green tea", "user_explicit")
    assert first["at"].startswith("2026-01-01T12:00:00")
    assert len(memories.json("memory", "search", "tea", "--k", "1")["hits"]) == 1
    assert memories.json("memory", "search", "tea", "--k", "0") == {"hits": []}
    assert "Likes green tea" in memories.says("memory", "search", "GREEN")
    assert memories.says("memory", "search", "aeroplanes") == "Nothing fits.\n"
    (bobs,) = memories.json("memory", "search", "tea", "--scope", BOB)["hits"]
    assert bobs["text"] == "Hates tea"
    newest = memories.json("memory", "search", "--k", "2")["hits"]
    assert [(hit["id"], hit["score"]) for hit in newest] == [("f2", None), ("f1", None)]


@pytest.mark.parametrize("query", ['5" screen', "C++", "a AND (", "*", "🍵", "茶", "x" * 20_000])
def test_any_text_is_a_query(terminal: Terminal, query: str) -> None:
    """M-019."""
    terminal.says("memory", "add", "Likes tea")
    assert terminal.json("memory", "search", query) == {"hits": []}


def test_questions_of_a_file_are_answered_line_by_line(memories: Terminal, tmp_path: Path) -> None:
    """M-069: the same as one by one; bad lines are named with their numbers, exit 1."""
    for text in ("Likes tea", "Has a dog"):
        memories.says("memory", "add", text)
    theirs = memories.json("memory", "add", "Hates tea", "--scope", BOB)["id"]
    mine = memories.json("memory", "search", "tea")["hits"][0]["id"]
    file = tmp_path / "questions.jsonl"
    file.write_bytes(
        lines(
            {"id": "a", "query": "tea?"},
            {"id": "b", "query": "tea?", "scope": BOB, "before": "You were in Rome."},
            {"id": "c"},
            {"id": "d", "query": "tea?", "scope": "bob"},
        )
        + b"\nno json\n"
        + lines({"query": "tea?"}, {"id": "e", "query": "aeroplanes"})
    )
    done = memories.run("memory", "search", "--batch", file, "--k", "5", "--json")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["id"], [hit["id"] for hit in each["hits"]]) for each in answers] == [
        ("a", [mine]),
        ("b", [theirs]),
        ("e", []),
    ]
    assert all(set(hit) == {"id", "score"} for each in answers for hit in each["hits"])
    told = [line.split(":")[0] for line in done.stderr.decode().splitlines()]
    assert (done.returncode, told) == (1, ["line 3", "line 4", "line 6", "line 7"])
    bobs = memories.says(
        "memory", "search", "--batch", "-", "--scope", BOB, given=lines({"id": "a", "query": "tea"})
    )
    assert json.loads(bobs)["hits"][0]["id"] == theirs


@pytest.mark.slow
def test_what_was_true_once_is_found_by_its_time_alone(memories: Terminal) -> None:
    """M-074, M-009: in no list and no ordinary search; kept, exported, and taken back by an undo."""
    past = memories.json("memory", "add", "Lives in Lyon", "--until", "2999-01-01")
    known = memories.json("memory", "add", "lives in lyon", "--until", "2020-05-01")
    assert (known["outcome"], known["id"]) == ("ended", past["id"])
    memories.says("memory", "add", "Lives in Rome")
    assert texts_found(memories.json("memory", "list")) == ["Lives in Rome"]
    assert "Lyon" not in memories.says("memory", "list")
    assert texts_found(memories.json("memory", "latest")) == ["Lives in Rome"]
    assert texts_found(memories.json("memory", "search", "lives")["hits"]) == ["Lives in Rome"]
    assert "Lyon" not in (memories.data / "MEMORIES.txt").read_text()
    shown = memories.json("memory", "show", past["id"])
    assert (shown["valid_to"][:13], shown["retired_at"]) == ("2020-05-01T00", None)
    assert "Lives in Lyon" in memories.says("memory", "export")
    old = {"text": "Lived in Bonn", "valid_from": "2018-01-01", "valid_to": "2019-07-01"}
    memories.says("memory", "import", "-", given=lines(old))

    def then(when: str, *query: str) -> list[str]:
        return texts_found(memories.json("memory", "search", *query, "--when", when)["hits"])

    now = ["Lives in Rome"]
    assert sorted(then("2019-06-30", "lived")) == ["Lived in Bonn", "Lives in Lyon", *now]
    assert (
        sorted(then("2019-07-01", "lived")) == sorted(then("2019-07-01")) == ["Lives in Lyon", *now]
    )
    assert sorted(then("2021-01-01", "lived")) == sorted(then("2021-01-01")) == now
    told = memories.says("memory", "search", "lives", "--when", "2019-08-01").splitlines()
    assert sorted(line.partition("user_explicit  ")[2] for line in told) == [
        "Lives in Lyon  (until May 2020)",
        "Lives in Rome",
    ]
    (scope,) = memories.json("memory", "stats")["scopes"]
    assert (scope["live"], scope["no_longer_true"], scope["retired"]) == (1, 2, 0)
    (batch,) = (each["id"] for each in memories.json("memory", "history")[2:3])
    assert memories.json("memory", "undo", batch)["back"][0]["item"] == past["id"]
    assert texts_found(memories.json("memory", "list")) == ["Lives in Lyon", "Lives in Rome"]


def test_memory_is_core_the_newest_and_what_fits(memories: Terminal) -> None:
    """M-001: core is in each prompt, from its file; the newest and the facts are the same rows."""
    memories.says("memory", "add", "Dora paints")
    memories.says("init", ".")
    (memories.data / "core.md").write_text("# USER\n- Ann is left-handed\n")
    assert "Ann is left-handed" in memories.says("prompt")
    [newest] = memories.json("memory", "latest", "--count", "1")
    [hit] = memories.json("memory", "search", "who paints?")["hits"]
    assert newest["id"] == hit["id"]
    assert newest["text"] == "Dora paints"


def test_the_newest_come_first_counted_from_one(memories: Terminal) -> None:
    """M-002, M-003."""
    given = [{"text": f"Fact number {n}", "at": "2026-01-01"} for n in range(1, 6)]
    memories.says("memory", "import", "-", given=lines(*given))
    assert texts_found(memories.json("memory", "latest", "--begin", "1", "--count", "2")) == [
        "Fact number 5",
        "Fact number 4",
    ]
    assert texts_found(memories.json("memory", "latest", "--begin", "5")) == ["Fact number 1"]
    for nothing in (("--begin", "6"), ("--count", "0"), ("--count", "-3"), ("--scope", BOB)):
        assert memories.json("memory", "latest", *nothing) == []
    assert "begin counts from 1" in memories.refuses("memory", "latest", "--begin", "0")


def test_stats_tell_what_there_is_and_what_is_found(memories: Terminal) -> None:
    """M-066."""
    memories.says("memory", "add", "Likes tea")
    memories.says("memory", "add", "Has a dog", "--source", "harvest")
    memories.says("memory", "add", "Hates tea", "--scope", BOB)
    memories.says("memory", "undo", "--last")
    found = memories.json("memory", "stats")
    bob, you = found["scopes"]
    assert (bob["scope"], bob["live"], bob["retired"], bob["indexed"]) == (BOB, 0, 1, 0)
    assert you == {
        "scope": YOU,
        "live": 2,
        "resting": 0,
        "no_longer_true": 0,
        "retired": 0,
        "by_source": {"user_explicit": 1, "harvest": 1, "dreaming_merge": 0},
        "indexed": 2,
        "vectors_owed": 0,
        "file_bytes": (memories.data / "MEMORIES.txt").stat().st_size,
    }
    said = memories.says("memory", "stats")
    assert said.startswith(f"backend: {found['backend']}\n{BOB}:\n")
    assert "  live: 2 (1 user_explicit, 1 harvest)\n" in said


def test_stats_tell_what_is_at_rest(memories: Terminal) -> None:
    """M-066, M-060: it is live, and in no prompt."""
    memories.says("memory", "add", "Likes tea")
    old = {"text": "Had a kite", "source": "harvest", "resting": True}
    memories.says("memory", "import", "-", given=lines(old))
    (you,) = memories.json("memory", "stats")["scopes"]
    assert (you["live"], you["resting"]) == (2, 1)
    assert "  live: 2 (1 user_explicit, 1 harvest)\n  not used for long: 1\n" in memories.says(
        "memory", "stats"
    )


async def store_message(stores: Stores, room: str, event: str, body: str, answer: str = "") -> None:
    """Somebody says something in a room, and is answered."""
    async with stores.database.transaction() as tx:
        held = await stores.conversations.in_room(tx, room, YOU)
        incoming = Incoming(
            event_id=event,
            room_id=room,
            sender="@you:example.org",
            sender_name="You",
            origin="owner",
            kind="message",
            body=body,
            sent_at=datetime(2026, 5, 4, 12, tzinfo=UTC),
            direct=True,
        )
        await stores.inbox.store(tx, held, incoming, "answered")
        if answer:
            await stores.outbox.enqueue(tx, held, answer, answers=event, meant_for=YOU)


async def test_why_a_memory_is_there_is_told_with_what_was_said(terminal: Terminal) -> None:
    """M-066: origins, the talk around them, and which messages it was brought to."""
    async with open_database(terminal.data / "wintermute.db") as database:
        owner = Owner(YOU.removeprefix("person:"))
        parts = (database, terminal.data, owner, SystemClock(), new_id)
        stores = Stores.of(*parts, timezone="UTC")
        for n, (body, answer) in enumerate(
            [("Hello", ""), ("It rains", "Take a coat"), ("I moved to Lyon", "Noted"), ("Bye", "")]
        ):
            await store_message(stores, "!room:test", f"$said{n}", body, answer)
        async with database.transaction() as tx:
            fact, _ = await stores.facts.add(
                tx,
                Reason("tool", YOU),
                "Lives in Lyon",
                "user_explicit",
                scope=YOU,
                origins=("$said2", "elsewhere"),
            )
            held = await stores.conversations.of_room(tx, "!room:test")
            assert held is not None
            branch = await stores.conversations.current_branch(tx, held.id)
            cast = await stores.casts.start(tx, branch, "$said3", "Bye", "owner", {})
        hits = await stores.memories.search(YOU, Query("Lyon"), 3)
        await stores.recalls.recall(cast.id, hits)
    said = terminal.says("memory", "why", f"#{fact.id}").splitlines()
    assert said[0].endswith("Lives in Lyon")
    assert said[1:] == [
        "from https://matrix.to/#/!room:test/$said2:",
        "    2026-05-04 You: Hello",
        "    2026-05-04 You: It rains",
        "    2026-05-04 assistant: Take a coat",
        "  > 2026-05-04 You: I moved to Lyon",
        "    2026-05-04 assistant: Noted",
        "    2026-05-04 You: Bye",
        "from elsewhere",
        "brought to: 2026-05-04 You: Bye",
    ]
    values = terminal.json("memory", "why", fact.id)
    assert [each["origin"] for each in values["learnt"]] == ["$said2", "elsewhere"]
    assert values["learnt"][0]["message"]["text"] == "I moved to Lyon"
    assert values["learnt"][1]["message"] is None
    assert terminal.refuses("memory", "why", "nope").startswith("wintermute: no memory nope")


async def test_why_names_what_a_memory_stands_for(terminal: Terminal) -> None:
    """M-065, M-074."""
    old, new = (terminal.json("memory", "add", text)["id"] for text in ("Has a dog", "Has a cat"))
    async with open_database(terminal.data / "wintermute.db") as database:
        owner = Owner(YOU.removeprefix("person:"))
        stores = Stores.of(database, terminal.data, owner, SystemClock(), new_id, timezone="UTC")
        async with database.transaction() as tx:
            until = datetime(2026, 5, 1, tzinfo=UTC)
            await stores.facts.end(tx, Reason("night", YOU), old, until, new)
    assert [each["id"] for each in terminal.json("memory", "why", new)["replaced"]] == [old]
    assert [each["id"] for each in terminal.json("memory", "why", old)["now"]] == [new]
    assert "it was replaced by: " in terminal.says("memory", "why", old)


def test_a_secret_is_refused_and_what_has_no_word_is_skipped(terminal: Terminal) -> None:
    """M-075, M-098: by command, with what to do instead; an import counts it."""
    refused = terminal.refuses("memory", "add", "My password is swordfish")
    assert "password manager" in refused
    given = lines({"text": ";)"}, {"text": "Likes tea", "id": "a"}, {"text": ""}, {"text": "..."})
    assert terminal.says("memory", "import", "-", given=given).endswith(
        "skipped without a word 3\n"
    )
    again = terminal.json("memory", "import", "-", given=lines({"text": "likes TEA", "id": "b"}))
    assert (again["known"], again["skipped"]) == (1, 0)
    assert terminal.json("memory", "show", "a")["origins"] == ["b"]
    token = {"text": "It is ghp_16C7e42F292c6912E7710c838347Ae178B4a"}
    done = terminal.run("memory", "import", "-", "--json", given=lines(token))
    assert (done.returncode, json.loads(done.stdout)["left_out"]) == (0, 1)
    assert b"ghp_" not in done.stdout + done.stderr
    assert texts_found(terminal.json("memory", "list")) == ["Likes tea"]


def test_many_bad_lines_are_all_told_and_few_of_them_kept(terminal: Terminal) -> None:
    """M-067: a long file is read as a stream, also a line without an end."""
    bad = b"x" * 3_000_000 + b"\n" + b"nothing\n" * (MOST_PROBLEMS + 500)
    done = terminal.run("memory", "import", "-", "--json", given=bad + lines({"text": "Last one"}))
    result = json.loads(done.stdout)
    told = done.stderr.splitlines()
    assert (done.returncode, result["stored"], len(told)) == (1, 1, MOST_PROBLEMS + 501)
    assert len(result["problems"]) == MOST_PROBLEMS
    assert told[-1].startswith(b"line %d:" % (MOST_PROBLEMS + 501))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("search", "tea", "--batch", "-"), 2, "not both"),
        (("search", "tea", "--when", "yesterday"), 2, "write a day such as 2026-05-04"),
        (("search", "tea", "--scope", "bob"), 2, "write person:@name:server"),
        (("search", "--batch", "nope.jsonl"), 2, "No such file"),
        (("add", "Likes tea", "--until", "0001-01-01T00:00:00+14:00"), 2, "write a day"),
        (("latest", "--count", "many"), 2, "not a valid integer"),
    ],
)
def test_a_mistake_in_a_question_is_told_in_one_line(
    terminal: Terminal, words: tuple[str, ...], code: int, said: str
) -> None:
    """L-082."""
    assert said in terminal.refuses("memory", *words, code=code)


def test_a_rebuilt_index_finds_every_memory(terminal: Terminal, tmp_path: Path) -> None:
    """M-017: it is made of the memories, not of the export; M-075: another id is an origin."""
    config = terminal.folder / "config.yaml"
    config.write_text(config.read_text().replace("backend: flat_file", "backend: fts5"))
    books = [{"id": f"f{n}", "text": f"Ann has the book number {n}"} for n in range(120)]
    file = tmp_path / "facts.jsonl"
    file.write_bytes(lines(*books, {"id": "again", "text": "ann has the  book number 7"}))
    terminal.says("memory", "import", str(file))
    (terminal.data / "MEMORIES.txt").write_text("# generated\n")
    assert terminal.json("memory", "rebuild-index")["words"] == 120
    (you,) = terminal.json("memory", "stats")["scopes"]
    assert (you["live"], you["indexed"]) == (120, 120)
    assert terminal.json("memory", "search", "number 77", "--k", "1")["hits"][0]["id"] == "f77"
    assert "again" in terminal.json("memory", "show", "f7")["origins"]
