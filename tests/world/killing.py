"""A piece of work that a real process does again and again from the same folder, killed elsewhere each time.

    work = await Work.begun(bot, "INSERT INTO harvests", over)
    for at in work.points(every=20):
        await work.killed(at)
        assert work.ended() == work.wanted

What there is to be killed at is found by a run without a kill, so no list of it can be out of date.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterable, Sequence
from difflib import unified_diff
from itertools import count
from pathlib import Path
from typing import Self

from tests.world.bot import Bot, Json
from tests.world.clock import WITHIN
from tests.world.copied import RESTORED, copied, put_back
from tests.world.files import files_with
from tests.world.person import Person
from tests.world.proxy import Action, Proxy, Request, pass_after, pass_before

TABLES = (
    "SELECT f.text, f.source, f.scope, f.speaker, f.taint, f.origins, f.queued, f.ended,"
    " f.valid_to IS NOT NULL AS over, f.retired_at IS NOT NULL AS retired, h.text AS heir"
    " FROM facts f LEFT JOIN facts h ON h.id = f.replaced_by",
    "SELECT cause, s.scope, summary, kind, coalesce(f.text, item) AS item, before ->> '$.text' AS b,"
    " after ->> '$.text' AS a FROM change_sets s JOIN changes c ON change_set_id = s.id"
    " LEFT JOIN facts f ON f.id = item",
    "SELECT name, scope, state, last_error FROM jobs WHERE name NOT IN ('embeddings', 'scrub')",
    "SELECT conversation_id, upto FROM harvests",
    "SELECT event_id, state, body, raw FROM inbox",
    f"SELECT kind, body, state FROM outbox WHERE body NOT LIKE '%{RESTORED}%'",
    "SELECT intent, result, context_block, state FROM casts",
    "SELECT utterance, calls, context_block FROM turns",
    "SELECT args, result, state FROM observations",
    "SELECT scope, kind, after, state FROM decisions",
    "SELECT scope, digest FROM unowned_bullets",
    "SELECT c0, c1 FROM facts_fts_content",
)
"""What must be the same in the end: all but the names of rows, when something was done, and that it is
noticed that the folder was put back.
"""
LOOKS = ("SELECT", "PRAGMA data_version")
DONE = "UPDATE jobs SET state = 'done'"
BEFORE, AFTER = "executing", "operation"
ROW, PARTS = (BEFORE, "INSERT INTO outbox ("), (BEFORE, "INSERT INTO outbox_parts")
SENT_MARK = "UPDATE outbox_parts SET state"


def state(bot: Bot, word: str) -> str:
    """What a stopped bot's folder holds, and in which files the word stands, if it is one."""
    tables = [sorted(json.dumps(row) for row in bot.rows(query)) for query in TABLES]
    files = {
        str(path.relative_to(bot.data)): path.read_text()
        for path in bot.data.rglob("*")
        if path.name in ("core.md", "MEMORIES.txt")
    }
    named = files_with(bot.data, word) if word else []
    return json.dumps([tables, files, named], indent=1, ensure_ascii=False, sort_keys=True)


Run = Callable[[Json | None], Awaitable[int]]
"""Runs the process, to die at a trigger; its exit code."""


async def take_a_breath(person: Person, room: str) -> None:
    """Wait before each ninth message: who answers ten times at once is taken for a program (F-048)."""
    if len(person.messages(room, person.user_id)) % 9 == 8:
        await asyncio.sleep(2.1)


class Work:
    """What a process does from a folder as it is now."""

    def __init__(self, bot: Bot, first: str, run: Run, go_on: Run, word: str) -> None:
        self._bot = bot
        self._first = first
        self._run = run
        self._go_on = go_on
        self._word = word
        self._copy = copied(bot, "begin")
        self.steps: list[str] = []
        self.wanted = ""

    @classmethod
    async def of_daemon(
        cls, bot: Bot, first: str, over: Callable[[], bool], word: str = ""
    ) -> Self:
        """What a daemon does from its start until something is so; the word must not stay."""

        async def run(trigger: Json | None) -> int:
            began = len(bot.log)
            await bot.start(trigger, ready=False)

            def is_done() -> bool:
                return over() and any(" ready " in line for line in bot.log[began:])

            # Whoever looks may be in the way of the rewriting, which is tried again in a minute.
            await bot.until(lambda: not bot.running or is_done(), 2 * WITHIN)
            return await bot.stop() if bot.running else await bot.ended()

        work = await cls(bot, first, run, run, word)._done()
        # What it does while it waits for more, and while it leaves, is no part of the work.
        last = max(n for n, step in enumerate(work.steps) if DONE in step)
        del work.steps[work.place("COMMIT", after=last) :]
        return work

    @classmethod
    async def of_command(
        cls, bot: Bot, first: str, words: Sequence[str], go_on: Run, word: str
    ) -> Self:
        """What a command does; `go_on`: what people do after it was killed."""

        async def run(trigger: Json | None) -> int:
            code, _ = await bot.command(*words, trigger=trigger)
            return code

        return await cls(bot, first, run, go_on, word)._done()

    async def _done(self) -> Self:
        """The run without a kill."""
        assert await self._run(self._trigger(self._first)) == 0
        self.steps = self._tape.read_text().splitlines()
        self.wanted = state(self._bot, self._word)
        assert not self._word or self._word not in self.wanted
        return self

    @property
    def _tape(self) -> Path:
        return self._bot.config.with_name("tape")

    def _trigger(self, first: str = "", step: str = "", at: int = 0) -> Json:
        paths = {"tape": str(self._tape), "folder": str(self._bot.data)}
        return {**paths, "first": first, "step": step, "at": at}

    def _at(self, n: int) -> Json:
        """To die at the n-th step: the order of what is done beside each other varies, so it is known
        by its words, and by how many such came before it.
        """
        step = self.steps[n - 1]
        return self._trigger(self._first, step, self.steps[:n].count(step))

    def points(self, every: int) -> list[int]:
        """Where to be killed: first and last, and so many steps apart; begins elsewhere each time.

        To be killed before a look is to be killed before the change that follows it.
        """
        changes = [n for n, step in enumerate(self.steps, 1) if not step.startswith(LOOKS)]
        return sorted({changes[0], changes[-1], *changes[random.randrange(every) :: every]})

    def pairs(self, every: int) -> list[list[int]]:
        """The same ten times further apart, and each time somewhere in the run after that."""
        last = len(self.steps)
        return [[at, random.randint(1, last)] for at in self.points(10 * every)]

    def place(self, *texts: str, after: int = 0) -> int:
        """The first step with this text; of several, each behind the one before."""
        for text in texts:
            after = next(n for n, step in enumerate(self.steps[after:], after + 1) if text in step)
        return after

    async def killed(self, *at: int) -> bool:
        """Begin anew and be killed there, and where a second is named in the run after that; then run
        to the end. Whether it came so far: the order of what is done beside it varies.
        """
        put_back(self._bot, self._copy)
        came = await self._run(self._at(at[0])) == -signal.SIGKILL
        for again in at[1:]:
            came = await self._go_on(self._trigger(at=again)) == -signal.SIGKILL and came
        assert await self._go_on(None) == 0
        return came

    async def survives(self, points: Iterable[Sequence[int]]) -> None:
        """Each of these kills, one or two a run, leaves in the end what a run without one does."""
        wrong, all_of_them, came = {}, [*points], 0
        for at in all_of_them:
            came += await self.killed(*at)
            if (there := state(self._bot, self._word)) != self.wanted:
                where = " and ".join([self.steps[at[0] - 1], *map(str, at[1:])])
                lines = unified_diff(self.wanted.splitlines(), there.splitlines(), lineterm="", n=0)
                wrong[f"{at} {where}"] = "\n".join(lines)
        assert not wrong, "\n".join(f"{where}\n{lines}" for where, lines in wrong.items())
        assert came > len(all_of_them) // 2


def kill_at_send(
    proxy: Proxy, daemon: Bot, number: int, phase: str, what: str = "/send/m.room."
) -> None:
    """Kill the daemon around a send of its, counted from 1."""
    sends = count(1)

    def strike(request: Request, *_: object) -> Action:
        if request.method == "PUT" and what in request.path and next(sends) == number:
            proxy.before, proxy.after = pass_before, pass_after
            os.kill(daemon.pid, signal.SIGKILL)
        return None

    if phase == "before":
        proxy.before = strike
    else:
        proxy.after = strike
