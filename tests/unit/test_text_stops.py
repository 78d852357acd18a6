"""Stop strings: held back by characters, earliest start wins, and how the text was cut does not matter."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.api.text.stops import StopScanner


def run(pieces: list[str], stops: list[str], *, include: bool = False) -> tuple[str, str | None]:
    scanner = StopScanner(stops, include_stop=include)
    out = []
    for piece in pieces:
        out.append(scanner.push(piece))
        if scanner.match:
            break
    else:
        out.append(scanner.flush())
    return "".join(out), scanner.match.stop if scanner.match else None


def oracle(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    found = sorted((text.find(s), i) for i, s in enumerate(stops) if s in text)
    if not found:
        return text, None
    start, i = found[0]
    return text[: start + (len(stops[i]) if include else 0)], stops[i]


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3, unique=True),
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_equals_a_search_of_the_whole_text(stops: list[str], pieces: list[str], include: bool) -> None:
    assert run(pieces, stops, include=include) == oracle("".join(pieces), stops, include)


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3), st.text("abc", max_size=30))
@settings(max_examples=300, deadline=None)
def test_holds_back_only_what_could_still_be_a_stop(stops: list[str], text: str) -> None:
    scanner = StopScanner(stops)
    shown = ""
    for i, char in enumerate(text):
        shown += scanner.push(char)
        if scanner.match:
            break
        held = text[len(shown) : i + 1]
        if not scanner.is_undecided:
            possible = [k for k in range(len(held) + 1) if any(s.startswith(held[k:]) for s in stops)]
            assert possible[0] == 0, (held, stops)


def test_pieces_of_a_stop_never_leak() -> None:
    """BB-001, P020."""
    scanner = StopScanner(["DEFGHIJ"])
    shown = [scanner.push(p) for p in ["ABC", " ", "DEF", "GH", "I"]]
    assert shown == ["ABC", " ", "", "", ""]
    assert scanner.push("J KLM") == ""
    assert scanner.match
    assert scanner.match.stop == "DEFGHIJ"


def test_disproved_prefix_is_released_at_once() -> None:
    scanner = StopScanner(["END"])
    assert [scanner.push(p) for p in ["E", "N", "X"]] == ["", "", "ENX"]


def test_earliest_start_wins_even_if_it_ends_later() -> None:
    """BB-005."""
    assert run(["ABC DEFGHIJ"], ["GHI", "EF"]) == ("ABC D", "EF")
    assert run(list("xabcdef"), ["bc", "abcdef"]) == ("x", "abcdef")
    assert run(list("xabcdeX"), ["bc", "abcdef"]) == ("xa", "bc")
    assert run(list("xabcde"), ["bc", "abcdef"]) == ("xa", "bc")


def test_stop_can_be_kept() -> None:
    """BB-003."""
    assert run(["ABC DEFGHIJ KLM"], ["ZZZ", "DEFGHIJ"], include=True) == ("ABC DEFGHIJ", "DEFGHIJ")


def test_text_that_does_not_count_cannot_match_nor_begin_a_match() -> None:
    scanner = StopScanner(["ab"])
    assert scanner.push("ab", counts=False) == "ab"
    assert scanner.push("a", counts=False) == "a"
    assert scanner.push("b") == "b"
    assert scanner.push("ab") == ""
    assert scanner.match


def test_long_periodic_stop_costs_constant_time_per_character() -> None:
    scanner = StopScanner(["a" * 20_000 + "b"])
    for _ in range(60):
        scanner.push("a" * 1000)
    assert scanner.match is None
    assert len(scanner.flush()) == 20_000
