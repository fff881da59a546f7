"""`wintermute task`: what is to be done, in the terminal."""

from pathlib import Path

import pytest

from tests.world.terminal import Terminal

OWNER = "person:@you:example.org"


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    return Terminal.in_folder(tmp_path)


def test_a_task_goes_its_way(terminal: Terminal) -> None:
    """T-002, T-004 to T-007, T-011: each line says how the task is now."""
    assert terminal.says("task", "list") == "There is nothing to be done.\n"
    said = terminal.says("task", "add", "Renew the passport")
    name = said.split()[1].rstrip(":")
    assert said == f"[P5] {name}: Renew the passport\n"
    line = f"[P1] {name}: Renew it"
    changed = terminal.says("task", "update", name, "--content", "Renew it", "--priority", "1")
    assert changed == f"{line}\n"
    assert terminal.says("task", "pause", name) == f"{line} (paused)\n"
    assert terminal.says("task", "list") == "There is nothing to be done.\n"
    assert terminal.says("task", "list", "--status", "paused") == f"{line} (paused)  {OWNER}\n"
    assert terminal.says("task", "resume", name) == f"{line}\n"
    done = f"{line} (completed: paid)\n"
    assert terminal.says("task", "complete", name, "--reason", "paid") == done
    assert "(deleted" in terminal.says("task", "delete", name)
    assert name in terminal.says("task", "list", "--status", "all")
    assert terminal.says("task", "restore", name) == done
    assert "\nreason: paid\n" in terminal.says("task", "show", name)


def test_json_has_the_same_keys_everywhere(terminal: Terminal) -> None:
    """T-008, T-011."""
    added = terminal.json("task", "add", "Renew", "--priority", "3")
    assert {**added, "id": "", "created_at": ""} == {
        "id": "",
        "priority": 3,
        "status": "active",
        "content": "Renew",
        "schedule": None,
        "scope": OWNER,
        "reason": "",
        "created_at": "",
    }
    assert terminal.json("task", "list") == [added]
    assert terminal.json("task", "show", added["id"]) == added
    assert terminal.json("task", "pause", added["id"]) == {**added, "status": "paused"}
    assert terminal.json("task", "list") == []
    assert terminal.says("task", "list", "--status", "deleted") == "No task is deleted.\n"


def test_tasks_of_others_are_seen_and_made_here(terminal: Terminal) -> None:
    """T-013, T-014: the person at the machine sees all of them."""
    names = {
        scope: terminal.json("task", "add", "Sail", "--scope", scope)["id"]
        for scope in ("person:@bob:example.org", "room:!abc:example.org", "global")
    }
    listed = terminal.says("task", "list")
    assert all(f"#{name}: Sail  {scope}\n" in listed for scope, name in names.items())
    only = terminal.json("task", "list", "--scope", "person:@bob:example.org")
    assert [task["scope"] for task in only] == ["person:@bob:example.org", "global"]


def test_a_change_of_a_task_is_taken_back(terminal: Terminal) -> None:
    """T-007."""
    name = terminal.json("task", "add", "Renew")["id"]
    terminal.says("memory", "add", "Likes tea")
    terminal.says("task", "update", name, "--content", "Burn it")
    change, added = terminal.says("task", "history").split("set_")[1:]
    assert f"~ task {name}: content: Renew -> Burn it" in change
    assert terminal.says("task", "undo", f"set_{change.split()[0]}").startswith("taken back:\n~ ")
    assert terminal.json("task", "show", name)["content"] == "Renew"
    (memory,) = terminal.json("memory", "history")
    refused = terminal.refuses("task", "undo", memory["id"])
    assert refused.endswith("changed a fact: undo it there")
    assert terminal.says("task", "undo", "--last").endswith(f"- task {name}: Renew\n")
    assert added.split()[0] not in terminal.refuses("task", "undo", "--last")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("add", " "), 1, "not blank"),
        (("add", "x" * 2001), 1, "2000"),
        (("add", "Renew", "--priority", "11"), 1, "from 1 (urgent) to 10 (low)"),
        (("add", "Renew", "--priority", "high"), 2, "not a valid integer"),
        (("add", "Renew", "--scope", "bob"), 2, "person:@name:server or room:!id or global"),
        (("list", "--status", "gone"), 2, "deleted"),
        (("show", "#nope"), 1, "no task nope"),
        (("complete", "nope"), 2, "--reason"),
        (("complete", "nope", "--reason", ""), 1, "not blank"),
        (("update", "nope"), 1, "a new content or a new priority"),
        (("restore", "nope"), 1, "no task nope"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    terminal: Terminal, words: tuple[str, ...], code: int, told: str
) -> None:
    """L-082, T-003, T-005, T-009; nothing is made."""
    assert told in terminal.refuses("task", *words, code=code)


def test_an_id_that_is_almost_right_is_answered_with_the_right_one(terminal: Terminal) -> None:
    """T-009."""
    name = terminal.json("task", "add", "Renew")["id"]
    assert terminal.refuses("task", "pause", f"{name}0").endswith(f"did you mean {name}?")
