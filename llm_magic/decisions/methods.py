"""The methods of `LLM` that decide, and that measure decisions."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypedDict, Unpack, overload

from ..arguments import PromptLike, build_request, shown
from ..errors import Interrupted, LLMError, RequestError
from ..events import Sampling
from ..provider import Prompt, Provider, Request, require
from .asking import decisions, refuse_nested
from .calibration import Calibration
from .decision import Decision, calibrated
from .question import Question, as_subject, question


class DecideOptions(TypedDict, total=False):
    """The options of `LLM.decide`, for the methods that decide about many prompts."""

    choices: object
    yes_no: bool
    scale: tuple[int, int] | None
    order: str
    listed: bool
    length: str | None
    calibration: Calibration | None
    system: str | None
    complete: bool
    thinking: bool | None
    template_kwargs: Mapping[str, object] | None
    reuse: bool


class Decisions:
    """The part of `LLM` that decides between given texts."""

    provider: Provider

    def decide(
        self,
        prompt: PromptLike,
        *,
        choices: object = None,
        yes_no: bool = False,
        scale: tuple[int, int] | None = None,
        order: str = "invariant",
        listed: bool = True,
        length: str | None = None,
        calibration: Calibration | None = None,
        system: str | None = None,
        complete: bool = False,
        thinking: bool | None = False,
        template_kwargs: Mapping[str, object] | None = None,
        reuse: bool = True,
    ) -> Decision:
        """Decide between given texts, with the true probability of each.

        Every choice is scored as a whole text (any number of tokens) behind the prompt, and the
        probabilities are normalised over the choices. Where one choice is the beginning of another,
        the probability that the answer ends behind it counts too.

        >>> from llm_magic.llm import LLM
        >>> from llm_magic.providers.scripted import Scripted
        >>> llm = LLM(Scripted([], scores=lambda request, choices: [-2.0, -1.0, -4.0]))
        >>> llm.decide("Which is it?", choices="red|green|blue", order="given")
        Decision('green', p=0.705, margin=0.446, entropy=0.714)

        Args:
            prompt: A text (a message of the user), messages, token ids or a rendered prompt.
            choices: The texts to choose from: a list, "yes|no", or an Enum class of texts.
            yes_no: Choose between "yes" and "no".
            scale: Choose from the whole numbers from the first to the last; `Decision.expected` is
                the mean.
            order: "invariant": the prompt is asked with the choices listed in several orders, and
                their probabilities are averaged, so neither the order of the list nor that of the
                sum matters. Two or more choices come in the rotations of their sorted order (at
                most 8 of them), a scale rising and falling. "given": one prompt, with the choices
                as they are given.
            listed: Whether the prompt shows the choices: where `{{ choices }}` stands in it, else
                behind its last message of the user. Token ids, rendered prompts and texts to
                continue show only what they hold.
            length: Divide each log-probability by the "tokens" or the "bytes" of its choice before
                choices are compared, so that long choices have a chance. None: do not.
            calibration: What `calibrate` found on labelled examples.
            system: A system prompt before the messages.
            complete: The choices continue the text as it is, without a chat template.
            thinking: As for `chat`; a decision is made without reasoning unless told otherwise.
            template_kwargs: Further variables of the chat template.
            reuse: Whether a cached prefix is used. The bits are the same either way.

        Returns:
            The decision; a notebook shows it as bars.

        Raises:
            RequestError: An argument is not valid; nothing was computed.
            UnsupportedError: The provider cannot score choices.
        """
        (found,) = self.decide_many(
            [prompt],
            choices=choices,
            yes_no=yes_no,
            scale=scale,
            order=order,
            listed=listed,
            length=length,
            calibration=calibration,
            system=system,
            complete=complete,
            thinking=thinking,
            template_kwargs=template_kwargs,
            reuse=reuse,
        )
        return found

    @overload
    def decide_many(
        self,
        prompts: Iterable[object],
        *,
        on_error: Literal["raise"] = "raise",
        **options: Unpack[DecideOptions],
    ) -> list[Decision]: ...
    @overload
    def decide_many(
        self,
        prompts: Iterable[object],
        *,
        on_error: Literal["keep"],
        **options: Unpack[DecideOptions],
    ) -> list[Decision | LLMError]: ...
    def decide_many(
        self,
        prompts: Iterable[object],
        *,
        on_error: str = "raise",
        **options: Unpack[DecideOptions],
    ) -> list[Decision] | list[Decision | LLMError]:
        """Decide about many prompts side by side. Each has the bits that it would have alone.

        >>> from llm_magic.llm import LLM
        >>> from llm_magic.providers.scripted import Scripted
        >>> llm = LLM(Scripted([], scores=lambda request, choices: [-0.1, -3.0]))
        >>> [d.choice for d in llm.decide_many(["Is 2 even?", "Is 4 even?"], yes_no=True)]
        ['yes', 'yes']

        Args:
            prompts: What `decide` takes, any number of them.
            on_error: "raise" the first error, or "keep" each one in the place of its decision.
            **options: Those of `decide`, the same for every prompt.

        Returns:
            The decisions, in the order of the prompts.

        Raises:
            RequestError: An argument is not valid; nothing was computed.
            Interrupted: Of an interrupt; `.partial` is the list so far.
        """
        if on_error not in ("raise", "keep"):
            raise RequestError(f'on_error is {shown(on_error)}; it must be "raise" or "keep"')
        out: list[Decision | LLMError] = []
        try:
            for found in deciding(self.provider, prompts, options):
                if isinstance(found, LLMError) and on_error == "raise":
                    raise found
                out.append(found)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted after {len(out)} decisions", out) from None
        return out


def deciding(
    provider: Provider, prompts: Iterable[object], options: DecideOptions
) -> Iterator[Decision | LLMError]:
    """The decision of each prompt, in order, as they are made; an error takes the place of its own.

    The prompts are read while the engine has room; an LLMError among them is handed on. The options
    are checked before the first one.

    Raises:
        RequestError: An option is not valid.
    """
    require(provider, "choices")
    asked = _question(options)
    build = _builder(options)
    system, complete = options.get("system"), options.get("complete", False)
    if complete:
        refuse_nested(asked)
    calibration = options.get("calibration")
    if calibration is not None:
        calibration.check(asked.choices)
    read = (_read(prompt, system, complete) for prompt in prompts)
    found = decisions(provider, asked, read, build)
    if calibration is None:
        return found
    return (_calibrated(decision, calibration) for decision in found)


def _question(options: DecideOptions) -> Question:
    unknown = options.keys() - DecideOptions.__annotations__.keys()
    if unknown:
        raise RequestError(
            f"unknown option {min(unknown)!r}; the options are "
            f"{', '.join(DecideOptions.__annotations__)}"
        )
    return question(
        options.get("choices"),
        options.get("yes_no", False),
        options.get("scale"),
        options.get("order", "invariant"),
        options.get("listed", True),
        options.get("length"),
    )


def _builder(options: DecideOptions) -> Callable[[Prompt], Request]:
    settings = {
        "thinking": options.get("thinking", False),
        "template_kwargs": options.get("template_kwargs"),
        "reuse": options.get("reuse", True),
    }
    return lambda prompt: build_request(prompt, Sampling(temperature=0.0), settings)


def _read(prompt: object, system: str | None, complete: bool) -> Prompt | LLMError:
    """A prompt; an error that is given in its place is handed on."""
    if isinstance(prompt, LLMError):
        return prompt
    try:
        return as_subject(prompt, system, complete)
    except LLMError as e:
        return e


def _calibrated(decision: Decision | LLMError, by: Calibration) -> Decision | LLMError:
    if isinstance(decision, LLMError):
        return decision
    return calibrated(decision, by.apply(decision.logprobs))
