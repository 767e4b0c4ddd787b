"""The methods of `LLM` that look into a model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..arguments import PromptLike, as_chat, as_prompt, build_request, shown
from ..chat.reply import Reply
from ..errors import RequestError
from ..events import Message, Sampling
from ..provider import Provider, Request, inside_of
from ..taps import Key, Positions, Taps, as_edits
from .inspection import Inspection
from .lab import Lab, lab
from .steering import ControlVector, train
from .strengths import Strengths, strengths


class LookInside:
    """The part of `LLM` that looks into the model. Only models in this process can be looked into;
    others raise UnsupportedError."""

    provider: Provider

    def inspect(
        self,
        prompt: PromptLike | Reply,
        read: Key | Sequence[Key] = "blocks.*.hook_resid_post",
        positions: Positions = None,
        *,
        system: str | None = None,
        edit: object = (),
        max_mb: int = 1024,
    ) -> Inspection:
        """Evaluate a text and record activations, as numpy arrays by the names of TransformerLens.

        They are computed on the file as it is, quantised, with the bits of any other evaluation.

        Args:
            prompt: A text, token ids, messages, or a reply (its prompt and its answer).
            read: Names, with `*` for any block: "blocks.*.hook_resid_post", ("pattern", 5). See
                `Inspection` for names and shapes.
            positions: Positions that are recorded; negative ones count from the end. None: all.
            system: A system prompt before the messages; a text becomes a message.
            edit: What is changed while it is evaluated, as in `complete`.
            max_mb: Most megabytes that the record may take.

        Raises:
            RequestError: A name, a position or an edit is wrong, or the record would be too large;
                nothing was computed.
            UnsupportedError: The model cannot be looked into.
        """
        inside = inside_of(self.provider)
        ids = self._ids_of(prompt, system)
        found = inside.capture(ids, Taps(read, positions, max_mb), as_edits(edit))
        return Inspection(found, self.provider.model)

    def _ids_of(self, prompt: PromptLike | Reply, system: str | None = None) -> tuple[int, ...]:
        """The tokens that the model gets for a prompt."""
        if isinstance(prompt, Reply):
            if not prompt.prompt_ids:
                raise RequestError("the reply does not hold its prompt, so it cannot be inspected")
            said = (token.id for token in prompt.tokens)
            return (*prompt.prompt_ids, *(i for i in said if i is not None))
        read = as_prompt(prompt) if system is None else as_chat(prompt, system)
        return self.provider.render(Request(read)).ids

    def steering(
        self,
        positive: Sequence[str | Sequence[Message]],
        negative: Sequence[str | Sequence[Message]],
        method: str = "pca_diff",
        *,
        layers: Sequence[int] | None = None,
    ) -> ControlVector:
        """Make a control vector from texts that show something and texts that show its opposite.

        `llm.chat(..., edit=vector * 8)` steers an answer by it.

        Args:
            positive: Texts (or messages) that show it.
            negative: As many that show the opposite; pairs differ best in nothing else.
            method: "pca_diff": the main direction of the differences; "mean_diff": their mean.
            layers: Blocks that get a direction; None: all but the first.

        Returns:
            Directions of length 1 that point from `negative` to `positive`; `.save(path)` writes
            llama.cpp's file.
        """
        inside = inside_of(self.provider)
        if isinstance(positive, str) or isinstance(negative, str) or not positive:
            raise RequestError("positive and negative are lists of texts, at least one each")
        if len(positive) != len(negative):
            raise RequestError(
                f"positive has {len(positive)} texts and negative {len(negative)}: they are pairs"
            )
        pairs = [
            (self._ids_of(a), self._ids_of(b)) for a, b in zip(positive, negative, strict=True)
        ]
        hint = getattr(inside, "architecture", "")
        return train(inside, pairs, method, layers, str(hint))

    def sampling_lab(
        self, prompt: PromptLike, *, system: str | None = None, **settings: Any
    ) -> Lab:
        """What the sampler leaves of the distribution behind a prompt, step by step.

        Args:
            prompt: A text, token ids or messages.
            system: A system prompt before the messages.
            settings: Sampling settings, such as temperature=0.7, top_k=40 or min_p=0.05.

        Raises:
            RequestError: A setting is unknown or not valid.
        """
        inside = inside_of(self.provider)
        request = build_request("", Sampling(), settings)
        if request != Request("", sampling=request.sampling):
            raise RequestError(f"the lab takes sampling settings only, not {shown(settings)}")
        return lab(inside, self._ids_of(prompt, system), request.sampling)

    def strengths(
        self,
        prompt: PromptLike,
        vector: ControlVector,
        scales: Sequence[float] = (-8.0, -4.0, 0.0, 4.0, 8.0),
        *,
        chat: bool = True,
        **options: Any,
    ) -> Strengths:
        """Answer one prompt at several strengths of a control vector, in one batch.

        Args:
            prompt: A text, or messages.
            vector: The control vector; its own scale is multiplied by each strength.
            scales: The strengths.
            chat: Whether a text is a message of the user; else it is continued.
            options: As for `chat`; greedy unless a temperature is given.

        Returns:
            The answers, side by side; `.explore()` has a slider.
        """
        inside_of(self.provider)
        if not isinstance(vector, ControlVector) or not len(tuple(scales)):
            raise RequestError("strengths needs a control vector and at least one strength")
        asked: Any = as_chat(prompt, None) if chat and isinstance(prompt, str) else prompt
        found = strengths(self, asked, vector, scales, {"temperature": 0, **options})
        return replace(found, prompt=prompt) if isinstance(prompt, str) else found

    def control_vector(self, path: str) -> ControlVector:
        """Read a control vector of llama.cpp or repeng; checked against this model's width.

        Args:
            path: The GGUF file.
        """
        vector = ControlVector.load(path)
        dim, n = inside_of(self.provider).anatomy.dim, inside_of(self.provider).anatomy.n_layers
        block, direction = next(iter(vector.directions.items()))
        if len(direction) != dim or max(vector.directions) >= n:
            raise RequestError(
                f"{path} has directions of {len(direction)} numbers up to block "
                f"{max(vector.directions)}, and this model has {n} blocks of {dim}: it was made "
                f"for another model ({vector.model or 'unknown'}; block {block})"
            )
        return vector
