"""The error tree of Octavo.

    OctavoError
    ├── UserError            somebody can fix it: what was given, what is allowed, what to do
    │   ├── ConfigError      a flag, a config file, a combination of them
    │   ├── InvalidRequest   one request; carries the field (`param`) and the HTTP status
    │   │   └── ContextOverflow  its prompt, or prompt and answer, do not fit the context
    │   ├── WeightError      a model file: malformed, missing, mismatched
    │   └── CapacityError    it does not fit: memory, context, queue
    ├── KernelFault          native code failed; names the op and its position in the program
    └── EngineDead           the engine process is gone and cannot be brought back

Every class is public; nothing outside this tree is raised on purpose across a package border.
"""

from __future__ import annotations

from octavo.util.lines import one_line


class OctavoError(Exception):
    """Root of every error raised on purpose."""


class UserError(OctavoError):
    """An error that its reader can fix.

    The message says what was given and what is allowed; `fix` says what to do and is printed last.
    Names from files and requests in them are made safe here, once for all: an error is one line.
    """

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        message = one_line(message)
        super().__init__(message)
        self.message = message
        self.fix = None if fix is None else one_line(fix)

    def __str__(self) -> str:
        return f"{self.message}: {self.fix}" if self.fix else self.message


class ConfigError(UserError):
    """A flag, a configuration file, or a combination of them cannot act."""


class InvalidRequest(UserError):
    """One request is refused; the others go on.

    `param` names the offending field in the client's own terms, `status` is the HTTP status and
    `kind` the `type` of OpenAI's error body.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        status: int = 400,
        kind: str = "BadRequestError",
        fix: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message, fix=fix)
        self.param = param
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s


class ContextOverflow(InvalidRequest):
    """The prompt, or the prompt and what was asked for, are longer than the context.

    `num_prompt` tokens (at least, where the text was not worth tokenising), `max_prompt` of them allowed.
    """

    def __init__(
        self, message: str, *, param: str, num_prompt: int, max_prompt: int, fix: str | None = None
    ) -> None:
        super().__init__(message, param=param, fix=fix)
        self.num_prompt = num_prompt
        self.max_prompt = max_prompt


class WeightError(UserError):
    """A model file is malformed, or its tensors are not the ones that the model needs."""


class CapacityError(UserError):
    """Something does not fit in the memory, the context or the queue that it was given."""


class KernelFault(OctavoError):
    """Native code failed: `op` is the op's name, `position` its index in the program."""

    def __init__(self, message: str, *, op: str, position: int) -> None:
        super().__init__(f"{message} (op {op!r} at program position {position})")
        self.op = op
        self.position = position


class EngineDead(OctavoError):
    """The engine process ended and was not, or could not be, restarted."""
