"""The places of ads and users: real countries, regions and cities, largest city first.

Below the cities lie numbered districts, as many as a large catalogue needs for a realistic number
of distinct location values. Places of one level are numbered in table order, so that the regions
of a country, the cities of a region or of a country, and the districts of a city are ranges.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from grace.catalogues.arrays import FloatArray, Int64Array, frozen, offsets_of, position_in_run

# Country: ISO 3166-1 code, weight, ISO 639-1 language, market; then regions, each with its cities.
_TABLE = """
US 0.38 en US CA
  ca: Los Angeles, San Francisco, San Diego, San Jose, Sacramento;
  ny: New York, Buffalo, Rochester, Albany; tx: Houston, Austin, Dallas, San Antonio, El Paso;
  fl: Miami, Tampa, Orlando, Jacksonville; il: Chicago, Springfield, Peoria;
  wa: Seattle, Spokane, Tacoma; ma: Boston, Worcester, Cambridge;
  co: Denver, Boulder, Colorado Springs; ga: Atlanta, Savannah, Augusta;
  pa: Philadelphia, Pittsburgh, Allentown; az: Phoenix, Tucson, Mesa;
  mi: Detroit, Ann Arbor, Grand Rapids; or: Portland, Eugene, Bend;
  mn: Minneapolis, Saint Paul, Duluth; tn: Nashville, Memphis, Knoxville
GB 0.10 en GB US
  london: London, Croydon, Richmond; south-east: Brighton, Oxford, Southampton, Reading;
  north-west: Manchester, Liverpool, Chester; yorkshire: Leeds, Sheffield, York;
  scotland: Glasgow, Edinburgh, Aberdeen, Dundee; wales: Cardiff, Swansea, Newport;
  west-midlands: Birmingham, Coventry, Wolverhampton; south-west: Bristol, Plymouth, Bath
CA 0.08 en CA US
  on: Toronto, Ottawa, Hamilton, London; qc: Montréal, Québec, Laval;
  bc: Vancouver, Victoria, Kelowna; ab: Calgary, Edmonton, Banff; mb: Winnipeg, Brandon;
  ns: Halifax, Sydney; sk: Saskatoon, Regina
DE 0.08 de DE FR
  berlin: Berlin, Potsdam; bayern: München, Nürnberg, Augsburg, Regensburg;
  nrw: Köln, Düsseldorf, Dortmund, Bonn; hessen: Frankfurt, Wiesbaden, Kassel;
  hamburg: Hamburg, Bergedorf; sachsen: Leipzig, Dresden, Chemnitz;
  bw: Stuttgart, Freiburg, Heidelberg, Ulm; niedersachsen: Hannover, Göttingen, Oldenburg
FR 0.07 fr FR DE ES
  idf: Paris, Versailles, Saint-Denis; paca: Marseille, Nice, Avignon, Toulon;
  ara: Lyon, Grenoble, Annecy; occitanie: Toulouse, Montpellier, Nîmes;
  bretagne: Rennes, Brest, Quimper; grand-est: Strasbourg, Reims, Metz;
  aquitaine: Bordeaux, Bayonne, Limoges; hdf: Lille, Amiens, Calais
IN 0.07 hi IN
  maharashtra: Mumbai, Pune, Nagpur, Nashik; karnataka: Bengaluru, Mysuru, Mangaluru;
  delhi: Delhi, Dwarka; tamil-nadu: Chennai, Coimbatore, Madurai; telangana: Hyderabad, Warangal;
  west-bengal: Kolkata, Siliguri, Durgapur; gujarat: Ahmedabad, Surat, Vadodara;
  kerala: Kochi, Kozhikode, Thrissur
JP 0.06 ja JP
  kanto: Tokyo, Yokohama, Saitama, Chiba; kansai: Osaka, Kyoto, Kobe, Nara;
  chubu: Nagoya, Kanazawa, Shizuoka; kyushu: Fukuoka, Kumamoto, Nagasaki;
  hokkaido: Sapporo, Hakodate, Otaru; tohoku: Sendai, Aomori; chugoku: Hiroshima, Okayama
ES 0.05 es ES PT
  madrid: Madrid, Getafe, Alcalá; catalunya: Barcelona, Girona, Tarragona;
  andalucia: Sevilla, Málaga, Granada, Cádiz; valencia: Valencia, Alicante, Elche;
  euskadi: Bilbao, San Sebastián, Vitoria; galicia: Vigo, A Coruña, Lugo
MX 0.04 es MX US
  cdmx: Mexico City, Coyoacán; jalisco: Guadalajara, Zapopan, Puerto Vallarta;
  nuevo-leon: Monterrey, San Pedro; yucatan: Mérida, Valladolid;
  quintana-roo: Cancún, Tulum, Playa del Carmen; puebla: Puebla, Cholula
PT 0.03 pt PT ES
  lisboa: Lisbon, Cascais, Sintra; norte: Porto, Braga, Guimarães; algarve: Faro, Lagos, Albufeira;
  centro: Coimbra, Aveiro, Leiria; madeira: Funchal
NO 0.02 no NO SE
  oslo: Oslo, Asker; vestland: Bergen, Voss, Florø; trondelag: Trondheim, Steinkjer;
  rogaland: Stavanger, Sandnes, Haugesund; troms: Tromsø, Harstad; agder: Kristiansand
SE 0.02 sv SE NO
  stockholm: Stockholm, Solna, Södertälje; skane: Malmö, Lund, Helsingborg;
  vastra-gotaland: Göteborg, Borås, Skövde; uppsala: Uppsala, Enköping; norrbotten: Luleå, Kiruna;
  vasterbotten: Umeå, Skellefteå
"""


@dataclass(frozen=True, slots=True)
class Country:
    code: str  # NO is Norway, although YAML 1.1 reads it as a boolean
    weight: float  # share of advertisers whose home market this is
    language: str
    market: tuple[str, ...]  # countries that an advertiser from here often adds
    regions: str  # "code: City, City; ..."


def _read(table: str) -> Iterator[Country]:
    lines = table.strip().splitlines()
    begins = [at for at, line in enumerate(lines) if not line.startswith(" ")]
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        code, weight, language, *market = lines[begin].split()
        regions = " ".join(line.strip() for line in lines[begin + 1 : end])
        yield Country(code, float(weight), language, tuple(market), regions)


COUNTRIES = tuple(_read(_TABLE))
LANGUAGES = tuple(dict.fromkeys(country.language for country in COUNTRIES))


@dataclass(frozen=True, slots=True)
class Places:
    """Four levels of places; `values[i]` is the location string of place i, level after level."""

    values: tuple[str, ...]
    city_names: tuple[str, ...]
    country_regions: Int64Array  # [countries + 1] offsets into the regions
    country_cities: Int64Array  # [countries + 1] offsets into the cities
    region_cities: Int64Array  # [regions + 1] offsets into the cities
    city_region: Int64Array  # [cities]
    city_country: Int64Array  # [cities]
    city_shares: FloatArray  # [cities], within the country
    districts_per_city: int

    @property
    def first_region(self) -> int:
        return len(COUNTRIES)

    @property
    def first_city(self) -> int:
        return self.first_region + len(self.region_cities) - 1

    @property
    def first_district(self) -> int:
        return self.first_city + len(self.city_names)

    def path(self, city: int, district: int | None = None) -> list[str]:
        """Return the location values of a person in `city`: country, region, city and district."""
        places = [
            int(self.city_country[city]),
            self.first_region + int(self.city_region[city]),
            self.first_city + city,
        ]
        if district is not None and self.districts_per_city:
            places.append(self.first_district + city * self.districts_per_city + district)
        return [self.values[place] for place in places]


def slug(name: str) -> str:
    """`Playa del Carmen` -> `playa-del-carmen`, `Tromsø` -> `tromso`."""
    plain = unicodedata.normalize("NFKD", name.lower().replace("ø", "o").replace("'", ""))
    return plain.encode("ascii", "ignore").decode().replace(" ", "-")


def make_places(districts_per_city: int) -> Places:
    regions: list[str] = []
    cities: list[str] = []
    city_names: list[str] = []
    of_region: list[int] = []  # the country of each region
    of_city: list[int] = []  # the region of each city
    for number, country in enumerate(COUNTRIES):
        for entry in country.regions.split(";"):
            code, _, names = entry.partition(":")
            here = [name.strip() for name in names.split(",")]
            region = f"{country.code.lower()}/{code.strip()}"
            of_city += [len(regions)] * len(here)
            of_region.append(number)
            regions.append(region)
            city_names += here
            cities += [f"{region}/{slug(name)}" for name in here]
    districts = [
        f"{city}/district-{number + 1:03}"
        for city in cities
        for number in range(districts_per_city)
    ]
    city_region = np.array(of_city)
    city_country = np.array(of_region)[city_region]
    region_cities = offsets_of(np.bincount(city_region))
    # Zipf's law over the cities of each region; the first one is the largest.
    raw = 1.0 / (1 + position_in_run(region_cities))
    return Places(
        values=(*(c.code.lower() for c in COUNTRIES), *regions, *cities, *districts),
        city_names=tuple(city_names),
        country_regions=offsets_of(np.bincount(of_region)),
        country_cities=offsets_of(np.bincount(city_country)),
        region_cities=region_cities,
        city_region=frozen(city_region),
        city_country=frozen(city_country),
        city_shares=frozen(raw / np.bincount(city_country, weights=raw)[city_country]),
        districts_per_city=districts_per_city,
    )
