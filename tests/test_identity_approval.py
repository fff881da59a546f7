"""What somebody is told when the homeserver wants more than our login for our identity."""

import json

import pytest

from tests.world.identities import BY_PASSWORD, by_page
from tests.world.malformed import WRONG, misshapen
from wintermute.errors import ApprovalNeeded, WintermuteError
from wintermute.matrix.cross_signing import approval_text
from wintermute.matrix.http import refuse


def approval_shown(answer: object, *, has_password: bool = False) -> str:
    """What somebody reads after an answer with 401."""
    try:
        refuse(401, json.loads(json.dumps(answer)))
    except ApprovalNeeded as error:
        return approval_text(error, has_password=has_password)
    except WintermuteError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example",
        "HTTPS://[",
        "https://e.org/" + "x" * 10_000,
        "https://e.org/ run this",
        "https://e.org/\n2026 INFO all is well",
        "https://e.org/\x1b[2J",
        "https://e.org/`@ann:test`",
        "https://e.org/<b>",
        "https://ex\u202egro.org",
        *WRONG,
    ],
    ids=lambda url: repr(url)[:20],
)
def test_a_page_that_is_none_is_never_shown(url: object) -> None:
    """X-051."""
    shown = approval_shown(by_page(url=url if url is not WRONG[0] else None))
    assert "with a client that can do that" in shown
    assert "://" not in shown
    assert "javascript" not in shown
    assert len(shown) < 500
    assert shown.isprintable()


def test_any_answer_with_401_is_told_in_one_line() -> None:
    """X-051, X-022: each field missing or of another kind, at any depth."""
    answer = by_page() | {"errcode": "M_FORBIDDEN", "error": "no"}
    answer["flows"] += [{"stages": ["m.login.password"]}, {"stages": ["a", "b"]}]
    cases = [*misshapen(answer), *misshapen(BY_PASSWORD)]
    cases += [answer | {"flows": [flow]} for flow in WRONG[1:]]
    cases += [answer | {"flows": [{"stages": [stage]}]} for stage in WRONG[1:]]
    assert len(cases) > 80
    for case in cases:
        for has_password in (True, False):
            assert len(approval_shown(case, has_password=has_password)) < 1500


@pytest.mark.parametrize(
    ("flows", "part"),
    [
        ([["m.login.recaptcha", "m.login.dummy"]], "m.login.recaptcha+m.login.dummy"),
        ([["m.login.sso"], ["org.example.x"]], "m.login.sso or org.example.x"),
        ([["\x1b[2J\nINFO all is well"]], ": ? ->"),
        ([["m.login.password", 7]], "m.login.password+7"),
        ([["m.login.password", "m.login.dummy"]], "m.login.password+m.login.dummy"),
        ([["x" * 90] * 50], "x" * 90),
        ([], "nothing that we know"),
    ],
)
def test_stages_that_we_cannot_do_are_named(flows: list[list[object]], part: str) -> None:
    """X-051: a password is offered only where it alone will do."""
    shown = approval_shown({"flows": [{"stages": flow} for flow in flows], "session": "s"})
    assert part in shown
    assert "matrix.password" not in shown
    assert len(shown) < 500
    assert shown.isprintable()
