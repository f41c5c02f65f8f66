"""What the ads may be targeted by: 448 bits, seven words without padding, and one set."""

from grace.catalogues.paper.spec import PaperKnobs
from grace.index.targeting.schema import Attribute, TargetingSchema, TargetSet

__all__ = [
    "LOCATION",
    "MAX_LOCATIONS",
    "NUM_REGIONS",
    "REGION",
    "SMALL",
    "location_name",
    "location_names",
    "paper_schema",
    "region_name",
    "targeting_yaml",
]

REGION = "region"
LOCATION = "location"
NUM_REGIONS = 398
MAX_LOCATIONS = 64

SMALL = {
    "age": 10,
    "gender": 2,
    "device": 4,
    "system": 5,
    "language": 12,
    "placement": 10,
}
"""The small attributes and how many values each has."""


def region_name(region: int) -> str:
    return f"region-{region:03}"


def location_name(location: int) -> str:
    return f"place-{location:05}"


def paper_schema() -> TargetingSchema:
    small = (
        Attribute(name, tuple(f"{name}-{value}" for value in range(values)))
        for name, values in SMALL.items()
    )
    regions = Attribute(REGION, tuple(region_name(region) for region in range(NUM_REGIONS)))
    return TargetingSchema(
        attributes=(regions, *small),
        sets=(TargetSet(LOCATION, 256, 4, MAX_LOCATIONS),),
        hash_seed=7,
    )


def location_names(knobs: PaperKnobs) -> list[str]:
    return [location_name(location) for location in range(knobs.locations)]


def targeting_yaml(schema: TargetingSchema) -> str:
    lines = [
        "attributes:",
        *(f"  {a.name}: {{values: [{', '.join(a.values)}]}}" for a in schema.attributes),
        "sets:",
    ]
    for target_set in schema.sets:
        facts = ("bloom_bits", "bloom_hashes", "max_request_values")
        stated = ", ".join(f"{fact}: {getattr(target_set, fact)}" for fact in facts)
        lines.append(f"  {target_set.name}: {{{stated}}}")
    return "\n".join([*lines, f"hash_seed: {schema.hash_seed}", ""])
