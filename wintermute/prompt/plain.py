"""The system prompt of the first version: instructions and the time, nothing else yet."""

from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from wintermute.templates import read_template

DIVIDER = "\n\n---\n\n"
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def system_prompt(folder: Path, now: datetime, timezone: str) -> str:
    """The prompt from the files in `folder` as they are at this moment (P-001, P-005).

    Raises: ConfigurationError when BASE_PROMPT.txt cannot be used.
    """
    instructions = read_template(folder, "BASE_PROMPT.txt").rstrip()
    parts = {"Core Instructions": instructions, "Current Time": current_time(now, timezone)}
    return DIVIDER.join(f"# {heading}\n{text}" for heading, text in parts.items())


def current_time(now: datetime, timezone: str) -> str:
    """Day, date, time and zone, as in `Wednesday, 2025-01-15 14:32 CET`."""
    # strftime would name the day in the language of the machine (P-007).
    local = now.astimezone(ZoneInfo(timezone))
    return f"{DAYS[local.weekday()]}, {local:%Y-%m-%d %H:%M} {local.tzname()}"
