"""Read the columns of a table batch by batch, each by its role, and note the faults of rows.

A row has at most one fault, the first that is found. What a method returns for a refused row has no
meaning. A builder lists the faults and goes on; `require_good` ends at the first one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.configs.arrays import Bools, Float32, Float64, Int64
from grace.configs.errors import InputError
from grace.index.rejects import Fault, Reject, brief, in_words
from grace.index.tables import cells
from grace.index.tables.addresses import Format
from grace.index.tables.cells import ListParts, is_list, is_text, list_parts
from grace.index.tables.data_folder import FIRST_SECOND, LAST_SECOND
from grace.index.tables.item_numbers import LONGEST_ID, IdMap, no_name
from grace.index.tables.roles import both_names
from grace.index.tables.table_file import TableFile

NO_ID = -1
UNKNOWN = -2  # the number of an id that its id map does not have

LARGEST = 1e15  # so that a sum of squares stays finite in float32

_LINE_BREAK = "[\r\n]"
_BLANKS_AROUND = "^[ \t]|[ \t]$"
_EXACT = 1 << 53  # float64 has every integer up to it
_INT64_MAX = pa.scalar((1 << 63) - 1, pa.uint64())


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a file. `theirs` has the table's name of each of our columns that is there."""

    file: TableFile
    places: Int64  # of each row in the file
    batch: pa.RecordBatch
    theirs: Mapping[str, str]
    key: str  # our name of the column that names a row in messages
    faults: dict[int, Fault] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def where(self, chosen: pa.Array) -> "Rows":
        """Return the chosen rows, without the faults found so far."""
        batch, places = self.batch.filter(chosen), self.places[_mask(chosen)]
        return Rows(self.file, places, batch, self.theirs, self.key)

    def given(self, name: str) -> pa.Array:
        """Return our column as the table has it, without dictionaries."""
        return cells.without_dictionary(self.batch.column(self.theirs[name]))

    def ids(
        self,
        name: str,
        names: IdMap | None = None,
        *,
        null: str | None = "is null",
        remedy: str = "",
        strict: bool = True,
    ) -> Int64:
        """Return numbers: ids themselves, or those that `names` gives them, else UNKNOWN.

        `null` is the fault of a row without an id. If it is None, the row gets NO_ID. A value that
        is no id is a fault if `strict`, else UNKNOWN.
        """
        column = self.batch.column(self.theirs[name])
        if names is not None:
            numbers = self._numbered(name, column, names, null is None, strict)
        else:
            numbers = self._integers(name, self.given(name), remedy, strict)
        if null is not None and column.null_count:
            self._refuse(name, _mask(column.is_null()), null)
        return numbers

    def _integers(self, name: str, column: pa.Array, remedy: str, strict: bool) -> Int64:
        nulls = _mask(column.is_null())
        faults: list[tuple[Bools, str]] = []
        if is_text(column.type):
            column, bad = cells.integers(column)
            faults.append((bad, f"is not an integer{remedy}"))
        if pa.types.is_uint64(column.type):
            beyond = pc.greater(column, _INT64_MAX).fill_null(False)
            faults.append((_mask(beyond), "must be less than 2^63"))
        given = column.cast(pa.int64(), safe=False).fill_null(UNKNOWN).to_numpy()
        numbers: Int64 = np.where(nulls, NO_ID, np.maximum(given, UNKNOWN))
        faults.append((~nulls & (given < 0), "must not be negative"))
        for bad, reason in faults:
            if strict:
                self._refuse(name, bad, reason)
            numbers[bad] = UNKNOWN
        return numbers

    def _numbered(
        self, name: str, column: pa.Array, names: IdMap, nullable: bool, strict: bool
    ) -> Int64:
        codes, given = cells.coded(column)
        found = [UNKNOWN if text is None else names.find(text, UNKNOWN) for text in given]
        numbers = np.array([*found, NO_ID], np.int64)  # null cells take the last one
        reasons: dict[int, str] = {}
        for code in np.flatnonzero(numbers == UNKNOWN).tolist() if strict else ():
            text = given[code]
            if text == "" and nullable:
                numbers[code] = NO_ID
            elif reason := "is not UTF-8" if text is None else no_name(text):
                reasons[code] = reason
        for row in np.flatnonzero(np.isin(codes, [*reasons])).tolist() if reasons else ():
            self.refuse(row, name, self.shown(name, row), reasons[int(codes[row])])
        if strict and self.file.format is Format.CSV:
            self._refuse_line_breaks(name)
            blanks = pc.match_substring_regex(self.given(name), _BLANKS_AROUND).fill_null(False)
            # The log and the SIDs may have the id without them.
            self._refuse(name, _mask(blanks), "has blanks around it; remove them")
        of_rows: Int64 = numbers[codes]
        return of_rows

    def filled(self, name: str) -> pa.Array:
        """Return a column of integers or texts without nulls, as int64 or large_string [rows]."""
        column = self.given(name)
        self._refuse(name, _mask(column.is_null()), "is null")
        return column.cast(pa.large_string() if is_text(column.type) else pa.int64(), safe=False)

    def names(self, name: str) -> pa.Array:
        """Return ids of items as the table has them, int64 or large_string [rows]."""
        column = self.filled(name)
        if not is_text(column.type):
            self._integers(name, self.given(name), "", strict=True)
            return column
        lengths = pc.fill_null(pc.utf8_length(column), 1).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero((lengths == 0) | (lengths > LONGEST_ID)).tolist():
            text = column[row].as_py()
            if text is not None and (reason := no_name(text)):
                self.refuse(row, name, brief(text), reason)
        return column

    def sids(
        self,
        name: str,
        length: int,
        vocab_sizes: Int64 | None = None,
        *,
        null: str | None = "is null",
    ) -> Int64:
        """Return the tokens of SIDs, [rows, length]; -1 for a null.

        Without `vocab_sizes`, a token may be any number. If `null` is None, a row needs no SID.
        """
        parts = self.lists(name)
        counts = np.diff(parts.offsets)
        right = (counts == length) & (parts.valid == 1)
        for row in np.flatnonzero(~right).tolist():
            if parts.valid[row]:
                tokens = f"{counts[row]} token{'' if counts[row] == 1 else 's'}"
                self.refuse(row, name, tokens, f"the SID length is {length}")
            elif null is not None:
                self.refuse(row, name, None, null)
        flat = parts.flat.cast(pa.int64(), safe=False).fill_null(-1).to_numpy()
        right_rows = np.flatnonzero(right)
        found = flat[parts.offsets[right_rows][:, None] + np.arange(length)]
        if vocab_sizes is not None:
            outside = (found < 0) | (found >= vocab_sizes)
            for at in np.flatnonzero(outside.any(axis=1)).tolist():
                row, position = int(right_rows[at]), int(np.argmax(outside[at]))
                token = parts.flat[int(parts.offsets[row]) + position]
                shown, reason = None, "holds a null token"
                if token.is_valid:
                    size = vocab_sizes[position]
                    reason = f"token at position {position} is outside the vocabulary of {size}"
                    shown = str(token)
                self.refuse(row, name, shown, reason)
        of_rows = np.full((len(self), length), -1, np.int64)
        of_rows[right_rows] = found
        return of_rows

    def lists(self, name: str) -> ListParts:
        column = self.given(name)
        if not is_text(column.type):
            return list_parts(column)
        with self._as_text(name):
            lists, bad = cells.integer_lists(cells.split_cells(column, self.file.list_separator))
        reason = (
            "is not a list of integers; list_separator of tables.yaml says how it lists several"
        )
        self._refuse(name, bad, reason)
        return lists

    def weights(self, name: str) -> Float32:
        """Return numbers, 0 for a null and in a table without the column."""
        if name not in self.theirs:
            return np.zeros(len(self), np.float32)
        given, _ = self._numbers(name)
        with np.errstate(over="ignore"):
            weights: Float32 = given.astype(np.float32)
        self._refuse(name, ~np.isfinite(weights), "must be a finite float32")
        return weights

    def numbers(self, name: str) -> tuple[Float64, Bools]:
        numbers, valid = self._numbers(name)
        self._refuse(name, ~np.isfinite(numbers), "must be a finite number")
        column, size = self.given(name), np.abs(numbers)
        for row in np.flatnonzero(valid & (size >= _EXACT) & (size < np.inf)).tolist():
            text = str(column[row].as_py()).strip()
            whole, _, rest = text.partition(".")
            is_integer = whole.lstrip("+-").isdecimal() and not rest.strip("0")
            if is_integer and int(whole) != int(numbers[row]):
                self.refuse(row, name, text, "is beyond 2^53, where not every integer is exact")
        return numbers, valid

    def _numbers(self, name: str) -> tuple[Float64, Bools]:
        column = self.given(name)
        if is_text(column.type):
            column, bad = cells.numbers(column)
            self._refuse(name, bad, "is not a number")
        numbers = column.cast(pa.float64(), safe=False)
        return numbers.fill_null(0.0).to_numpy(), _mask(column.is_valid())

    def rules(self, name: str) -> ListParts:
        """Return what each row states: a list of texts, or a null for no rule."""
        is_csv = self.file.format is Format.CSV
        if is_csv:
            self._refuse_line_breaks(name)
        column = self.batch.column(self.theirs[name])
        with self._as_text(name):
            return cells.rule_lists(column, self.file.list_separator, is_csv=is_csv)

    @contextmanager
    def _as_text(self, name: str) -> Iterator[None]:
        """Refuse the table if splitting the texts of a column fails."""
        try:
            yield
        except pa.ArrowInvalid as error:
            where = f"{self.file.address}: column {both_names(name, self.theirs[name])}"
            raise InputError(f"{where}: {error}; write the table's texts in UTF-8") from None

    def rule_values(self, name: str, row: int) -> list[str | None]:
        """Return one row's rule, None for a value that is not UTF-8; for messages."""
        one, theirs = self.batch.slice(row, 1), self.theirs[name]
        column = one.column(theirs)
        if is_list(column.type) and is_list(column.type.value_type):
            one = pa.record_batch([column.flatten()], [theirs])
        return cells.texts(replace(self, batch=one, faults={}).rules(name).flat)

    def times(self, name: str, unit: str) -> Int64:
        """Return times in milliseconds; integers are in `unit` since 1970."""
        times, valid = self._times(name, unit, "log.time_unit")
        self._refuse(name, ~valid, "is null; leave such rows out")
        return times

    def moments(self, name: str) -> tuple[Int64, Bools]:
        """Return times of ads in whole milliseconds, rounded up, and which rows have one."""
        return self._times(name, self.file.time_unit, "ads.time_unit", -1)

    def _times(self, name: str, unit: str, key: str, sign: int = 1) -> tuple[Int64, Bools]:
        """`key` of tables.yaml says what `unit` integers have. A `sign` of -1 rounds up."""
        column = self.given(name)
        valid = _mask(column.is_valid())
        if is_text(column.type):
            with self._as_text(name):
                integers, bad = cells.integers(column)
            texts, column = column, cells.moments(column) if bad.any() else integers
            if column is None:  # some are no times, or they have several forms
                found, is_time = cells.each_moment(texts.filter(pa.array(bad)), sign)
                times = self._since_1970(name, integers, unit, key, sign)
                times[bad], bad[bad] = found, ~is_time
                self._refuse(name, bad, "is neither an integer nor a time")
                return times, valid
        if pa.types.is_date(column.type):
            column = column.cast(pa.timestamp("ms"))
        if pa.types.is_timestamp(column.type):
            unit, column = column.type.unit, column.cast(pa.int64())
            return cells.milliseconds(column.fill_null(0).to_numpy(), unit, sign), valid
        return self._since_1970(name, column, unit, key, sign), valid

    def _since_1970(self, name: str, column: pa.Array, unit: str, key: str, sign: int) -> Int64:
        valid = _mask(column.is_valid())
        given: Int64 = column.cast(pa.int64(), safe=False).fill_null(0).to_numpy()
        factor = cells.PER_SECOND[unit]
        wrong = (given < FIRST_SECOND * factor) | (given >= LAST_SECOND * factor)
        self._refuse(
            name,
            wrong & valid,
            f"is not between 1990 and 2100, in {unit} since 1970; set {key} in tables.yaml to the "
            f"unit of this column ({', '.join(cells.TIME_UNITS)}), or leave such rows out",
        )
        return cells.milliseconds(given, unit, sign)

    def vectors(self, name: str, dims: int) -> Float32:
        """Return vectors of finite numbers, [rows, dims]."""
        column = self.given(name)
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        right = lengths == dims
        for row in np.flatnonzero(~right).tolist():
            numbers = f"{lengths[row]} numbers"
            null = lengths[row] < 0
            reason = "is null" if null else f"others have {dims}"
            self.refuse(row, name, None if null else numbers, reason)
        given = column.filter(pa.array(right)).flatten().to_numpy(zero_copy_only=False)
        found = given.reshape(-1, dims)  # NaN for a null
        # Use Python's floats: NumPy would cast LARGEST to float16, which cannot hold it.
        low, high = (float(found.min()), float(found.max())) if found.size else (0.0, 0.0)
        vectors = np.zeros((len(self), dims), np.float32)
        if low >= -LARGEST and high <= LARGEST:  # NaN is neither
            vectors[right] = found
            return vectors
        bad = ~(np.abs(found.astype(np.float64)) <= LARGEST)
        for at in np.flatnonzero(bad.any(axis=1)).tolist():
            row, place = int(np.flatnonzero(right)[at]), int(np.argmax(bad[at]))
            number = column[row][place].as_py()
            finite = number is not None and np.isfinite(number)
            reason = f"beyond {LARGEST:g}; scale the vectors" if finite else "not a number"
            self.refuse(row, name, f"{number} at position {place}", reason)
        vectors[np.flatnonzero(right)[~bad.any(axis=1)]] = found[~bad.any(axis=1)]
        return vectors

    def refuse(self, row: int, name: str, value: str | None, reason: str) -> None:
        self.faults.setdefault(row, Fault(name, value, reason))

    def _refuse(self, name: str, bad: Bools, reason: str) -> None:
        for row in np.flatnonzero(bad).tolist():
            self.refuse(row, name, self.shown(name, row), reason)

    def _refuse_line_breaks(self, name: str) -> None:
        """Refuse texts with a line break: an unclosed cell would swallow the next lines."""
        found = pc.match_substring_regex(self.given(name), _LINE_BREAK).fill_null(False)
        reason = "holds a line break; close its quotation mark, or remove the break"
        self._refuse(name, _mask(found), reason)

    def shown(self, name: str, row: int) -> str | None:
        """Return a cell as messages show it; None for a null, and for what is not UTF-8."""
        try:
            value = self.batch.column(self.theirs[name])[row].as_py()
        except UnicodeDecodeError:
            return None
        return None if value is None else brief(str(value))

    def refused(self) -> Bools:
        refused = np.zeros(len(self), np.bool_)
        refused[list(self.faults)] = True
        return refused

    def rejects(self) -> tuple[Reject, ...]:
        return tuple(self.reject(row, fault) for row, fault in sorted(self.faults.items()))

    def reject(self, row: int, fault: Fault) -> Reject:
        given: str | int | None = self.shown(self.key, row)
        if given is not None and not is_text(self.given(self.key).type):
            given = int(given)
        return Reject(self.file.address, int(self.places[row]), given, fault)

    def require_good(self, thing: str) -> None:
        """Raise the first fault, with the table's name of the column. The key names a `thing`."""
        for reject in self.rejects()[:1]:
            fault = reject.fault
            theirs = replace(fault, column=self.theirs.get(fault.column, fault.column))
            raise InputError(in_words(replace(reject, fault=theirs), thing))


def read_rows(file: TableFile, theirs: Mapping[str, str], key: str, most: int) -> Iterator[Rows]:
    """Yield at most `most` rows at a time, in the file's order."""
    first = 0
    for batch in file.batches(list(dict.fromkeys(theirs.values())), most):
        yield Rows(file, np.arange(first, first + batch.num_rows), batch, theirs, key)
        first += batch.num_rows


def other_rows(file: TableFile, columns: Mapping[str, pa.Array], key: str = "") -> Rows:
    """Return rows of these columns, by our names, which a program made from the file."""
    batch = pa.record_batch([*columns.values()], [*columns])
    file = replace(file, format=Format.PARQUET, schema=batch.schema)
    return Rows(file, np.arange(len(batch)), batch, {name: name for name in columns}, key)


def _mask(flags: pa.Array) -> Bools:
    found: Bools = flags.to_numpy(zero_copy_only=False)
    return found
