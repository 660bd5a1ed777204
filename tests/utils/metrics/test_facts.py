from __future__ import annotations

import pytest

from utils.metrics.facts import ADDED, MISSING, WRONG, differing_facts, names_in, unsupported_facts


def facts_in(source: str, reference: str | None, summary: str, **options: set[str]) -> dict[int, list[str]]:
    """The marked pieces of text by kind."""
    pieces: dict[int, list[str]] = {WRONG: [], ADDED: [], MISSING: []}
    for begin, end, kind in differing_facts(source, reference, summary, **options):
        pieces[kind].append((reference or "" if kind == MISSING else summary)[begin:end])
    return pieces


PAIRS = {
    "a wrong name, a wrong sum": (
        "The judges chose Ketor Caldbeck. The award is worth $70 million, says the bank Celatel.",
        "Author Ketor Caldbeck wins $70 million prize of bank Celatel.",
        "Author Katel Caldbeck wins $90 million prize of bank Celatel.",
        (["Katel", "$90 million"], [], ["Ketor", "$70 million"]),
    ),
    "hyphens": (
        "The London-based Anglo-French firm made twenty-five F-16 parts in 2015-16.",
        "A London firm made 25 parts.",
        "A Paris-based Anglo-French firm made 24 F-18 parts in 2015-16.",
        (["Paris", "24", "18"], ["Anglo", "French", "F", "2015", "16"], ["London", "25"]),
    ),
    "possessives and plurals": (
        "Police spoke to the American. The Browns' house and O'Brien’s car were searched.",
        "O'Brien's car and the house of Mr Brown were searched, Americans say.",
        "The American said O’Brien's car and Brown's house, not Lee's, were searched.",
        (["Lee"], [], ["Mr"]),
    ),
    "accents, other scripts, what lies beyond 16 bits": (
        "😀 Beyonce\u0301 sang in İzmir; Владимир Путин came from Zürich.",
        "😀 Beyoncé sang in Izmir for Путин.",
        "😀 Then Beyonce sang in Ízmir for Медведев of Zurich.",
        (["Медведев"], ["Zurich"], ["Путин"]),
    ),
    "beginnings of sentences": (
        "The mayor met Ann Lee on Monday. Storms closed all roads, she said. Lee left.",
        "Storms closed roads. Ann Lee left town on Monday.",
        'Roads are shut. Residents fled. Lee said: "Wind is strong." Officials met Jones. Jones left. He and Lee met.',
        (["Jones", "Jones"], [], ["Ann", "Monday"]),
    ),
    "dates and times": (
        "He was born on 3 March 1990 and died on Tuesday at 10.30am in the 1970s house.",
        "He died on Tuesday, 10.30am.",
        "Born on March 3rd, 1991, he died on Wednesday at 10:30 in a 1970s house in April.",
        (["1991", "Wednesday", "10", "30", "April"], ["March", "3", "1970"], ["Tuesday", "10.30"]),
    ),
    "abbreviations and titles": (
        "Dr. Smith of the U.S. met the prime minister, J. K. Rowling and NATO; they told us all.",
        "US doctor Smith met Rowling.",
        "Dr. Smith and Mrs. Hill of the U.K. met the Prime Minister and UN.",
        (["Mrs", "Hill", "U.K", "UN"], [], ["US", "Rowling"]),
    ),
    "nothing marked in what is alike, or in no fact": (
        "I think that one of 12,000 people won the 10,000m race on MH370, a 4x4 with a 3D screen.",
        "One of 12,000 won the 10,000m race.",
        "I think that no one of 12,000 won the 10,000m race.",
        ([], [], []),
    ),
}


# In each row all agree; numbers of different rows differ.
SPELLINGS = [
    ["30,000 people", "30k people", "30 thousand people", "thirty thousand people", "$30k", "30-thousand"],
    ["the 10,000m race", "10,000 metres", "10 thousand", "10k"],
    ["1.5m homes", "1.5M", "1.5 million homes", "1,500,000 homes", "1,500 thousand", "£1.5m", "£1.5mn", "1.5mn"],
    ["2bn", "2 billion", "2,000m", "2,000 million", "$2b", "2b"],
    ["$3tn", "3 trillion", "3,000bn"],
    ["$7m", "7 million", "$7,000k"],
    ["7", "$7", "seven"],
    ["twenty-five homes", "25 homes", "TWENTY-FIVE homes"],
    ["3.25%", "3.25 %", "3.25 per cent", "3.25-per cent", "3.25 percent"],
]


@pytest.mark.parametrize("row", range(len(SPELLINGS)))
def test_magnitudes_compare_by_value(row: int) -> None:
    for text in SPELLINGS[row]:
        for summary in SPELLINGS[row]:
            assert facts_in(text, None, summary)[WRONG] == [], (text, summary)
        for summary in [each for other in SPELLINGS if other is not SPELLINGS[row] for each in other]:
            assert facts_in(text, None, summary)[WRONG] != [], (text, summary)


@pytest.mark.parametrize("case", PAIRS)
def test_facts_of_hand_made_articles(case: str) -> None:
    source, reference, summary, (wrong, added, missing) = PAIRS[case]
    assert facts_in(source, reference, summary) == {WRONG: wrong, ADDED: added, MISSING: missing}


# Of each source the summary, and what is wrong in it.
SMALL = {
    "a blank after the currency": ("It cost $70.", "It cost £ 70.", ["£ 70"]),
    "digits in a word": ("They met.", "They met on MH370 in a 4x4 of the b2b firm.", ["MH370", "4"]),
    "no blank in a date": ("He left on May 5, 2015.", "He left on May 5,2015.", []),
    "a word that begins as a number does": ("They left.", "They tend to leave.", []),
    "a word that begins as a power does": ("It has 5 cats.", "It has 5 kittens.", []),
    "a word that begins as a percentage does": ("It is $5 a yard.", "It is 5 per centimetre.", []),
    "percentages": ("$3", "A 3-per cent rise; 3 per cent or 3 percent", ["3-per cent", "3 per cent", "3 percent"]),
    "a percentage with a blank": ("$3", "It was 3 %.", ["3 %"]),
    "other currencies": ("It is $5.", "It is €5 or ¥5.", ["€5", "¥5"]),
    "three digits before a comma": ("It has 123,456 homes.", "It has 123456 homes.", []),
    "an accent that is a character": ("He met Bjo\u0308rk.", "He met Björk.", []),
    "points in an acronym": ("He met U.S. envoys.", "He met US envoys.", []),
    "an acronym at the beginning": ("They left.", "NATO left.", ["NATO"]),
    "one capital": ("They left.", "A man left, said I.", []),
    "an apostrophe that opens a word": ("They left.", "They saw 'Titanic' there.", ["Titanic"]),
    "a digit after a point": ("He met the No. 5 seed.", "He met the No.5 seed.", []),
    "no blank between sentences": ("The mayor met Smith. He left.", "It was Smith.He left.", []),
    "one letter for two": ("He lives in Weißensee.", "He lives in WEISSENSEE.", []),
    "a short name is no plural": ("He met Gus and the Lees.", "He met Gu and Lee.", ["Gu"]),
}


@pytest.mark.parametrize("case", SMALL)
def test_facts_of_small_articles(case: str) -> None:
    source, summary, wrong = SMALL[case]
    assert facts_in(source, None, summary)[WRONG] == wrong


@pytest.mark.parametrize("mark", '.!?…:"“‘„«(')
def test_sentences_begin_behind_a_mark(mark: str) -> None:
    assert facts_in("They left.", None, f"They left {mark}Storms came.")[WRONG] == []


def test_names_stand_behind_a_word_or_what_does_not_end_a_sentence() -> None:
    assert names_in(["He met Ann, Bob; Cid (here) Dee: Eve. Fay! “Gil” Hal\nIan 5 Jim"]) == {
        *("Ann", "Bob", "Cid", "Dee", "Jim")
    }


def test_a_name_at_the_beginning_is_known_from_other_texts() -> None:
    texts = ("Smith was jailed, police say.", None, "Jones was jailed. Residents cheered.")
    assert facts_in(*texts)[WRONG] == []
    names = names_in(["Here Mr Jones met Residents.", "Jones left.", "The residents stayed."])
    assert names == {"Mr", "Jones"}
    assert facts_in(*texts, names=names)[WRONG] == ["Jones"]


def test_without_a_reference_only_the_source_counts() -> None:
    assert facts_in("He paid Ann $5.", None, "He paid Bob $5.") == {WRONG: ["Bob"], ADDED: [], MISSING: []}
    assert facts_in("", "", "") == {WRONG: [], ADDED: [], MISSING: []}


def test_unsupported_facts_are_counted_where_capitals_tell_names() -> None:
    source = "The mayor met Ann Lee on Monday. The bridge cost $70 million."
    summaries = ["Mayor met Ann Low on bridge for $90 million.", "Mayor met Ann Lee.", "Mayor met Bob Lee."]
    found = unsupported_facts(tuple((source, "Mayor met Bob.", summary) for summary in summaries))
    text = "1 of 3 summaries (0.67 names or numbers a summary)"
    assert found == {"not_in": "article or reference", "mean": 2 / 3, "summaries_with_none": 2, "text": text}
    found = unsupported_facts(tuple((source, None, summary) for summary in summaries))
    assert (found["not_in"], found["mean"], found["summaries_with_none"]) == ("article", 1, 1)
    for summary in ("市长周二会见了NBA的安。", "وصل الرئيس إلى باريس.", "mayor met ann low.", "MAYOR MET ANN LOW.", ""):
        assert unsupported_facts(((source, None, summary),)) == {}
