"""A log has the types and places of an exception, and nothing that it quotes."""

from grace.server.observe.fault_places import places_of


def quote(value: str) -> None:
    raise KeyError(value)


def wrap(value: str) -> None:
    try:
        quote(value)
    except KeyError as error:
        raise ValueError(f"{value!r} is wrong") from error


def recurse() -> None:
    recurse()


def caught(value: str) -> ValueError:
    try:
        wrap(value)
    except ValueError as error:
        return error
    raise AssertionError


def test_types_and_places_are_listed_innermost_last_and_then_those_of_the_cause() -> None:
    places, cause = places_of(caught("SECRET")).split("; from ")
    assert places.startswith("ValueError at server/test_fault_places.py:")
    assert cause.startswith("KeyError at server/test_fault_places.py:")
    assert places.count(" > ") == cause.count(" > ") == 1


def test_no_message_is_listed() -> None:
    assert "SECRET" not in places_of(caught("SECRET"))


def test_an_endless_recursion_is_listed_by_its_last_places() -> None:
    try:
        recurse()
    except RecursionError as error:
        places = places_of(error)
    assert places.count(" > ") == 19


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    assert places_of(ValueError("x")) == "ValueError at no known place"
