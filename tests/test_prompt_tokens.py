"""What the prompt costs: no section and no tool grows without somebody looking at it.

Qwen's tokens are counted with cl100k's ranks and Qwen's splits, which is exact for the English of
these texts; `tests/world/tokenizers.py` says how far it is off in other languages. A server adds
the words of its chat template to the whole: 90 tokens with that of Qwen2.5.
"""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.bench_tokens import counts
from tests.world.budget import Budgeted
from tests.world.tokenizers import Counted, counted, missing_tokenizers
from wintermute.cli.prompt import Described

LIMITS = {
    "full: core": Counted(320, 317),
    "full: knowledge_routing": Counted(296, 290),
    "full: delegation": Counted(198, 196),
    "full: scheduled_tasks": Counted(179, 178),
    "full: system_events": Counted(94, 94),
    "full: guidelines": Counted(355, 352),
    "full: add_skill": Counted(203, 199),
    "full: append_memory": Counted(133, 132),
    "full: call_agent": Counted(141, 142),
    "full: call_agent_batch": Counted(106, 107),
    "full: read_file": Counted(197, 194),
    "full: search_memory": Counted(126, 127),
    "full: spawn_sub_session": Counted(252, 251),
    "full: task": Counted(741, 735),
    "full: write_file": Counted(156, 157),
    "full: the whole first request": Counted(3559, 3520),
    "small: core": Counted(112, 112),
    "small: guidelines": Counted(46, 45),
    "small: delegation": Counted(19, 19),
    "small: system_events": Counted(17, 17),
    "small: scheduled_tasks": Counted(16, 16),
    "small: knowledge_routing": Counted(151, 150),
    "small: add_skill": Counted(131, 132),
    "small: append_memory": Counted(83, 84),
    "small: read_file": Counted(86, 87),
    "small: task": Counted(217, 217),
    "small: write_file": Counted(88, 89),
    "small: the whole first request": Counted(966, 958),
}
"""The most each part may have: `python -m tests.bench_tokens --limits` prints it for today's texts."""

pytestmark = pytest.mark.skipif(bool(missing_tokenizers()), reason=missing_tokenizers())


TO_DO = (
    "Shorten it. If it is worth its tokens, take the limits that `python -m tests.bench_tokens"
    " --limits` prints, and measure the right calls again: docs/benchmarks.md says how."
)


async def test_every_part_keeps_within_its_tokens(tmp_path: Path, budget: Budgeted) -> None:
    """P-032: sections of the instructions, and definitions as they are sent."""
    found = await counts(tmp_path)
    assert set(found) == set(LIMITS), f"every part has a limit, and every limit a part. {TO_DO}"
    used, most = (
        {f"{name}, {by}": n for name, each in of.items() for by, n in asdict(each).items()}
        for of in (found, LIMITS)
    )
    budget("tokens of a part of the prompt", used, most, TO_DO)


@pytest.mark.slow
def test_the_tool_that_is_there_after_a_night_is_short(budget: Budgeted) -> None:
    """P-032: it is in no empty installation, so that no row above has it."""
    tool = Described("night")
    texts = [(tool.description, tool.parameters), tool.brief]
    found = counted([json.dumps(each, ensure_ascii=False) for each in texts])
    used = {"whole": found[0].qwen, "brief": found[1].qwen}
    budget("tokens of the tool `night`", used, {"whole": 160, "brief": 100}, TO_DO)


@pytest.mark.slow
def test_tokens_are_counted_as_the_two_tokenizers_do() -> None:
    """The first column is what the server of Qwen2.5-Coder answered at `/tokenize`."""
    texts = {
        "Anna moved to Lyon in March 2026.": Counted(12, 10),
        "it's 17:30": Counted(8, 5),
        '{"type": "function"}\n\n- a list\n': Counted(10, 10),
        "": Counted(0, 0),
    }
    assert dict(zip(texts, counted(list(texts)), strict=True)) == texts
