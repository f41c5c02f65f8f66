"""What an ad is called: `Hokari trail running shoes, waterproof`; `Tanesen pizzeria, Lisbon`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from grace.catalogues.synth.arrays import Int64Array, offsets_of
from grace.catalogues.synth.background import REACHES, TOPIC_REACH
from grace.catalogues.synth.catalogue import Catalogue
from grace.catalogues.synth.topics import PRODUCTS_PER_TOPIC, TOPICS
from grace.catalogues.synth.words import BRAND_NAMES

_BRAND_STRIDE = 3571  # prime and coprime to their number: neighbours share no syllables


@dataclass(frozen=True, slots=True)
class TitleWords:
    """Arrow string arrays that titles are put together from."""

    brands: pa.StringArray
    products: pa.StringArray
    endings: pa.StringArray  # the details of all topics, then the names of all cities
    topic_details: Int64Array  # [topics + 1] offsets into the endings

    @classmethod
    def of(cls, city_names: Sequence[str]) -> "TitleWords":
        details = list(chain.from_iterable(topic.details for topic in TOPICS))
        return cls(
            brands=pa.array(BRAND_NAMES),
            products=pa.array(list(chain.from_iterable(topic.products for topic in TOPICS))),
            endings=pa.array([*details, *city_names]),
            topic_details=offsets_of(np.array([len(topic.details) for topic in TOPICS])),
        )


def titles(
    catalogue: Catalogue, words: TitleWords, sids: Int64Array, ads: Int64Array
) -> pa.StringArray:
    """One title per ad, each given with its SID's index.

    Brand and product are the product line's. A local business ends in its city, all others in a
    detail that the SID's variant decides.
    """
    tree = catalogue.tree
    line = tree.sid_line[sids]
    brand = tree.line_brand[line]
    topic = tree.brand_topic[brand]
    product = topic * PRODUCTS_PER_TOPIC + tree.line_product[line]
    first_detail = words.topic_details[topic]
    details = words.topic_details[topic + 1] - first_detail
    detail = first_detail + tree.sid_variant[sids] % details
    city = words.topic_details[-1] + catalogue.home_cities(sids, ads)
    local = TOPIC_REACH[topic] == REACHES.index("local")
    return pc.binary_join_element_wise(
        pc.binary_join_element_wise(
            words.brands.take(pa.array(brand * _BRAND_STRIDE % len(BRAND_NAMES))),
            words.products.take(pa.array(product)),
            " ",
        ),
        words.endings.take(pa.array(np.where(local, city, detail))),
        ", ",
    )
