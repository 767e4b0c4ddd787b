"""Questions for a provider: many of them side by side, each with its own decision or error."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from ..errors import LLMError, RequestError
from ..provider import BatchScoring, ChoiceScores, Prompt, Provider, Request, require
from .decision import Decision, decided
from .question import Orders, Question, can_list

# Makes the request of a prompt, with the settings of the call.
Build = Callable[[Prompt], Request]
Asked = tuple[Request, Sequence[str]]


def decisions(
    provider: Provider,
    question: Question,
    prompts: Iterable[Prompt | LLMError],
    build: Build = Request,
) -> Iterator[Decision | LLMError]:
    """The decision of each prompt, in order; an error takes the place of its own only.

    Prompts are read while the engine has room, so there may be any number of them. The bits of a
    decision do not depend on the prompts beside it.

    Args:
        provider: What scores the choices.
        question: What to decide between, for every prompt.
        prompts: The prompts, see `question.as_subject`; an error is handed on.
        build: Makes the request of a prompt.

    Raises:
        UnsupportedError: The provider cannot score choices.
    """
    require(provider, "choices")
    plan: deque[Orders | LLMError] = deque()  # of the prompts that were read and not yet answered
    found: list[ChoiceScores | LLMError] = []  # of the first one of the plan
    for result in score(provider, _requests(question, prompts, build, plan)):
        while isinstance(plan[0], LLMError):
            yield plan.popleft()  # type: ignore[misc]
        found.append(result)
        if len(found) == len(plan[0]):
            yield _settled(question, plan.popleft(), found, provider.model)
            found = []
    yield from plan  # type: ignore[misc]


def _requests(
    question: Question,
    prompts: Iterable[Prompt | LLMError],
    build: Build,
    plan: "deque[Orders | LLMError]",
) -> Iterator[Asked]:
    """The requests of all prompts. Notes in the plan how many belong to each."""
    for prompt in prompts:
        if isinstance(prompt, LLMError):
            plan.append(prompt)
            continue
        asked = question if can_list(prompt) else question.unlisted()
        try:
            requests = [build(shown) for shown in asked.prompts(prompt)]
        except LLMError as e:
            plan.append(e)
            continue
        plan.append(asked.orders)
        for request in requests:
            yield request, question.choices


def _settled(
    question: Question,
    orders: Orders | LLMError,
    found: Sequence[ChoiceScores | LLMError],
    model: str,
) -> Decision | LLMError:
    scored: list[ChoiceScores] = []
    for result in found:
        if isinstance(result, LLMError):
            return result
        scored.append(result)
    if isinstance(orders, LLMError):  # not reached: an error has no scores
        return orders
    return decided(question, list(zip(orders, scored, strict=True)), model)


def score(provider: Provider, asked: Iterable[Asked]) -> Iterator[ChoiceScores | LLMError]:
    """The scores of each request's choices, in order, side by side where the provider can."""
    if isinstance(provider, BatchScoring):
        yield from provider.score_batch(asked)
        return
    for request, choices in asked:
        try:
            logprobs = tuple(provider.score_choices(request, choices))
            yield ChoiceScores(logprobs, tuple(_length(provider, text) for text in choices))
        except LLMError as e:
            yield e


def _length(provider: Provider, text: str) -> int:
    if "tokenize" not in provider.capabilities:
        return 1
    return max(1, len(provider.tokenize(text, special=False, start=False)))


def refuse_nested(question: Question) -> None:
    """RequestError where a choice begins another one and no end of an answer can part them."""
    ranked = sorted(question.choices)
    for short, long in pairwise(ranked):
        if long.startswith(short):
            raise RequestError(
                f"the choice {short!r} is the beginning of {long!r}; behind a text that goes on, "
                "the two cannot be told apart: ask with a message instead of complete=True, or "
                f"end them differently, such as {short + '.'!r}"
            )
