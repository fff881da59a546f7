"""What is wrong with prompt files or their keys is told at the start, before any login."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.world.bot import Bot, write_settings
from tests.world.homeserver import Login
from tests.world.warm import Interpreter
from wintermute.messages import Json

NOWHERE = "http://127.0.0.1:9"


def _write(name: str, text: str) -> Callable[[Path], None]:
    def harm(prompts: Path) -> None:
        (prompts / name).write_text(text)

    return harm


def _remove(name: str) -> Callable[[Path], None]:
    return lambda prompts: (prompts / name).unlink()


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (_write("BASE_PROMPT.txt", "Hi.\n<!-- section: core -->\n"), "BASE_PROMPT.txt:2: "),
        (_write("BASE_PROMPT.txt", "<!-- section: core\nHi.\n"), "BASE_PROMPT.txt:1: "),
        (_remove("BASE_PROMPT.txt"), "BASE_PROMPT.txt is missing"),
        (_remove("DREAM_TASK_PROMPT.txt"), "DREAM_TASK_PROMPT.txt is missing"),
        (_write("COMPACTION_PROMPT.txt", " \n"), "COMPACTION_PROMPT.txt is empty"),
        (_remove("SEED_en.txt"), "SEED_en.txt is missing"),
    ],
)
async def test_a_prompt_file_that_cannot_be_used_ends_the_start(
    tmp_path: Path, python: Interpreter, harm: Callable[[Path], None], told: str
) -> None:
    """P-030, P-059, P-066: exit 2, one line that names the file; `init` restores it."""
    config = _settings(tmp_path)
    harm(tmp_path / "bot" / "data" / "prompts")
    code, said = await Bot(config, python).command("run")
    assert code == 2
    assert told in said
    assert said.count("\n") == 1


async def test_init_restores_missing_prompt_files_only(tmp_path: Path, python: Interpreter) -> None:
    """P-021, P-066: an edited file is never overwritten."""
    config = _settings(tmp_path)
    prompts = config.parent / "data" / "prompts"
    shipped = (prompts / "SEED_de.txt").read_text()
    (prompts / "SEED_de.txt").unlink()
    (prompts / "BASE_PROMPT.txt").write_text("Mine.\n")
    code, _ = await Bot(config, python).command("init", str(config.parent))
    assert code == 0
    assert (prompts / "SEED_de.txt").read_text() == shipped
    assert (prompts / "BASE_PROMPT.txt").read_text() == "Mine.\n"


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"context": {"component_size_limits": {"memories": 0}}}, "size_limits.memories"),
        ({"context": {"component_size_limits": {"tasks": -1}}}, "size_limits.tasks"),
        ({"context": {"component_size_limits": {"skills_total": "x"}}}, "limits.skills_total"),
        ({"seed": {"language": "../x"}}, "seed.language"),
        ({"memory": {"backend": "files"}}, "local_vector, fts5, flat_file, qdrant"),
        ({"memory": {"backend": "qdrant"}}, "memory.qdrant.url"),
    ],
)
async def test_a_key_that_cannot_be_used_ends_the_start(
    tmp_path: Path, python: Interpreter, section: Json, told: str
) -> None:
    """P-053, P-059, M-014: exit 2 naming the key."""
    code, said = await Bot(_settings(tmp_path, **section), python).command("run")
    assert code == 2
    assert told in said


def _settings(folder: Path, **sections: Json) -> Path:
    login = Login("@bot:test", "token", "DEVICE", "secret")
    return write_settings(folder / "bot", NOWHERE, login, NOWHERE, "@ann:test", **sections)
