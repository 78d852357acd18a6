"""What is asked about the HTTP side: where it listens, whom it lets in, how it speaks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from octavo.config.option import Doc


class ServerAsked(msgspec.Struct, frozen=True, kw_only=True):
    host: Annotated[
        str, Doc("Address to listen on. Other machines reach the server only with 0.0.0.0 or an address.")
    ] = "127.0.0.1"
    port: Annotated[int, Doc("Port to listen on; 0 = any free one.", ge=0, le=65535)] = 8000
    uds: Annotated[str | None, Doc("Listen on this Unix socket instead of host and port.", unset="off")] = (
        None
    )
    api_key: Annotated[
        tuple[str, ...],
        Doc(
            "Bearer tokens that are let in; guards every route but /health and /ping.",
            unset="OCTAVO_API_KEY, else open",
            secret=True,
        ),
    ] = ()
    chat_template: Annotated[
        str | None,
        Doc("File with a chat template, or the template itself on one line.", unset="the model's own"),
    ] = None
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        Doc("How a template gets a message's content: one string, or the list of its parts."),
    ] = "auto"
    trust_request_chat_template: Annotated[
        bool, Doc("Let a request bring a chat template of its own (it runs in the sandbox).")
    ] = False
    default_chat_template_kwargs: Annotated[
        dict[str, Any], Doc("Variables for the chat template that requests may override, as JSON.")
    ] = msgspec.field(default_factory=dict)
    enable_auto_tool_choice: Annotated[
        bool, Doc('Let the model choose to call tools (tool_choice "auto"); off: such requests are refused.')
    ] = True
    tool_call_parser: Annotated[
        str | None,
        Doc(
            "Format of the model's tool calls, by name; see docs/tools.md.",
            unset="found by the chat template",
        ),
    ] = None
    tool_strict_level: Annotated[
        Literal["auto", "function", "parameter"],
        Doc(
            "How much of a tool call follows a grammar at least. auto: what tool_choice and each tool's strict ask "
            "for; function: the envelope and the name; parameter: the arguments too."
        ),
    ] = "auto"
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Doc('Do not show tools to the model when tool_choice is "none".')
    ] = True
    reasoning_parser: Annotated[
        str | None,
        Doc("How the model thinks aloud, by name; see docs/tools.md.", unset="found by the chat template"),
    ] = None
    reasoning_content_alias: Annotated[
        bool, Doc("Send reasoning under its older name, reasoning_content, too.")
    ] = False
    response_role: Annotated[str, Doc("Role of the messages that are returned.")] = "assistant"
    response_store_size: Annotated[
        int,
        Doc(
            "Responses of /v1/responses that are kept, for retrieval and previous_response_id; 0 = none is.",
            ge=0,
        ),
    ] = 1_000
    response_store_bytes: Annotated[
        int, Doc("Memory for kept responses in bytes; the oldest go when it is full.", ge=1)
    ] = 64 << 20
    response_store_seconds: Annotated[int, Doc("Age at which a kept response goes.", ge=1)] = 86_400
    max_background_responses: Annotated[
        int, Doc("Responses that may run in the background at a time; 0 = background is refused.", ge=0)
    ] = 64
    root_path: Annotated[
        str | None, Doc("Path prefix that a proxy strips before it forwards.", unset="none")
    ] = None
    allow_credentials: Annotated[bool, Doc("CORS: let browsers send credentials.")] = False
    allowed_origins: Annotated[
        tuple[str, ...], Doc("CORS: origins that browsers may call from.", unset="none")
    ] = ()
    allowed_methods: Annotated[tuple[str, ...], Doc("CORS: methods that are allowed.")] = ("*",)
    allowed_headers: Annotated[tuple[str, ...], Doc("CORS: headers that are allowed.")] = ("*",)
    uvicorn_log_level: Annotated[
        Literal["critical", "error", "warning", "info", "debug", "trace"],
        Doc("What the HTTP server logs of itself."),
    ] = "warning"
    disable_uvicorn_access_log: Annotated[bool, Doc("No line for each HTTP request.")] = False
    enable_request_id_headers: Annotated[bool, Doc("Send X-Request-Id back with every response.")] = False
    http_timeout_keep_alive: Annotated[
        int, Doc("Seconds that a connection may idle between two requests.", ge=1)
    ] = 5
    http_timeout_receive: Annotated[
        int,
        Doc(
            "Seconds that a client may take to send the head of a request, and as many for its body, plus one for "
            "every 1,000 bytes of it; then the answer is a 408. 0 = no bound.",
            ge=0,
        ),
    ] = 30
    shutdown_timeout: Annotated[
        int, Doc("Seconds that running requests may take to end after SIGTERM; 0 = end at once.", ge=0)
    ] = 30
    max_engine_restarts: Annotated[
        int,
        Doc(
            "Engines that may end one after the other within 10 minutes without having finished a step, and are "
            "replaced; when one more ends, the server says so and exits with an error. 0 = no bound.",
            ge=0,
        ),
    ] = 20
