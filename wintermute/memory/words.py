"""The words of facts and queries for the full-text index. Pure.

Both sides are tokenised here, so the tokenizer of the index has only blanks to find. A word is without case, accents
and endings, and six letters long at most: rough, but the same for a dozen languages, and a German compound is found
by its beginning. Chinese, Japanese and Korean are indexed as pairs and single characters.
"""

import re
import unicodedata
from collections.abc import Collection, Iterator
from datetime import datetime

from wintermute.memory.lexical_overlap import CJK_RUN, TOKENS

MOST_LETTERS = 6
MOST_CHARACTERS = 40
"""Characters of a word with a digit in it: an amount, a number or a name is kept whole."""
SHORTEST_STEM = 3
MOST_TERMS = 24
"""Words of a query that are looked up."""
READ = 4_000
"""Characters of a query that are read."""

ENDING = re.compile(
    f"(?<={'.' * SHORTEST_STEM})"
    r"(?:ings|ing|ied|ies|ed|es|s|ly|y|e|ern|en|er|em|os|as|o|a|i)$"
)
# English "May" is a month if it is capitalised and not the first word.
MAY = re.compile(r"(?<=[\w,] )May\b")
CJK_MONTH = re.compile(r"(?<!\d)(1[0-2]|[1-9]) ?月")
MONTH_NAMES = (
    "january januar janvier enero gennaio janeiro januari",
    "february februar fevrier febrero febbraio fevereiro februari",
    "march marz marzo maart",
    "april avril abril aprile",
    "mai mayo maggio maio mei",
    "june juni juin junio giugno junho",
    "july juli juillet julio luglio julho",
    "august aout agosto augustus",
    "september septembre septiembre settembre setembro",
    "october oktober octobre octubre ottobre outubro",
    "november novembre noviembre novembro",
    "december dezember decembre diciembre dicembre dezembro",
)
MONTHS = {name: f"month{n}" for n, names in enumerate(MONTH_NAMES, 1) for name in names.split()}
# A run of characters written without blanks, or anything else within one word.
PARTS = re.compile(f"{CJK_RUN.pattern}|(?:(?!{CJK_RUN.pattern}).)+")
SPOKEN = re.compile(r"@?([^:]*)")

STOP_WORDS = (
    # English
    "a about again ago all also am an and any are as at be because been being between both but by"
    " can could d did didn do does doesn doing don during each ever few for from had has have having"
    " he her here hers him his how i if in into is isn it its just kind like ll m many may me might"
    " mine more most much my now of on or our ours own please re s should so some such sort t tell than"
    " that the their theirs them then there these they this those though through to too type up us"
    " ve very was wasn we were what when where which while who whom whose why will with would you"
    " your yours",
    # German
    "aber alle als also am an auch auf aus bei bin bis bist da damit dann das dass dein deine dem"
    " den denn der des dich die dir doch du durch ein eine einem einen einer eines er es euch euer"
    " für gab gibt hab habe haben habt hast hat hatte hatten ich ihm ihn ihr ihre ihren im in ist ja jetzt"
    " kann kannst man mal mein meine meinem meinen meiner mich mir mit nach noch nochmal nun nur ob"
    " oder schon sein seine sich sie sind so um und uns unser unsere von vom vor wann war waren"
    " warum was wegen weil welche welchem welchen welcher welches wem wen wenn wer werden wessen wie"
    " wieder will wir wird wo wofür woher wohin womit worum wurde wurden zu zum zur über",
    # French
    "a ai as au aux avait avec avez avons c ce ces cet cette combien comment d dans de depuis des"
    " donc du déjà elle en est et eu il ils j je l la le les leur leurs lui m ma mais me mes moi mon"
    " maintenant n nos notre nous on ont ou où par plus pour pourquoi qu quand que quel quelle quelles quels"
    " qui quoi s sa se ses si son sont sur t ta te tes toi ton tu un une va vos votre vous y à ça"
    " était été être",
    # Spanish
    "a ahora al algo ante antes aquel como con cual cuales cuando cuanto cuantos cuantas de del desde"
    " donde e el ella ellos en era es esa ese eso esta estaba estado este esto estan fue fueron ha"
    " habia han has he hay la las le les lo los me mi mis muy mas nos nosotros o para pero por porque"
    " que quien quienes se ser si sido sobre son soy su sus tambien te tengo tenia tiene tienes tu"
    " tus un una unas uno unos y ya yo",
    # Italian
    "a ad adesso agli ai al alla alle anche avere aveva c che chi ci come con cosa cui da dal dalla de degli"
    " dei del della delle dello di dove e ed era erano essere fa gli ha hai hanno ho i il in io l la"
    " le lei li lo loro lui ma me mi mia mie miei mio nel nella noi o per perché più qual quale quali"
    " quando quanto quanta quante quanti questa queste questi questo se sei si sia sono su sua sue"
    " sul sulla suo suoi ti tu tua tuo un una uno vi voi è",
    # Portuguese
    "a agora ao aos as até com como da das de dela dele do dos e ela elas ele eles em era essa esse esta"
    " este eu foi foram há isso isto já lhe mais mas me meu meus minha minhas na nas no nos nossa"
    " nosso o onde os ou para pela pelo por porque qual quais quando quanto que quem se ser seu seus"
    " sobre sua suas também te tem tenho teu tinha tu tua um uma você",
    # Dutch
    "aan al als bij dan dat de deze die dit door een en er had hadden heb hebben heeft het hij hoe ik"
    " in is je jij jouw kan maar me mij mijn met na naar niet nog nu of om onze ook op over te tot"
    " toen u uit van voor waar waarom wanneer was wat we welk welke werd wie wij ze zich zij zijn",
)
AMBIGUOUS = frozenset(
    {"an", "bin", "come", "die", "dove", "hat", "man", "may", "more", "of", "on", "or", "plus"}
    | {"pour", "son", "sur", "ton", "war", "will"}
)
"""Stop words dropped only if a second word of that language is in the text."""
# In writing without blanks: grammar and question words, which separate the other words.
JOINING = re.compile(
    "[的了吗嗎呢吧啊么麼是我你您他她它们們]"
    "|什么|什麼|时候|時候|哪里|哪裡|哪个|哪個|哪些|多少|为什|為什|怎样|怎樣"
    "|何時|何処|[\u3040-\u309f]+|언제|어디|무엇|누가|어떤"
)


def words_of(text: str, speaker: str = "", at: datetime | None = None) -> str:
    """Return the indexed words of a fact, between blanks: speaker, year and month, and its own words."""
    dated = [str(at.year), f"month{at.month}"] if at else []
    return " ".join([*_words(spoken_name(speaker)), *dated, *_words(text)])


def query_words(text: str, most: int = MOST_TERMS) -> tuple[str, ...]:
    """Return the words of a query, each once, at most `most`.

    Question words and grammar are dropped unless nothing else is left.
    """
    read = text[:READ]
    stops = _stop_words({_plain(part) for part in _parts(read)})
    found = dict.fromkeys(_words(read, stops)) or dict.fromkeys(_words(read))
    return tuple(found)[:most]


def forms(text: str) -> dict[str, set[str]]:
    """Return the stems of a text, each with the spellings it has there."""
    found: dict[str, set[str]] = {}
    for part in _parts(text[:READ]):
        if not CJK_RUN.match(part):
            found.setdefault(_stem(_plain(part)), set()).add(_plain(part))
    return found


def says_something(text: str) -> bool:
    """Check whether a text has a word other than grammar and question words (M-096)."""
    read = text[:READ]
    return any(_words(read, _stop_words({_plain(part) for part in _parts(read)})))


def match(scope: str, *words: str) -> str:
    """Return the FTS5 expression for any of the words, as `query_words` gives them, in one scope.

    `scope`: the token of the scope in the column of that name.
    """
    listed = " OR ".join(map(_quoted, words))
    return f"scope : {_quoted(scope)} AND words : ({listed})"


def spoken_name(speaker: str) -> str:
    """Return the name others use for a speaker: the local part of a Matrix id."""
    name = SPOKEN.match(speaker)
    return name[1] if name and speaker.startswith("@") else speaker


def _words(text: str, stops: Collection[str] = ()) -> Iterator[str]:
    """Yield the words of a text in order, without stop words if some are given."""
    for part in _parts(text):
        if CJK_RUN.match(part):
            yield from _asked(part) if stops else _split(part)
        elif (plain := _plain(part)) not in stops:
            yield _stem(plain)


def _parts(text: str) -> Iterator[str]:
    named = CJK_MONTH.sub(r" month\1 ", MAY.sub("month5", text))
    for token in TOKENS.findall(unicodedata.normalize("NFKC", named).casefold()):
        yield from PARTS.findall(token)


def _split(signs: str) -> Iterator[str]:
    yield from (signs[i : i + 2] for i in range(len(signs) - 1))
    yield from signs


def _asked(signs: str) -> Iterator[str]:
    """Yield pairs that carry meaning, and characters that stand alone."""
    for run in JOINING.split(signs):
        yield from (run[i : i + 2] for i in range(len(run) - 1)) if len(run) > 1 else run


def _plain(word: str) -> str:
    """Return a word without accents."""
    if word.isascii():
        return word
    marks = unicodedata.normalize("NFKD", word)
    return "".join(mark for mark in marks if unicodedata.category(mark)[0] != "M")


def _stem(word: str) -> str:
    if any(mark.isdigit() for mark in word):
        return word[:MOST_CHARACTERS]
    return MONTHS.get(word) or ENDING.sub("", word)[:MOST_LETTERS]


def _stop_words(words: Collection[str]) -> frozenset[str]:
    """Return the stop words of the language that most of these words belong to."""
    stops = max(STOPS, key=lambda stops: len(stops.intersection(words)))
    return stops if len(stops.intersection(words)) > 1 else stops - AMBIGUOUS


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


STOPS = tuple(frozenset(_plain(word) for word in words.split()) for words in STOP_WORDS)
