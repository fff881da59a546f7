"""What forgetting costs: one sentence in a store of 50,000 turns and 10,000 facts about other things.

    python -m tests.bench_forgetting

Not a part of `make bench`; docs/benchmarks.md reports it.
"""

import asyncio
import json
import os
import random
import shutil
import statistics
import tempfile
import time
import unicodedata
from itertools import product
from pathlib import Path

from tests.bench_runner import show
from tests.world.house import SCOPE, House, house_at_work, open_house
from tests.world.model import ModelServer
from tests.world.redacted import take_back
from wintermute.forgetting.forgetting import forget
from wintermute.memory.fact import NewFact

TURNS, FACTS, ROUNDS, IDLE = 50_000, 10_000, 5, 60
SECRETS = ("Ann's dentist in Köln is called Öznur Ünlü", "Зубной врач Анны — Мария Петрова")
"""The second has no letter of ASCII: more of each row is looked at."""
WORDS = [
    "the",
    "a",
    "of",
    "to",
    "in",
    "is",
    "it",
    "that",
    "was",
    "for",
    "on",
    "with",
    "as",
    "by",
    "at",
    "from",
    "this",
    "which",
    "or",
    "an",
    "were",
    "are",
    "not",
    "have",
    "bread",
    "garden",
    "window",
    "doctor",
    "evening",
    "called",
    "message",
    "answer",
    "Größe",
    "Straße",
    "früher",
    "Käse",
    "möchte",
    "quickly",
    "several",
    "remember",
    "train",
    "ticket",
    "music",
    "number",
    "Monday",
    "👍",
    "12:30",
    "5€",
    "https://example.org/x",
]
RARE = [
    "".join(letters) for letters in product("bdklmnrst", "aeiou", "bdglmnst", ("e", "er", "ing"))
]


async def rows() -> list[str]:
    """CPU seconds, the median of some rounds, each on a copy of the same store; and of the end alone."""
    with tempfile.TemporaryDirectory() as name:
        full = Path(name) / "full"
        full.mkdir()
        async with open_house(full, None) as house:
            await _fill(house)
        async with ModelServer() as model:
            beside = [await _redaction(full, secret, model) for secret in SECRETS]
        return [*[await _row(full, secret) for secret in SECRETS], *beside]


async def _row(full: Path, secret: str) -> str:
    taken, scrubs, records = [], [], set[int]()
    for number in range(ROUNDS):
        folder = full.parent / str(number)
        shutil.copytree(full, folder)
        async with open_house(folder, None) as house:
            facts = [f for f in await house.stores.facts.live(SCOPE) if f.text == secret]
            began = _cpu()
            done = await forget(house.stores, facts)
            ended = _cpu()
            await house.database.scrub()
            taken.append(ended - began)
            scrubs.append(_cpu() - ended)
            records.add(done.records)
        shutil.rmtree(folder)
    size = (full / "wintermute.db").stat().st_size
    store = f"{secret}: {TURNS:,} turns, {size / 1e6:.0f} MB, {records} records"
    row = "| {} | {:.1f} s | {:.1f} s | ≤ 2 s |"
    return row.format(store, statistics.median(taken), statistics.median(scrubs))


def _cpu() -> float:
    """CPU seconds, those of processes that have ended as well."""
    return sum(os.times()[:4])


async def _redaction(full: Path, secret: str, model: ModelServer) -> str:
    """A deleted message, while somebody else is answered one message after the other, as idle before."""
    taken, worst = [], []
    for number in range(ROUNDS):
        folder = full.parent / str(number)
        shutil.copytree(full, folder)
        async with house_at_work(folder, model.url) as house:
            gone = f"${SECRETS.index(secret)}"
            idle = [await _answer(house) for _ in range(IDLE)]
            began = time.monotonic()
            await take_back(house, gone)
            house.runner.wake("forget")
            beside = [time.monotonic() - began]
            while await house.rows("SELECT 1 FROM jobs WHERE name = 'forget' AND state <> 'done'"):
                beside.append(await _answer(house))
            taken.append(time.monotonic() - began)
            worst.append(max(beside) - statistics.median(idle))
        shutil.rmtree(folder)
    row = "| {}: its message deleted | {:.1f} s (≤ {:.1f} s) | an answer {:.0f} ms later (≤ {:.0f} ms) | ≤ 2 s, ≤ 100 ms |"
    delays = (statistics.median(worst) * 1000, max(worst) * 1000)
    return row.format(secret, statistics.median(taken), max(taken), *delays)


async def _answer(house: House) -> float:
    """Seconds until somebody in another room is answered."""
    began = time.monotonic()
    event = await house.incoming(
        "What a fine day", room="!other", sender="@bob:test", name="Bob", origin="other"
    )

    async def answered() -> bool:
        state = "SELECT 1 FROM inbox WHERE event_id = ? AND state = 'answered'"
        return bool(await house.rows(state, event))

    await house.until(answered)
    return time.monotonic() - began


async def _fill(house: House) -> None:
    chance = random.Random(1)
    async with house.database.transaction() as tx:
        new = [NewFact(SCOPE, _prose(chance, 12)) for _ in range(FACTS)]
        new += [NewFact(SCOPE, secret, origins=(f"${n}",)) for n, secret in enumerate(SECRETS)]
        await house.stores.facts.take(tx, new)
    await house.incoming("hello")
    async with house.database.transaction() as tx:
        row = await tx.row("SELECT conversation_id FROM inbox")
        assert row is not None
        talk = str(row["conversation_id"])
        await tx.execute("UPDATE inbox SET state = 'answered'")
        branch = ("branch", talk, "start", SCOPE, "2026-01-01T00:00:00+00:00")
        await tx.execute(
            "INSERT INTO branches (id, conversation_id, reason, scope, created_at)"
            " VALUES (?, ?, ?, ?, ?)",
            branch,
        )
        turns = [_Turn(number, chance) for number in range(TURNS)]
        for sql, rows in (
            (
                "INSERT INTO inbox (event_id, conversation_id, room_id, sender, sender_name, origin,"
                " kind, body, direct, raw, sent_at, received_at, state) VALUES (?, ?, '!room:test', '@ann:test',"
                " 'Ann', 'owner', 'message', ?, 1, ?, '2026-01-01T00:00:00+00:00', '2026-01-01T00:00:00+00:00', 'answered')",
                [(f"${t.n}", talk, t.said, t.raw) for t in turns],
            ),
            (
                "INSERT INTO casts (id, branch_id, event_id, entity_id, intent, origin, wards, state,"
                " result, started_at) VALUES (?, 'branch', ?, 'e', ?, 'owner', '{}', 'terminated', ?,"
                " '2026-01-01T00:00:00+00:00')",
                [(f"cast{t.n}", f"${t.n}", t.said, t.answer) for t in turns],
            ),
            (
                "INSERT INTO turns (id, cast_id, entity_id, utterance, calls, finish_reason, backend,"
                " model, tokens_in, tokens_out, tokens_cached, ms, created_at) VALUES (?, ?, 'e', ?,"
                " ?, 'stop', 'b', 'm', 1, 1, 0, 1, '2026-01-01T00:00:00+00:00')",
                [(f"turn{t.n}", f"cast{t.n}", t.answer, t.calls) for t in turns],
            ),
            (
                "INSERT INTO observations (turn_id, n, gate, args, result, tool_call_id, via, state,"
                " started_at, is_error) VALUES (?, 0, 'read_file', ?, ?, 'c', 'call', 'completed',"
                " '2026-01-01T00:00:00+00:00', 0)",
                [(f"turn{t.n}", t.arguments, t.result) for t in turns if t.n % 5 == 0],
            ),
            (
                "INSERT INTO outbox (id, conversation_id, room_id, kind, body, cast_id, answers,"
                " state, created_at) VALUES (?, ?, '!room:test', 'reply', ?, ?, ?, 'sent', '2026-01-01T00:00:00+00:00')",
                [(f"out{t.n}", talk, t.answer, f"cast{t.n}", f"${t.n}") for t in turns],
            ),
            (
                "INSERT INTO outbox_parts (outbox_id, n, txn_id, content, state, attempts) VALUES"
                " (?, 0, ?, ?, 'sent', 1)",
                [(f"out{t.n}", f"txn{t.n}", t.content) for t in turns],
            ),
            (
                "INSERT INTO prompt_parts (hash, text) VALUES (?, ?)",
                [(f"part{n}", _memories(n, chance)) for n in range(2000)],
            ),
        ):
            await tx.execute_many(sql, rows)


class _Turn:
    """A message of a person, and what came of it; every thousandth says it, another the other."""

    def __init__(self, number: int, chance: random.Random) -> None:
        self.n = number
        self.said, self.answer = _prose(chance, 25), _prose(chance, 60)
        if number % 1000 < len(SECRETS):
            secret = SECRETS[number % 1000]
            self.said += f" {secret.lower()}"
            self.answer += f" **{unicodedata.normalize('NFD', secret)}**"
        self.raw = json.dumps({"type": "m.room.message", "content": {"body": self.said}})
        self.arguments = json.dumps({"path": _prose(chance, 3)})
        self.result = json.dumps(_prose(chance, 100))
        call = [{"id": "c", "name": "read_file", "arguments": self.arguments}]
        self.calls = json.dumps(call if number % 5 == 0 else [])
        html = f"<p>{self.answer}</p>"
        self.content = json.dumps({"body": self.answer, "formatted_body": html})


def _prose(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS if chance.random() < 0.5 else RARE) for _ in range(words))


def _memories(number: int, chance: random.Random) -> str:
    lines = [_prose(chance, 8) for _ in range(80)] + [f"number {number}"]
    return "\n".join([*lines, SECRETS[0]] if number % 10 == 0 else lines)


if __name__ == "__main__":
    show(asyncio.run(rows()))
