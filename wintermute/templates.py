"""Prompt files: listing the shipped ones, reading one, and filling its placeholders."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from wintermute.errors import ConfigurationError, FileUnusable, PromptUnreadable
from wintermute.files import content_of, decoded

log = logging.getLogger(__name__)

MOST_BYTES = 1_000_000
SMALL = ".small.txt"
"""The end of the names of prompt files for small models."""
NOTHING_KEPT: Mapping[str, str] = {}
RUNTIME = "runtime/default.md"
CONSOLIDATION = "consolidation/default.md"
"""The prompts that explain the wiki to a model, and that make its pages (W-020, W-061)."""
DREAM_SKILLS = "DREAM_SKILL_PROMPT.txt"
SPARED = (
    *(SMALL, RUNTIME, CONSOLIDATION, "consolidation/plan.md", "consolidation/page.md"),
    DREAM_SKILLS,
)
"""Ends of file names that a data folder made by an older version lacks."""


def shipped_folder() -> Path:
    """Return the folder of the shipped prompt files."""
    packed = Path(__file__).parent / "shipped" / "prompts"
    return packed if packed.is_dir() else Path(__file__).parent.parent / "data" / "prompts"


def shipped_prompts() -> dict[str, str]:
    """Return the texts of the shipped prompt files by name, for `wintermute init`.

    A name is relative to the folder, with `/`: `runtime/default.md`.
    """
    folder = shipped_folder()
    return {
        file.relative_to(folder).as_posix(): file.read_text("utf-8")
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def read_template(folder: Path, name: str) -> str:
    """Read a prompt file as it is now, so that an edit takes effect at once.

    If one of `SPARED` is missing, the shipped text is used: older data folders have none.

    Raises: ConfigurationError if it is missing or empty; PromptUnreadable if it is not text.
    """
    path = folder / name
    try:
        content = content_of(path, MOST_BYTES, follow=True)
        text = "" if content is None else decoded(content)
    except FileUnusable as problem:
        raise PromptUnreadable(f"prompt file {path} {problem}") from problem
    if content is None and name.endswith(SPARED) and name in (shipped := shipped_prompts()):
        return shipped[name]
    if content is None:
        raise ConfigurationError(
            f"prompt file {path} is missing: `wintermute init` restores the shipped one"
        )
    if not text.strip():
        raise ConfigurationError(
            f"prompt file {path} is empty: write a text, or delete it and `wintermute init` "
            "restores the shipped one"
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


class Template:
    """One prompt file, read again at each use. If it becomes unusable, its last good text stays in use."""

    def __init__(self, folder: Path, name: str, kept: Mapping[str, str] = NOTHING_KEPT) -> None:
        """`kept`: last good texts by name, for a file that is unreadable at the start (F-031).

        Raises: ConfigurationError if there is no first good text (P-066).
        """
        self._folder = folder
        self._name = name
        self._reported = ""
        try:
            self._text = read_template(folder, name)
        except PromptUnreadable:
            if name not in kept:
                raise
            self._text = kept[name]

    def text(self) -> str:
        """Return the newest good text."""
        try:
            self._text, self._reported = read_template(self._folder, self._name), ""
        except ConfigurationError as error:
            if self._reported != str(error):
                log.error("prompt file unusable, last text stays in use reason=%s", error)  # noqa: TRY400
                self._reported = str(error)
        return self._text


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace each `{name}` of `values` in one pass; other braces stay.

    A value without a placeholder is appended, with its name if there are several values, so that
    the model sees it in any case.
    """
    if not values:
        return template
    used = set[str]()

    def value(match: re.Match[str]) -> str:
        used.add(match[1])
        return values[match[1]]

    names = "|".join(map(re.escape, values))
    text = re.sub(rf"\{{({names})\}}", value, template)
    for name in values:
        if name not in used:
            label = f"{name}:\n" if len(values) > 1 else ""
            text = f"{text.rstrip()}\n\n{label}{values[name]}"
    return text
