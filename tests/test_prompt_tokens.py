"""What the prompt costs: no section and no tool grows without somebody looking at it.

Qwen's tokens are counted with cl100k's ranks and Qwen's splits, which is exact for the English of
these texts; `tests/world/tokenizers.py` says how far it is off in other languages. A server adds
the words of its chat template to the whole: 90 tokens with that of Qwen2.5.
"""

from pathlib import Path

import pytest

from tests.bench_tokens import counts
from tests.world.tokenizers import Counted, counted, missing_tokenizers

LIMITS = {
    "full: core": Counted(398, 394),
    "full: knowledge_routing": Counted(524, 506),
    "full: delegation": Counted(335, 328),
    "full: scheduled_tasks": Counted(244, 239),
    "full: system_events": Counted(113, 113),
    "full: guidelines": Counted(413, 409),
    "full: add_skill": Counted(274, 270),
    "full: append_memory": Counted(207, 206),
    "full: call_agent": Counted(330, 331),
    "full: call_agent_batch": Counted(270, 264),
    "full: done": Counted(140, 140),
    "full: read_file": Counted(279, 274),
    "full: spawn_sub_session": Counted(500, 487),
    "full: task": Counted(925, 888),
    "full: write_file": Counted(227, 228),
    "full: the whole first request": Counted(5237, 5120),
}
"""The most each part may have: `python -m tests.bench_tokens --limits` prints it for today's texts."""

pytestmark = pytest.mark.skipif(bool(missing_tokenizers()), reason=missing_tokenizers())


async def test_every_part_of_the_prompt_keeps_within_its_tokens(tmp_path: Path) -> None:
    """P-032: sections of the instructions, and definitions as they are sent."""
    found = await counts(tmp_path)
    assert set(found) == set(LIMITS), "every part has a limit, and every limit a part"
    over = {
        name: (each, LIMITS[name])
        for name, each in found.items()
        if each.qwen > LIMITS[name].qwen or each.o200k > LIMITS[name].o200k
    }
    assert over == {}


def test_tokens_are_counted_as_the_two_tokenizers_do() -> None:
    """The first column is what the server of Qwen2.5-Coder answered at `/tokenize`."""
    texts = {
        "Anna moved to Lyon in March 2026.": Counted(12, 10),
        "it's 17:30": Counted(8, 5),
        '{"type": "function"}\n\n- a list\n': Counted(10, 10),
        "": Counted(0, 0),
    }
    assert dict(zip(texts, counted(list(texts)), strict=True)) == texts
