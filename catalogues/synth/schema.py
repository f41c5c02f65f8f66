"""The targeting schema that the synthetic catalogues share, and the YAML file that states it."""

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
)

RULE_COLUMNS = tuple(column for name in SCHEMA.names for column in (name, f"{name}_exclude"))


def targeting_yaml() -> str:
    """The schema as a file. Country codes stay bare: NO must reach a reader as Norway."""
    lines = [
        "# Who an ad may say it is for. Values are strings; YAML 1.2 scalars, so NO is Norway.",
        "attributes:",
    ]
    for attribute in SCHEMA.attributes:
        facts = [f"values: [{', '.join(attribute.values)}]"]
        if attribute.missing is not None:
            facts.append(f"missing: {attribute.missing}")
        if attribute.missing_passes_exclude:
            facts.append("missing_passes_exclude: true")
        lines.append(f"  {attribute.name}: {{{', '.join(facts)}}}")
    lines.append("sets:")
    for target_set in SCHEMA.sets:
        facts = [
            f"{fact}: {getattr(target_set, fact)}"
            for fact in ("bloom_bits", "bloom_hashes", "max_request_values")
        ]
        if target_set.missing_passes_exclude:
            facts.append("missing_passes_exclude: true")
        lines.append(f"  {target_set.name}: {{{', '.join(facts)}}}")
    return "\n".join([*lines, f"hash_seed: {SCHEMA.hash_seed}", ""])
