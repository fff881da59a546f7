"""The prompt files that the program works with, read whenever they are used."""

from dataclasses import dataclass

from wintermute.config.schema import Config
from wintermute.prompt.instructions import Instructions
from wintermute.prompt.seeds import seed_template
from wintermute.templates import Template, read_template, shipped_prompts


@dataclass(frozen=True, slots=True)
class Texts:
    """One of each; no seed where none is wanted."""

    instructions: Instructions
    seed: Template | None
    compaction: Template
    worker: Template
    task_run: Template


def read_texts(config: Config) -> Texts:
    """Raises: ConfigurationError for a file that cannot be used (P-030, P-059, P-066)."""
    folder = config.data_dir / "prompts"
    for name in shipped_prompts():
        if not name.startswith("SEED_"):
            read_template(folder, name)
    seed = seed_template(folder, config.seed.language)
    compaction = Template(folder, "COMPACTION_PROMPT.txt")
    worker = Template(folder, "WORKER_MINIMAL.txt")
    task_run = Template(folder, "TASK_RUN.txt")
    return Texts(
        Instructions(folder), seed if config.seed.enabled else None, compaction, worker, task_run
    )
