"""Guess the roles of columns from their names, and give them valid names.

A name is compared by its words: `Campaign ID`, `campaignId` and `campaign_id` are the same.
"""

import re
import unicodedata
from collections.abc import Collection, Mapping

from grace.index.targeting.schema import AD_LEVEL, EXCLUDE_SUFFIX

_LONGEST = 50  # with `_exclude` and a number, below the 63 characters of a targeting name

ID_NAMES = (
    *("ad_id", "ad", "adid", "id", "item_id", "item", "itemid", "sku", "asin", "parent_asin"),
    *("product_id", "product", "article_id", "article", "creative_id", "offer_id", "listing_id"),
    *("gtin", "ean", "uuid", "key"),
)
SID_NAMES = ("sid", "sids", "semantic_id", "semantic_ids", "sid_tokens", "token_ids", "codes")
WEIGHT_NAMES = (
    *("ad_weight", "weight", "bid", "ad_score", "score", "ecpm", "cpm", "cpc", "max_cpc"),
    *("bid_price", "priority", "popularity"),
)
TITLE_NAMES = (
    *("title", "headline", "name", "ad_title", "ad_name", "product_title", "product_name"),
    *("item_title", "item_name", "display_name", "label", "ad_headline", "headline_1"),
    *("offer_title", "listing_title", "article_title", "creative_title", "creative_name"),
)
USER_NAMES = (
    *("user_id", "user", "uid", "userid", "customer_id", "customer", "visitor_id", "visitor"),
    *("member_id", "member", "account_id", "account", "client_id", "client"),
    *("shopper_id", "shopper", "viewer_id", "viewer", "buyer_id", "buyer", "person_id", "person"),
    *("profile_id", "reviewer_id", "anonymous_id", "cookie_id", "cookie"),
    *("device_id", "session_id", "session"),
)
TIME_NAMES = (
    *("timestamp_ms", "timestamp", "ts", "time_ms", "time", "event_time", "event_timestamp"),
    *("timestamp_s", "timestamp_us", "timestamp_ns", "ts_ms", "event_ts", "event_date", "datetime"),
    *("date_time", "ms", "millis", "milliseconds", "epoch", "epoch_ms", "unix", "unix_time"),
    *("unix_timestamp", "click_time", "clicked_at", "viewed_at", "occurred_at", "created_at"),
    *("date", "when"),
)
ACTION_NAMES = ("action", "event", "event_type", "action_type", "type", "behavior", "behaviour")

ENTITY_WORDS = frozenset(
    "campaign advertiser brand seller merchant shop store vendor account agency publisher supplier "
    "client partner company owner order adgroup adset creative".split()
)
SEVERAL_WORDS = frozenset(
    "audience audiences segment segments interest interests tag tags keyword keywords topic topics "
    "affinity affinities cohort cohorts".split()
)
"""Words for things that a user has several of. Such a column is a set, even with few values: one
value in common is enough for a set, but an attribute must allow all values of a user."""

USER_WORDS = frozenset(
    "country countries city cities state province county district language lang locale gender sex "
    "age device os platform browser carrier income".split()
)
"""Words for facts about users. Such a column is a rule even if nearly all values differ."""

CODE_WORDS = frozenset(
    "zip zipcode postcode postal plz dma region geo location segment audience interest hour "
    "weekday daypart cohort".split()
)
"""Words for values of users that are often written as numbers."""

BOUND_WORDS = frozenset("min max from to until since before after start end".split())
DESCRIBING_WORDS = frozenset(
    "description desc text body url link href image img picture photo thumbnail video color colour "
    "size material price cost amount currency stock quantity rating reviews status created updated "
    "modified category subcategory genre sku isbn".split()
)

_EXCLUDE_AFTER = re.compile(
    r"(.+)_(exclude|excluded|excludes|exclusion|exclusions|not|except|without|negative|blocked)"
)
_EXCLUDE_BEFORE = re.compile(r"(exclude|excluded|not|except|without|negative|blocked)_(.+)")


def plain_name(column: str) -> str:
    """Return the name in lower-case ASCII words; empty if it has no such letter or digit."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", column)
    decomposed = unicodedata.normalize("NFKD", apart.replace("ß", "ss"))
    text = decomposed.encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "_", text).strip("_")


def words(plain: str) -> frozenset[str]:
    return frozenset(plain.split("_"))


def is_bid(plain: str) -> bool:
    """Return whether this is the name of a bid, such as `cpc_bid`: the larger number wins."""
    return plain.endswith("_bid") and not words(plain) & {"min", "minimum", "floor"}


def excluded_by(plain: str) -> str | None:
    """Return `country` for `country_exclude`, `excluded_country` and the like; else None."""
    if found := _EXCLUDE_AFTER.fullmatch(plain):
        return found[1]
    found = _EXCLUDE_BEFORE.fullmatch(plain)
    return found[2] if found else None


def base_column(base: str, plain: Mapping[str, str]) -> str | None:
    """Return the column that includes what another one excludes; `plain` has the columns' names.

    `countries` leads to `countries`, then to `country`, then to `country_code`.
    """
    one = singular(base)
    same = [column for column, name in plain.items() if name == base]
    alike = [column for column, name in plain.items() if singular(name) == one]
    longer = [column for column, name in plain.items() if name.startswith(f"{one}_")]
    return next(iter([*same, *alike, *longer]), None)


def singular(name: str) -> str:
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    return name if len(name) < 4 or name.endswith("ss") else name.removesuffix("s")


class NewNames:
    """Gives each column a valid name that no other column of the table has.

    A build reads a column that has our name, also one that the proposal ignores.
    """

    def __init__(self, columns: Collection[str]) -> None:
        self._columns = columns
        self._taken = {"ad_id", "sid", "ad_weight", "title", AD_LEVEL}
        self._unnamed = 0

    def name_of(self, plain: str, *named: str) -> str:
        """Return the name, or one like it if it is not valid or another column has it.

        `named` are the columns that get the name.
        """
        name = plain[:_LONGEST].strip("_")
        while name.endswith(EXCLUDE_SUFFIX):
            name = name.removesuffix(EXCLUDE_SUFFIX)
        if not name:
            self._unnamed += 1
            name = f"column_{self._unnamed}"
        if not name[0].isalpha():
            name = f"c_{name}"
        found, number = name, 1
        while found in self._taken or self._is_of_others(found, named):
            number += 1
            found = f"{name}_{number}"
        self._taken.add(found)
        return found

    def _is_of_others(self, name: str, named: tuple[str, ...]) -> bool:
        both = (name, name + EXCLUDE_SUFFIX)
        return any(each in self._columns and each not in named for each in both)
