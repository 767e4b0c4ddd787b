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
└── EngineError              generation failed inside the engine; the cause is chained

Interrupted (KeyboardInterrupt, not an LLMError: `except Exception` must not swallow it)
"""

from typing import Any

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
    """The prompt does not fit the context window. Nothing was computed, no cache was touched."""

    def __init__(self, n_prompt: int, n_ctx: int, way_out: str = "") -> None:
        hint = way_out or "shorten the prompt, or load the model with a larger ctx"
        super().__init__(f"prompt has {n_prompt} tokens, context is {n_ctx}: {hint}")
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
