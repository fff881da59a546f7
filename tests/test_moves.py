"""Which room follows which, as tables: chains, circles, and what is only claimed (F-013)."""

import pytest

from wintermute.mailbox.rooms import Link, Move, compute_moves, pending_moves

A, B, C = "!a", "!b", "!c"


def link(room_id: str, successor: str = "", predecessor: str = "", **more: object) -> Link:
    known = {"encrypted": False, "joined": True, "moved_to": "", "scope": ""} | more
    return Link(
        room_id,
        bool(known["encrypted"]),
        bool(known["joined"]),
        successor,
        predecessor,
        str(known["moved_to"]),
        str(known["scope"]),
    )


@pytest.mark.parametrize(
    ("links", "moves"),
    [
        ([link(A, B), link(B, "", A)], [Move(A, B)]),
        ([link(A, B), link(B)], []),
        ([link(A), link(B, "", A)], []),
        ([link(A, B)], []),
        ([link(A, B), link(B, "", A, joined=False)], []),
        ([link(A, B, joined=False), link(B, "", A)], [Move(A, B)]),
        ([link(A, C), link(B, "", A), link(C, "", A)], [Move(A, C)]),
        ([link(A, B, moved_to=B), link(B, "", A, scope="room:!a")], []),
        ([link(A, C, moved_to=B), link(B, "", A), link(C, "", A)], []),
        ([link(C, "", B), link(B, C, A), link(A, B)], [Move(A, B), Move(B, C)]),
        ([link(A, B), link(B, C, A, moved_to=C), link(C, "", B)], [Move(A, C)]),
        ([link(A, B, B), link(B, A, A)], []),
        ([link(A, B, B, moved_to=B), link(B, A, A)], []),
        ([link(A, B, C), link(B, C, A), link(C, A, B)], []),
        ([link(A, A, A)], []),
    ],
    ids=[
        "both say so",
        "only the tombstone",
        "only the creation",
        "the next is unknown",
        "we are not there",
        "we left the old one",
        "the second tombstone counts",
        "it was done",
        "after the move it stays",
        "two upgrades while we were away",
        "the next has moved on itself",
        "a circle",
        "back again",
        "a circle of three",
        "itself",
    ],
)
def test_a_room_moves_when_both_rooms_say_so(links: list[Link], moves: list[Move]) -> None:
    """F-013: membership is checked in both directions; nothing ever goes round."""
    assert pending_moves(links) == moves


def test_a_scope_is_known_by_each_room_it_has_lived_in() -> None:
    """F-013: as it is called at the command line and in files that are read in."""
    moves = compute_moves(
        [
            link(A, B, moved_to=B),
            link(B, C, A, moved_to=C, scope="room:!a"),
            link(C, "", B, scope="room:!a"),
        ]
    )
    assert {moves.canonical_scope(f"room:{room}") for room in (A, B, C)} == {"room:!a"}
    assert [moves.current_room(room) for room in (A, B, C, "!d")] == [C, C, C, "!d"]
    assert [moves.canonical_scope(name) for name in ("room:!d", "person:@a:b", "global")] == [
        "room:!d",
        "person:@a:b",
        "global",
    ]


@pytest.mark.parametrize(
    ("links", "closed"),
    [
        ([link(A, B)], {A}),
        ([link(A, B), link(B, C, A)], {A, B}),
        ([link(A, B), link(B, A)], set()),
        ([link(A, A)], set()),
        ([link(A, B, moved_to=B), link(B, A, A)], {A}),
    ],
    ids=["named by its tombstone", "a chain", "a circle", "itself", "a circle after the move"],
)
def test_a_room_that_gave_way_is_over(links: list[Link], closed: set[str]) -> None:
    """F-013: nothing is begun there, even if we were not asked into the next one yet."""
    assert compute_moves(links).closed == closed


@pytest.mark.parametrize(("old", "new"), [(True, True), (True, False), (False, False)])
def test_a_room_in_clear_that_follows_an_encrypted_one_is_barred(old: bool, new: bool) -> None:
    """F-013: nothing of elsewhere is said there."""
    links = [link(A, B, encrypted=old), link(B, "", A, encrypted=new)]
    assert compute_moves(links).unencrypted == ({B} if (old, new) == (True, False) else set())
