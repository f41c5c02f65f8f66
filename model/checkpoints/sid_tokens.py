"""The tokens of SIDs in a Hugging Face vocabulary: found by their text, or given as offsets.

A code is the number in its token's text, so SIDs are those of `grace import-sids`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Generic, TypeVar

from grace.configs.errors import ConfigError, InputError
from grace.configs.options import SidLayout
from grace.index.snapshot import require_sids
from grace.model.checkpoints.hugging_face import read_json
from grace.model.definition.causal_spec import SidTokens
from grace.model.definition.model import CausalModel, Model

_TOKENIZER = "tokenizer.json"
_ADDED = "added_tokens.json"  # of tokenizers without tokenizer.json


@dataclass(frozen=True, slots=True)
class SidVocabulary:
    vocab_sizes: tuple[int, ...]
    sid_tokens: tuple[SidTokens, ...]
    without_token: tuple[int, ...]  # for each position, the number of codes without a token


ModelT = TypeVar("ModelT", Model, CausalModel)


@dataclass(frozen=True, slots=True)
class Imported(Generic[ModelT]):
    model: ModelT
    without_token: tuple[int, ...]  # for each position, the number of codes without a token


def find_sid_tokens(folder: Path, layout: SidLayout, num_tokens: int) -> SidVocabulary:
    """Return a layout's tokens. Without patterns and offsets, they follow each other from 1.

    A code may lack a token if the layout gives the number of codes. Then no SID may have the code,
    and a token that no code has takes its place. With normalizer `all`, no other score changes.
    """
    require_sids(layout.sid_space, layout.vocab_sizes or (1,))
    if not layout.sid_tokens:
        assert layout.vocab_sizes is not None
        offsets = layout.offsets or accumulate(layout.vocab_sizes[:-1], initial=1)
        tokens = tuple(SidTokens(first=first) for first in offsets)
        return SidVocabulary(layout.vocab_sizes, tokens, (0,) * len(tokens))
    here = [folder / name for name in (_TOKENIZER, _ADDED) if (folder / name).exists()]
    if not here:
        raise InputError(f"{folder / _TOKENIZER}: missing; give --offsets and --vocab-sizes")
    path, by_text = here[0], _tokens_by_text(here[0])
    sizes = layout.vocab_sizes or (None,) * len(layout.sid_tokens)
    found = [
        _tokens_of(by_text, pattern, size, path)
        for pattern, size in zip(layout.sid_tokens, sizes, strict=True)
    ]
    missing = tuple(ids.count(None) for ids in found)
    if any(missing) and layout.normalizer == "level":
        fault = f"{max(missing)} codes of a position have no token"
        raise InputError(f"{folder}: {fault}; use --normalizer all")
    taken = {token for ids in found for token in ids if token is not None}
    unused = (token for token in range(num_tokens) if token not in taken)
    if sum(missing) > num_tokens - len(taken):
        fault = f"{sum(missing)} codes have no token, and fewer tokens are unused"
        raise InputError(f"{path}: {fault}; lower --vocab-sizes")
    given = [[next(unused) if token is None else token for token in ids] for ids in found]
    return SidVocabulary(tuple(map(len, given)), tuple(map(_shortest, given)), missing)


def _tokens_of(
    by_text: Mapping[str, int], pattern: str, size: int | None, path: Path
) -> list[int | None]:
    """Return the token of each code of a position."""
    before, after = map(re.escape, pattern.split("{}"))
    text = re.compile(f"{before}(0|[1-9][0-9]{{0,5}}){after}")
    found = {int(match[1]): by_text[match[0]] for match in map(text.fullmatch, by_text) if match}
    if not found:
        raise InputError(f"{path}: no token like {pattern!r}; correct --sid-tokens")
    last = max(found)
    largest, codes = pattern.replace("{}", str(last)), size or last + 1
    ids = [found.get(code) for code in range(codes)]
    if size is None and None in ids:
        lost = pattern.replace("{}", str(ids.index(None)))
        fault = f"no token {lost!r}, but {largest!r}"
        raise InputError(f"{path}: {fault}; give --vocab-sizes if no SID has such codes")
    if last >= codes:
        fault = f"token {largest!r}, but the position has {codes} codes"
        raise InputError(f"{path}: {fault}; correct --vocab-sizes")
    return ids


def _tokens_by_text(path: Path) -> Mapping[str, int]:
    values = read_json(path)
    entries: Iterable[tuple[object, object]] = values.items()
    if path.name == _TOKENIZER:
        model, added = values.get("model"), values.get("added_tokens")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        entries = [*vocabulary.items()] if isinstance(vocabulary, dict) else []
        more = [each for each in added if isinstance(each, dict)] if isinstance(added, list) else []
        entries += [(each.get("content"), each.get("id")) for each in more]
    found: dict[str, int] = {}
    for text, token in entries:
        if not isinstance(text, str) or type(token) is not int:
            fault = f"expected texts and ids of tokens, got {text!r:.60}: {token!r:.60}"
            raise ConfigError(f"{path}: {fault}; copy it again")
        if found.setdefault(text, token) != token:
            raise ConfigError(f"{path}: {text!r} has the ids {found[text]} and {token}; keep one")
    return found


def _shortest(ids: list[int]) -> SidTokens:
    follow = ids == [*range(ids[0], ids[0] + len(ids))]
    return SidTokens(first=ids[0]) if follow else SidTokens(ids=tuple(ids))
