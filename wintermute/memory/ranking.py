"""How facts are found."""

import re
from datetime import datetime

CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")


def segment(text: str) -> str:
    """Text whose Chinese, Japanese and Korean runs are pairs and single signs."""

    def split(found: re.Match[str]) -> str:
        run = found[0]
        return " " + " ".join([*(run[i : i + 2] for i in range(len(run) - 1)), *run]) + " "

    return CJK.sub(split, text)


def words_of(text: str, speaker: str, at: datetime) -> str:
    """What is indexed of a fact."""
    return segment(text)
