"""An open data folder, handed down in one value."""

from dataclasses import dataclass

from wintermute.clock import CheckedClock
from wintermute.config.schema import Config
from wintermute.config.secrets import UNHIDDEN, Redaction
from wintermute.ids import NewId, new_id
from wintermute.llm.models import Models
from wintermute.prompt.gather import Texts
from wintermute.stores import Stores


@dataclass(frozen=True, slots=True)
class DataFolder:
    """The stores of a data folder, with all that what works on them is made from."""

    config: Config
    stores: Stores
    models: Models
    texts: Texts
    clock: CheckedClock
    redact: Redaction = UNHIDDEN
    new_id: NewId = new_id
