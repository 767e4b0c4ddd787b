"""How sure a model is of what it means, whatever its words: entropy over meanings of samples.

Several answers to one prompt are drawn in one batch. Two of them mean the same if the model itself
says yes when it is asked whether each says what the other does (Kuhn et al. 2023, "Semantic
Uncertainty"; here the two directions and both orders of yes and no are averaged). Answers that
differ in case, blanks and a final full stop only are one text and are not asked about.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..chat.reply import Reply
from ..chat.view_protocols import Bundle, MimeTypes
from ..extension_points import NUMBER_VIEWS

SAME = """Question: {question}

Answer A: {a}

Answer B: {b}

Do answer A and answer B mean the same?"""
QUESTION = 2000  # characters of a prompt that the judge is shown
LONGEST = 2000  # characters of an answer that the judge is shown

# Probabilities that the answers of each pair mean the same.
Judge = Callable[[Sequence[tuple[str, str]]], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Meaning:
    """Answers that mean the same.

    Attributes:
        text: The most frequent of them.
        members: The places of the answers among the samples.
        probability: Their share of the samples.
    """

    text: str
    members: tuple[int, ...]
    probability: float


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """What `LLM.uncertainty` found.

    Attributes:
        replies: The samples.
        meanings: The meanings, the most frequent first.
        same: The probability that two different texts mean the same, for each pair that was asked
            about.
        threshold: Above which two texts count as the same.
    """

    replies: tuple[Reply, ...]
    meanings: tuple[Meaning, ...]
    same: Mapping[tuple[str, str], float]
    threshold: float = 0.5

    @property
    def entropy(self) -> float:
        """The entropy over the meanings, in nats: 0 where all samples mean the same."""
        return max(0.0, -math.fsum(m.probability * math.log(m.probability) for m in self.meanings))

    @property
    def text(self) -> str:
        """An answer of the most frequent meaning."""
        return self.meanings[0].text

    @property
    def probability(self) -> float:
        """The share of the most frequent meaning."""
        return self.meanings[0].probability

    def __repr__(self) -> str:
        return (
            f"Uncertainty({self.text[:60]!r}, p={self.probability:.2f}, "
            f"entropy={self.entropy:.3f}, {len(self.meanings)} meanings of "
            f"{len(self.replies)} samples)"
        )

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        bundle: Bundle = NUMBER_VIEWS.load().uncertainty(self, include, exclude)
        return bundle


def plain(text: str) -> str:
    """What makes two answers the same text.

    >>> plain(" Paris.\\n"), plain("PARIS")
    ('paris', 'paris')
    """
    return " ".join(text.split()).casefold().rstrip(".")


def meanings(replies: Sequence[Reply], judge: Judge, threshold: float = 0.5) -> Uncertainty:
    """Samples by meaning.

    Each text joins the meaning whose most frequent text it most probably equals, if that
    probability is above the threshold. Texts come by falling frequency, equal ones by their
    characters, so the order in which samples were drawn changes nothing.

    >>> replies = [Reply("Paris"), Reply("It is Paris"), Reply("paris."), Reply("Rome")]
    >>> found = meanings(replies, lambda pairs: [float("Rome" not in p) for p in pairs])
    >>> [(m.text, m.members) for m in found.meanings]
    [('Paris', (0, 1, 2)), ('Rome', (3,))]
    """
    places: dict[str, list[int]] = {}
    for i, reply in enumerate(replies):
        places.setdefault(plain(reply.text), []).append(i)
    keys = sorted(places, key=lambda key: (-len(places[key]), key))
    texts = {key: replies[places[key][0]].text.strip() for key in keys}
    pairs = [(a, b) for i, b in enumerate(keys) for a in keys[:i]]
    scores = judge([(texts[a], texts[b]) for a, b in pairs]) if pairs else []
    same = dict(zip(pairs, scores, strict=True))
    groups: list[list[str]] = []
    for key in keys:
        near = [(same[group[0], key], -i) for i, group in enumerate(groups)]
        best, place = max(near, default=(0.0, 0))
        if best > threshold:
            groups[-place].append(key)
        else:
            groups.append([key])
    made = [
        Meaning(
            texts[group[0]],
            tuple(sorted(i for key in group for i in places[key])),
            sum(len(places[key]) for key in group) / len(replies),
        )
        for group in groups
    ]
    made.sort(key=lambda meaning: -meaning.probability)
    asked = {(texts[a], texts[b]): score for (a, b), score in same.items()}
    return Uncertainty(tuple(replies), tuple(made), asked, threshold)


def questions(question: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """What the judge is asked: both directions of every pair, one behind the other."""
    asked = question[-QUESTION:]
    return [
        SAME.format(question=asked, a=a[:LONGEST], b=b[:LONGEST])
        for pair in pairs
        for a, b in (pair, pair[::-1])
    ]
