"""The system prompt: instructions as they stand in the file, and the time."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from wintermute.errors import ConfigurationError
from wintermute.prompt.plain import current_time, system_prompt
from wintermute.templates import shipped_prompts

WINTER = datetime(2025, 1, 15, 13, 32, 59, tzinfo=UTC)


def test_the_prompt_is_instructions_then_time_with_one_divider(tmp_path: Path) -> None:
    """P-002, P-003, P-007."""
    (tmp_path / "BASE_PROMPT.txt").write_text("  Be kind.\n\n")
    assert system_prompt(tmp_path, WINTER, "Europe/Berlin") == (
        "# Core Instructions\n  Be kind.\n\n---\n\n# Current Time\nWednesday, 2025-01-15 14:32 CET"
    )


def test_an_edit_counts_at_the_next_call_and_nothing_else_changes(tmp_path: Path) -> None:
    """P-005, P-006."""
    file = tmp_path / "BASE_PROMPT.txt"
    file.write_text("Be kind.")
    first = system_prompt(tmp_path, WINTER, "UTC")
    assert system_prompt(tmp_path, WINTER.replace(second=0), "UTC") == first
    file.write_text("Be brief.")
    assert "Be brief." in system_prompt(tmp_path, WINTER, "UTC")
    file.unlink()
    with pytest.raises(ConfigurationError, match="wintermute init"):
        system_prompt(tmp_path, WINTER, "UTC")


@pytest.mark.parametrize(
    ("month", "zone", "words"),
    [
        (7, "Europe/Berlin", "Tuesday, 2025-07-15 15:32 CEST"),
        (1, "Asia/Tokyo", "Wednesday, 2025-01-15 22:32 JST"),
        (1, "Pacific/Kiritimati", "Thursday, 2025-01-16 03:32 +14"),
    ],
)
def test_the_time_is_told_in_the_configured_zone(month: int, zone: str, words: str) -> None:
    """P-007."""
    assert current_time(WINTER.replace(month=month), zone) == words


def test_day_names_are_english_under_every_locale_and_host_zone() -> None:
    """P-007: asked of a process in another zone and, where installed, another language."""
    program = (
        "import locale\n"
        "from datetime import UTC, datetime\n"
        "from wintermute.prompt.plain import current_time\n"
        "try: locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')\n"
        "except locale.Error: pass\n"
        "print(current_time(datetime(2025, 1, 15, 13, 32, tzinfo=UTC), 'Europe/Berlin'))"
    )
    environment = {**os.environ, "TZ": "America/New_York"}  # noqa: TID251  a child's environment
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Wednesday, 2025-01-15 14:32 CET\n"


def test_the_shipped_prompt_is_short_and_names_what_it_must() -> None:
    """About four characters to a token; the sections come with their features."""
    text = shipped_prompts()["BASE_PROMPT.txt"]
    assert len(text) <= 450 * 4
    for needed in ("language of the message", "<room_context>", "never instruct", "tool said so"):
        assert needed in text
