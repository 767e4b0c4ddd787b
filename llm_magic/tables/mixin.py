"""`LLM.map` and `LLM.grid`: the same question for every row of a table."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..arguments import shown
from ..errors import RequestError
from .grid import Grid, answer_grid
from .question import Asker, Question
from .table import answer_table

OnError = Literal["keep", "raise"]


class TableMethods:
    """The part of `LLM` that answers tables."""

    def map(
        self: Asker,
        rows: object,
        template: object,
        *,
        schema: object = None,
        choices: object = None,
        tools: object = None,
        out: str = "answer",
        cache: str | os.PathLike[str] | None = None,
        on_error: OnError = "keep",
        progress: bool = True,
        system: str | None = None,
        names: Mapping[str, object] | None = None,
        **options: Any,
    ) -> Any:
        """Answer the same question for every row of a table.

        >>> from llm_magic.llm import LLM
        >>> from llm_magic.providers.scripted import Scripted
        >>> llm = LLM(Scripted(lambda request: request.messages[0].text.upper()))
        >>> frame = llm.map(["so good", "so bad"], "Hm: {{ text }}", progress=False)
        >>> list(frame["answer"])
        ['HM: SO GOOD', 'HM: SO BAD']

        The same row has the same answer, bit for bit, in every order of the rows and beside
        whatever else runs. Rows of the same content are asked once.

        Args:
            rows: A frame of pandas or polars, a list of dicts, or a list of texts, whose column is
                called `text`.
            template: The question, a text or messages. `{{ column }}` is the row's value of that
                column; `{{ row['a name'] }}` reaches columns whose name is no identifier.
            schema: The answer is JSON of this schema or type; each of its fields becomes a column.
            choices: The answer is one of these texts, decided as by `LLM.decide`, whose options
                (`yes_no`, `scale`, `order`, `listed`, `length`, `calibration`) may be given too.
            tools: Functions that the model may call for each row.
            out: The name of the answers' column, and the beginning of the other names.
            cache: A file that keeps every finished answer. The next run with the same model,
                template and settings takes from it what it finds and asks only the rest.
            on_error: "keep" writes the error of a row into its column and goes on; "raise" ends
                with the first one.
            progress: Show a bar with rate and time left.
            system: A system prompt; it may have places for values, too.
            names: Values that the template may use besides those of the row.
            options: As for `LLM.chat`. What is not set is temperature 0 and at most 256 tokens.
                With a temperature each row draws from a seed of its own, which is made from `seed`
                and the row's content.

        Returns:
            A frame with the index and the columns of `rows`, and these: `out`, the answer;
            `out_probability`; `out_entropy` in nats; `out_tokens`; `out_finish`; `out_error`; with
            a schema `out_field` for each of its fields, with `scale` `out_expected`. What they are
            is said by `llm_magic.tables.answers.Answer`.

        Raises:
            RequestError: An argument is not valid; nothing was computed. With `on_error="raise"`
                also the error of a row.
            Interrupted: `.partial` is the frame with the answers so far.
        """
        asked = Question(self, template, system, names, {
            **options, "schema": schema, "choices": choices, "tools": tools
        })  # fmt: skip
        return answer_table(rows, {out: asked}, cache, _strict(on_error), progress)

    def grid(
        self: Asker,
        prompts: "Mapping[str, object] | Sequence[object]",
        rows: object,
        *,
        cache: str | os.PathLike[str] | None = None,
        on_error: OnError = "keep",
        progress: bool = True,
        system: str | None = None,
        **options: Any,
    ) -> Grid:
        """Ask several prompts about every row, and compare the answers side by side.

        >>> from llm_magic.llm import LLM
        >>> from llm_magic.providers.scripted import Scripted
        >>> llm = LLM(Scripted(lambda request: "yes" if "?" in request.messages[0].text else "no"))
        >>> prompts = {"asked": "{{ text }}?", "told": "{{ text }}."}
        >>> grid = llm.grid(prompts, ["Rain", "Snow"], progress=False)
        >>> [(s.name, s.rows, s.errors) for s in grid.summary]
        [('asked', 2, 0), ('told', 2, 0)]
        >>> list(grid.frame["told"])
        ['no', 'no']

        Args:
            prompts: Templates by name, or a list of them, which are called prompt_1, prompt_2, ...
            rows: As for `map`.
            cache: As for `map`; prompts that did not change are taken from it.
            on_error: As for `map`.
            progress: As for `map`.
            system: A system prompt of all of them.
            options: As for `map`.

        Returns:
            The answers; a notebook shows them as a table of rows and prompts, `.frame` is a frame
            with the columns of `map` for each prompt, `.summary` has the numbers of each.

        Raises:
            RequestError: An argument is not valid; nothing was computed.
            Interrupted: `.partial` is the grid with the answers so far.
        """
        if not isinstance(prompts, Mapping):
            listed = [prompts] if isinstance(prompts, str) else list(prompts)
            prompts = {f"prompt_{n}": source for n, source in enumerate(listed, 1)}
        if not prompts:
            raise RequestError("prompts is empty; give one template or more")
        asked = {
            name: Question(self, source, system, None, options) for name, source in prompts.items()
        }
        return answer_grid(rows, asked, cache, _strict(on_error), progress)


def _strict(on_error: object) -> bool:
    if on_error not in ("keep", "raise"):
        raise RequestError(f"on_error is {shown(on_error)}; it must be 'keep' or 'raise'")
    return on_error == "raise"
