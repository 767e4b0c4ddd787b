"""Writes items.jsonl: 1,000 questions with four choices each, made from small tables of facts.

    python tests/data/harness/items.py
"""

import json
import random
from pathlib import Path

CAPITALS = """France Paris;Italy Rome;Spain Madrid;Germany Berlin;Japan Tokyo;China Beijing;Egypt Cairo;
Greece Athens;Norway Oslo;Sweden Stockholm;Finland Helsinki;Denmark Copenhagen;Poland Warsaw;
Austria Vienna;Hungary Budapest;Portugal Lisbon;Ireland Dublin;Russia Moscow;Turkey Ankara;
Kenya Nairobi;Peru Lima;Chile Santiago;Cuba Havana;Canada Ottawa;Thailand Bangkok;Vietnam Hanoi"""
OPPOSITES = """hot cold;big small;fast slow;light dark;high low;old new;rich poor;happy sad;open closed;
early late;hard soft;long short;full empty;strong weak;wet dry;near far;clean dirty;loud quiet;
thick thin;wide narrow;deep shallow;sharp blunt;sweet sour;right wrong;first last;north south"""
SOUNDS = """dog barks;cat meows;cow moos;lion roars;bee buzzes;snake hisses;wolf howls;duck quacks;
sheep bleats;horse neighs;frog croaks;owl hoots;mouse squeaks;pig grunts"""
KINDS = """apple fruit;carrot vegetable;hammer tool;violin instrument;rose flower;oak tree;salmon fish;
eagle bird;ant insect;cobra snake;chair furniture;shirt clothing;iron metal;ruby gem;red colour;
football sport;bus vehicle;milk drink;bread food;Mars planet;Spanish language;doctor profession"""
PLACES = """fish water;birds sky;books library;bread bakery;patients hospital;pupils school;
airplanes airport;trains station;ships harbour;cows farm;lions savannah;camels desert;
judges court;prisoners prison;actors theatre;soldiers army;money bank;food kitchen"""


def table(text: str) -> list[tuple[str, str]]:
    return [tuple(row.split()) for row in text.replace("\n", "").split(";")]


def facts(rows: list[tuple[str, str]], pattern: str, rng: random.Random):
    answers = sorted({answer for _, answer in rows})
    for name, answer in rows:
        others = rng.sample([a for a in answers if a != answer], 3)
        yield pattern.format(name), answer, others


def sums(rng: random.Random, n: int):
    for _ in range(n):
        a, b = rng.randint(2, 60), rng.randint(2, 40)
        sign, right = rng.choice([("+", a + b), ("-", a + b - b), ("times", a * b)])
        shown = f"{a + b} - {b}" if sign == "-" else f"{a} {sign} {b}"
        near = [right + d for d in (-10, -2, -1, 1, 2, 3, 10) if right + d > 0]
        yield f"Question: What is {shown}?\nAnswer:", str(right), [str(x) for x in rng.sample(near, 3)]


def series(rng: random.Random, n: int):
    for _ in range(n):
        start, step = rng.randint(1, 30), rng.choice([1, 2, 3, 4, 5, 7, 10])
        row = [start + step * i for i in range(6)]
        wrong = [row[5] + d for d in (-3, -1, 1, 2, 4, 6)]
        yield "The numbers are " + ", ".join(map(str, row[:5])) + ",", str(row[5]), [
            str(x) for x in rng.sample(wrong, 3)
        ]


def items(count: int = 1000):
    rng = random.Random(20260101)
    made = []
    while len(made) < count:
        for rows, patterns in (
            (CAPITALS, ["The capital of {} is", "Question: What is the capital of {}?\nAnswer:",
                        "A traveller to {} often visits its capital,"]),
            (OPPOSITES, ["The opposite of {} is", "If something is not {}, it is", "{} and"]),
            (SOUNDS, ["Listen: the {}", "When it is excited, a {}"]),
            (KINDS, ["The word {} names a kind of", "Question: What is {}?\nAnswer: a"]),
            (PLACES, ["You will usually find {} in the", "Where are {}? In the"]),
        ):
            for pattern in patterns:
                made += facts(table(rows), pattern, rng)
        made += sums(rng, 60)
        made += series(rng, 60)
        rng.shuffle(made)
    for text, answer, others in made[:count]:
        choices = [answer, *others]
        rng.shuffle(choices)
        yield {"text": text, "choices": choices, "answer": choices.index(answer)}


if __name__ == "__main__":
    path = Path(__file__).with_name("items.jsonl")
    path.write_text("".join(json.dumps(item) + "\n" for item in items()), encoding="utf-8")
