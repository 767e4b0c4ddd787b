"""The exception tree.

LLMError                     .partial: the Reply so far, when a generation failed half way
├── ModelError               a model cannot be had or used
│   ├── ModelNotFoundError   (FileNotFoundError) no such name, file or folder
│   ├── DownloadError        it could not be fetched, or its checksum is wrong
│   ├── GGUFError            (ValueError) the file is damaged or hostile; names field and offset
│   └── UnsupportedModelError  architecture, quant type or tokenizer that we do not have
├── NotLoadedError           no model is loaded, or it was unloaded
├── DeviceError              the tinygrad device does not exist or does not work
│   └── CompilerError        no C compiler was found for the CPU device
├── RequestError             (ValueError) a parameter is wrong; nothing was computed
│   ├── ContextOverflowError .n_prompt, .n_ctx
│   ├── TemplateError        the chat template refused the messages; .index of the culprit
│   ├── SchemaError          a constraint cannot be used; .path in the schema
│   └── InterpolationError   an unknown name inside {{ }}
├── ToolError                a tool definition cannot be used
├── UnsupportedError         (NotImplementedError) this provider lacks .capability
├── RemoteError              a server failed; .status, .code, .kind, .transient, .rebuild
│   ├── RemoteConnectionError   it cannot be reached, or the connection broke
│   └── DeadlineError        the time that a request was given is over
└── EngineError              generation failed inside the engine; the cause is chained

Interrupted (KeyboardInterrupt, not an LLMError: `except Exception` must not swallow it)
"""

from typing import Any, Literal

from .utf8 import for_terminal, whole


def named(error: BaseException) -> str:
    """An error of unknown origin in one line: its class, and its text if it has one.

    >>> named(ValueError("no such row"))
    'ValueError: no such row'
    """
    try:
        text = whole(str(error)).strip()
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _plain(text: str) -> str:
    return for_terminal(whole(text))


class LLMError(Exception):
    """Base of all errors of llm_magic. `partial` is the Reply up to the failure, or None."""

    partial: Any = None

    def __init__(self, *args: object) -> None:
        # A sentence may quote a file, a template or a server: it becomes valid UTF-8, and control
        # characters, which a terminal would obey, become visible.
        super().__init__(*(_plain(arg) if isinstance(arg, str) else arg for arg in args))


class ModelError(LLMError):
    pass


class ModelNotFoundError(ModelError, FileNotFoundError):
    # OSError.__str__ reformats its arguments; ours is one sentence.
    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class DownloadError(ModelError):
    pass


class GGUFError(ModelError, ValueError):
    pass


class UnsupportedModelError(ModelError):
    pass


class ModelWarning(UserWarning):
    """A model file leaves something open that answers depend on; the text says what is assumed."""


class NotLoadedError(LLMError):
    pass


class DeviceError(LLMError):
    pass


class CompilerError(DeviceError):
    pass


class RequestError(LLMError, ValueError):
    pass


class ContextOverflowError(RequestError):
    """The prompt does not fit the context window. Nothing was computed, no cache was touched.

    Attributes:
        n_prompt: Tokens of the prompt; 0 where a server did not say.
        n_ctx: Tokens of the window; 0 where a server did not say.
    """

    def __init__(self, n_prompt: int, n_ctx: int, way_out: str = "", said: str = "") -> None:
        hint = way_out or "shorten the prompt, or load the model with a larger ctx"
        found = said or f"prompt has {n_prompt} tokens, context is {n_ctx}"
        super().__init__(f"{found}: {hint}")
        self.n_prompt, self.n_ctx = n_prompt, n_ctx


class TemplateError(RequestError):
    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class SchemaError(RequestError):
    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class InterpolationError(RequestError):
    pass


class ToolError(LLMError):
    pass


class UnsupportedError(LLMError, NotImplementedError):
    def __init__(self, capability: str, message: str = "") -> None:
        super().__init__(message or f"this model provider has no {capability}")
        self.capability = capability


FailureKind = Literal[
    "busy", "server", "connection", "capacity", "port", "access", "request", "deadline", "unknown"
]


class RemoteError(LLMError):
    """A server answered with an error, or did not answer.

    Attributes:
        kind: What failed: "busy" (too many requests), "server" (502, 503, 504), "connection",
            "capacity" (the server has no memory for its model), "port" (it could not take its
            port), "access" (no or a wrong key), "request" (it refuses what was asked for),
            "deadline" or "unknown".
        status: The HTTP status; None where there was none.
        code: The server's own code, such as "model_not_found"; None where there was none.
        retry_after: Seconds that the server asked to wait; None where it did not.
    """

    def __init__(
        self,
        message: str,
        kind: FailureKind = "unknown",
        status: int | None = None,
        code: str | int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.status, self.code, self.retry_after = kind, status, code, retry_after

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed a little later.

        >>> RemoteError("too many requests", "busy").transient
        True
        """
        return self.kind in ("busy", "server", "connection")

    @property
    def rebuild(self) -> bool:
        """Whether the server must be started anew, with less memory or on another port."""
        return self.kind in ("capacity", "port")


class RemoteConnectionError(RemoteError):
    def __init__(self, message: str, kind: FailureKind = "connection") -> None:
        super().__init__(message, kind)


class DeadlineError(RemoteError):
    """The total time of a request, or of one of its phases, is over. The server may be healthy."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "deadline")


class EngineError(LLMError):
    pass


class Interrupted(KeyboardInterrupt):
    """The user interrupted a generation. `partial` is the Reply up to there.

    A KeyboardInterrupt, so that the cell fails and the cells queued behind it do not run.
    """

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial

    def _render_traceback_(self) -> list[str]:
        return [f"Interrupted: {self.args[0]}"]  # IPython shows this instead of a stack
