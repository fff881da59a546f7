"""What looks like a secret is not remembered; what people do tell their assistant is."""

import base64
import json
import random
import string
import tomllib
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.world.clock import cheap
from wintermute.errors import ToolFailed
from wintermute.memory.fact import cleaned
from wintermute.secret_shapes import refuse_secret, secret_kind, without_secrets

KEY, TOKEN, PASSWORD = "a private key", "a key or a token", "a password"
CARD, RECOVERY, SEED = "the number of a card", "a recovery key", "a seed phrase"
KINDS = (None, KEY, TOKEN, PASSWORD, CARD, RECOVERY, SEED)
LANGUAGES = tomllib.loads((Path(__file__).parent / "secrets.toml").read_text("utf-8"))
WORDS = "abandon ability able about above absent absorb abstract absurd abuse access accident"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXk", KEY),
        ("My key: -----BEGIN PRIVATE KEY-----\nMIIEv", KEY),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----", KEY),
        ("The key is sk-proj-4f8Gh2kLmN0pQrStUvWx", TOKEN),
        ("sk_live_4eC39HqLyjWDarjtT1zdp7dc", TOKEN),
        ("GitHub: ghp_16C7e42F292c6912E7710c838347Ae178B4a", TOKEN),
        ("AKIAIOSFODNN7EXAMPLE is for the backups", TOKEN),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", TOKEN),
        ("it is eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r", TOKEN),
        ("The bot uses syt_Ym90_aBcDeFgHiJ_12345", TOKEN),
        ("9f86d081884c7d659a2feaa0c55ad015 opens the weather service", TOKEN),
        ("我的令牌是 9f86d081884c7d659a2feaa0c55ad015", TOKEN),
        ("https://ann:hunter2@example.org/feed", PASSWORD),
        ("password: hunter2", PASSWORD),
        ("Password=swordfish", PASSWORD),
        ("The password of the router is hunter2.", PASSWORD),
        ("My password is swordfish", PASSWORD),
        ("my passphrase is 'correct horse battery staple'", PASSWORD),
        ("Das Passwort ist Sommer2024!", PASSWORD),
        ("Das WLAN Kennwort lautet sonnenblume", PASSWORD),
        ("Mein Passwort für die Bank ist geh3im und lang", PASSWORD),
        ("Le mot de passe du wifi est tournesol7", PASSWORD),
        ("mot de passe : tournesol", PASSWORD),
        ("La contraseña del router es girasol99", PASSWORD),
        ("La password del wifi è girasole", PASSWORD),
        ("A senha do wifi é girassol1", PASSWORD),
        ("路由器的密码是 hunter2。", PASSWORD),
        ("密码：向日葵", PASSWORD),  # noqa: RUF001  as people write it
        ("Wi-Fiのパスワードはhunter2です", PASSWORD),
        ("The PIN of my card is 4711", PASSWORD),
        ("PIN: 4711", PASSWORD),
        ("**Password:** `hunter2`", PASSWORD),
        ('{"user": "ann", "password": "hunter2"}', PASSWORD),
        ("4711 is my PIN", PASSWORD),
        ("She uses hunter2xyz as her wifi password", PASSWORD),
        ("The password (hunter2xyz) is for the router", PASSWORD),
        ("login: ann / hunter2xyz", PASSWORD),
        ("My Netflix login is ann@x.org / Sonne!2020", PASSWORD),
        ("| Password | hunter2xyz |", PASSWORD),
        ("Our garage: the code for the gate is 4711", PASSWORD),
        ("My code is 8842A", PASSWORD),
        ("key: 8842ABC", PASSWORD),
        ("The password of the router in the hall is hunter2, says Bo", PASSWORD),
        ("My card is 4111 1111 1111 1111, valid until 12/27", CARD),
        ("378282246310005", CARD),
        ("EsTc Lm7b 8HvG wzKq 3s7X p2Fd 9JkN vR4t YwE6 hQbM cZ8g 5uPa", RECOVERY),
        ("BitLocker: 123456-234567-345678-456789-567890-678901-789012-890123", RECOVERY),
        ("My seed phrase is " + WORDS, SEED),
        (
            "Seed phrase: " + ", ".join(f"{n}. {word}" for n, word in enumerate(WORDS.split(), 1)),
            SEED,
        ),
    ],
)
def test_a_secret_is_known_by_its_shape(text: str, kind: str) -> None:
    """Issue: keys, tokens, private keys and passwords are refused as facts, also cleaned of marks."""
    assert secret_kind(text) == secret_kind(cleaned(text)) == kind
    with pytest.raises(ToolFailed, match=f"{kind}.*password manager"):
        refuse_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "My password manager is Bitwarden",
        "The password is in the safe behind the picture",
        "Her password is expired.",
        "My password is too short, I have to change it",
        "The password is 12 characters long",
        "Das Passwort ist im Tresor, der Schlüssel bei Anna",
        "Der Passwortmanager heißt KeePass",
        "Le mot de passe est dans le coffre",
        "La contraseña está en la caja fuerte",
        "La password è nel cassetto",
        "他的密码管理器是Bitwarden",
        "密码是他的生日，从来不换",  # noqa: RUF001  as people write it
        "パスワードはBitwardenに保存している",
        "小王三月搬到了里昂，现在在一家书店工作，每个星期六都去爬山。",  # noqa: RUF001  as people write it
        "Anna's phone is +49 171 23456789",
        "call 0033612345678 or 004917123456789012345",
        "IBAN DE89370400440532013000 at the Sparkasse",
        "IBAN GB29NWBK60161331926819",
        "IBAN MT84MALT011000012345MTLCAST001S",
        "The order is 114-3941689-8772232, the parcel JJD000390007812345678",
        "Invoice 2024-INV-0001234567-A of the garage",
        "The doorbell is 3f2b8c1e-9a4d-4e6f-8b7a-1c2d3e4f5a6b",
        "Likes https://example.org/a/b1C2d3E4f5G6h7I8j9K0l1M2?v=dQw4w9WgXcQ",
        "The map is maps.example.org/x/AbC1dE2fG3hI4jK5lM6nO7",
        "The room is !QwErTyUiOpAsDf1GhJkL2zXcVb:example.org",
        "Runs Qwen2.5-72B-Instruct-GGUF-Q4_K_M at home",
        "The photo is IMG_20240501_123456789_HDR.jpg",
        "Donaudampfschifffahrtsgesellschaftskapitän seit 1998",
        "WintermuteProjectPlan2024 is the name of the folder",
        "The secret of a good soup is time",
        "Pins postcards on the wall; a pin is missing",
        "The key is under the mat",
        "The order is 4111 1111 1111 1112, the IMEI 356938035643809",
        "My seed phrase is written on a piece of paper in the safe behind the picture of my aunt",
        "const password = req.body.password; api_key = os.getenv('API_KEY')",
        "postgres://user:password@localhost, or password: <your password>, or ********",
        "Bank code 70020270, the course code is CS101",
        "Use the code WELCOME10 for a discount; my booking code is ABC123",
        "connect pin 4 to GND1, pin PA10 to B123 and PIN 17 of the Raspberry to GPIO11",
        "The Key to 2024 is patience; our key 2024 goals are in the plan",
        "The bus line code is 42a1",
        "1password is my password manager, KeePass2 is the password manager of Bo",
        "Password (8-12 characters)",
        "| Password | Expires |\n|---|---|\n| - | 2026-05-01 |",
        "The opening is rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR, commit 5be8a3f6c8a5c01d106c0ad820b1a390",
        "",
    ],
)
def test_what_people_tell_is_no_secret(text: str) -> None:
    """Issue: phones, accounts, orders, pages, devices and talk about passwords are remembered."""
    assert secret_kind(text) is None
    refuse_secret(text)


def test_a_table_hides_what_stands_below_a_password() -> None:
    """M-083: also one that is a word; the other columns stay, and so does an empty cell."""
    table = "| At | Password | Since |\n|---|---|---|\n| Wifi | {} | May 2024 |\n| Bank | {} | 2024 |\n| Post |  | x1234 |"
    said = without_secrets(table.format("hunter2xyz", "sunflower"))
    assert said == table.format("[secret]", "[secret]")
    assert secret_kind("| At | Password |\n| Wifi | hunter2xyz |") == PASSWORD


@given(st.integers(0, 2**64), st.sampled_from([22, 32, 40, 64]))
def test_what_a_machine_made_up_is_a_token(seed: int, size: int) -> None:
    """Random bytes, whichever way they are written, are known nearly always."""
    dice = random.Random(seed)
    letters = string.ascii_letters + string.digits
    made = ["".join(dice.choices(letters, k=size)) for _ in range(20)]
    made += [dice.randbytes(size).hex() for _ in range(20)]
    made += [base64.b64encode(dice.randbytes(size)).decode() for _ in range(20)]
    assert sum(secret_kind(f"the value is {each} I think") == TOKEN for each in made) >= 50


@given(st.integers(0, 2**128 - 1))
def test_the_id_of_a_device_is_none(number: int) -> None:
    assert secret_kind(f"The lamp in the hall is {uuid.UUID(int=number)}.") is None


@given(st.text(max_size=300))
def test_any_text_is_looked_at(text: str) -> None:
    assert secret_kind(text) in KINDS
    assert secret_kind(without_secrets(text)) is None


@given(st.text(" ,.äéñabcdefghij是的を", max_size=300))
def test_words_without_a_digit_are_never_a_token(text: str) -> None:
    assert secret_kind(text) != TOKEN


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_secret_is_told_from_talk_about_one_in_each_language(language: str) -> None:
    """M-083, M-098: only the secret goes, in any order of words; harmless sentences stay as they are."""
    for marked in LANGUAGES[language]["secret"]:
        text, (before, secret, after) = marked.replace("|", ""), marked.split("|")
        assert without_secrets(text) == f"{before}[secret]{after}"
        assert without_secrets(f"{text} {text}", theirs=text) == f"{text} {text}"
        assert without_secrets(text, theirs=f"Room {secret}") == f"{before}[secret]{after}"
    harmless = LANGUAGES[language]["harmless"]
    assert len(harmless) >= 17
    assert [text for text in harmless if secret_kind(text)] == []


@pytest.mark.parametrize("value", ["Sommer2024!", "hunter22", "Xk9-pq7", "zx81-cat"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_whatever_people_type_is_hidden_in_the_same_sentences(language: str, value: str) -> None:
    """M-083: the sentence and the shape tell, no list of passwords."""
    told = [marked.split("|") for marked in LANGUAGES[language]["secret"]]
    assert [a for a, _, b in told if value in without_secrets(f"{a}{value}{b}")] == []


def test_people_who_just_talk_are_hardly_ever_refused() -> None:
    """M-098: at most 2 messages in 1,000, of dialogues in five languages."""
    files = sorted((Path(__file__).parent / "bench").glob("*_turns.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    refused = [line for line in lines if secret_kind(json.loads(line)["text"])]
    assert len(lines) > 1_500
    assert len(refused) <= 2 * len(lines) / 1_000


@pytest.mark.parametrize(
    "text",
    [
        word * 4_000
        for word in (
            "password ",
            "şifre ",
            "key of ",
            "A1-",
            "BEGIN A ",
            "://a:b",
            "a.b-",
            "'",
            "ES",
        )
    ]
    + [f"{name}{' ' * 20_000}" for name in ("password", "code:", "seed phrase")],
)
def test_no_text_is_looked_at_for_long(text: str) -> None:
    with cheap(5):
        secret_kind(text)
