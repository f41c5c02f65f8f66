"""The targeting schema that the synthetic catalogues share, and the constants of their events."""

from grace.catalogues.synth.places import COUNTRIES, LANGUAGES
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet

COUNTRY_CODES = tuple(country.code for country in COUNTRIES)
AGES = ("18-24", "25-34", "35-44", "45-54", "55-64", "65+")
GENDERS = ("female", "male", "unknown")
DEVICES = ("phone", "tablet", "desktop", "tv")

MAX_REQUEST_VALUES = 64

SCHEMA = TargetingSchema(
    attributes=(
        Attribute("country", COUNTRY_CODES),
        Attribute("age", AGES),
        Attribute("gender", GENDERS, missing="unknown"),
        Attribute("device", DEVICES, missing_passes_exclude=True),
        Attribute("language", LANGUAGES),
    ),
    sets=(
        TargetSet("location", 256, 4, MAX_REQUEST_VALUES),
        TargetSet("audience", 256, 4, MAX_REQUEST_VALUES, missing_passes_exclude=True),
    ),
    hash_seed=7,
    entities=("campaign", "advertiser"),
)

RULE_COLUMNS = tuple(column for name in SCHEMA.names for column in (name, f"{name}_exclude"))


# Events: an action, and the time. The cardinality of actions leaves room beyond the ids in use.
ACTIONS = 8
ACTION_IDS = (1, 2, 3, 4)  # view, click, save, buy
ACTION_ODDS = (0.45, 0.40, 0.10, 0.05)

NOW_MS = 1_788_264_000_000  # 2026-09-01 12:00 UTC: no file depends on the clock
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
