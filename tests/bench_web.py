"""Costs of the web door: `python -m tests.bench_web`, a part of `make bench`; docs/benchmarks.md reports it.

One daemon beside Synapse, with a wiki of 10,000 pages and a conversation of 5,000 messages, asked by
HTTP and by Debian's Chromium. What is compared is measured in turn.
"""

import asyncio
import os
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from playwright.async_api import Page

from tests.bench import CROWD, Bench
from tests.bench_runner import (
    IDLE_SECONDS,
    Chat,
    chat,
    child_cpu,
    ms_since,
    options,
    private_environment,
    pss,
    show,
    spread,
    table_row,
)
from tests.bench_wiki import lay
from tests.world.bot import Bot
from tests.world.browser import Browsing, DoorAt, browsing, first_load
from tests.world.clock import SYSTEM
from tests.world.homeserver import Login, free_port
from tests.world.model import Drip, ModelServer, Seen, Step
from tests.world.web import until_open
from wintermute.web.sessions import TOKEN

CHAT, LONG = "chat_bench", "chat_long"
MESSAGES, STREAMS, BUSY = 5_000, 50, 20
ROUNDS, LOOKS = 100, 25
QUIET = {"level": "info"}
DROP = "drop by drop"
FRAMES = """() => {
    const seen = { longest: 0, last: performance.now() };
    window.frames_seen = seen;
    const frame = (now) => {
        seen.longest = Math.max(seen.longest, now - seen.last);
        seen.last = now;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
}"""
WORD_SEEN = """(word) => new Promise((found) => {
    const look = () => document.body.innerText.includes(word)
        && found(performance.timeOrigin + performance.now());
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
    look();
})"""


@dataclass(frozen=True)
class OpenDoor:
    """A daemon's door, and a program that has its token."""

    bot: Bot
    login: Login
    base: str
    client: httpx2.AsyncClient

    async def get(self, path: str) -> float:
        """Milliseconds that a page takes."""
        began = time.perf_counter()
        answer = await self.client.get(self.base + path)
        assert answer.status_code == 200, (path, answer.status_code)
        return ms_since(began)

    async def say(self, key: str, text: str, chat: str = CHAT) -> None:
        """Say something in a conversation of the browser."""
        address = f"{self.base}/api/chats/{chat}/messages"
        answer = await self.client.post(address, json={"key": key, "text": text})
        assert answer.status_code == 202, answer.text

    async def told(self, word: str, chat: str = CHAT) -> None:
        """Wait until a conversation has a word."""
        address = f"{self.base}/api/chats/{chat}/messages"
        while word not in (await self.client.get(address)).text:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def streams(self, chats: list[str]) -> AsyncIterator[None]:
        """Hold a stream open to each conversation, and read it."""
        opened = [asyncio.Event() for _ in chats]

        async def read(chat: str, is_open: asyncio.Event) -> None:
            address = f"{self.base}/api/chats/{chat}/stream"
            async with self.client.stream("GET", address) as stream:
                async for _ in stream.aiter_lines():
                    is_open.set()

        async with asyncio.TaskGroup() as group:
            reading = [group.create_task(read(*each)) for each in zip(chats, opened, strict=True)]
            for each in opened:
                await each.wait()
            yield
            for task in reading:
                task.cancel()


@asynccontextmanager
async def open_door(run: Bench, name: str, python: str = sys.executable) -> AsyncIterator[OpenDoor]:
    """Start a daemon whose door is open; its wiki is empty."""
    port = free_port()
    config, login = run.config(name, log=QUIET, web={"enabled": True, "port": port})
    limits = httpx2.Limits(max_connections=200)
    async with (
        Bot(config, python=python) as bot,
        httpx2.AsyncClient(timeout=60, limits=limits) as client,
    ):
        door = OpenDoor(bot, login, f"http://127.0.0.1:{port}", client)
        await until_open(client, door.base)
        token = (bot.data / TOKEN).read_text().strip()
        client.headers["Authorization"] = f"Bearer {token}"
        yield door


async def memory(run: Bench, folder: Path) -> list[str]:
    """PSS of a daemon that has answered: door off, on, and with streams."""
    found = {}
    with private_environment(folder / "private", "web") as python:
        config, login = run.config("web-off", log=QUIET)
        async with Bot(config, python=python) as bot:
            await _answered(run, login)
            found["door off"] = pss(bot.pid)
        async with open_door(run, "web-on", python) as door:
            await _answered(run, door.login)
            for path in ("/", "/wiki", "/graph", "/chat"):
                await door.get(path)
            await door.say("first", "hello")
            await door.told("echo: hello")
            await asyncio.sleep(IDLE_SECONDS)
            found["door open, a page looked at"] = pss(door.bot.pid)
            async with door.streams([CHAT] * STREAMS):
                await asyncio.sleep(IDLE_SECONDS)
                found[f"and {STREAMS} streams"] = pss(door.bot.pid)
    off = found["door off"]
    goals = ("-", "≤ +14 MB", "≤ +18 MB")
    return [
        f"| PSS, {name} | {value:.1f} MB, +{value - off:.1f} | {goal} |"
        for (name, value), goal in zip(found.items(), goals, strict=True)
    ]


async def _answered(run: Bench, login: Login) -> None:
    room = await run.room_joined(login)
    for n in range(10):
        await run.answer(room, login, f"remember {n}")
    await asyncio.sleep(IDLE_SECONDS)


async def timed(door: OpenDoor, path: str, rounds: int, goal: str) -> str:
    """One row of a page's time."""
    taken = [await door.get(path) for _ in range(rounds)]
    return table_row(f"`{path}`", *spread(taken), goal)


async def pages(door: OpenDoor) -> AsyncIterator[str]:
    """Each kind of page, on a large wiki and a long conversation."""
    page = "semantic/Garden%204704"
    said = (f"/chat/{LONG}", f"/api/chats/{LONG}/messages", "/chat", "/sessions", "/api/chats")
    wiki = ("/wiki", f"/wiki/{page}", f"/edit/{page}", "/wiki-pages", "/wiki-problems")
    rest = ("/graph", f"/api/graph?around={page}", "/jobs", "/proposals")
    for path in said:
        yield await timed(door, path, ROUNDS, "≤ 30 ms")
    for path in (*wiki, *rest):
        yield await timed(door, path, LOOKS, "≤ 120 ms")
    yield await timed(door, "/wiki-search?q=garden+promise", LOOKS, "≤ 700 ms")
    yield await _loop(door)


async def _loop(door: OpenDoor) -> str:
    """The longest that a health check waits while files are looked at and searched."""
    waits, done = list[float](), asyncio.Event()

    async def ask() -> None:
        while not done.is_set():
            waits.append(await door.get("/healthz"))
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as group:
        group.create_task(ask())
        for path in ("/wiki", "/wiki-search?q=garden", "/graph", "/wiki-problems") * 3:
            await door.get(path)
        done.set()
    waits.sort()
    median, p99 = statistics.median(waits), waits[int(0.99 * len(waits))]
    return f"| `/healthz` beside looks and searches | {median:.1f} ms | p99 {p99:.1f}, longest {waits[-1]:.1f} ms | - |"


async def beside(run: Bench, door: OpenDoor) -> AsyncIterator[str]:
    """Measure what Matrix and pages cost each other, in turn."""
    rooms = [await run.room(door.login, encrypted=False) for _ in range(CROWD)]
    quiet = [await door.get(f"/chat/{LONG}") for _ in range(ROUNDS)]
    taken, done = list[float](), asyncio.Event()

    async def look() -> None:
        while not done.is_set():
            taken.append(await door.get(f"/chat/{LONG}"))
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        group.create_task(look())
        await run.pour_all(rooms, door.login)
        done.set()
    calm, burst = statistics.median(quiet), statistics.median(taken)
    yield f"| a page, alone | {calm:.1f} ms | |"
    yield f"| a page in a burst of 500 messages | {burst:.1f} ms | {burst / calm:.2f}x, goal ≤ 1.5 |"
    chats = [f"chat_busy{n}" for n in range(3)]  # of one person four are answered at once
    pages = [chats[n % 3] for n in range(BUSY)]
    alone, watched = list[float](), list[float]()
    for turn in range(6):
        fresh = [await run.room(door.login, encrypted=False) for _ in range(2)]  # F-048
        alone += [await run.answer(fresh[0], door.login, f"alone {turn} {n}") for n in range(5)]
        async with door.streams(pages if turn else []):
            for chat in chats:
                await door.say(f"busy{turn}", f"{DROP} {turn}", chat)
            watched += [
                await run.answer(fresh[1], door.login, f"busy {turn} {n}") for n in range(5)
            ]
            for chat in chats:
                await door.say(f"stop{turn}", "/stop", chat)
    calm, busy = statistics.median(alone), statistics.median(watched)
    yield f"| a Matrix answer, alone | {1000 * calm:.0f} ms | |"
    yield (
        f"| a Matrix answer beside {BUSY} pages that watch growing ones | {1000 * busy:.0f} ms"
        f" | {busy / calm:.2f}x, goal ≤ 1.1 |"
    )


async def in_chromium(door: OpenDoor, model: ModelServer) -> AsyncIterator[str]:
    """First word, first loads, and the graph."""
    chromium = shutil.which("chromium")
    if chromium is None:
        yield "| no Chromium here | | |"
        return
    async with browsing(DoorAt(door.base, door.bot), chromium) as browser:
        page = await browser.open(f"/chat/{CHAT}")
        words = sorted([await _first_word(page, model, n) for n in range(15)])
        median, longest = statistics.median(words), words[-1]
        yield f"| first word after the model's first | {median:.0f} ms, longest {longest:.0f} | ≤ 150 ms |"
        for path, most in (("/", 60), ("/graph", 90)):
            yield f"| first load of `{path}` | {await _load(browser, path)} | ≤ {most} kB |"
        for row in await _graph(browser):
            yield row


async def _first_word(page: Page, model: ModelServer, n: int) -> float:
    gate, word = asyncio.Semaphore(0), f"Word{n}"
    model.script(Drip(f"{word} and more", gate))
    asked = len(model.requests)
    await page.get_by_label("Message", exact=True).fill(f"say it {n}")
    await page.keyboard.press("Enter")
    await model.request_arrived(asked + 1)
    async with asyncio.TaskGroup() as group:
        seeing = group.create_task(page.evaluate(WORD_SEEN, word))
        await asyncio.sleep(0.2)
        said_at = SYSTEM.now().timestamp()
        gate.release()
        seen_at = await seeing
        for _ in range(5):
            gate.release()
    await page.get_by_text(f"{word} and more").last.wait_for()
    return float(seen_at - 1000 * said_at)


async def _load(browser: Browsing, path: str) -> str:
    sizes = await first_load(browser, path)
    return f"{sum(sizes) / 1000:.1f} kB with its HTML of {sizes[0] / 1000:.1f} kB, {len(sizes)} requests"


async def _graph(browser: Browsing) -> list[str]:
    firsts, longest = list[float](), list[float]()
    for _ in range(7):
        profile = await browser.profile()
        page = await profile.new_page()
        await page.add_init_script(f"({FRAMES})()")
        await page.goto(browser.web.base + "/graph")
        await page.locator('canvas[data-state="still"]').wait_for()
        firsts.append(
            await page.evaluate("performance.getEntriesByName('graph-drawn')[0].startTime")
        )
        longest.append(await page.evaluate("window.frames_seen.longest"))
        await profile.close()
    return [
        f"| graph of 300 nodes, first picture | {statistics.median(firsts):.0f} ms | ≤ 1,000 ms |",
        f"| its longest frame until it rests | {statistics.median(longest):.0f} ms | ≤ 100 ms |",
    ]


def imported() -> str:
    """CPU time that the framework and our part of it need to load, beside the daemon's."""
    before, after = (
        statistics.median(child_cpu("-c", f"import {module}") for _ in range(7))
        for module in ("wintermute.daemon", "wintermute.daemon, wintermute.web.server")
    )
    return f"| import of the door, CPU | {after - before:.2f} s | 0.29 s tried |"


def slowly(seen: Seen) -> Step | None:
    """Answer what asks for it word by word, for longer than anybody looks."""
    return Drip("word " * 2_000, None, 0.1) if DROP in seen.last_user else None


async def bench(only: str | None) -> None:
    """Measure and print."""
    async with AsyncExitStack() as stack:
        world: Chat = await stack.enter_async_context(chat())
        model = world.model
        model.keyed(slowly)
        run = Bench(world, ROUNDS)
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")  # noqa: T201
        parts: dict[str, Callable[[OpenDoor], AsyncIterator[str]]] = {
            "pages": pages,
            "beside": lambda door: beside(run, door),
            "chromium": lambda door: in_chromium(door, model),
        }
        if only in (None, "memory"):
            show([imported()])
            show(await memory(run, world.folder))
        if only != "memory":
            door = await stack.enter_async_context(open_door(run, "web"))
            lay(door.bot.data / "wiki")
            for n in range(MESSAGES // 2):
                await door.say(f"long{n}", "/new", LONG)
            await door.bot.said_all()
            for name, part in parts.items():
                if only in (None, name):
                    async for each in part(door):
                        show([each])


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--only", choices=["memory", "pages", "beside", "chromium"])
    asyncio.run(bench(parser.parse_args().only))
