"""Errors as a client of OpenAI's API reads them: a status and one JSON object."""

from collections.abc import Mapping

from ..errors import (
    ContextOverflowError,
    LLMError,
    NotLoadedError,
    RequestError,
    UnsupportedError,
    named,
)
from ..json_types import JsonObject

INVALID = "invalid_request_error"
FAILED = "server_error"
NO_RETRY = {"x-should-retry": "false"}  # the official client would ask again at once


class ApiError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: The HTTP status.
        message: What is wrong and what to do about it.
        kind: The field `type` of the answer.
        code: A word for programs; None without one.
        param: The field of the request that is meant; None for none.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
        self.code, self.param, self.headers = code, param, dict(headers or {})

    def body(self) -> JsonObject:
        """The JSON object of the answer.

        >>> ApiError(400, "n is 0", param="n").body()["error"]["param"]
        'n'
        """
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def bad(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request is wrong."""
    return ApiError(400, message, param=param, code=code)


def problem(error: BaseException) -> ApiError:
    """Whatever was raised as the error that the client gets.

    >>> problem(ContextOverflowError(5000, 4096)).code
    'context_length_exceeded'
    >>> problem(ValueError("odd")).status
    500
    """
    match error:
        case ApiError():
            return error
        case ContextOverflowError():
            return bad(str(error), "messages", "context_length_exceeded")
        case UnsupportedError():
            return ApiError(501, str(error), "not_supported_error", headers=NO_RETRY)
        case NotLoadedError():
            return ApiError(503, str(error), FAILED, "model_not_loaded", headers=NO_RETRY)
        case RequestError():
            return bad(str(error))
        case LLMError():
            return ApiError(500, str(error), FAILED, headers=NO_RETRY)
        case _:
            return ApiError(500, f"internal error: {named(error)}", FAILED, headers=NO_RETRY)
