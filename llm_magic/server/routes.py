"""What a server answers: its paths, and what stands behind each."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..json_types import JsonObject
from ..llm import LLM
from . import asks, decided, page, tokens, vectors
from .answers import Answer, Kitchen
from .body import Body
from .floor import on_thread
from .guard import Access, Guard
from .problems import FAILED, ApiError, problem
from .stats import Stats

Endpoint = Callable[[Request], Awaitable[ASGIApp]]


def application(kitchen: Kitchen, access: Access) -> ASGIApp:
    """The ASGI application of one server."""
    routes = _Routes(kitchen, int(time.time()))
    paths: dict[tuple[str, str], Callable[[Request], Awaitable[Response | Answer]]] = {
        ("POST", "/v1/chat/completions"): routes.chat,
        ("POST", "/v1/completions"): routes.text,
        ("POST", "/v1/embeddings"): routes.embeddings,
        ("POST", "/v1/decisions"): routes.decisions,
        ("POST", "/v1/systemone"): routes.system_one,
        ("POST", "/v1/rerank"): routes.rerank,
        ("POST", "/rerank"): routes.rerank,
        ("GET", "/v1/models"): routes.models,
        ("GET", "/v1/models/{name:path}"): routes.model,
        ("GET", "/v1/{rest:path}"): routes.unknown,
        ("POST", "/tokenize"): routes.tokenize,
        ("POST", "/detokenize"): routes.detokenize,
        ("POST", "/apply-template"): routes.apply_template,
        ("GET", "/tokenizer_info"): routes.tokenizer_info,
        ("GET", "/health"): routes.health,
        ("GET", "/metrics"): routes.metrics,
        ("GET", "/{rest:path}"): routes.page,
        ("POST", "/{rest:path}"): routes.unknown,
    }
    app = Starlette(
        routes=[
            Route(path, _answering(endpoint), methods=[method])
            for (method, path), endpoint in paths.items()
        ],
        exception_handlers={HTTPException: _http_error},
    )
    app.router.redirect_slashes = False
    known = {path for _, path in paths if "{" not in path}
    return Guard(_counted(app, kitchen.stats, known), access)


@dataclass(frozen=True, slots=True)
class _Routes:
    kitchen: Kitchen
    created: int

    @property
    def _llm(self) -> LLM:
        return self.kitchen.llm

    async def _body(self, request: Request) -> Body:
        """The body, for the model that is here."""
        body = Body.read(await request.body())
        self._check_model(body.text("model") or self.kitchen.name)
        return body

    def _check_model(self, name: str) -> None:
        if name not in (self.kitchen.name, self._llm.model):
            raise ApiError(
                404,
                f"the model {name!r:.100} is not here; this server has {self.kitchen.name!r}",
                code="model_not_found",
                param="model",
            )

    async def chat(self, request: Request) -> Answer:
        body = await self._body(request)
        return Answer(self.kitchen, "chat", await on_thread(lambda: asks.chat(body, self._llm)))

    async def text(self, request: Request) -> Answer:
        body = await self._body(request)
        return Answer(self.kitchen, "text", await on_thread(lambda: asks.text(body, self._llm)))

    async def embeddings(self, request: Request) -> Response:
        body, name = await self._body(request), self.kitchen.name
        return await self._engine(lambda: vectors.embeddings(body, self._llm, name))

    async def rerank(self, request: Request) -> Response:
        body, name = await self._body(request), self.kitchen.name
        return await self._engine(lambda: vectors.rerank(body, self._llm, name))

    async def decisions(self, request: Request) -> Response:
        body, name = await self._body(request), self.kitchen.name
        return await self._engine(lambda: decided.openai(body, self._llm, name))

    async def system_one(self, request: Request) -> Response:
        body, name = await self._body(request), self.kitchen.name
        return await self._engine(lambda: decided.system_one(body, self._llm, name))

    async def _engine(self, function: Callable[[], JsonObject]) -> Response:
        return _json(await self.kitchen.floor.call(function))

    async def tokenize(self, request: Request) -> Response:
        body = await self._body(request)
        return _json(await on_thread(lambda: tokens.tokenize(body, self._llm)))

    async def detokenize(self, request: Request) -> Response:
        body = await self._body(request)
        return _json(await on_thread(lambda: tokens.detokenize(body, self._llm)))

    async def apply_template(self, request: Request) -> Response:
        body = await self._body(request)
        return _json(await on_thread(lambda: tokens.apply_template(body, self._llm)))

    async def tokenizer_info(self, request: Request) -> Response:
        return _json(tokens.info(self._llm))

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._about()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return _json(self._about())

    def _about(self) -> JsonObject:
        return {
            "id": self.kitchen.name,
            "object": "model",
            "created": self.created,
            "owned_by": "llm_magic",
            "max_model_len": tokens.window(self._llm),
        }

    async def health(self, request: Request) -> Response:
        if self._llm.provider.closed:
            raise ApiError(503, "the model was unloaded", FAILED, "model_not_loaded")
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        floor = self.kitchen.floor
        text = self.kitchen.stats.text(floor.running, floor.waiting)
        return Response(text, media_type="text/plain; version=0.0.4")

    async def page(self, request: Request) -> Response:
        return Response(page.PAGE, media_type="text/html", headers=page.HEADERS)

    async def unknown(self, request: Request) -> Response:
        path = request.url.path
        raise ApiError(404, f"there is no {request.method} {path:.100} here", code="not_found")


def _answering(
    endpoint: Callable[[Request], Awaitable[Response | Answer]],
) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint whose errors are answers."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)  # type: ignore[return-value]  # any ASGI application
        except Exception as e:
            error = problem(e)
            return _json(error.body(), error.status, error.headers)

    return answer


async def _http_error(request: Request, error: Exception) -> Response:
    """A method that no path has."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    said = f"{request.method} {request.url.path:.100} is not possible here"
    return _json(ApiError(status, said).body(), status)


def _json(
    data: JsonObject, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    body = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(body, status, headers, "application/json")


def _counted(app: ASGIApp, stats: Stats, known: set[str]) -> ASGIApp:
    """Counts every answer by path and status; a path that is not ours counts as "other"."""

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["path"] in known else "other"

        async def out(message: Message) -> None:
            if message["type"] == "http.response.start":
                stats.request(path, message["status"])
            await send(message)

        await app(scope, receive, out)

    return counted
