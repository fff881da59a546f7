"""What a text gives away that must not be remembered: keys, tokens and passwords, by their shape. Pure.

A memory stands in prompts, in a plain file and in its exports, and goes to whatever model answers.
"""
# ruff: noqa: RUF001  marks of scripts that look like others

import re
from itertools import pairwise

from wintermute.errors import ToolFailed

REFUSED = (
    "not stored: it looks like it holds {kind}, and memories are read by models and stand in plain"
    " files. Keep it in a password manager; what may be remembered is where it is kept"
)
PRIVATE_KEY = re.compile(r"BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY|AGE-SECRET-KEY-1[A-Z0-9]{20}")
# How those who give out keys begin them.
KNOWN_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:sk|rk|pk)[-_](?=[\w-]*\d)[\w-]{16,}|gh[opsur]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|xox[abeoprs]-[\w-]{10,}|hf_[A-Za-z0-9]{20,}"
    r"|npm_[A-Za-z0-9]{30,}|syt_\w{10,}|\d{8,10}:AA[\w-]{30,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
IN_ADDRESS = re.compile(r"://[^\s/:@]+:[^\s/@]+@")
PAGE = re.compile(r"(?:https?://|www\.)\S+|\b[\w-]+(?:\.[\w-]+)+/\S*")
# Ids of rooms, people and events begin with such a sign.
RUN = re.compile(r"(?<![A-Za-z0-9+/=$!@#%])[A-Za-z0-9+/=]{20,}")
IBAN = re.compile(r"[A-Z]{2}\d{2}[A-Z0-9]{11,30}")
UNEVEN = 0.25
"""From how many changes of the kind of sign on, by sign, a run of them is nothing that people write."""

NOUNS = (
    r"pass(?:word|code|phrase)|passwor[dt]|kennwort|passphrase|mot de passe|contrase[ñn]a"
    r"|parola d['’]ordine|senha|wachtwoord|api[ -]?key|api[ -]?schlüssel|clé api|(?-i:PIN)"
)
OF = (  # what a password may be for, between it and what it is
    r"(?:\s+(?:for|of|on|to|at|in|from|für|zum|zur|vom|von|des|der|im|am|auf|pour|du|de|d['’]|à|para"
    r"|del|di|da|per|al|do|voor|van)\b(?:\s+[^\s:=]+){1,4}?)?"
)
IS = r"is|ist|lautet|heißt|est|es|è|é|sono"
NAMED = re.compile(rf"\b(?:{NOUNS}){OF}\s*[:=]\s*(?P<value>\S+)", re.IGNORECASE)
SAID = re.compile(rf"\b(?:{NOUNS}){OF}\s+(?:{IS})\s+(?P<value>[^\n]+)", re.IGNORECASE)
# In Chinese and Japanese what follows is a sentence, unless it is written in Latin letters.
SIGNS = re.compile(
    r"(?:密码|密碼|口令|パスワード|暗証番号)(?:\s*[：:=]\s*\S"
    r"|\s*(?:是|为|為|は)\s*[「“\"']?[!-~]{3,}[」”\"']?(?:です|だ|[\s。，、,.!！]|$))"
)
SENTENCE = re.compile(r"[.!?;,](?=\s|$)|[。！？；，]")
PLAIN = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
OPINION_WORDS = (
    "weak strong long short old new safe secret wrong right good bad gone lost expired unknown"
    " forgotten changed needed required empty missing known there private"
    " schwach stark lang kurz alt neu sicher geheim falsch richtig gut weg verloren abgelaufen"
    " unbekannt vergessen geändert nötig leer bekannt"
    " faible fort long court vieux nouveau sûr secret faux bon perdu expiré inconnu oublié changé"
    " débil fuerte larga corta vieja nueva segura secreta buena perdida caducada desconocida"
    " olvidada incorrecta debole forte lunga corta vecchia nuova sicura segreta sbagliata buona"
    " persa scaduta sconosciuta dimenticata longa velha nova segura perdida fraca"
)
OPINIONS = frozenset(OPINION_WORDS.split())


def secret_kind(text: str) -> str | None:
    """What kind of secret a text gives away, in words; None: nothing that looks like one."""
    if PRIVATE_KEY.search(text):
        return "a private key"
    if KNOWN_TOKEN.search(text) or any(map(_is_token, RUN.findall(PAGE.sub(" ", text)))):
        return "a key or a token"
    if IN_ADDRESS.search(text) or _tells_password(text):
        return "a password"
    return None


def refuse_secret(text: str) -> None:
    """Let nothing pass that gives a secret away. Raises: ToolFailed, with what to do instead."""
    if kind := secret_kind(text):
        raise ToolFailed(REFUSED.format(kind=kind))


def _is_token(run: str) -> bool:
    """Whether letters and digits follow each other as nobody would write them."""
    run = run.strip("=/+")
    if len(run) < 20 or not re.search("[A-Za-z]", run) or not re.search(r"\d", run):
        return False
    if IBAN.fullmatch(run) and _checks(run):
        return False
    kinds = ["A" if mark.isupper() else "a" if mark.islower() else "0" for mark in run]
    changes = sum(
        one != next_one and (one, next_one) != ("A", "a")  # a capital begins a word
        for one, next_one in pairwise(kinds)
    )
    return changes >= UNEVEN * (len(run) - 1)


def _checks(iban: str) -> bool:
    return int("".join(str(int(mark, 36)) for mark in iban[4:] + iban[:4])) % 97 == 1


def _tells_password(text: str) -> bool:
    if NAMED.search(text) or SIGNS.search(text):
        return True
    return any(_is_told(found["value"]) for found in SAID.finditer(text))


def _is_told(rest: str) -> bool:
    """Whether what follows "the password is" is one, rather than something about it."""
    value = rest.strip()
    if value[:1] in ('"', "'", "“", "«", "„", "`"):
        return True
    words = SENTENCE.split(value, maxsplit=1)[0].split()
    if not words:
        return False
    if len(words) == 1:
        return words[0].lower() not in OPINIONS
    return not PLAIN.fullmatch(words[0]) and not words[0].isdigit()
