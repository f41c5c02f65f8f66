"""The advertised topics: 64 in 16 families, each with its products, audiences and reach.

A topic's reach says how its ads are targeted: a `local` business by city or district, a `national`
one by country and region, a `global` one hardly at all. Its lean says whom it addresses.
"""

from dataclasses import dataclass
from typing import Literal, cast

Reach = Literal["local", "national", "global"]
Lean = Literal["everyone", "female", "male", "young", "older", "adult"]  # adult: never 18-24

# Family: details, then one line per topic: slug; reach; lean; audiences; products.
_TABLE = """
sport: waterproof, wide fit, lightweight, winter edition, for beginners, half price
  running shoes; national; everyone; marathon runners, trail runners, park runners; trail running shoes, road running shoes, racing flats, kids' running shoes
  cycling; national; male; road cyclists, bike commuters, mountain bikers; gravel bikes, bike helmets, e-bikes, cycling jackets
  gyms; local; young; gym goers, climbers, new year starters; fitness club, climbing gym, boxing gym, swimming club
  yoga; local; female; yoga beginners, mindful movers, pilates fans; yoga studio, pilates studio, yoga weekend, meditation class
food: freshly made, family size, no added sugar, from small farms, next-day delivery
  coffee; national; everyone; espresso lovers, filter coffee fans, home baristas; espresso beans, filter coffee, cold brew, coffee grinders
  restaurants; local; everyone; dinner planners, weekend brunchers, street food fans; noodle bar, pizzeria, brunch café, seafood grill
  meal kits; national; young; busy cooks, new parents, vegetarian cooks; dinner boxes, vegan boxes, soup subscription, salad boxes
  groceries; local; everyone; bargain shoppers, organic shoppers, bulk buyers; organic market, corner shop, farm shop, bakery
drinks: limited release, tasting set, gift box, award winner, by the case
  craft beer; national; adult; hop lovers, brewery visitors, stout drinkers; pale ale, stout, wheat beer, sour beer
  wine; national; adult; red wine drinkers, cellar collectors, natural wine fans; red wine club, sparkling wine, dessert wine, orange wine
  cocktail bars; local; adult; night owls, jazz listeners, rooftop regulars; cocktail bar, jazz bar, rooftop bar, tiki bar
  tea; global; older; green tea drinkers, herbal tea fans, tea collectors; green tea, breakfast tea, herbal tea, matcha sets
travel: free cancellation, breakfast included, last rooms, early booking, with airport transfer
  hotels; global; everyone; weekend travellers, business travellers, luxury travellers; boutique hotel, airport hotel, spa hotel, family resort
  flights; national; everyone; frequent flyers, bargain flyers, island hoppers; city flights, island flights, night flights, business fares
  car rental; national; older; road trippers, airport renters, van lifers; car rental, camper vans, convertibles, moving vans
  city tours; local; everyone; museum visitors, food tourists, cruise guests; walking tour, food tour, boat tour, night tour
fashion: new season, organic cotton, hand finished, free returns, petite and tall
  dresses; global; female; wedding guests, vintage shoppers, office dressers; summer dresses, wrap dresses, evening gowns, knit dresses
  menswear; national; male; suit wearers, denim fans, workwear fans; linen suits, selvedge jeans, oxford shirts, work jackets
  sneakers; global; young; sneaker collectors, skaters, streetwear fans; retro sneakers, skate shoes, canvas shoes, high tops
  jewellery; national; female; gift givers, newly engaged, silver lovers; silver rings, pearl earrings, engagement rings, charm bracelets
beauty: fragrance free, travel size, refillable, for sensitive skin, vegan
  skincare; global; female; skincare enthusiasts, sensitive skin owners, sunscreen users; day cream, night serum, sunscreen, face masks
  hairdressers; local; everyone; colour clients, curly hair owners, bridal clients; hair salon, curl studio, colour bar, bridal stylist
  barbers; local; male; beard growers, fade regulars, hot towel fans; barber shop, beard bar, hot towel shave, walk-in cuts
  perfume; global; everyone; fragrance collectors, gift shoppers, niche scent fans; citrus cologne, rose perfume, discovery sets, solid perfume
home: flat packed, made to measure, ten-year warranty, in oak, in walnut
  sofas; national; everyone; first home buyers, pet owners, movers; corner sofas, sofa beds, armchairs, leather sofas
  kitchens; local; older; renovators, home cooks, landlords; fitted kitchens, worktops, kitchen showroom, pantry doors
  mattresses; national; everyone; light sleepers, back pain sufferers, new couples; foam mattresses, latex mattresses, cot mattresses, futons
  lighting; global; everyone; interior design fans, late readers, smart home owners; desk lamps, pendant lights, smart bulbs, floor lamps
garden: drought tolerant, bird friendly, peat free, for balconies, solar powered
  plants; local; everyone; balcony gardeners, house plant owners, rose growers; garden centre, plant shop, rose nursery, seed library
  tools; national; male; allotment holders, lawn owners, woodworkers; hedge trimmers, lawn mowers, hand tools, chainsaws
  outdoor furniture; national; older; terrace owners, barbecue hosts, pool owners; teak benches, garden tables, hammocks, parasols
  landscaping; local; older; garden planners, pond owners, new build owners; garden design, pond building, fencing, tree surgery
electronics: refurbished, two-year warranty, student price, bundle offer, in graphite
  phones; global; everyone; early adopters, mobile photographers, upgrade seekers; folding phones, compact phones, rugged phones, phone cases
  headphones; global; young; commuters, audiophiles, podcast listeners; noise-cancelling headphones, studio headphones, earbuds, sports earbuds
  cameras; national; everyone; street photographers, bird watchers, video makers; mirrorless cameras, film cameras, action cameras, telephoto lenses
  laptops; national; everyone; students, remote workers, creators; ultralight laptops, gaming laptops, refurbished laptops, docking stations
gaming: cross-platform, free to start, early access, deluxe edition, with soundtrack
  mobile games; global; young; puzzle players, strategy players, casual players; puzzle game, city builder, farming game, card game
  consoles; national; young; console owners, retro gamers, racing fans; handheld consoles, controllers, racing wheels, retro consoles
  board games; global; everyone; board gamers, family players, role players; strategy board game, party game, dice game, cooperative game
  esports; global; male; esports viewers, shooter players, streamers; tournament pass, team jersey, coaching app, gaming chairs
media: first month free, ad free, with offline mode, family plan, cancel any time
  streaming; national; everyone; series bingers, film buffs, documentary viewers; film streaming, documentary channel, anime channel, kids' channel
  music; global; young; vinyl collectors, festival goers, indie listeners; music streaming, vinyl club, concert films, guitar lessons
  books; global; older; crime readers, audiobook listeners, book club members; audiobooks, crime novels, book subscription, picture books
  cinemas; local; everyone; cinema goers, premiere fans, family outings; art-house cinema, open-air cinema, film festival, kids' matinee
learning: self-paced, evening classes, with certificate, small groups, taught live
  languages; global; everyone; language learners, expats, polyglots; Spanish course, Norwegian course, Japanese course, vocabulary app
  coding; global; young; career changers, data analysts, hobby coders; Python course, web bootcamp, data course, robotics kit
  music schools; local; everyone; piano learners, choir singers, parents of pupils; piano school, guitar school, choir, drum lessons
  universities; national; young; school leavers, postgraduates, scholarship seekers; business degree, nursing degree, design school, distance degree
money: no monthly fee, in ten minutes, independent advice, fixed rate, for newcomers
  bank accounts; national; young; first job starters, savers, newcomers; current account, savings account, student account, joint account
  mortgages; national; adult; house hunters, remortgagers, self builders; first mortgage, remortgage, self-build loan, holiday home loan
  insurance; national; older; home owners, car owners, frequent travellers; home insurance, car insurance, travel insurance, pet insurance
  investing; national; adult; index investors, pension planners, dividend fans; index funds, pension plan, robo-adviser, bond ladder
motoring: seven-year warranty, test drive today, low mileage, home charging included
  electric cars; national; adult; electric car fans, company car drivers, tech families; electric hatchback, electric estate, city car, electric van
  used cars; local; adult; second car seekers, classic fans, new drivers; used car lot, certified hatchbacks, used estates, classic cars
  garages; local; everyone; car owners in need, tyre changers, inspection due; car workshop, tyre hotel, bodywork shop, car wash
  motorbikes; national; male; touring riders, scooter riders, custom builders; touring motorbikes, electric scooters, helmets, riding jackets
family: machine washable, from birth, safety tested, second hand, gift wrapped
  toys; global; everyone; parents of toddlers, model builders, grandparents; wooden toys, building blocks, model trains, puppets
  baby; national; female; expecting parents, parents of newborns, twin parents; prams, baby carriers, cloth nappies, cots
  nurseries; local; everyone; working parents, nursery seekers, playgroup parents; day nursery, forest nursery, after-school club, playgroup
  pets; national; everyone; dog owners, cat owners, aquarium keepers; dog food, cat trees, aquariums, dog beds
health: same-day appointment, evening hours, free first visit, covered by insurance
  dentists; local; everyone; check-up due, brace wearers, anxious patients; dental clinic, children's dentist, orthodontist, whitening studio
  opticians; local; older; glasses wearers, contact lens users, screen workers; optician, varifocal glasses, contact lenses, eye test
  physiotherapy; local; everyone; injured runners, desk workers, recovering patients; physiotherapy clinic, sports massage, osteopath, posture class
  vitamins; global; older; supplement users, vegan eaters, winter tired; vitamin D, iron tablets, omega oil, sleep aid
"""  # noqa: E501  one topic a line reads best as a table


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    family: str
    reach: Reach
    lean: Lean
    audiences: tuple[str, ...]
    products: tuple[str, ...]
    details: tuple[str, ...]


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _read(table: str) -> tuple[Topic, ...]:
    topics = []
    family, details = "", ""
    for line in table.strip().splitlines():
        if not line.startswith(" "):
            family, _, details = line.partition(":")
            continue
        name, reach, lean, audiences, products = (cell.strip() for cell in line.split(";"))
        topics.append(
            Topic(
                name,
                family,
                cast("Reach", reach),
                cast("Lean", lean),
                _list(audiences),
                _list(products),
                _list(details),
            )
        )
    return tuple(topics)


TOPICS = _read(_TABLE)
AUDIENCES_PER_TOPIC = 3
PRODUCTS_PER_TOPIC = 4
