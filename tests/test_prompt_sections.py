"""The instructions file: which sections it has, and what reaches a model with which tools."""

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import cheap
from wintermute.errors import ConfigurationError
from wintermute.prompt.assemble import chosen, parse, unknown_tools
from wintermute.prompt.context_builder import Instructions
from wintermute.prompt.tool_names import TOOLS

SIX = """\
<!-- section: core requires: always -->
You are Wintermute.

<!-- section: knowledge_routing requires: append_memory,task,add_skill -->
What lasts is a memory.

<!-- section: delegation requires: spawn_sub_session -->
Share the work.

<!-- section: scheduled_tasks requires: task -->
Say when.

<!-- section: system_events requires: spawn_sub_session -->
Events are from us.

<!-- section: guidelines requires: always -->
Be brief.
"""
CORE, KNOWLEDGE, DELEGATION, SCHEDULED, EVENTS, GUIDELINES = (
    *("You are Wintermute.", "What lasts is a memory.", "Share the work."),
    *("Say when.", "Events are from us.", "Be brief."),
)


@pytest.mark.parametrize(
    ("text", "tools", "sent"),
    [
        # P-026: the four sets, and the main chat of P-027 and P-033
        (SIX, {"add_skill"}, [CORE, KNOWLEDGE, GUIDELINES]),
        (SIX, {"task"}, [CORE, KNOWLEDGE, SCHEDULED, GUIDELINES]),
        (SIX, {"read_file"}, [CORE, GUIDELINES]),
        (SIX, set(), [CORE, GUIDELINES]),
        (SIX, {"spawn_sub_session"}, [CORE, DELEGATION, EVENTS, GUIDELINES]),
        (SIX, TOOLS, [CORE, KNOWLEDGE, DELEGATION, SCHEDULED, EVENTS, GUIDELINES]),
        (SIX, None, [CORE, KNOWLEDGE, DELEGATION, SCHEDULED, EVENTS, GUIDELINES]),
        (SIX, TOOLS - {"spawn_sub_session"}, [CORE, KNOWLEDGE, SCHEDULED, GUIDELINES]),
        # P-028: blanks and capitals
        ("<!-- section: a requires: append_memory, task -->\nA", {"task"}, ["A"]),
        ("<!--section:a requires:ALWAYS-->\nA", set(), ["A"]),
        ("  <!--  section : a\trequires: task  -->\r\nA\n<!-- section: b requires: done -->\nB", {"done"}, ["B"]),
        # P-029: before the first marker, and one name twice
        ("\ufeffFirst.\n\n<!-- section: a requires: task -->\nA", set(), ["First."]),
        ("<!-- section: a requires: task -->\n1\n<!-- section: a requires: task -->\n2", {"task"}, ["1", "2"]),
        ("Just a text.\n", set(), ["Just a text."]),
        # P-027: an empty body
        ("<!-- section: a requires: always -->\n \n\n<!-- section: b requires: always -->\nB", None, ["B"]),
        # P-031: an unknown tool brings nothing in, and keeps nothing out
        ("A\n<!-- section: b requires: taks -->\nB", {"task"}, ["A"]),
        ("A\n<!-- section: b requires: taks,task -->\nB", {"task"}, ["A", "B"]),
        # text that is not about sections, and is kept as it is
        ("  A --> B, a < b, `<!-- note -->`\n\n\n# C  \n- requires: x", None, ["  A --> B, a < b, `<!-- note -->`\n\n\n# C  \n- requires: x"]),
    ],
)  # fmt: skip
def test_sections_are_read_with_their_tools(
    text: str, tools: set[str] | None, sent: list[str]
) -> None:
    """P-025..P-029, P-031, P-033."""
    assert chosen(parse(text, "BASE_PROMPT.txt"), tools) == "\n\n".join(sent)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("<!-- section: a -->", "the section marker has no requires"),
        ("<!-- section: a requires: -->", "requires cannot be ''"),
        ("<!-- section: a requires: task,,done -->", "requires cannot be 'task,,done'"),
        ("<!-- section: a requires: task done -->", "requires cannot be 'task done'"),
        ("<!-- section: a requires: always,task -->", "requires cannot be 'always,task'"),
        ("<!-- section: requires: task -->", "a section's name is one word, not ''"),
        ("<!-- section: a b requires: task -->", "a section's name is one word, not 'a b'"),
        ("<!-- section: a requires: task", "the comment does not end on its line"),
        ("<!-- section: a requires: task --", "the comment does not end on its line"),
        ("<!-- section: a requires: task unless: done -->", "unknown attribute 'unless'"),
        ("<!-- section: a require: task -->", "unknown attribute 'require'"),
        ("<!-- requires: task section: a -->", "section and requires stand once each"),
        ("<!-- section: a requires: b requires: c -->", "section and requires stand once each"),
        (
            "<!-- section: a requires: b --> text",
            "a section marker is a comment on a line of its own",
        ),
        (
            "text <!-- section: a requires: b -->",
            "a section marker is a comment on a line of its own",
        ),
        ("<!-- a note of mine -->", "only section markers may stand in comments"),
        ("<!-- sektion: a requires: b -->", "only section markers may stand in comments"),
        ("<!- section: a requires: b -->", "a section marker is a comment on a line of its own"),
        ("<-- section: a", "a section marker is a comment on a line of its own"),
        ("section: a requires: b", "a section marker is a comment on a line of its own"),
        ("text <!-- section: a", "the comment does not end on its line"),
    ],
)
def test_what_is_nearly_a_marker_is_refused_with_its_line(line: str, reason: str) -> None:
    """P-030: no broken section is ever always on."""
    with pytest.raises(ConfigurationError) as told:
        parse(f"One.\nTwo.\n{line}\nThree.", "BASE_PROMPT.txt")
    assert str(told.value).startswith(f"BASE_PROMPT.txt:3: {reason}")
    assert "write `<!-- section: NAME requires: always -->`" in str(told.value)


def test_a_file_of_markers_alone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^BASE_PROMPT\.txt:1: no section has a text"):
        parse("<!-- section: a requires: always -->\n\n", "BASE_PROMPT.txt")


def test_unknown_tools_are_told_with_the_line_of_their_marker() -> None:
    """P-031."""
    text = "A\n<!-- section: b requires: taks,task,dun -->\n\nB\n<!-- section: c requires: Task -->"
    assert unknown_tools(parse(text, "f")) == ((2, "dun"), (2, "taks"), (5, "Task"))
    assert unknown_tools(parse(SIX, "f")) == ()


@given(st.lists(st.sampled_from([*SIX.splitlines(), "<!--", "-->", "requires: task", "x"])))
def test_markers_never_reach_the_model(lines: list[str]) -> None:
    """P-027, P-030: a text is refused, or all of it but its markers is sent."""
    try:
        sent = chosen(parse("\n".join(lines), "f"), None)
    except ConfigurationError:
        return
    assert "section" not in sent
    assert sent.split() == " ".join(line for line in lines if "section" not in line).split()


def refusals(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.levelno == logging.ERROR]


def test_an_edit_of_the_instructions_counts_at_once(tmp_path: Path) -> None:
    """P-005."""
    file = tmp_path / "BASE_PROMPT.txt"
    file.write_text("Be kind.")
    instructions = Instructions(tmp_path)
    file.write_text("Be calm.")
    assert chosen(instructions.sections(), None) == "Be calm."
    assert instructions.sections() is instructions.sections()


@pytest.mark.parametrize("edit", ["A\n<!-- section: b -->\nB", " \n", None])
def test_a_broken_edit_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, edit: str | None
) -> None:
    """P-030."""
    file = tmp_path / "BASE_PROMPT.txt"
    file.write_text("Be kind.")
    instructions = Instructions(tmp_path)
    for known in (1, 2):
        if edit is None:
            file.unlink()
        else:
            file.write_text(edit)
        for _ in range(3):
            assert chosen(instructions.sections(), set()) == "Be kind."
        assert len(refusals(caplog)) == known
        assert all("BASE_PROMPT.txt" in told for told in refusals(caplog))
        file.write_text("Be kind.")
        assert chosen(instructions.sections(), set()) == "Be kind."


def test_broken_edits_have_a_log_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P-030."""
    file = tmp_path / "BASE_PROMPT.txt"
    file.write_text("Be kind.")
    instructions = Instructions(tmp_path)
    for text in ("<!-- section: a -->", "A\n<!-- section: a -->", "B\n<!-- section: a -->"):
        file.write_text(text)
        instructions.sections()
    assert [told.split("reason=")[1].split(": ")[0] for told in refusals(caplog)] == [
        *("BASE_PROMPT.txt:1", "BASE_PROMPT.txt:2", "BASE_PROMPT.txt:2")
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "is missing"), ("", "is empty"), ("A\n<!-- section: a", "BASE_PROMPT.txt:2: ")],
)
def test_a_start_refuses_broken_instructions(tmp_path: Path, text: str | None, told: str) -> None:
    """P-030, P-066."""
    if text is not None:
        (tmp_path / "BASE_PROMPT.txt").write_text(text)
    with pytest.raises(ConfigurationError, match=told):
        Instructions(tmp_path)


def test_a_long_line_is_read_in_no_time() -> None:
    """P-030: the prompt is parsed in the event loop, while others wait."""
    line = "section: " * 100_000
    with cheap(1):
        assert parse(f"{line}\n", "BASE_PROMPT.txt")[0].body == line.rstrip()
