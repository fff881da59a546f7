"""Prompt files: the shipped ones, reading one, and filling its placeholders."""

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from wintermute.errors import ConfigurationError, FileUnusable, PromptUnreadable
from wintermute.files import content_of, decoded

log = logging.getLogger(__name__)

MOST_BYTES = 1_000_000
SMALL = ".small.txt"
"""How the texts for small models are called."""
NOTHING_KEPT: Mapping[str, str] = {}
RUNTIME = "runtime/default.md"
CONSOLIDATION = "consolidation/default.md"
"""What the wiki is told to a model with, and what makes its pages (W-020, W-061)."""
DREAM_SKILLS = "DREAM_SKILL_PROMPT.txt"
SPARED = (
    *(SMALL, RUNTIME, CONSOLIDATION, "consolidation/plan.md", "consolidation/page.md"),
    DREAM_SKILLS,
)
"""How the names of files end that folders from before they were shipped do not have."""


def shipped_folder() -> Path:
    """Where the prompt files stand as we ship them."""
    packed = Path(__file__).parent / "shipped" / "prompts"
    return packed if packed.is_dir() else Path(__file__).parent.parent / "data" / "prompts"


def shipped_prompts() -> dict[str, str]:
    """The prompt files as we ship them, name to text, for `wintermute init`.

    A name is relative to the folder, with `/`: `runtime/default.md`.
    """
    folder = shipped_folder()
    return {
        file.relative_to(folder).as_posix(): file.read_text("utf-8")
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def read_template(folder: Path, name: str) -> str:
    """The text of a prompt file as it is now, so that an edit counts at once.

    Where a text for small models, or of the wiki, is missing, it is the shipped one: folders from
    before they were shipped have none.

    Raises: ConfigurationError when it is missing or empty; PromptUnreadable when it is not text.
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
    """One prompt file, as it is whenever it is used; its last good text when it got lost."""

    def __init__(self, folder: Path, name: str, kept: Mapping[str, str] = NOTHING_KEPT) -> None:
        """`kept`: last good texts by name, for a file that is no text at the start (F-031).

        Raises: ConfigurationError when there is no first good text (P-066).
        """
        self._folder = folder
        self._name = name
        self._told = ""
        try:
            self._text = read_template(folder, name)
        except PromptUnreadable:
            if name not in kept:
                raise
            self._text = kept[name]

    def text(self) -> str:
        """The newest good text."""
        try:
            self._text, self._told = read_template(self._folder, self._name), ""
        except ConfigurationError as error:
            if self._told != str(error):
                log.error("prompt file unusable, last text stays in use reason=%s", error)  # noqa: TRY400
                self._told = str(error)
        return self._text


def fill(template: str, values: Mapping[str, str]) -> str:
    """The template with each `{name}` of `values` replaced, in one pass; other braces stay.

    A value without its placeholder is appended, so that it reaches the model in any case;
    labelled with its name when there are several values.
    """
    if not values:
        return template
    found = set[str]()

    def value(match: re.Match[str]) -> str:
        found.add(match[1])
        return values[match[1]]

    names = "|".join(map(re.escape, values))
    text = re.sub(rf"\{{({names})\}}", value, template)
    for name in values:
        if name not in found:
            label = f"{name}:\n" if len(values) > 1 else ""
            text = f"{text.rstrip()}\n\n{label}{values[name]}"
    return text
