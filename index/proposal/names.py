"""Guess the roles of columns from their names, and give them valid names.

A name is compared by its words: `Campaign ID`, `campaignId` and `campaign_id` are the same.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping
from itertools import pairwise
from math import inf
from pathlib import Path

from grace.configs.yaml_loader import read_yaml
from grace.index.targeting.schema import AD_LEVEL, CLOCKS, EXCLUDE_SUFFIX, TargetSet

_LONGEST = 50  # with `_exclude` and a number, below the 63 characters of a targeting name
_LEXICON = {
    key: tuple(str(text).split())
    for key, text in read_yaml(Path(__file__).with_name("lexicon.yaml")).items()
}
ID_NAMES, SID_NAMES, TITLE_NAMES = (_LEXICON[key] for key in ("ids", "sids", "titles"))
USER_NAMES, TIME_NAMES = (_LEXICON[key] for key in ("users", "times"))
WORDS = {key: frozenset(listed) for key, listed in _LEXICON.items()}
_NEGATIVE_WORDS = WORDS["negative"] | WORDS["doubtful"]
_USER_WORDS = WORDS["several"] | WORDS["user_codes"] | WORDS["user_facts"]
_ID_ENDING = re.compile(rf"(_({'|'.join(_LEXICON['id_endings'])}))+$")
_NO, _AROUND = (rf"(?:{'|'.join(_LEXICON[key])})s?" for key in ("negative", "around"))
_EXCLUDED = re.compile(
    rf"^(?:{_AROUND}_)*{_NO}_(?:{_AROUND}_)*|(?:_{_AROUND})*_{_NO}(?:_{_AROUND})*$"
)


def plain_name(column: str) -> str:
    """Return the name in lower-case ASCII words; empty if it has no such letter or digit."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", column)
    decomposed = unicodedata.normalize("NFKD", apart.replace("ß", "ss"))
    text = decomposed.encode("ascii", "ignore").decode().lower()
    text = re.sub(r"[^a-z0-9]+", "_", text).strip("_")
    return re.sub(r"(black|block|deny)_list", r"\1list", text)


def words(plain: str) -> frozenset[str]:
    """Return the words of a name, each as it is and as a singular."""
    found = plain.split("_")
    return frozenset((*found, *map(singular, found)))


def stem(plain: str) -> str:
    """Return `item` for `item_id`, `item_no` and the like."""
    return _ID_ENDING.sub("", plain)


def rule_name(plain: str) -> str:
    """Return `countries` for `countries_allowed`, `target_countries` and the like."""
    without = _LEXICON["targeting"]
    return "_".join(each for each in plain.split("_") if singular(each) not in without) or plain


def limits_users(plain: str) -> bool:
    """Return whether the name says that a column limits who may see an ad."""
    found = words(plain)
    pairs = pairwise(map(singular, plain.split("_")))
    of_people = any(a in WORDS["people"] and b in WORDS["entities"] for a, b in pairs)
    of_users = found & _USER_WORDS and not found & WORDS["about"]
    return bool(found & WORDS["targeting"] or of_people or of_users)


def describes_ad(plain: str) -> bool:
    """Return whether the name says what an ad is, and nothing about users."""
    found = words(plain)
    return bool(found & WORDS["describing"]) and not found & _USER_WORDS


def is_entity(plain: str) -> bool:
    """Return whether this names what ads belong to: `brand`, `ad_group_id`, `seller_name`."""
    if excluded_by(plain) is not None or words(plain) & (WORDS["targeting"] | WORDS["people"]):
        return False
    last = stem(plain.removesuffix("_name")).split("_")[-2:]
    return bool({singular(last[-1]), "".join(last)} & WORDS["entities"])


def is_title(plain: str) -> bool:
    named = plain in TITLE_NAMES or plain.endswith(("_title", "_headline", "_name"))
    return named and not (is_entity(plain) or limits_users(plain))


def weight_rank(plain: str) -> float:
    """Return how good a name is for a weight, 0 is best; infinity if it names none.

    `max_cpc`, `bid_usd` and `cpc_bid` are bids: the largest comes first.
    """
    named = "_".join(each for each in plain.split("_") if singular(each) not in _LEXICON["money"])
    if named.endswith("_bid") and not words(plain) & WORDS["no_bids"]:
        named = "bid"
    usual = _LEXICON["weights"]
    return usual.index(named) if named in usual else inf


def clock_of(plain: str) -> str | None:
    """Return the clock that gives an attribute of this name its values: `target_hours_of_week`."""
    name = "_".join(map(singular, (excluded_by(plain) or rule_name(plain)).split("_")))
    return name if name in CLOCKS else None


def end_of(plain: str, kind: str, endings: Collection[str]) -> tuple[str, str] | None:
    """Return `age` and `_min` for `age_from`, and an empty text and `_end` for `ends_at`.

    kind     `range` or `flight`
    endings  of its two columns
    """
    around = WORDS[f"{kind}_words"]
    parts = [each for each in rule_name(plain).split("_") if singular(each) not in around]
    if not parts or may_exclude(plain) or words(plain) & (WORDS["prose"] | WORDS["weights"]):
        return None
    for base, word in ((parts[:-1], parts[-1]), (parts[1:], parts[0])):
        for ending in endings:
            if singular(word) in WORDS[kind + ending] and (base or kind == "flight"):
                return "_".join(base), ending
    return None


def excluded_by(plain: str) -> str | None:
    """Return `country` for `country_exclude`, `not_in_country` and the like; else None."""
    base = _EXCLUDED.sub("", rule_name(plain))
    return base if base not in ("", rule_name(plain)) else None


def may_exclude(plain: str) -> bool:
    return not words(plain).isdisjoint(_NEGATIVE_WORDS)


def base_column(base: str, plain: Mapping[str, str]) -> str | None:
    """Return the column that includes what another one excludes; `plain` has the columns' names.

    `countries` leads to `countries`, to `country` and to `country_code`.
    """
    names = {column: rule_name(name) for column, name in plain.items()}
    found = [c for c, name in names.items() if name == base]
    found += [c for c, name in names.items() if stem(singular(name)) == singular(base)]
    return next(iter(found), None)


def singular(name: str) -> str:
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name if len(name) < 4 or name.endswith("ss") else name.removesuffix("s")


class NewNames:
    """Gives each column a valid name that no other has: a build reads any column of our name."""

    def __init__(self, columns: Collection[str]) -> None:
        self._columns = columns
        self._taken = {"ad_id", "sid", "ad_weight", "title", "rule", "clauses", AD_LEVEL}
        self._unnamed = 0

    def name_of(self, plain: str, *named: str, endings: Collection[str] = TargetSet.columns) -> str:
        """Return the name, or one like it, that only the columns `named` have, with endings."""
        name = plain[:_LONGEST].strip("_")
        while name.endswith(EXCLUDE_SUFFIX):
            name = name.removesuffix(EXCLUDE_SUFFIX)
        if not name:
            self._unnamed += 1
            name = f"column_{self._unnamed}"
        if not name[0].isalpha():
            name = f"c_{name}"
        found, number = name, 1
        others = self._taken.union(self._columns).difference(named)
        while others & (all_names := {found, *(found + ending for ending in endings)}):
            number += 1
            found = f"{name}_{number}"
        self._taken |= all_names
        return found
