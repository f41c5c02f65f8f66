"""Which version a server serves, given CURRENT, what the server last acted on, and the pin."""

from hypothesis import given
from hypothesis import strategies as st

from grace.index.storage import Published
from grace.server.reload.decision import Pin, decide, pin_for

NOW, LATER = (7, 1), (8, 2)  # marks of two publishes
VERSIONS = st.integers(1, 9)
SEEN = st.builds(Published, st.none() | VERSIONS, st.sampled_from([NOW, LATER]))
PINS = st.builds(lambda version, more: Pin(version, version + more), VERSIONS, st.integers(0, 5))


def test_a_server_follows_current_to_newer_and_to_older_versions() -> None:
    for version in (3, 11):
        seen = Published(version, LATER)
        assert decide(seen, Published(7, NOW), None, served=7) == version
    assert decide(Published(7, LATER), Published(7, NOW), None, served=7) is None
    assert decide(Published(None), Published(7, NOW), None, served=7) is None


def test_a_version_that_failed_is_tried_again_after_a_publish_or_on_request() -> None:
    failed = Published(9, NOW)
    assert decide(failed, failed, None, served=7) is None
    assert decide(Published(9, LATER), failed, None, served=7) == 9
    assert decide(failed, None, None, served=7) == 9


def test_a_version_that_an_operator_has_loaded_stays_until_a_publish() -> None:
    current = Published(9, NOW)
    assert decide(current, current, None, served=5) is None
    assert decide(Published(9, LATER), current, None, served=5) == 9


def test_a_pin_holds_until_current_exceeds_the_version_that_was_rolled_back_from() -> None:
    pin = Pin(version=7, until_above=9)
    for version in (3, 7, 8, 9):
        assert decide(Published(version, LATER), None, pin, served=7) is None
    assert decide(Published(10, LATER), None, pin, served=7) == 10
    assert decide(Published(9, LATER), None, pin, served=None) == 7


@given(SEEN, st.none() | SEEN, st.none() | PINS, VERSIONS)
def test_what_is_loaded_is_pinned_or_published_and_nothing_is_loaded_twice(
    seen: Published, acted_on: Published | None, pin: Pin | None, served: int
) -> None:
    version = decide(seen, acted_on, pin, served)
    assert version is None or version != served
    if pin is not None and not pin.ends(seen):
        assert version in (None, pin.version)
    else:
        assert version in (None, seen.version)
    assert decide(seen, seen, pin, version or served) is None


@given(VERSIONS, VERSIONS, st.none() | SEEN, st.none() | PINS)
def test_what_current_names_already_does_not_end_a_new_pin(
    version: int, below: int, seen: Published | None, before: Pin | None
) -> None:
    pin = pin_for(version, version + below, seen, before)
    assert pin.version == version
    assert pin.until_above >= version + below
    assert seen is None or not pin.ends(seen)
    assert before is None or pin.until_above >= before.until_above
