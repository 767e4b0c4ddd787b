"""What a client asks for: the body of a request as requests for the model.

Fields are OpenAI's; beside them stand the names that llama.cpp's server and vLLM have for what this
engine can do too. A field that nobody knows is refused, since the answer would not be what was
asked for; fields that cannot change an answer are accepted and ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..arguments import as_prompt, build_request
from ..errors import LLMError
from ..events import Message, Sampling, as_messages
from ..llm import LLM
from ..provider import Prompt, Request, require
from ..sampling import FIELDS
from .body import Body
from .problems import ApiError, bad, problem

COMPLETION_TOKENS = 16  # what OpenAI's completions write unless asked for more
MOST_CHOICES = 128
MOST_ALTERNATIVES = 100  # logprobs of a token
ROLES = ("system", "developer", "user", "assistant", "tool")

IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "id_slot", "timings_per_token", "reasoning_format"),
)
OTHER_NAMES = {  # how other servers call fields of ours
    "repetition_penalty": "repeat_penalty",
    "dry_penalty_last_n": "dry_last_n",
    "dry_sequence_breakers": "dry_breakers",
    "n_predict": "max_tokens",
    "cache_prompt": "reuse",
}
CONSTRAINTS = {  # field -> option of a request, the stronger first
    "grammar": "grammar",
    "guided_grammar": "grammar",
    "json_schema": "schema",
    "guided_json": "schema",
    "guided_regex": "regex",
    "guided_choice": "choices",
}
STRUCTURED = {"grammar": "grammar", "json": "schema", "regex": "regex", "choice": "choices"}
COMMON = {
    *("model", "stream", "stream_options", "n", "max_completion_tokens", "response_format"),
    *("structured_outputs", "return_progress", "logprobs"),
    *FIELDS, *IGNORED, *OTHER_NAMES, *CONSTRAINTS,
}  # fmt: skip
CHAT_FIELDS = COMMON | {
    *("messages", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls"),
    *("reasoning_effort", "chat_template_kwargs", "modalities"),
}
TEXT_FIELDS = COMMON | {"prompt", "echo", "suffix", "best_of", "return_token_ids"}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks for.

    Attributes:
        requests: One for each prompt.
        n: How many answers of each prompt are sent.
        drawn: How many are made; the most likely n are sent.
        stream: Whether they are sent while they are written.
        usage: Whether a stream ends with the numbers of tokens.
        logprobs: How many alternatives each token is sent with; None: no logprobs at all.
        progress: Whether a stream tells how much of the prompt is evaluated.
        one_call: Whether an answer ends behind its first tool call.
        ids: Whether the logprobs of a completion name the ids and bytes of its tokens too.
    """

    requests: tuple[Request, ...]
    n: int = 1
    drawn: int = 1
    stream: bool = False
    usage: bool = False
    logprobs: int | None = None
    progress: bool = False
    one_call: bool = False
    ids: bool = False

    def choices(self) -> list[Request]:
        """Every answer to be made, the prompts in order."""
        return [_seeded(request, i) for request in self.requests for i in range(self.drawn)]


def _seeded(request: Request, i: int) -> Request:
    seed = request.sampling.seed
    if seed is None or i == 0:
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed + i))


# ----------------------------------------------------------------------------- the two routes


def chat(body: Body, llm: LLM) -> Ask:
    """The body of /v1/chat/completions. ApiError if it cannot be answered."""
    body.only(CHAT_FIELDS)
    if body.listed("modalities") not in ([], ["text"]):
        raise bad("this server answers with text only", "modalities")
    options = _options(body, Sampling())
    options |= _thinking(body)
    tools = [_tool(i, tool) for i, tool in enumerate(body.listed("tools"))]
    if tools:
        options["tools"] = tools
    if (choice := body.get("tool_choice")) is not None and (tools or choice != "auto"):
        options["tool_choice"] = choice
    wanted = body.flag("logprobs")
    top = body.between("top_logprobs", 0, 0, MOST_ALTERNATIVES)
    if top and not wanted:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    logprobs = top if wanted else None
    messages = _messages(body)
    # The whole window is the budget of a chat: the answer ends where the model ends it.
    request = _built(llm, messages, Sampling(temperature=0.0), options, logprobs)
    one_call = not body.flag("parallel_tool_calls", True)
    return replace(_ask(body, (request,), logprobs), one_call=one_call)


def text(body: Body, llm: LLM) -> Ask:
    """The body of /v1/completions. ApiError if it cannot be answered."""
    body.only(TEXT_FIELDS)
    options = _options(body, Sampling())
    options |= {"echo": body.flag("echo"), "suffix": body.text("suffix")}
    logprobs = None
    if "logprobs" in body.fields:
        logprobs = body.between("logprobs", 0, 0, MOST_ALTERNATIVES)
    default = Sampling(temperature=0.0, max_tokens=COMPLETION_TOKENS)
    prompts = _prompts(body.get("prompt"))
    requests = tuple(_built(llm, prompt, default, options, logprobs) for prompt in prompts)
    ask = _ask(body, requests, logprobs)
    drawn = body.between("best_of", ask.n, 1, MOST_CHOICES)
    if drawn < ask.n:
        raise bad(f"best_of is {drawn}; it must not be less than n", "best_of")
    if drawn > ask.n and ask.stream:
        raise bad("best_of cannot be streamed: the best are known at the end", "best_of")
    return replace(ask, drawn=drawn, ids=body.flag("return_token_ids"))


def _ask(body: Body, requests: tuple[Request, ...], logprobs: int | None) -> Ask:
    stream = body.flag("stream")
    options = body.inner("stream_options")
    if options.fields and not stream:
        raise bad("stream_options needs stream: true", "stream_options")
    n = body.between("n", 1, 1, MOST_CHOICES)
    if n * len(requests) > MOST_CHOICES:
        raise bad(f"{n * len(requests)} answers at once; the most is {MOST_CHOICES}", "n")
    return Ask(
        requests, n, n, stream, options.flag("include_usage"), logprobs,
        body.flag("return_progress"),
    )  # fmt: skip


def _built(
    llm: LLM, prompt: Prompt, default: Sampling, options: Mapping[str, object],
    logprobs: int | None,
) -> Request:  # fmt: skip
    try:
        request = build_request(prompt, default, {**options, "logprobs": logprobs})
        require(llm.provider, *request.needs)
    except LLMError as e:
        raise problem(e) from e
    return request


# ----------------------------------------------------------------------------- options


def _options(body: Body, unset: Sampling) -> dict[str, object]:
    """Sampling settings and the constraint, by the names of `LLM.stream`."""
    found = {name: body.fields[name] for name in FIELDS if name in body.fields}
    for name, ours in OTHER_NAMES.items():
        if name in body.fields:
            found.setdefault(ours, body.fields[name])
    if (most := body.get("max_completion_tokens")) is not None:
        found["max_tokens"] = most
    if "logit_bias" in found:
        found["logit_bias"] = _bias(body.inner("logit_bias"))
    if (constraint := _constraint(body)) is not None:
        found[constraint[0]] = constraint[1]
    return found


def _bias(biases: Body) -> dict[int | str, object]:
    """OpenAI's keys are ids written as text."""
    return {int(k) if k.lstrip("-").isdigit() else k: v for k, v in biases.fields.items()}


def _constraint(body: Body) -> tuple[str, object] | None:
    """A grammar beats a schema, and a schema of its own beats response_format."""
    for name, option in CONSTRAINTS.items():
        if name in body.fields:
            return option, body.fields[name]
    structured = body.inner("structured_outputs")
    structured.only(STRUCTURED)
    for name, option in STRUCTURED.items():
        if name in structured.fields:
            return option, structured.fields[name]
    form = body.inner("response_format")
    kind = form.one_of("type", "text", "json_object", "json_schema")
    if kind == "text":
        return None
    if kind == "json_object":
        return "schema", form.fields.get("schema", {"type": "object"})
    schema = form.inner("json_schema").get("schema")
    if schema is None:
        raise bad(
            'response_format of type json_schema needs {"json_schema": {"schema": ...}}',
            "response_format",
        )
    return "schema", schema


def _thinking(body: Body) -> dict[str, object]:
    """Whether the model should reason, and further variables of its template."""
    kwargs = dict(body.inner("chat_template_kwargs").fields)
    found: dict[str, object] = {}
    if (effort := body.get("reasoning_effort")) is not None:
        found["thinking"] = effort != "none"
        kwargs.setdefault("reasoning_effort", effort)
    if isinstance(wanted := kwargs.pop("enable_thinking", None), bool):
        found["thinking"] = wanted
    if kwargs:
        found["template_kwargs"] = kwargs
    return found


# ----------------------------------------------------------------------------- prompts


def _messages(body: Body) -> tuple[Message, ...]:
    listed = body.listed("messages")
    if not listed:
        raise bad("messages is empty; a chat needs at least one message", "messages")
    for i, message in enumerate(listed):
        _check_message(i, message)
    try:
        messages = as_messages(listed)  # type: ignore[arg-type]  # each was checked
    except ValueError as e:
        raise bad(str(e), "messages") from None
    return tuple(replace(m, role="system") if m.role == "developer" else m for m in messages)


def _check_message(i: int, message: object) -> None:
    where = f"messages[{i}]"
    if not isinstance(message, Mapping):
        raise bad(f"{where} is not an object", "messages")
    role = message.get("role")
    if role not in ROLES:
        raise bad(f"{where}.role is {role!r:.80}; it must be one of {', '.join(ROLES)}", "messages")
    if role == "tool" and not message.get("tool_call_id"):
        raise bad(f"{where} has no tool_call_id: which call does it answer?", "messages")
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise bad(f"{where} has a part of type {kind!r:.80}; the model reads text", "messages")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise bad(f"{where}.tool_calls is not a list", "messages")
    for j, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not function.get("name") or not call.get("id"):
            raise bad(f"{where}.tool_calls[{j}] needs an id and the name of a function", "messages")
        if call.get("type", "function") != "function":
            raise bad(f"{where}.tool_calls[{j}] is not of type function", "messages")


def _tool(i: int, tool: object) -> object:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise bad(f"tools[{i}] is not of type function", "tools")
    if not isinstance(function, Mapping) or not function.get("name"):
        raise bad(f"tools[{i}] has no function with a name", "tools")
    return tool


def _prompts(value: object) -> list[Prompt]:
    """A text, texts, token ids, or lists of token ids."""
    if value is None:
        raise bad("prompt is missing", "prompt")
    several = isinstance(value, list) and value and isinstance(value[0], str | list)
    items = value if isinstance(value, list) and several else [value]
    if len(items) > MOST_CHOICES:
        raise bad(f"{len(items)} prompts at once; the most is {MOST_CHOICES}", "prompt")
    return [_prompt(item) for item in items]


def _prompt(value: object) -> Prompt:
    ids = isinstance(value, list) and all(type(i) is int for i in value)
    if not ids and not isinstance(value, str):
        raise ApiError(
            400, "prompt must be a text, a list of texts, token ids, or lists of them",
            param="prompt",
        )  # fmt: skip
    return as_prompt(value)
