"""What the arrays of a snapshot must be, in plain Python: the oracle of index/storage/arrays.py."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from grace.index.storage.manifest import Manifest

Lists = Mapping[str, Any]


def wrong_files(manifest: Manifest, files: Mapping[str, npt.NDArray[Any]]) -> set[str]:
    """Return the files that are wrong by themselves, or to which files with right offsets lead."""
    lists = {file.removesuffix(".npy"): array.tolist() for file, array in files.items()}
    bits = _set_bits(files["rule_bitmask_table.npy"])
    found = set()
    for name, is_right in _rules(manifest, lists, bits):
        try:
            right = is_right()
        except IndexError:  # of another array, which is then wrong itself
            right = False
        if not right:
            found.add(f"{name}.npy")
    return found


def _set_bits(table: npt.NDArray[np.uint64]) -> list[int]:
    """Return the highest bit that is set in each row, or -1."""
    return [int.from_bytes(row.tobytes(), "little").bit_length() - 1 for row in table]


def _rules(
    manifest: Manifest, lists: Lists, bits: list[int]
) -> Iterator[tuple[str, Callable[[], bool]]]:
    counts, schema = manifest.counts, manifest.schema
    starts = [sum(counts.nodes_per_level[:level]) for level in range(len(counts.nodes_per_level))]
    ends = [start - 1 for start in [*starts[2:], sum(counts.nodes_per_level)]]
    nodes, tokens = lists["node_offsets"], lists["csr_tokens"]

    def size_of(node: int) -> int:
        return manifest.vocab_sizes[sum(node >= start for start in starts) - 1]

    yield "node_offsets", lambda: _cuts(nodes, tokens) and [nodes[s] for s in starts[1:]] == ends
    yield (
        "csr_tokens",
        lambda: all(
            _ascends(group, size_of(node)) for node, group in enumerate(_groups(nodes, tokens))
        ),
    )
    ids, rules = lists["ad_ids"], counts.rules
    yield "ad_offsets", lambda: _cuts(lists["ad_offsets"], ids)
    yield "ad_ids", lambda: all(_ascends(group) for group in _groups(lists["ad_offsets"], ids))
    yield "ad_rule", lambda: _within(lists["ad_rule"], rules)
    yield "ad_weight", lambda: all(map(math.isfinite, lists["ad_weight"]))
    lookup = lists["ad_lookup"]
    yield "ad_lookup", lambda: _within(lookup, len(ids)) and _ascends([ids[i] for i in lookup])
    yield "rule_bitmask_table", lambda: max(bits) < schema.bitmask_bits
    limits = [counts.rule_bitmasks, *(counts.set_rules[name] for name in manifest.set_names)]
    yield (
        "rule_rows",
        lambda: all(
            _within([number], limit)
            for row in lists["rule_rows"]
            for number, limit in zip(row, limits, strict=True)
        ),
    )
    for name in manifest.set_names:
        for kind in ("include", "exclude"):
            offsets = lists[f"set_{kind}_offsets.{name}"]
            members = lists[f"set_{kind}_values.{name}"]
            yield from _lists(f"set_{kind}", name, offsets, members, counts.set_values[name])
        yield from _values(name, lists[f"value_offsets.{name}"], lists[f"value_utf8.{name}"])
    for name in schema.entities:
        yield from _entities(name, lists, counts.ads)


def _lists(
    kind: str, name: str, offsets: list[int], members: list[int], limit: int
) -> Iterator[tuple[str, Callable[[], bool]]]:
    yield f"{kind}_offsets.{name}", lambda: _cuts(offsets, members, may_be_empty=True)
    yield (
        f"{kind}_values.{name}",
        lambda: all(_ascends(group, limit) for group in _groups(offsets, members)),
    )


def _entities(name: str, lists: Lists, ads: int) -> Iterator[tuple[str, Callable[[], bool]]]:
    offsets, members = lists[f"entity_offsets.{name}"], lists[f"entity_ads.{name}"]
    of_ad, ids = lists[f"entity_of_ad.{name}"], lists[f"entity_ids.{name}"]
    yield f"entity_ids.{name}", lambda: _ascends(ids)
    yield f"entity_of_ad.{name}", lambda: _within(of_ad, len(ids), -1)
    yield f"entity_offsets.{name}", lambda: _cuts(offsets, members)
    yield (
        f"entity_ads.{name}",
        lambda: all(_ascends(group, ads) for group in _groups(offsets, members)),
    )


def _values(
    name: str, offsets: list[int], utf8: list[int]
) -> Iterator[tuple[str, Callable[[], bool]]]:
    def are_right() -> bool:
        texts = [bytes(group) for group in _groups(offsets, utf8)]
        return _ascends(texts) and all(map(_is_utf8, texts))

    yield f"value_offsets.{name}", lambda: _cuts(offsets, utf8, may_be_empty=True)
    yield f"value_utf8.{name}", are_right


def _cuts(offsets: list[int], members: list[Any], may_be_empty: bool = False) -> bool:
    pairs = list(itertools.pairwise(offsets))
    right = all(a < b or (may_be_empty and a == b) for a, b in pairs)
    return right and offsets[0] == 0 and offsets[-1] == len(members)


def _groups(offsets: list[int], members: list[Any]) -> list[list[Any]]:
    if not _cuts(offsets, members, may_be_empty=True):
        raise IndexError("the offsets are wrong themselves")
    return [members[a:b] for a, b in itertools.pairwise(offsets)]


def _ascends(group: list[Any], limit: int | None = None) -> bool:
    numbers = [each for each in group if not isinstance(each, bytes)]
    in_order = all(a < b for a, b in itertools.pairwise(group))
    return in_order and _within(numbers, 2**63 if limit is None else limit)


def _within(numbers: list[int], limit: int, least: int = 0) -> bool:
    return all(least <= number < limit for number in numbers)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
