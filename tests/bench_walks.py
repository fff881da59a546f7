"""How many modules and functions of ours a message enters, from its inbox row to its outbox row.

    python -m tests.bench_walks

Each walk is taken once before, so that what is only read or opened once does not count. Only the
thread of the event loop is watched: the database's own has nothing of ours but the driver.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from tests.world.house import PROMPTS, house_at_work
from tests.world.model import Calls, ModelServer, Seen, Step, Text, Use

PACKAGE = str(Path(__file__).parent.parent / "wintermute")
MEMORY = Use("append_memory", {"content": "Ann likes tea."})
TASK = Use("task", {"action": "add", "content": "buy tea", "schedule_type": "daily", "at": "09:00"})
WALKS: dict[str, Use | None] = {"hello": None, "append_memory": MEMORY, "task add": TASK}


async def walked(folder: Path, model: ModelServer, use: Use | None) -> set[tuple[str, str]]:
    """The functions that were entered, each with its module."""
    entered: set[tuple[str, str]] = set()

    def choose(seen: Seen) -> Step:
        if use is None or seen.messages[-1]["role"] == "tool":
            return Text("hello")
        return Calls((use,))

    def watch(frame: FrameType, event: str, _value: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            entered.add((code.co_filename.removeprefix(PACKAGE), code.co_qualname))

    model.keyed(choose)
    async with house_at_work(folder, model.url, prompts=PROMPTS) as house:
        await house.incoming("hello")
        await house.said(1)
        await house.settled()
        sys.setprofile(watch)
        await house.incoming("hello")
        await house.said(2)
        sys.setprofile(None)
    return entered


async def main() -> None:
    async with ModelServer() as model:
        for name, use in WALKS.items():
            with TemporaryDirectory() as folder:
                entered = await walked(Path(folder), model, use)
            modules = {module for module, _ in entered}
            sys.stdout.write(f"{name}: {len(modules)} modules, {len(entered)} functions\n")
            if "--names" in sys.argv:
                sys.stdout.writelines(f"  {module}\n" for module in sorted(modules))


if __name__ == "__main__":
    asyncio.run(main())
