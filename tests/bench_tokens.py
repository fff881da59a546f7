"""What each part of the prompt costs in tokens, by the tokenizers of Qwen and of o200k.

    python -m tests.bench_tokens            the table of docs/benchmarks.md
    python -m tests.bench_tokens --limits   the table of tests/test_prompt_tokens.py

A part of `make bench`.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from tests.bench_runner import options, show
from tests.world.house import PROMPTS, house_at_work
from tests.world.model import ModelServer
from tests.world.tokenizers import Counted, counted, missing_tokenizers
from wintermute.config.schema import SubSessionSettings
from wintermute.messages import Json, Size
from wintermute.prompt.assemble import parse
from wintermute.templates import read_template

INSTRUCTIONS: Mapping[Size, str] = {"full": "BASE_PROMPT.txt", "small": "BASE_PROMPT.small.txt"}
WHOLE = "the whole first request"
SLACK = 0.03
"""By how much a part may grow before somebody has to look at it."""


async def parts(folder: Path) -> dict[str, str]:
    """The text of each section and tool, and of the first request, for each size that is shipped."""
    found: dict[str, str] = {}
    for size in get_args(Size):
        file = INSTRUCTIONS[size]
        if not (PROMPTS / file).exists():
            continue
        (folder / size).mkdir()
        body = await _first_request(folder / size, size)
        said = [str(message["content"]) for message in body["messages"]]
        tools = {each["function"]["name"]: as_templates_write(each) for each in body["tools"]}
        sections = {each.name: each.body for each in parse(read_template(PROMPTS, file), file)}
        whole = {WHOLE: "\n".join([*said, *tools.values()])}
        found |= {f"{size}: {name}": text for name, text in (sections | tools | whole).items()}
    return found


def as_templates_write(tool: Json) -> str:
    """A definition as chat templates put it before a model (`tojson`)."""
    return json.dumps(tool, ensure_ascii=False)


async def _first_request(folder: Path, size: Size) -> Json:
    """What is sent for the first message in an empty installation."""
    limits = SubSessionSettings()
    async with (
        ModelServer() as model,
        house_at_work(folder, model.url, prompts=PROMPTS, sub_sessions=limits, size=size) as house,
    ):
        await house.incoming("hello")
        await house.said(1)
    return model.requests[0].body


async def counts(folder: Path) -> dict[str, Counted]:
    """The tokens of each part."""
    texts = await parts(folder)
    found = await asyncio.to_thread(counted, list(texts.values()))
    return dict(zip(texts, found, strict=True))


def limit(tokens: int) -> int:
    """How many tokens a part may have that has so many now."""
    return tokens + max(3, round(tokens * SLACK))


async def rows() -> list[str]:
    """Rows for docs/benchmarks.md."""
    if missing := missing_tokenizers():
        return [missing]
    with tempfile.TemporaryDirectory() as name:
        found = await counts(Path(name))
    return [f"| {part} | {each.qwen:,} | {each.o200k:,} |" for part, each in found.items()]


async def limits() -> list[str]:
    """Lines for the table of the test."""
    with tempfile.TemporaryDirectory() as name:
        found = await counts(Path(name))
    return [
        f'    "{part}": Counted({limit(each.qwen)}, {limit(each.o200k)}),'
        for part, each in found.items()
    ]


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--limits", action="store_true")
    wanted = limits if parser.parse_args().limits else rows
    show(asyncio.run(wanted()))
