"""Finding a text in columns that hold it plain, in JSON, in JSON within JSON, or in Markdown.

What these escape differs only by backslashes and by how characters outside ASCII are written. So
texts are compared without backslashes, in both writings, and without regard to case.
"""

import json
from collections.abc import Iterable

from wintermute.text import untagged


def traces(texts: Iterable[str]) -> list[str]:
    """What to look for with `holds`."""
    plain = {form for text in texts for form in (text, untagged(text))}
    written = plain | {json.dumps(form)[1:-1] for form in plain}
    return sorted({form.replace("\\", "") for form in written} - {""})


def holds(column: str) -> str:
    """SQL: the column holds one of the `traces`, which are the JSON list `:traces`."""
    # instr() of NULL is NULL, which is as good as false here.
    return (
        "EXISTS (SELECT 1 FROM json_each(:traces)"
        f" WHERE instr(lower(replace({column}, '\\', '')), lower(value)))"
    )
