"""What to decide between, and the prompts that ask for it.

A small model prefers a place in a list, whatever stands there. So the choices are shown in several
orders, each choice once in every place, and the probabilities are averaged. The orders follow from
the set of choices alone: the order in which a caller names them changes no bit.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from ..arguments import as_chat, as_prompt, shown
from ..chat.constraints import kinds
from ..errors import RequestError
from ..events import Message, Part
from ..provider import Prompt, RenderedPrompt

Order = Literal["invariant", "given"]
Length = Literal["tokens", "bytes"]
Orders = tuple[tuple[str, ...], ...]

MAX_CHOICES = 1000
MAX_ORDERS = 8  # of many choices so many rotations, evenly spaced
WORDS = 40  # characters of a choice up to which the choices stand in one line
PLACE = re.compile(r"\{\{ *choices *\}\}")
YES_NO = ("yes", "no")


@dataclass(frozen=True, slots=True)
class Question:
    """What to decide between.

    Attributes:
        choices: The texts, in the order in which they were given.
        order: "invariant": the mean over orders of the list; "given": the list as it was given.
        listed: Whether the prompt shows the choices.
        length: What a choice's log-probability is divided by before choices are compared; None:
            nothing.
        values: The number of each choice of a scale; None: it is no scale.
    """

    choices: tuple[str, ...]
    order: Order = "invariant"
    listed: bool = True
    length: Length | None = None
    values: tuple[float, ...] | None = None

    @property
    def orders(self) -> Orders:
        """The orders in which the prompts show the choices.

        A scale is shown rising and falling; other choices in rotations of their sorted order.

        >>> Question(("b", "a", "c")).orders
        (('a', 'b', 'c'), ('b', 'c', 'a'), ('c', 'a', 'b'))
        >>> Question(("b", "a"), order="given").orders
        (('b', 'a'),)
        """
        if not self.listed or self.order == "given":
            return (self.choices,)
        if self.values is not None:
            return (self.choices, self.choices[::-1])
        ranked = tuple(sorted(self.choices))
        n = len(ranked)
        starts = range(n) if n <= MAX_ORDERS else [i * n // MAX_ORDERS for i in range(MAX_ORDERS)]
        return tuple(ranked[i:] + ranked[:i] for i in starts)

    def prompts(self, prompt: Prompt) -> Iterator[Prompt]:
        """The prompt of each order.

        Raises:
            RequestError: The choices cannot be shown in this prompt.
        """
        if not self.listed:
            yield prompt
            return
        for order in self.orders:
            yield _shown(prompt, _listing(order), self.values is not None)

    def unlisted(self) -> "Question":
        return replace(self, listed=False)


def question(
    choices: object = None,
    yes_no: bool = False,
    scale: object = None,
    order: str = "invariant",
    listed: bool = True,
    length: str | None = None,
) -> Question:
    """A question from the arguments of `LLM.decide`.

    Raises:
        RequestError: Not exactly one of choices, yes_no and scale is given, or it is not valid.

    >>> question(scale=(1, 3)).choices
    ('1', '2', '3')
    >>> question(choices=["a", "b", "a"])
    Traceback (most recent call last):
    llm_magic.errors.RequestError: choices holds 'a' twice; leave one of them out
    """
    given = [choices is not None, bool(yes_no), scale is not None]
    if sum(given) != 1:
        raise RequestError(
            'give one of choices=["...", "..."], yes_no=True and scale=(1, 5), and only one'
        )
    checked = _option("order", order, get_args(Order))
    texts, values = _scale(scale) if scale is not None else (YES_NO, None)
    if choices is not None:
        texts = _choices(choices)
    return Question(
        texts,
        cast(Order, checked),
        bool(listed),
        cast("Length | None", length and _option("length", length, get_args(Length))),
        values,
    )


def _option(name: str, value: object, known: Sequence[str]) -> object:
    if value not in known:
        raise RequestError(f"{name} is {shown(value)}; it must be one of {', '.join(known)}")
    return value


def _choices(value: object) -> tuple[str, ...]:
    listed = value
    if isinstance(value, str):
        listed = [part.strip() for part in value.split("|")]
    elif isinstance(value, Iterable) and not isinstance(value, Mapping | bytes | type):
        listed = list(value)
    if isinstance(listed, list):
        twice = next((c for i, c in enumerate(listed) if c in listed[:i]), None)
        if twice is not None:
            raise RequestError(f"choices holds {shown(twice)} twice; leave one of them out")
    texts = kinds.choices(listed).options
    for text in texts:
        if not text.strip():
            raise RequestError(f"choices holds {shown(text)}; a choice needs a visible character")
    if len(texts) < 2:
        raise RequestError(f"choices holds only {shown(texts[0])}; a decision needs two or more")
    if len(texts) > MAX_CHOICES:
        raise RequestError(f"there are {len(texts)} choices; the most are {MAX_CHOICES}")
    return texts


def _scale(value: object) -> tuple[tuple[str, ...], tuple[float, ...]]:
    ends = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(ends) != 2 or not all(isinstance(end, int) for end in ends) or ends[0] >= ends[1]:
        raise RequestError(
            f"scale is {shown(value)}; it must be two whole numbers, the lower one first: (1, 5)"
        )
    numbers = range(ends[0], ends[1] + 1)
    if len(numbers) > MAX_CHOICES:
        raise RequestError(f"the scale has {len(numbers)} steps; the most are {MAX_CHOICES}")
    return tuple(map(str, numbers)), tuple(map(float, numbers))


# ----------------------------------------------------------------------------- prompts


def as_subject(prompt: object, system: str | None = None, complete: bool = False) -> Prompt:
    """What a decision is about: a text becomes a message of the user, unless it is to go on.

    Args:
        prompt: A text, messages, token ids or a rendered prompt.
        system: A system prompt before the messages.
        complete: Whether the choices continue a text as it is.

    Raises:
        RequestError: It is empty, or none of these.
    """
    read = as_prompt(prompt)
    if not read or (isinstance(read, str) and not read.strip()):
        raise RequestError("the prompt is empty; there is nothing to decide about")
    if complete:
        if not isinstance(read, str):
            raise RequestError(f"complete=True needs a text, not {shown(prompt)}")
        if system is not None:
            raise RequestError("a text that is continued has no system prompt; leave system out")
        return read
    if isinstance(read, str) or system is not None:
        return as_chat(read, system)
    return read


def can_list(prompt: Prompt) -> bool:
    """Whether a prompt can show the choices: messages, and texts with `{{ choices }}`.

    >>> can_list("Is it so?"), can_list("One of {{ choices }}:"), can_list((1, 2))
    (False, True, False)
    """
    if isinstance(prompt, str):
        return PLACE.search(prompt) is not None
    return not isinstance(prompt, RenderedPrompt) and isinstance(prompt[0], Message)


def _listing(order: Sequence[str]) -> str:
    if any("\n" in text or "," in text or len(text) > WORDS for text in order):
        return "\n" + "\n".join(f"- {text}" for text in order)
    return ", ".join(order)


def _shown(prompt: Prompt, listing: str, scale: bool) -> Prompt:
    """The prompt with the list where `{{ choices }}` stands, else behind its last message."""
    if isinstance(prompt, str):
        return PLACE.sub(lambda _: listing, prompt)
    messages = cast("tuple[Message, ...]", prompt)
    if any(PLACE.search(message.text) for message in messages):
        return tuple(_changed(m, lambda text: PLACE.sub(lambda _: listing, text)) for m in messages)
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    if last < 0:
        raise RequestError("the messages have no user message that could show the choices")
    what = "one number of this scale" if scale else "one of these"
    message = messages[last]
    end = f"\n\nAnswer with {what}: {listing}"
    if isinstance(message.content, tuple):
        changed = replace(message, content=(*message.content, Part("text", end)))
    else:
        changed = replace(message, content=message.text + end)
    return (*messages[:last], changed, *messages[last + 1 :])


def _changed(message: Message, change: Callable[[str], str]) -> Message:
    match message.content:
        case None:
            return message
        case str(text):
            return replace(message, content=change(text))
        case parts:
            return replace(message, content=tuple(replace(p, text=change(p.text)) for p in parts))
