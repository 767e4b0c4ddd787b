"""What an evaluation found: each item, and what all of them say together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..chat.view_protocols import Bundle, MimeTypes
from ..extension_points import NUMBER_VIEWS
from . import metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Item:
    """One row that was asked.

    Attributes:
        row: Its number, from 0.
        label: The right choice; None where it has an error.
        choice: What the model chose: the greatest log-probability of a whole choice.
        choice_norm: The same with log-probabilities divided by the bytes of their choice; None
            where the choices were shown in a chat.
        probabilities: The probability of each choice; they sum to 1.
        logprobs: The natural log of each whole choice's probability; of a chat, of its share among
            the choices.
        error: What was wrong with this row; None: nothing.
    """

    row: int
    label: str | None = None
    choice: str | None = None
    choice_norm: str | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict)
    logprobs: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    @property
    def correct(self) -> bool:
        return self.choice is not None and self.choice == self.label

    @property
    def correct_norm(self) -> bool:
        return self.choice_norm is not None and self.choice_norm == self.label

    @property
    def confidence(self) -> float:
        """The greatest probability of a choice."""
        return max(self.probabilities.values(), default=0.0)


@dataclass(frozen=True)
class Evaluation:
    """The report of `LLM.evaluate`.

    Attributes:
        items: Every row, in order, with its probabilities or its error.
        model: The name of the model.
        shots: How many solved examples stood before each row.
        chat: Whether the rows were questions of a chat, or texts to continue.

    >>> found = Evaluation((
    ...     Item(0, "a", "a", "b", {"a": 0.9, "b": 0.1}),
    ...     Item(1, "b", "a", "b", {"a": 0.6, "b": 0.4}),
    ... ))
    >>> found.accuracy, found.accuracy_norm, round(found.brier, 2)
    (0.5, 0.5, 0.37)
    """

    items: tuple[Item, ...]
    model: str = ""
    shots: int = 0
    chat: bool = False

    @property
    def answered(self) -> tuple[Item, ...]:
        """The rows without an error."""
        return tuple(item for item in self.items if item.error is None)

    @property
    def errors(self) -> tuple[Item, ...]:
        """The rows with an error. No measure counts them."""
        return tuple(item for item in self.items if item.error is not None)

    @property
    def accuracy(self) -> float:
        """The share of right choices (`acc` of evaluation harnesses); NaN without rows."""
        return metrics.mean([item.correct for item in self.answered])

    @property
    def accuracy_error(self) -> float:
        """The standard error of `accuracy`."""
        return metrics.standard_error([item.correct for item in self.answered])

    @property
    def accuracy_norm(self) -> float | None:
        """The share of right choices by log-probability per byte (`acc_norm`); None of a chat."""
        if self.chat:
            return None
        return metrics.mean([item.correct_norm for item in self.answered])

    @property
    def calibration_error(self) -> float:
        """The expected calibration error (ECE) over ten bins of confidence."""
        return metrics.calibration_error(self.bins())

    @property
    def brier(self) -> float:
        """Brier's score over all choices: 0 is the best, 2 the worst."""
        return metrics.brier([i.probabilities for i in self.answered], self._labels)

    @property
    def log_loss(self) -> float:
        """The mean of -log p of the right choice, in nats."""
        return metrics.log_loss([i.probabilities for i in self.answered], self._labels)

    @property
    def _labels(self) -> list[str]:
        return [str(item.label) for item in self.answered]

    def bins(self, n: int = 10) -> tuple[metrics.Bin, ...]:
        """The rows by confidence, in n bins of equal width: how often what is said holds."""
        found = self.answered
        return metrics.reliability([i.confidence for i in found], [i.correct for i in found], n)

    def frame(self) -> Any:
        """A row for each item, as a frame of pandas (of polars where only that is installed)."""
        from ..tables.frames import rows_of

        rows = [
            {
                "row": item.row,
                "label": item.label,
                "choice": item.choice,
                "choice_norm": item.choice_norm,
                "correct": item.correct if item.error is None else None,
                "probability": item.confidence if item.error is None else None,
                "error": item.error,
            }
            for item in self.items
        ]
        return rows_of(rows).beside({})

    def plot(self, ax: "Axes | None" = None, dark: bool | None = None) -> "Axes":
        """The reliability diagram: accuracy over confidence, with the number of rows of each bin.

        Args:
            ax: Where to draw; None: a new figure.
            dark: Colours for dark pages; None: as matplotlib's settings say.
        """
        drawn: Axes = NUMBER_VIEWS.load().plot_reliability(self, ax, dark)
        return drawn

    def __repr__(self) -> str:
        norm = "" if self.accuracy_norm is None else f", acc_norm={self.accuracy_norm:.3f}"
        return (
            f"Evaluation(n={len(self.answered)}, errors={len(self.errors)}, "
            f"acc={self.accuracy:.3f}{norm}, ece={self.calibration_error:.3f}, "
            f"brier={self.brier:.3f})"
        )

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        bundle: Bundle = NUMBER_VIEWS.load().evaluation(self, include, exclude)
        return bundle
