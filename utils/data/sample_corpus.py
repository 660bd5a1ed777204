"""A sample corpus that the project makes itself: short synthetic newswire with summaries, for the quickstart.

``python -m utils.data.sample_corpus --output_dir data/sample`` writes ``{train,val,test}.{source,target}``, one
example a line. An article tells one event in several sentences, in any order and among asides that name other people,
places, companies and figures; the summary follows from the article alone. The names of people, places and companies
are put together from common parts, and no whole name of one split occurs in another: a model that scores well on the
test set copies names that it has never seen. The same arguments give the same bytes on every Python version.
"""

from __future__ import annotations

import os
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bart.errors import InputError
from bart.files import replacing
from utils.cli import ArgumentParser, run_main

SPLITS = ("train", "val", "test")
# Names of a split are drawn from its own share of the name pool.
_SHARES = {"train": 0.8, "val": 0.1, "test": 0.1}

# So many parts that a whole name is rare: a vocabulary then learns the parts, and spells names it has never seen in
# the same pieces as those of the training split.
_NAME_PARTS: dict[str, tuple[str, str]] = {
    "place": (
        "Ash Bex Birch Black Brad Bren Castle Chel Clay Crow Dart Dun East Elm Fair Fern Glen Gold Gran Green Grims "
        "Hart Hazel High Horn Ips Kings Lang Lin Long Lud Maple Mid New North Oak Pem Rock Salt Shel South Stock Swan "
        "Thorn Wake West White Wind Wolver Wood",
        "bourne bridge brook burgh bury by combe dale den field ford gate ham haven hurst ley mere minster moor mouth "
        "port stead stoke thorpe ton wick",
    ),
    "last": (
        "Ander Bal Barn Berg Bor Brand Cald Car Cross Dahl Dom Drum Eber Ek Farn Fitz Galt Gris Gun Hage Heide Holm "
        "Jan Kauf Kel Klein Kor Kov Lager Lind Lund Mac Mans Mont Nord Ost Petro Quill Ram Rosen Sand Schu Sten Stern "
        "Strom Tan Thor Ul Vander Var Weis Whit Wick Zim",
        "acs ale aldi ard beck berg bridge cott dell dorf ell enko ers etti feld gard ger hart hoff iak ier ini lake "
        "land man mann nell off ovic quist rick rup sen ski son stad stein strand thal vik wall well witz worth",
    ),
    "first": (
        "Ad Ag Al Am An Be Bri Ca Ce Cla Da De Di Do E Fa Fe Flo Ga Ge Gi He Hu Il In Ja Jo Ju Ka Ke La Le Lu Ma Me Mi "
        "Na Ne No Ol Pa Pe Ra Re Ro Sa Se Si Ta Te Ti To Va Vi Xa Yo Za Ze",
        "bel bert bina dette dia don dric fina gan jan la lena lia lina lita lora man mar mina mon mund na nard nette "
        "nia nora phine ra ria rick rina ron sina son ta tha tias tin tor vana vin vio",
    ),
    "org": (
        "Acu Aero Agri Allo Apex Astra Auto Avi Baro Bio Cela Cora Cyber Data Delta Dyna Eco Ener Eura Fero Gala Geo "
        "Giga Heli Hydro Inno Inter Luma Macro Magna Mega Meta Nano Neo Nova Omni Opti Orbi Pan Para Petra Poly Prima "
        "Quanta Robo Sola Stella Tera Trans Ultra Uni Vita Volta Zeta",
        "bank base chem corp cast dex fab fer flex form gas gen graph grid lab lac line link lux mart max med mill "
        "nex pack path plan plex quest rail reach sense serve steel tech tel tex trade trans tron ware works",
    ),
}

_WORDS: dict[str, str] = {
    "sector": "airline bank brewer builder carmaker grocer insurer lender miner publisher retailer shipper",
    "role": "chairman|chief executive|finance director|head of research|chief engineer|sales director",
    "month": "January|February|March|April|May|June|July|August|September|October|November|December",
    "day": "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday",
    "crime": "fraud|bribery|arson|tax evasion|theft|perjury|forgery|smuggling",
    "job": "bookkeeper|builder|banker|councillor|doctor|lawyer|mayor|teacher|trader",
    "team": "football|hockey|rugby|handball|volleyball|basketball",
    "vehicle": "bus|coach|ferry|tram|train|truck",
    "fault": "brake failure|a broken axle|thick fog|black ice|a faulty signal|an engine fire",
    "art": "film|jazz|theatre|folk|dance|poetry|opera",
    "artist": "singer|actor|pianist|poet|dancer|violinist",
    "disaster": "flood|storm|wildfire|landslide|tremor",
    "issue": "pay|pensions|safety|working hours|job cuts|night shifts",
    "product": "batteries|engines|paper|furniture|medicines|tyres|shoes|bicycles",
    "prize": "novel|biography|short story|cookbook|travel book|debut",
    "party": "Liberal|Labour|Green|Conservative|Reform",
    "find": "tomb|temple|shipwreck|harbour|mosaic|fortress",
    "age": "Roman|Viking|Norman|Celtic|Saxon",
}
_CHOICES = {kind: words.split("|") if "|" in words else words.split() for kind, words in _WORDS.items()}


@dataclass(frozen=True)
class Event:
    """One kind of story, written as templates whose fields are a kind and a number, such as ``{place1}``.

    facts: one entry a fact, each a tuple of phrasings; every fact appears once in the article.
    extras: optional facts, each a phrasing and the clause that the summary then carries; at most one is told.
    asides: sentences about something else; they share no field with the summary except by reference.
    summary: the summary, without its full stop and before the clause of an extra.
    """

    facts: tuple[tuple[str, ...], ...]
    extras: tuple[tuple[str, str], ...]
    asides: tuple[str, ...]
    summary: str


_EVENTS: tuple[Event, ...] = (
    Event(  # appointment
        facts=(
            (
                "The {sector1} {org1} has appointed {person1} as {role1}.",
                "A new {role1} has been chosen at the {sector1} {org1}, where {person1} takes the post.",
                "The board of {org1}, the {sector1}, voted on {day1} to make {person1} its {role1}.",
            ),
            (
                "The former holder of the post, {person2}, stepped down in {month1}.",
                "The post fell vacant when {person2} left in {month1}.",
                "It had been held for {small1} years by {person2}, who went in {month1}.",
            ),
        ),
        extras=(
            ("The contract runs for {small2} years.", "on a contract of {small2} years"),
            ("The new office will be in {place1}.", "and moves the office to {place1}"),
        ),
        asides=(
            "The rival {org2} lost its own {role2}, {person3}, last year.",
            "Before that, {person4} had turned down the offer.",
        ),
        summary="{sector1} {org1} names {person1} as {role1} to succeed {person2}",
    ),
    Event(  # takeover agreed
        facts=(
            (
                "The {sector1} {org1} has agreed to buy a competitor.",
                "A deal to grow by purchase was announced by the {sector1} {org1} on {day1}.",
                "On {day1} the {sector1} {org1} said its talks about a purchase had ended well.",
            ),
            (
                "The company being bought is {org2}, which has its offices in {place1}.",
                "Staff of {org2} in {place1} were told that they would have a new owner.",
                "Its target, {org2}, employs {big2} people in {place1}.",
            ),
            (
                "The price is ${money1} million.",
                "It will pay ${money1} million.",
                "The deal is worth ${money1} million.",
            ),
        ),
        extras=(
            ("Regulators must still approve the plan.", "if regulators approve"),
            ("Up to {big1} jobs will go.", "with the loss of {big1} jobs"),
        ),
        asides=(
            "An earlier bid by {org3} of ${money2} million was turned down.",
            "Shares in {org4} fell by {small2} per cent on the news.",
        ),
        summary="{sector1} {org1} to buy {org2} of {place1} for ${money1} million",
    ),
    Event(  # takeover dropped
        facts=(
            (
                "The {sector1} {org1} has walked away from a takeover.",
                "Talks about a takeover led by the {sector1} {org1} broke down on {day1}.",
                "On {day1} the {sector1} {org1} gave up its plans for a takeover.",
            ),
            (
                "It had wanted {org2}, which is run by {person1}.",
                "The owners of {org2}, led by {person1}, refused to sell.",
                "At {org2}, the target, {person1} had called the offer too low.",
            ),
            ("The offer stood at ${money1} million.", "It had bid ${money1} million."),
        ),
        extras=(
            ("A fee of ${money3} million is now due.", "and must pay a fee of ${money3} million"),
            ("A new offer may follow in {month1}.", "but may return in {month1}"),
        ),
        asides=(
            "A smaller firm, {org3}, was sold for ${money2} million last year.",
            "The adviser {person2} said few deals were being signed in {place1}.",
        ),
        summary="{sector1} {org1} drops its ${money1} million bid for {org2} after {person1} refuses",
    ),
    Event(  # match won
        facts=(
            (
                "The {team1} players of {place1} won their match against {place2} on {day1}.",
                "It was a good {day1} for {place1}, whose {team1} side overcame {place2}.",
                "Supporters of {team1} saw {place1} defeat {place2} on {day1}.",
            ),
            ("It ended {score1}.", "The final score was {score1}.", "The scoreboard showed {score1} at the close."),
            (
                "The best player on the field was {person1}.",
                "Most of the points came from {person1}.",
                "The crowd cheered {person1}, who scored twice.",
            ),
        ),
        extras=(
            ("The winners go through to the final.", "and reach the final"),
            ("The winners now lead the table.", "and go top of the table"),
        ),
        asides=(
            "Last season the two sides had drawn {score2}.",
            "The losing captain, {person2}, left early with an injury.",
            "In the other game {place3} beat {place4}.",
        ),
        summary="{team1}: {person1} leads {place1} to a {score1} win over {place2}",
    ),
    Event(  # accident
        facts=(
            (
                "A {vehicle1} crashed near {place1} on {day1}.",
                "Rescuers were called to {place1} on {day1} after the crash of a {vehicle1}.",
                "On {day1} a {vehicle1} came to grief just outside {place1}.",
            ),
            (
                "Doctors said {small1} people were hurt.",
                "The number of injured stands at {small1}.",
                "Ambulances took {small1} people to hospital.",
            ),
            (
                "Investigators point to {fault1}.",
                "The cause was {fault1}, police said.",
                "According to the inspector {person1}, {fault1} was to blame.",
            ),
        ),
        extras=(
            ("The driver, {person2}, was arrested.", "and driver {person2} is held"),
            ("The line to {place2} stays closed.", "and the way to {place2} is closed"),
        ),
        asides=(
            "A crash at {place3} hurt {small2} people in {month1}.",
            "A witness, {person3}, was on the way home to {place4}.",
            "The operator, {org1}, runs {small3} such services a day.",
        ),
        summary="{vehicle1} crash near {place1} blamed on {fault1} leaves {small1} hurt",
    ),
    Event(  # convicted
        facts=(
            (
                "The {job1} {person1} was found guilty of {crime1}.",
                "A jury convicted the {job1} {person1} of {crime1}.",
                "The verdict on {person1}, a {job1}, was guilty of {crime1}.",
            ),
            (
                "The sentence was {small1} months in prison.",
                "It means {small1} months in jail.",
                "The judge, {person2}, set a term of {small1} months.",
            ),
            ("The trial was held in {place1}.", "The court at {place1} sat until late on {day1}."),
        ),
        extras=(
            ("An appeal has been lodged.", "but will appeal"),
            ("The victim was the {sector1} {org1}.", "for cheating {sector1} {org1}"),
        ),
        asides=(
            "A former partner, {person3}, was cleared of {crime2} in {month1}.",
            "A similar case in {place2} brought {small2} months.",
            "The witness {person4} had been heard for {small3} hours.",
        ),
        summary="{job1} {person1} jailed for {small1} months in {place1} for {crime1}",
    ),
    Event(  # acquitted
        facts=(
            (
                "The {job1} {person1} was found not guilty of {crime1}.",
                "A jury cleared the {job1} {person1} of {crime1}.",
                "The verdict on {person1}, a {job1}, was not guilty of {crime1}.",
            ),
            (
                "The prosecutor, {person2}, had asked for {small1} months.",
                "The charge had been brought by the prosecutor {person2}.",
            ),
            ("The trial was held in {place1}.", "The court at {place1} sat until late on {day1}."),
        ),
        extras=(
            ("The state must pay ${money1} million in damages.", "and wins ${money1} million"),
            ("A second trial begins in {month1}.", "but faces a second trial in {month1}"),
        ),
        asides=(
            "A former partner, {person3}, was convicted of {crime2} last year.",
            "A similar case in {place2} brought {small2} months.",
            "The witness {person4} had been heard for {small3} hours.",
        ),
        summary="court in {place1} clears {job1} {person1} of {crime1}, a defeat for prosecutor {person2}",
    ),
    Event(  # festival
        facts=(
            (
                "The {art1} festival of {place1} has closed its doors.",
                "In {place1} the {art1} festival came to an end on {day1}.",
                "The curtain fell on {day1} on the {art1} festival at {place1}.",
            ),
            (
                "The organisers counted {big1} visitors.",
                "Tickets were sold to {big1} people.",
                "It was seen by {big1} guests.",
            ),
            (
                "The first prize went to the {artist1} {person1}.",
                "A jury gave its prize to {person1}, the {artist1}.",
                "The {artist1} {person1} was chosen as the best performer.",
            ),
        ),
        extras=(
            ("Next year it moves to {place2}.", "before a move to {place2}"),
            ("Rain spoiled the opening night.", "despite rain"),
        ),
        asides=(
            "The {artist2} {person2} had to cancel because of a cold.",
            "The rival event at {place3} drew {big2} people.",
            "The sponsor, {org1}, paid for {small1} of the concerts.",
        ),
        summary="{artist1} {person1} takes top prize as {art1} festival in {place1} draws {big1}",
    ),
    Event(  # disaster
        facts=(
            (
                "The {disaster1} struck {place1} on {day1}.",
                "People in {place1} woke on {day1} to a {disaster1}.",
                "A {disaster1} hit the town of {place1} on {day1}.",
            ),
            (
                "Some {big1} people had to leave their homes.",
                "Shelters took in {big1} people.",
                "The authorities moved {big1} people to safety.",
            ),
            (
                "The damage is put at ${money1} million.",
                "Repairs will cost ${money1} million, the engineer {person1} said.",
                "Insurers expect a bill of ${money1} million.",
            ),
        ),
        extras=(
            ("Schools stay shut until {day2}.", "and shuts schools until {day2}"),
            ("The village of {place2} is cut off.", "and cuts off {place2}"),
        ),
        asides=(
            "A year ago {big2} people fled from {place3}.",
            "The company {org1} promised ${money2} million in aid.",
            "The mayor of nearby {place4}, {person2}, sent {small1} firemen.",
        ),
        summary="{disaster1} in {place1} drives {big1} from their homes and costs ${money1} million",
    ),
    Event(  # strike
        facts=(
            (
                "Workers at the {sector1} {org1} have put down their tools.",
                "A strike has begun at the {sector1} {org1}.",
                "Since {day1} the staff of the {sector1} {org1} have been on strike.",
            ),
            ("The quarrel is about {issue1}.", "The union wants a better deal on {issue1}.", "At stake is {issue1}."),
            (
                "The stoppage is to last {small1} days.",
                "Work will rest for {small1} days, said the union leader {person1}.",
            ),
            ("The plant in {place1} is hit hardest.", "The gates were closed at {place1}."),
        ),
        extras=(
            ("The management has offered {small2} per cent more.", "despite an offer of {small2} per cent"),
            ("Workers at {org2} will join them.", "and {org2} staff will join"),
        ),
        asides=(
            "A dispute at {org3} ended in {month1} after {small3} days.",
            "The minister {person2} called for talks in {place2}.",
            "An office in {place3} stays open.",
        ),
        summary="staff of {sector1} {org1} in {place1} begin strike of {small1} days over {issue1}",
    ),
    Event(  # book prize
        facts=(
            (
                "The prize for the best {prize1} of the year goes to {person1}.",
                "The judges chose {person1} for the year's best {prize1}.",
                "On {day1} {person1} was honoured for the best {prize1}.",
            ),
            (
                "The award is worth ${money1} million.",
                "With it come ${money1} million.",
                "The winner receives ${money1} million.",
            ),
            (
                "It is paid for by the {sector1} {org1}.",
                "The {sector1} {org1} provides the money.",
                "The giver is {org1}, the {sector1}.",
            ),
        ),
        extras=(
            ("The writer will give the sum to a school in {place1}.", "and gives it to a school in {place1}"),
            ("The writer did not attend.", "but stays away"),
        ),
        asides=(
            "The favourite had been {person2} of {place2}.",
            "Last year {person3} won for the best {prize2}.",
            "The ceremony in {place3} was watched by {big1} people.",
        ),
        summary="author {person1} wins ${money1} million prize of {sector1} {org1} for {prize1}",
    ),
    Event(  # election
        facts=(
            (
                "Voters in {place1} have elected {person1} as mayor.",
                "The new mayor of {place1} is {person1}.",
                "In {place1} the race for mayor was won by {person1}.",
            ),
            (
                "The winner stood for the {party1} party.",
                "It is a success for the {party1} party.",
                "Supporters of the {party1} party danced in the streets.",
            ),
            (
                "The result was {small1} per cent.",
                "The share of the vote came to {small1} per cent.",
            ),
            ("The loser, {person2}, asked for a recount.", "The defeated rival was {person2}."),
        ),
        extras=(
            ("Taxes are to be cut.", "and promises lower taxes"),
            ("A new hospital is planned.", "and promises a hospital"),
        ),
        asides=(
            "In {place2} the mayor, {person3}, held on with {small2} per cent.",
            "The {party2} party fared badly everywhere.",
            "The businesswoman {person4} of {org1} had not stood.",
        ),
        summary="{party1} candidate {person1} beats {person2} with {small1} per cent in {place1}",
    ),
    Event(  # plant opens
        facts=(
            (
                "A new factory is to be built by the {sector1} {org1}.",
                "The {sector1} {org1} will open a factory.",
                "Plans for a factory were shown on {day1} by the {sector1} {org1}.",
            ),
            (
                "The site lies at {place1}.",
                "The town of {place1} was picked for it.",
                "Building starts at {place1} in {month1}.",
            ),
            ("It will make {product1}.", "The halls are meant for {product1}."),
            ("The plan brings {big1} jobs.", "Work is promised to {big1} people."),
        ),
        extras=(
            ("The state adds ${money1} million.", "with ${money1} million of state aid"),
            ("It will be led by {person1}.", "under {person1}"),
        ),
        asides=(
            "A factory of {org2} in {place2} shut in {month2}.",
            "The town of {place3} had also hoped for the {big2} jobs.",
            "The neighbour {person2} fears more traffic.",
        ),
        summary="{sector1} {org1} creates {big1} jobs in {place1} with factory for {product1}",
    ),
    Event(  # plant closes
        facts=(
            (
                "A factory is to be closed by the {sector1} {org1}.",
                "The {sector1} {org1} will shut a factory.",
                "The end of a factory was announced on {day1} by the {sector1} {org1}.",
            ),
            (
                "The site lies at {place1}.",
                "The town of {place1} was told of it in {month1}.",
                "The gates at {place1} close for good in {month1}.",
            ),
            ("It used to make {product1}.", "The halls had turned out {product1}."),
            ("The step costs {big1} jobs.", "Notice was given to {big1} people."),
        ),
        extras=(
            ("The work moves to {place2}.", "and moves the work to {place2}"),
            ("The town will sue.", "and faces a lawsuit"),
        ),
        asides=(
            "A factory of {org2} in {place3} opened in {month2}.",
            "The union leader {person1} spoke of a black day.",
            "A year ago {big2} people had been hired by {org3}.",
        ),
        summary="{sector1} {org1} cuts {big1} jobs in {place1} as {product1} factory shuts",
    ),
    Event(  # discovery
        facts=(
            (
                "A {age1} {find1} has come to light near {place1}.",
                "Diggers near {place1} came upon a {find1} that turned out to be {age1}.",
                "Near {place1} the remains of a {age1} {find1} were uncovered on {day1}.",
            ),
            (
                "The work is led by {person1}.",
                "The head of the dig, {person1}, spoke of a dream.",
                "It was {person1} who recognised what it was.",
            ),
            ("It lay {small1} metres deep.", "The team had to dig {small1} metres down."),
        ),
        extras=(
            ("The pieces will be shown in {place2}.", "and will show it in {place2}"),
            ("The {sector1} {org1} pays for the work.", "with money from {sector1} {org1}"),
        ),
        asides=(
            "A {age2} {find2} was found at {place3} in {month1}.",
            "The farmer {person2} owns the land.",
            "Some {big1} people came to look.",
        ),
        summary="{person1} finds {age1} {find1} at depth of {small1} metres near {place1}",
    ),
)

_ASIDES: tuple[str, ...] = (
    "The weather in {place8} was dry.",
    "The broadcaster in {place8} carried the news first.",
    "Asked about it, {person8} of {org8} would not comment.",
    "The analyst {person8} had expected as much.",
    "There was no word from {place8}.",
    "A reader, {person8}, sent pictures from {place8}.",
    "Markets in {place8} closed {small8} points higher.",
    "The spokesman {person8} gave no details.",
)


def _name_pools(rng: random.Random) -> dict[str, dict[str, list[str]]]:
    """split -> kind of name -> names; no name stands in two splits or under two kinds."""
    pools: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
    taken: set[str] = set()
    for kind, (heads, tails) in _NAME_PARTS.items():
        names = [head + tail for head in heads.split() for tail in tails.split()]
        names = [name for name in dict.fromkeys(names) if name not in taken]
        taken.update(names)
        rng.shuffle(names)
        start = 0.0
        for split in SPLITS:
            end = start + _SHARES[split]
            pools[split][kind] = names[round(start * len(names)) : round(end * len(names))]
            start = end
    return pools


class _Fields(dict[str, str]):
    """The facts of one story, each drawn when a template first asks for it; values of a kind never repeat."""

    def __init__(self, rng: random.Random, names: dict[str, list[str]]) -> None:
        super().__init__()
        self._rng = rng
        self._names = names
        self._used: set[str] = set()

    def __missing__(self, field: str) -> str:
        kind = field.rstrip(string.digits)
        value = self._draw(kind)
        while (kind, value) in self._used:
            value = self._draw(kind)
        self._used.add((kind, value))
        self[field] = value
        return value

    def _draw(self, kind: str) -> str:
        rng = self._rng
        if kind == "person":
            return f"{rng.choice(self._names['first'])} {rng.choice(self._names['last'])}"
        if kind == "small":
            return str(rng.randint(3, 60))
        if kind == "big":
            return str(rng.randrange(150, 1000, 10))
        if kind == "money":
            return str(rng.randrange(5, 100, 5))
        if kind == "score":
            return f"{rng.randint(3, 9)}-{rng.randint(0, 2)}"
        return rng.choice(self._names[kind] if kind in self._names else _CHOICES[kind])


def _story(rng: random.Random, names: dict[str, list[str]]) -> tuple[str, str]:
    """One article and its summary."""
    event = rng.choice(_EVENTS)
    sentences = [rng.choice(phrasings) for phrasings in event.facts]
    summary = event.summary
    if rng.random() < 0.6:
        told, clause = rng.choice(event.extras)
        sentences.append(told)
        summary = f"{summary} {clause}"
    sentences.append(rng.choice(event.asides if rng.random() < 0.7 else _ASIDES))
    rng.shuffle(sentences)
    fields = _Fields(rng, names)
    article = " ".join(sentences).format_map(fields)
    summary = summary.format_map(fields)
    return article, f"{summary[0].upper()}{summary[1:]}."


def write_sample_corpus(
    output_dir: str | os.PathLike[str], n_train: int = 8000, n_val: int = 200, n_test: int = 200, seed: int = 42
) -> None:
    """Write ``{train,val,test}.{source,target}`` under ``output_dir``, which is made if need be.

    Each file is written under a temporary name and renamed. A split depends on its own size and the seed only.

    Raises:
        InputError: a size below 1, or a folder that cannot be made or written.
    """
    sizes = {"train": n_train, "val": n_val, "test": n_test}
    for split, size in sizes.items():
        if size < 1:
            raise InputError(f"--n_{split} must be at least 1, got {size}")
    folder = Path(output_dir)
    pools = _name_pools(random.Random(f"names {seed}"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for split, size in sizes.items():
            rng = random.Random(f"{split} {seed}")
            stories = [_story(rng, pools[split]) for _ in range(size)]
            for side, lines in zip(("source", "target"), zip(*stories, strict=True), strict=True):
                with replacing(folder / f"{split}.{side}") as temporary:
                    temporary.write_bytes("".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise InputError(f"--output_dir {folder}: a folder that can be written is needed ({error.strerror})") from None


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of `write_sample_corpus`.

    Raises:
        InputError: a size below 1, or a folder that cannot be made or written.
    """
    parser = ArgumentParser(
        prog="python -m utils.data.sample_corpus",
        description="Write the sample corpus: synthetic newswire with summaries.",
    )
    parser.add_argument("--output_dir", default="data/sample", help="folder for the six files (default: %(default)s)")
    parser.add_argument("--n_train", type=int, default=8000, help="training examples (default: %(default)s)")
    parser.add_argument("--n_val", type=int, default=200, help="validation examples (default: %(default)s)")
    parser.add_argument("--n_test", type=int, default=200, help="test examples (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=42, help="seed of names and stories (default: %(default)s)")
    args = parser.parse_args(argv)
    write_sample_corpus(args.output_dir, args.n_train, args.n_val, args.n_test, args.seed)
    print(f"{args.output_dir}: {args.n_train} + {args.n_val} + {args.n_test} examples made with seed {args.seed}")


if __name__ == "__main__":
    run_main(main)
