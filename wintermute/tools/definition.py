"""A tool's words for the model are data: one JSON file per tool in `definitions/`."""

import json
from importlib import resources

from wintermute.messages import Json


def definition(name: str) -> tuple[str, Json]:
    """The description of a tool and the JSON schema of its arguments."""
    file = resources.files("wintermute.tools") / "definitions" / f"{name}.json"
    words = json.loads(file.read_text("utf-8"))
    return words["description"], words["parameters"]
