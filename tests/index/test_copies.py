"""Equal spans get one id over many tables, by first use, for any budget of memory."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pytest

from grace.configs.errors import InputError
from grace.index.builder.sharding.copies import Numbered, Spans, SpanTable, number_spans

Rows = list[tuple[int, ...]]


def random_tables(rng: np.random.Generator, longest: int, shortest: int) -> list[Rows]:
    """Tables of few distinct spans, some tables empty."""
    return [
        [
            tuple(rng.integers(2, size=rng.integers(shortest, longest + 1)).tolist())
            for _ in range(rng.choice([0, 1, 63, 111]))
        ]
        for _ in range(5)
    ]


def jagged(table: Rows) -> Spans:
    words = np.array([word for span in table for word in span], np.uint32)
    offsets = np.cumsum([0, *map(len, table)], dtype=np.int64)
    return Spans(words, offsets=offsets)


def number(tables: Sequence[Rows], block: int, width: int) -> Numbered:
    def blocks(table: Rows) -> Iterator[Spans]:
        for begin in range(0, len(table), block):
            part = table[begin : begin + block]
            yield Spans.of_rows(np.array(part, np.int32)) if width else jagged(part)

    return number_spans(
        [SpanTable(len(t), 4 * sum(map(len, t)), partial(blocks, t)) for t in tables]
    )


@pytest.mark.parametrize("budget", [1, 333, 1 << 20])
@pytest.mark.parametrize("width", [0, 1, 7], ids=["jagged", "width=1", "width=7"])
@pytest.mark.parametrize("seed", range(3))
def test_ids_are_by_first_use_over_all_tables(
    monkeypatch: pytest.MonkeyPatch, seed: int, width: int, budget: int
) -> None:
    monkeypatch.setattr("grace.index.builder.sharding.copies.COPIES_BUDGET", budget)
    rng = np.random.default_rng(seed)
    tables = random_tables(rng, width or 5, width or 0)
    numbered = number(tables, 17, width)
    ids: dict[tuple[int, ...], int] = {}
    for table, new_of, is_first in zip(tables, numbered.new_of, numbered.is_first, strict=True):
        new = [span not in ids and span not in table[:i] for i, span in enumerate(table)]
        assert is_first.tolist() == new
        assert new_of.tolist() == [ids.setdefault(span, len(ids)) for span in table]
    assert numbered.count == len(ids)


def test_eight_byte_numbers_differ_if_any_of_their_bytes_does() -> None:
    rows = np.array([[1, 2], [1 + (1 << 32), 2], [1, 2 + (1 << 63)], [1, 2]], np.uint64)
    table = SpanTable(4, rows.nbytes, lambda: iter([Spans.of_rows(rows)]))
    assert number_spans([table]).new_of[0].tolist() == [0, 1, 2, 0]


def test_no_tables_and_empty_tables_have_no_ids() -> None:
    nothing = SpanTable(0, 0, lambda: iter(()))
    assert number_spans([nothing, nothing]).count == 0


def test_more_rows_than_ids_can_name_are_refused_before_they_are_read() -> None:
    with pytest.raises(InputError, match=r"2\^31 - 1"):
        number_spans([SpanTable(1 << 31, 8, lambda: iter(()))])


def test_a_table_with_other_spans_than_it_says_is_our_mistake() -> None:
    row = Spans.of_rows(np.zeros((3, 1), np.int32))
    with pytest.raises(ValueError, match="a table of 4 spans gave 3"):
        number_spans([SpanTable(4, 12, lambda: iter([row]))])
