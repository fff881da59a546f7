"""The sections of BASE_PROMPT.txt: which exist, and which a set of tools needs."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from wintermute.errors import ConfigurationError

TOOLS = frozenset(
    {"append_memory", "task", "add_skill", "spawn_sub_session", "call_agent", "call_agent_batch"}
    | {"read_file", "write_file", "execute_shell", "search_web", "fetch_url", "recall"}
    | {"search_memory", "send_message", "send_file", "done"}
)
"""Every tool of ours, installed or not (L-003)."""

FORM = "write `<!-- section: NAME requires: always -->`, or tools with commas for `always`"
ALONE = "a section marker is a comment on a line of its own"
MARKER = re.compile(r"\s*<!--(.*)-->\s*")
# Generous, because a mistyped marker must never become text that is always sent (P-030).
LIKE_A_COMMENT = re.compile(r"\s*<\s*[!-]|.*<!--\s*section\b", re.IGNORECASE)
SECTION = re.compile(r"\bsection\s*:", re.IGNORECASE)
REQUIRES = re.compile(r"\brequires\s*:", re.IGNORECASE)
ATTRIBUTE = re.compile(r"(\w+)\s*:")
TOOL = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of the instructions. `line` is where it begins in its file."""

    name: str
    requires: frozenset[str] | None
    """Any one of these tools brings it in (P-025); None: it is always sent."""
    body: str
    line: int


def parse(text: str, file: str) -> tuple[Section, ...]:
    """The sections in file order; text before the first marker is always sent (P-028, P-029).

    Raises: ConfigurationError with `file:line: ` for whatever is nearly a marker (P-030).
    """
    heads: list[tuple[str, frozenset[str] | None, int]] = [("", None, 1)]
    bodies: list[list[str]] = [[]]
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if _is_like_a_marker(line):
            name, requires = _marker(line, f"{file}:{number}")
            heads.append((name, requires, number))
            bodies.append([])
        else:
            bodies[-1].append(line)
    sections = tuple(
        Section(name, requires, "\n".join(body).rstrip().lstrip("\n"), line)
        for (name, requires, line), body in zip(heads, bodies, strict=True)
    )
    if not any(section.body for section in sections):
        raise ConfigurationError(f"{file}:1: no section has a text: write some instructions")
    return sections if sections[0].body else sections[1:]


def chosen(sections: Collection[Section], tools: Collection[str] | None) -> str:
    """The instructions for someone who has these tools; None: all there are (P-025..P-027)."""
    return "\n\n".join(
        section.body
        for section in sections
        if section.body
        and (section.requires is None or tools is None or not section.requires.isdisjoint(tools))
    )


def unknown_tools(sections: Collection[Section]) -> tuple[tuple[int, str], ...]:
    """Line and name of each required tool that we do not know; it brings nothing in (P-031)."""
    return tuple(
        (section.line, tool)
        for section in sections
        for tool in sorted((section.requires or frozenset()) - TOOLS)
    )


def _is_like_a_marker(line: str) -> bool:
    return bool(LIKE_A_COMMENT.match(line) or (SECTION.search(line) and REQUIRES.search(line)))


def _marker(line: str, where: str) -> tuple[str, frozenset[str] | None]:
    match = MARKER.fullmatch(line)
    if match is None:
        unended = "<!--" in line and "-->" not in line
        reason = "the comment does not end on its line" if unended else ALONE
        raise ConfigurationError(f"{where}: {reason}: {FORM}")
    before, *pairs = (part.strip() for part in ATTRIBUTE.split(match[1]))
    keys = [key.lower() for key in pairs[::2]]
    if before or keys != ["section", "requires"]:
        raise ConfigurationError(f"{where}: {_complaint(before, keys)}: {FORM}")
    name, needs = pairs[1::2]
    if not TOOL.fullmatch(name):
        raise ConfigurationError(f"{where}: a section's name is one word, not '{name}': {FORM}")
    return name, _requires(needs, where)


def _complaint(before: str, keys: list[str]) -> str:
    unknown = [key for key in keys if key not in {"section", "requires"}]
    if before or "section" not in keys:
        return "only section markers may stand in comments"
    if unknown:
        return f"unknown attribute '{unknown[0]}'"
    if "requires" not in keys:
        return "the section marker has no requires"
    return "section and requires stand once each, in this order"


def _requires(needs: str, where: str) -> frozenset[str] | None:
    if needs.lower() == "always":
        return None
    tools = [tool.strip() for tool in needs.split(",")]
    for tool in tools:
        if not TOOL.fullmatch(tool) or tool.lower() == "always":
            raise ConfigurationError(f"{where}: requires cannot be '{needs}': {FORM}")
    return frozenset(tools)
