"""Open data folder, handed down as one value."""

from dataclasses import dataclass

from wintermute.clock import CheckedClock
from wintermute.config.schema import Config
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.ids import NewId, new_id
from wintermute.llm.models import Models
from wintermute.prompt.context_builder import PromptTexts
from wintermute.stores import Stores


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Stores of a data folder, with the configuration, models and prompts to work on them."""

    config: Config
    stores: Stores
    models: Models
    texts: PromptTexts
    clock: CheckedClock
    redact: Redaction = UNHIDDEN
    new_id: NewId = new_id
