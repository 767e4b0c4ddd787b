"""Our own errors as one red line: the traceback of the extension would only hide the message."""

from collections.abc import Iterator
from contextlib import contextmanager

from llm_magic.errors import ContextOverflowError, EngineError, Interrupted, LLMError

from .session import Notebook


@contextmanager
def brief_errors(nb: Notebook) -> Iterator[None]:
    """Show errors raised inside without a traceback; `%xmode Verbose` brings it back.

    An EngineError keeps its traceback: it is a fault of the engine.
    """
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt:  # for example between a load and its stream
        raise Interrupted("interrupted") from None
    except LLMError as error:
        verbose = getattr(nb.shell.InteractiveTB, "mode", "") == "Verbose"
        if not isinstance(error, EngineError) and not verbose:
            message = str(error)
            if isinstance(error, ContextOverflowError):  # it names Python arguments
                message = message.replace("ctx=N", f"%{nb.magic_name} load --ctx N")
                message = message.replace("trim=True", "--trim")
            line = f"\x1b[31m{type(error).__name__}\x1b[39m: {message}"
            error._render_traceback_ = lambda: [line]  # type: ignore[attr-defined]
        raise
