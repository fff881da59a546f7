"""The prompt files that the program works with, read whenever they are used."""

from collections.abc import Mapping
from dataclasses import dataclass

from wintermute.config.schema import Config
from wintermute.prompt.instructions import Instructions
from wintermute.prompt.seeds import seed_template
from wintermute.templates import NOTHING_KEPT, Template, shipped_prompts


@dataclass(frozen=True, slots=True)
class Texts:
    """One of each; no seed where none is wanted."""

    instructions: Instructions
    seed: Template | None
    compaction: Template
    worker: Template
    task_run: Template
    kept: Mapping[str, str]
    """Last good texts by name."""


def read_texts(config: Config, kept: Mapping[str, str] = NOTHING_KEPT) -> Texts:
    """`kept`: last good texts by name, which stand for files that are no text (F-031).

    Raises: ConfigurationError for a file that cannot be used (P-030, P-059, P-066).
    """
    folder = config.data_dir / "prompts"
    for name in shipped_prompts():
        if not name.startswith("SEED_"):
            Template(folder, name, kept)
    language = seed_template(folder, config.seed.language, kept)
    compaction = Template(folder, "COMPACTION_PROMPT.txt", kept)
    worker = Template(folder, "WORKER_MINIMAL.txt", kept)
    task_run = Template(folder, "TASK_RUN.txt", kept)
    seed = language if config.seed.enabled else None
    return Texts(Instructions(folder, kept), seed, compaction, worker, task_run, kept)
