"""A model of this process for lm-evaluation-harness, without a server between them.

    from lm_eval import simple_evaluate
    from llm_magic.harness import HarnessModel

    simple_evaluate(HarnessModel("smollm2"), tasks=["my_task"])

Comes in: the harness's requests (contexts, continuations, texts). Goes out: sums of exact
log-probabilities, and texts. Needs the extra `evaluate`. It must not know any task.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from .errors import LLMError, RequestError, UnsupportedError
from .hub import hub
from .llm import LLM
from .provider import BatchScoring, Request

DEFAULT_TOKENS = 256  # of an answer whose task sets no limit
Scored = tuple[float, bool]  # the sum of a continuation's logprobs; whether greedy would write it


class Instance(Protocol):
    """A request of the harness."""

    @property
    def args(self) -> tuple[Any, ...]: ...


class HarnessModel(TemplateLM):  # type: ignore[misc]  # the harness has no types
    """One loaded model as the harness's language model.

    Args:
        model: A name or path, as `llm_magic.load` takes it, or an LLM.
        ctx: Context in tokens; None: as loaded.
    """

    def __init__(self, model: str | LLM | None = None, ctx: int | None = None) -> None:
        super().__init__()
        self.llm = model if isinstance(model, LLM) else hub.load(model, ctx=ctx)
        status = self.llm.provider.status()
        self.max_length = int(getattr(status, "ctx", 2048))
        names: Mapping[str, str] = getattr(self.llm.provider, "special_tokens", dict)()
        ends = names.get("eos") or names.get("bos")
        if ends is None:
            raise UnsupportedError("evaluate", f"{self.llm.model!r} has no token that ends a text")
        self._end = self.llm.tokenize(ends)[-1].id
        # What stands before a text without a context, as the harness has it for other models.
        self._start = self.llm.tokenize(names.get("bos") or ends)[-1].id

    @property
    def eot_token_id(self) -> int:
        return self._end

    @property
    def prefix_token_id(self) -> int:
        return self._start

    @property
    def tokenizer_name(self) -> str:
        return self.llm.model.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The model's own template, for the record of a run."""
        source = getattr(self.llm.provider, "template_source", lambda: None)()
        return str(source or "")

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        return self.llm.render(list(chat_history)).text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: object
    ) -> list[int]:
        """Ids of a text. None: with the start token where the model wants one and has none yet."""
        ids = [piece.id for piece in self.llm.tokenize(string)]
        if add_special_tokens is False:
            return ids
        start = list(self.llm.provider.render(Request("")).ids)
        return ids if ids[: len(start)] == start else start + ids

    # ------------------------------------------------------------------ scoring

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[object, list[int], list[int]]], **kwargs: object
    ) -> list[Scored]:
        """Each continuation behind its context, as ids; several are evaluated in one step."""
        provider = self.llm.provider
        pairs = [self._cut(context, answer) for _, context, answer in requests]
        if not isinstance(provider, BatchScoring):
            return [self._scored(context, answer) for context, answer in pairs]
        found: list[Scored] = []
        for scores in provider.score_continuations(pairs):
            if isinstance(scores, LLMError):
                raise scores
            found.append((scores.logprob, scores.greedy))
        return found

    def _cut(self, context: Sequence[int], answer: Sequence[int]) -> tuple[list[int], list[int]]:
        """A context and its continuation, without what does not fit before their end."""
        if not answer:
            raise RequestError("a continuation without tokens cannot be scored")
        ids = [*context, *answer][-self.max_length :]
        n = min(len(answer), len(ids) - 1)
        return ids[:-n], ids[-n:]

    def _scored(self, context: Sequence[int], answer: Sequence[int]) -> Scored:
        tokens = self.llm.provider.score([*context, *answer], 1)[-len(answer) :]
        logprob = math.fsum(-math.inf if t.logprob is None else t.logprob for t in tokens)
        return logprob, all(token.rank == 1 for token in tokens)

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        return [self._rolling(*request.args) for request in requests]

    def _rolling(self, text: str) -> float:
        windows: Iterator[tuple[list[int], list[int]]] = map(
            make_disjoint_window,
            get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length - 1,
                context_len=1,
            ),
        )
        parts = self._loglikelihood_tokens([(None, *window) for window in windows])
        return math.fsum(logprob for logprob, _ in parts)

    # ------------------------------------------------------------------ writing

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        return [self._written(*request.args) for request in requests]

    def _written(self, context: str, settings: Mapping[str, Any]) -> str:
        options = dict(settings)
        until = options.pop("until", None) or ()
        sampled = options.pop("do_sample", None)
        most = options.pop("max_gen_toks", options.pop("max_tokens", DEFAULT_TOKENS))
        temperature = options.pop("temperature", 0.0) if sampled is not False else 0.0
        ids = self.tok_encode(context)[-(self.max_length - int(most)) :]
        reply = self.llm.complete(
            ids, temperature=temperature, max_tokens=most, **options,
            stop=[until] if isinstance(until, str) else [text for text in until if text],
        )  # fmt: skip
        return str(reply.text)
