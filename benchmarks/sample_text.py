"""The sample that travels along (src/polydec/lab/train/sample): small stories, talks, questions and sums, written by rules.

python benchmarks/sample_text.py          # writes the files anew; the same ones, as long as the rules are
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

WHERE = Path(__file__).parents[1] / "src/polydec/lab/train/sample"


def listed(text: str) -> list[str]:
    """The parts of a text between commas."""
    return " ".join(text.split()).split(", ")


PEOPLE = listed("""
    Ada, Bruno, Carla, Dario, Elif, Fenna, Goran, Hanna, Ines, Jonas, Kemal, Lena, Milan, Nora, Oskar, Petra,
    Quentin, Rosa, Stefan, Tilda, Ugo, Vera, Wanda, Yusuf, Zora
""")
TRADES = listed("""
    baker, carpenter, ferryman, teacher, watchmaker, gardener, nurse, beekeeper, postman, printer, fisherman,
    librarian, tailor, miller, glazier, painter
""")
PLACES = listed("""
    the harbour, the old mill, the market square, the railway yard, the lighthouse, the school garden, the
    library, the stone bridge, the valley road, the bakery, the boat house, the chapel hill
""")
THINGS = listed("""
    a brass key, a rusty lantern, a box of letters, a broken clock, a red kite, a wooden flute, a jar of
    honey, a torn map, a small bell, a blue bicycle, a sack of chestnuts, a telescope
""")
WEATHER = listed("""
    A thin rain had fallen since dawn, The fog lay so low that the roofs seemed to float, It was the first
    warm day of the year, Snow had covered the road in the night, The wind came from the sea and smelled of
    salt, The heat had made the whole town slow, After a week of storms the sky was washed and empty, Frost
    still lay in the shade of the walls
""")
FINDS = (
    "{who} found {thing} behind {place}, wrapped in a cloth that nobody had touched for years.",
    "On the way to {place} {who} noticed {thing} lying in the grass, as if it had been put there on purpose.",
    "When {who} opened the cupboard at {place}, {thing} fell out and rolled under the table.",
    "Somebody had left {thing} on the steps of {place}, and {who}, who was never in a hurry, stopped to look at it.",
    "{who} had been sent to {place} for bread and came back with {thing} instead.",
    "There was a rumour that {thing} had been hidden at {place}; {who} did not believe it until that afternoon.",
)
DOUBTS = (
    '"It cannot be worth much," said {other}, the {trade}, "but somebody must be missing it."',
    '"I know that shape," said {other}, who had been a {trade} for thirty years. "My mother had one like it."',
    '{other}, the {trade}, turned it over twice and shook it. "Ask at {place2}," was all the advice there was.',
    '"Put it back where it was," said {other}. The {trade} had seen too many good deeds end badly.',
    "{other}, the {trade}, offered two coins for it at once, which made {who} think that it was worth more.",
    '"Things do not get lost," said {other}, the {trade}. "They wait until they are needed."',
)
WALKS = (
    "So they went to {place2} together. The path was steep, and they talked about the price of flour, the new doctor and the "
    "number of swallows under the roofs.",
    "They took the long way round by {place2}, because the short one was under water, and did not meet a soul.",
    "At {place2} nobody had heard of it. A boy who was mending a net pointed down the street without looking up.",
    "It took them until noon to reach {place2}. The door was locked, but there was a light in the upper window.",
    "On the road to {place2} a cart had lost a wheel, and they helped to lift it, which cost them an hour and a clean shirt.",
    "They asked at seven doors. At the eighth, close to {place2}, an old woman laughed before they had finished the question.",
)
TURNS = (
    "It turned out that {thing} belonged to {third}, who had lost it {number} years ago and had long stopped looking.",
    '"That is mine," said {third}, and told what nobody else could know: that there were {number} scratches on the bottom.',
    "{third} had been paid {number} coins to hide it and was glad to be asked at last.",
    "{third} counted slowly to {number}, as one does before bad news, and then began to smile.",
    "Inside there was a slip of paper with the name of {third} and the number {number}, written in green ink.",
    "{third} had {number} of the same kind at home and wanted no more of them.",
)
ENDS = (
    "They ate soup in the kitchen until it was dark, and {who} walked home by the river with empty hands, content.",
    "From then on {who} looked twice at everything that lay by the road, and found many things, but nothing so good.",
    "{other} never spoke of it again. But the next morning there was fresh bread at the door of {who}.",
    "The two of them are friends to this day, and whoever asks them why hears a different story every time.",
    "It hangs at {place} now, where everyone can see it, and on Sundays somebody dusts it.",
    "Nothing else happened that week, and that was how everybody liked it.",
)
CRAFTS = (
    (
        "How bread is made",
        "Mix {a} parts of flour with {b} parts of water and a little salt. Let the dough rest under a cloth until "
        "it has grown to twice its size. Fold it, shape it, and let it rest once more. Bake it in a hot oven; it "
        "is done when it sounds hollow.",
    ),
    (
        "How a net is mended",
        "Cut away the torn meshes until {a} whole knots stand around the hole. Begin at the top, and tie {b} new "
        "meshes in every row, each as wide as two fingers. Pull every knot tight while it is wet. A net that dries "
        "loose will not hold.",
    ),
    (
        "How a clock is set",
        "Wind it with {a} slow turns and stop when you feel the spring. Move the long hand forwards, never back, "
        "and wait at every hour until it has struck. If it loses {b} minutes a day, shorten the pendulum by the "
        "thickness of a nail.",
    ),
    (
        "How a garden is begun",
        "Dig in autumn, and leave the clods for the frost. In spring rake the bed and sow in {a} rows, a hand "
        "apart. Water in the evening. After {b} days thin the seedlings; it feels cruel, but those that stay will "
        "thank you.",
    ),
    (
        "How a boat is kept",
        "Haul it out once a year and let it dry for {a} days. Scrape off what has grown on it, and look at each of "
        "the planks. Whatever gives way under the thumb must be replaced. Then paint it with {b} coats, each as "
        "thin as you can.",
    ),
    (
        "How a letter is folded",
        "Lay the sheet before you, the writing upwards. Fold the lower third over the middle and the upper third "
        "over both. A letter of {a} pages needs a wider envelope, and one of {b} pages needs a parcel.",
    ),
)
ASKED = (
    (
        "Where is {place}?",
        "Go straight on, take the {nth} street on the left, and you will see it behind the trees.",
    ),
    (
        "When does the ferry leave?",
        "It leaves every {n} minutes from six in the morning until {m} at night.",
    ),
    (
        "Can I book a table for {n}?",
        "Yes. We have one for {n} at the window, free from {m} o'clock. Shall I write it down?",
    ),
    (
        "How much is {thing}?",
        "That would be {n} coins, or {m} if you take the case that belongs to it.",
    ),
    (
        "I have lost {thing}. Was it handed in?",
        "Let me look. There are {n} things on the shelf, and I think that yours is the one beside the door.",
    ),
    (
        "What is the weather like at {place}?",
        "{weather}. Take a coat, and come back before {m} o'clock.",
    ),
    (
        "Who can repair {thing}?",
        "Ask {person}, the {trade} at {place}. It usually takes {n} days.",
    ),
    (
        "Could you remind me to call {person}?",
        "Certainly. I will remind you at {m} o'clock, and again {n} minutes later.",
    ),
)
FOLLOWED = (
    (
        "Thank you. Is it far?",
        "No, about {n} minutes on foot. With a bicycle it takes half of that.",
    ),
    ("And tomorrow?", "Tomorrow it is the same, but everything begins {n} minutes later."),
    (
        "That is too late for me.",
        "Then I would try {place} instead, where they open at {m} o'clock.",
    ),
    ("Good, I will take it.", "Very well. I have put it down under the number {n}."),
    ("Are you sure?", "Yes, I asked {person} this morning, who has worked there for {m} years."),
)
CLOSED = (
    ("Thanks, that is all.", "You are welcome. Have a good day."),
    ("Wonderful, goodbye!", "Goodbye, and give my regards to {person}."),
    ("I will think about it.", "Take your time; we are here until {m} o'clock."),
)
NTH = ("first", "second", "third", "fourth")
FACTS = (
    (
        "What is {a} plus {b}?",
        lambda a, b: f"{a} + {b} = {a + b}. The answer is {a + b}.",
    ),
    (
        "What is {a} times {b}?",
        lambda a, b: f"{a} * {b} = {a * b}. The answer is {a * b}.",
    ),
    (
        "{who} has {a} apples and gets {b} more. How many are there now?",
        lambda a, b: f"There were {a}, and {b} came: {a} + {b} = {a + b}. The answer is {a + b}.",
    ),
    (
        "A crate holds {a} jars. How many jars are in {b} crates?",
        lambda a, b: f"Each crate holds {a}, so it is {a} * {b} = {a * b}. The answer is {a * b}.",
    ),
    (
        "{who} reads {b} pages a day. How many pages is that in {a} days?",
        lambda a, b: (
            f"{b} pages on each of {a} days make {b} * {a} = {a * b}. The answer is {a * b}."
        ),
    ),
    (
        "Which is more, {a} or {b}?",
        lambda a, b: (
            f"They are the same: both are {a}."
            if a == b
            else f"{max(a, b)} is more than {min(a, b)}, by {abs(a - b)}."
        ),
    ),
)


def stories(rng: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        who, other, third = rng.sample(PEOPLE, 3)
        place, place2 = rng.sample(PLACES, 2)
        words = {
            "who": who,
            "other": other,
            "third": third,
            "place": place,
            "place2": place2,
            "thing": rng.choice(THINGS),
            "trade": rng.choice(TRADES),
            "number": str(rng.randint(3, 40)),
        }
        parts = [rng.choice(options) for options in (FINDS, DOUBTS, WALKS, TURNS, ENDS)]
        first, *rest = (part.format(**words) for part in parts)
        yield "\n\n".join([f"{rng.choice(WEATHER)}. {first[0].upper()}{first[1:]}", *rest])
        if rng.random() < 0.3:
            title, text = rng.choice(CRAFTS)
            yield f"{title}\n\n{text.format(a=rng.randint(2, 9), b=rng.randint(2, 12))}"


def talks(rng: random.Random, count: int) -> Iterator[dict[str, object]]:
    for _ in range(count):
        turns = [rng.choice(ASKED), *rng.sample(FOLLOWED, rng.randint(0, 2)), rng.choice(CLOSED)]
        messages = list[dict[str, str]]()
        for pair in turns:
            words = {
                "place": rng.choice(PLACES),
                "thing": rng.choice(THINGS),
                "weather": rng.choice(WEATHER),
                "person": rng.choice(PEOPLE),
                "trade": rng.choice(TRADES),
                "nth": rng.choice(NTH),
                "n": str(rng.randint(2, 30)),
                "m": str(rng.randint(7, 12)),
            }
            for role, text in zip(("user", "assistant"), pair, strict=True):
                messages.append({"role": role, "content": text.format(**words)})
        yield {"category": "talk", "messages": messages}


def questions(rng: random.Random, count: int) -> Iterator[dict[str, object]]:
    for _ in range(count):
        ask, answer = rng.choice(FACTS)
        a, b = rng.randint(2, 99), rng.randint(2, 20)
        asked = ask.format(a=a, b=b, who=rng.choice(PEOPLE))
        yield {"category": "sum", "question": asked, "answer": answer(a, b)}


def written() -> dict[str, str]:
    """Each file of the sample by its name."""
    rng = random.Random(0)
    return {
        "stories.txt": "\n\n".join(stories(rng, 95)) + "\n",
        "talks.jsonl": "".join(json.dumps(row) + "\n" for row in talks(rng, 95)),
        "questions.jsonl": "".join(json.dumps(row) + "\n" for row in questions(rng, 160)),
    }


if __name__ == "__main__":
    WHERE.mkdir(exist_ok=True)
    for name, text in written().items():
        (WHERE / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(text):,} characters")
