"""What the embedder costs a daemon, in memory and in the first answer: `python -m tests.bench_embedder`.

    python -m tests.bench_embedder [--facts N] [--stay]

A daemon of an environment of its own, as in `make bench`, encryption on, with memories by meaning:
before the embedder, with it, and after it has left, which is five idle minutes later (`--stay` does
not wait for that). A message is timed until the model is asked, with the embedder to be started and
with it there.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.bench_runner import IDLE_SECONDS, options, private_environment, pss, show
from tests.bench_search import lines
from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Homeserver
from tests.world.model import ModelServer
from tests.world.user import MatrixUser

GIVEN = "where is the old camera?"
ROUNDS = 5
WARM = 5
LEAVES = 400.0


class Daemon:
    """One daemon with memories, and its owner in an encrypted room with it."""

    def __init__(self, bot: Bot, ann: MatrixUser, model: ModelServer) -> None:
        self.bot = bot
        self._ann = ann
        self._model = model
        self._room = ""

    async def meet(self) -> None:
        """Make the room."""
        self._room = await self._ann.create_room(invite=[self.bot.user_id], encrypted=True)
        await self._ann.wait_joined(self._room, self.bot.user_id)

    async def asked_after(self) -> float:
        """Seconds from a message until the model is asked; the answer is waited for as well."""
        number, seen = len(self._model.requests) + 1, len(self._answers())
        began = time.monotonic()
        await self._ann.send(self._room, GIVEN)
        await self._model.request_arrived(number)
        seconds = time.monotonic() - began
        await self._ann.until(lambda: len(self._answers()) > seen)
        return seconds

    def _answers(self) -> list[object]:
        return [each for each in self._ann.messages(self._room, self.bot.user_id) if each.body]

    @property
    def embedder(self) -> int | None:
        """The process of its embedder."""
        return child_of(self.bot.pid)


def child_of(pid: int) -> int | None:
    """The process that another has begun."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return next(map(int, listed.split()), None)


async def measured(folder: Path, facts: int, *, stay: bool) -> list[str]:
    """Rows of a table."""
    (folder / "synapse").mkdir()
    with (
        Homeserver(folder / "synapse") as homeserver,
        private_environment(folder / "private", "meaning") as python,
    ):
        async with (
            ModelServer(rules=False) as model,
            MatrixUser(homeserver.url, homeserver.user("ann"), folder / "ann") as ann,
        ):
            daemons = {}
            for provider in ("none", "embedded"):
                login = homeserver.user(provider)
                memory = {"backend": "local_vector", "embeddings": {"provider": provider}}
                config = write_settings(
                    folder / provider, homeserver.url, login, model.url, ann.user_id, memory=memory
                )
                await remember(python, config, facts)
                daemons[provider] = Daemon(Bot(config, python=python), ann, model)
                async with daemons[provider].bot:
                    await daemons[provider].meet()
            rows = await cold(daemons)
            return [*rows, *await sizes(daemons["embedded"], stay=stay)]


async def remember(python: str, config: Path, facts: int) -> None:
    """Take memories in, with their vectors."""
    file = config.with_name("facts.jsonl")
    file.write_text("\n".join(lines(facts)) + "\n")
    for words in (("import", str(file)), ("rebuild-index",)):
        command = (python, "-m", "wintermute", "--config", str(config), "memory", *words)
        done = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        assert await done.wait() == 0


async def cold(daemons: Mapping[str, Daemon]) -> list[str]:
    """The first message after a start, without and with an embedder to be started, in turn."""
    first: dict[str, list[float]] = {name: [] for name in daemons}
    later: dict[str, list[float]] = {name: [] for name in daemons}
    for _ in range(ROUNDS):
        for name, daemon in daemons.items():
            async with daemon.bot:
                first[name].append(await daemon.asked_after())
                later[name] += [await daemon.asked_after() for _ in range(WARM)]
    ms = {
        (name, when): 1000 * statistics.median(times[name])
        for when, times in (("first", first), ("later", later))
        for name in daemons
    }
    return [
        f"| {when} message until the model is asked, by meaning (by words alone) |"
        f" {ms['embedded', when]:.0f} ms ({ms['none', when]:.0f} ms) |"
        f" {'≤ 2 s more' if when == 'first' else '-'} |"
        for when in ("first", "later")
    ]


async def sizes(daemon: Daemon, *, stay: bool) -> list[str]:
    """PSS before the embedder, with it and after it."""
    async with daemon.bot as bot:
        await asyncio.sleep(IDLE_SECONDS)
        before = pss(bot.pid)
        for _ in range(WARM):
            await daemon.asked_after()
        await asyncio.sleep(IDLE_SECONDS)
        embedder = daemon.embedder
        assert embedder is not None
        rows = [
            f"| PSS before the first message | {before:.1f} MB | ≤ 60 |",
            f"| PSS of the embedder beside it | {pss(embedder):.1f} MB | ≤ 160 |",
            f"| PSS of the daemon meanwhile | {pss(bot.pid):.1f} MB | ≤ 85 |",
        ]
        if not stay:
            async with asyncio.timeout(LEAVES):
                while daemon.embedder is not None:  # noqa: ASYNC110  nobody tells us
                    await asyncio.sleep(1)
            await asyncio.sleep(IDLE_SECONDS)
            rows.append(f"| PSS after the embedder has left | {pss(bot.pid):.1f} MB | ≤ 85 |")
        return rows


def main() -> None:
    """Measure and print."""
    parser = options(__doc__)
    parser.add_argument("--facts", type=int, default=1_000)
    parser.add_argument("--stay", action="store_true", help="do not wait until the embedder leaves")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measured(Path(folder), given.facts, stay=given.stay))
    show(rows)


if __name__ == "__main__":
    main()
