"""The methods of `LLM` that measure a model."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Unpack, cast

from ..arguments import PromptLike, as_chat, count, shown
from ..chat.reply import Reply
from ..decisions.calibration import Calibration, fit
from ..decisions.decision import Decision
from ..decisions.methods import DecideOptions
from ..decisions.question import question
from ..errors import Interrupted, LLMError, RequestError
from ..provider import Provider
from ..tables.frames import rows_of
from ..tables.template import Template
from . import multiple_choice, uncertainty
from .perplexity import Perplexity, perplexity
from .report import Evaluation, Item


class Measured(Protocol):
    """What the methods need of an `LLM`."""

    provider: Provider

    def chat(self, messages: Any, *, system: str | None, n: int, **options: Any) -> list[Reply]: ...

    def decide_many(self, prompts: Any, **options: Unpack[DecideOptions]) -> list[Decision]: ...


class Evaluations:
    """The part of `LLM` that measures it."""

    def calibrate(
        self: Measured,
        examples: object,
        *,
        method: str = "temperature",
        template: object = "{{ prompt }}",
        label: str = "label",
        **options: Unpack[DecideOptions],
    ) -> Calibration:
        """Fit probabilities to labelled examples, so that they agree with how often they hold.

        >>> from llm_magic.llm import LLM
        >>> from llm_magic.providers.scripted import Scripted
        >>> llm = LLM(Scripted([], scores=lambda request, choices: [-0.01, -4.6]))
        >>> examples = [("Is it?", "yes")] * 3 + [("Is it?", "no")]
        >>> found = llm.calibrate(examples, yes_no=True)
        >>> round(found.temperature, 1)
        4.2
        >>> llm.decide("Is it?", yes_no=True, calibration=found)
        Decision('yes', p=0.750, margin=0.500, entropy=0.562)

        Args:
            examples: Pairs of a prompt and its right choice, or a frame of pandas or polars, or a
                list of dicts.
            method: "temperature" (one number; ten examples say something) or "bias" (one number for
                each choice: takes away what the model prefers whatever it reads).
            template: The prompt of a row of a frame, with its columns as `{{ column }}`.
            label: The column of the right choice.
            **options: Those of `decide`.

        Returns:
            The calibration, for `decide(..., calibration=...)`.

        Raises:
            RequestError: An argument is not valid, or a label is none of the choices.
        """
        if options.get("calibration") is not None:
            raise RequestError("a calibration is made without another one; leave it out")
        asked = question(options.get("choices"), options.get("yes_no", False), options.get("scale"))
        pairs = _pairs(examples, template, label)
        for i, (_, right) in enumerate(pairs):
            if right not in asked.choices:
                known = ", ".join(map(repr, asked.choices))
                raise RequestError(f"example {i} has the label {right!r}; the choices are {known}")
        found = self.decide_many([prompt for prompt, _ in pairs], **options)
        return fit([d.logprobs for d in found], [right for _, right in pairs], method)

    def evaluate(
        self: Measured,
        data: object,
        template: object,
        *,
        choices: object,
        label: str = "label",
        examples: object = None,
        shots: int = 0,
        seed: int = 0,
        chat: bool = False,
        join: str = " ",
        between: str = "\n\n",
        calibration: Calibration | None = None,
        **options: Any,
    ) -> Evaluation:
        """Measure how often the model chooses right, and how well its probabilities hold.

        Args:
            data: The rows: a frame of pandas or polars, or a list of dicts.
            template: The question of a row, with its columns as `{{ column }}`.
            choices: The choices of every row, or the name of a column that holds a list for each.
            label: The column of the right choice: its text, or its place from 0.
            examples: Solved rows (a frame as `data`) from which `shots` are drawn.
            shots: How many of them stand before each question, the same ones for every row.
            seed: Of the draw.
            chat: False: each question is continued with every choice, as evaluation harnesses do
                it. True: the choices are shown in a chat and decided between as by `decide`.
            join: What stands between a question and a choice that continues it.
            between: What stands between examples that are continued.
            calibration: What `calibrate` found; choices must be the same for every row.
            **options: Of a chat those of `decide`, such as `order` and `system`.

        Returns:
            The report: accuracy, calibration and every row; `.plot()` draws the reliability
            diagram. A row that cannot be asked has its error there; no other row is lost.

        Raises:
            RequestError: An argument is not valid; nothing was computed.
            Interrupted: Of an interrupt; `.partial` is the report so far.
        """
        table = rows_of(data)
        rows = [table[i] for i in range(len(table))]
        solved = multiple_choice.drawn(examples, shots, seed)
        asked = multiple_choice.task(
            rows, table.columns, template, choices, label, solved, join, between
        )
        if calibration is not None:
            if isinstance(asked.choices, str):
                raise RequestError("a calibration needs the same choices for every row")
            calibration.check(asked.choices)
        if options and not chat:
            raise RequestError(f"{min(options)} is an option of a chat; give chat=True too")
        if chat:
            settings = cast(DecideOptions, {**options, "calibration": calibration})
            found = multiple_choice.evaluated_chat(self.provider, rows, asked, settings)
        else:
            found = multiple_choice.evaluated(self.provider, rows, asked, calibration)
        items: list[Item] = []

        def made() -> Evaluation:
            ranked = tuple(sorted(items, key=lambda item: item.row))
            return Evaluation(ranked, self.provider.model, len(solved), chat)

        try:
            items.extend(found)
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted after {len(items)} rows", made()) from None
        return made()

    def perplexity(
        self: Measured,
        text: object,
        *,
        convention: str = "sliding",
        window: int | None = None,
        stride: int | None = None,
    ) -> Perplexity:
        """How well the model predicts a text: perplexity and bits per byte.

        Args:
            text: The text, or a `pathlib.Path` of a file.
            convention: "sliding" or "llama.cpp"; their definitions are in
                `llm_magic.evaluation.perplexity`.
            window: Tokens of a window. None: 1024, of "llama.cpp" 512.
            stride: By how many tokens sliding windows move on. None: half a window.

        Raises:
            RequestError: An argument is not valid, or the text is too short.
            ContextOverflowError: The window is larger than the model's context.
        """
        return perplexity(self.provider, text, convention, window, stride)

    def uncertainty(
        self: Measured,
        prompt: PromptLike,
        *,
        n: int = 10,
        temperature: float = 1.0,
        seed: int | None = 0,
        threshold: float = 0.5,
        judge: "Measured | None" = None,
        system: str | None = None,
        **options: Any,
    ) -> uncertainty.Uncertainty:
        """Draw several answers in one batch, and group them by what they mean.

        Args:
            prompt: A text (a message of the user) or messages.
            n: How many answers.
            temperature: Of the draws.
            seed: Answer i is drawn with seed + i.
            threshold: The probability above which two answers mean the same.
            judge: The model that says whether two answers mean the same. None: this one.
            system: A system prompt before the messages.
            **options: As for `chat`.

        Returns:
            The meanings with their shares, and the entropy over them.
        """
        wanted = count("n", n, 2)
        if not isinstance(threshold, int | float) or not 0 <= threshold < 1:
            raise RequestError(f"threshold is {shown(threshold)}; it must be from 0 to below 1")
        messages = as_chat(prompt, None)
        replies = self.chat(
            messages, system=system, n=wanted, temperature=temperature, seed=seed, **options
        )
        asker: Measured = self if judge is None else judge
        asked = next((m.text for m in reversed(messages) if m.role == "user"), "")

        def same(pairs: Sequence[tuple[str, str]]) -> list[float]:
            found = asker.decide_many(uncertainty.questions(asked, pairs), yes_no=True)
            yes = [d.probabilities["yes"] for d in found]
            return [(a + b) / 2 for a, b in zip(yes[::2], yes[1::2], strict=True)]

        return uncertainty.meanings(replies, same, float(threshold))


def _pairs(examples: object, template: object, label: str) -> list[tuple[object, str]]:
    """The prompt and the label of each example."""
    if isinstance(examples, Sequence) and not isinstance(examples, str):
        listed = list(examples)
        if all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in listed):
            return [(prompt, str(right)) for prompt, right in listed]
    table = rows_of(examples)
    read = Template(template)
    read.check([*table.columns])
    if label not in table.columns:
        known = ", ".join(table.columns)
        raise RequestError(f"there is no column {label!r}; the columns are {known}")
    out: list[tuple[object, str]] = []
    for i in range(len(table)):
        row: Mapping[str, object] = table[i]
        try:
            out.append((read.fill(row), str(row[label])))
        except LLMError as e:
            raise RequestError(f"example {i}: {e}") from None
    return out
