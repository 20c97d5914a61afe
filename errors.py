"""Every exception that Bosquet raises on purpose.

    BosquetError
    ├── RequestRejected            the request is at fault; `field` names the part
    │   ├── InvalidParameter       a value is of the wrong type or out of range
    │   ├── PromptTooLong          the prompt does not fit the context or the cache
    │   ├── GrammarInvalid         a schema, regex or grammar that cannot be compiled or enforced
    │   ├── TemplateFailed         the chat template refuses these messages
    │   ├── UnknownModel           no such model here
    │   ├── NotAuthenticated       no key, or a wrong one
    │   ├── NotPermitted           the key's role does not allow this
    │   ├── UnknownHandle          no such run or branch, or not of this tenant
    │   ├── BranchBusy             the branch is in the middle of another step
    │   └── BodyTooLarge           the body is over the limit
    ├── Overloaded                 the queue is full; try again after `retry_after` seconds
    ├── Unavailable                the engine is starting, restarting, draining or gone
    │   └── EngineDied             the engine process ended while it held this request
    ├── HeadTooLarge               the request's line and headers are over the limit
    ├── ArrivedLate                the request's bytes did not all come in time
    ├── DeadlineExceeded           the request's time is over
    ├── ModelLoadError             a model cannot be loaded; one line, exit code 2
    ├── ConfigError                settings that contradict each other; one line, exit code 2
    ├── OutOfPages                 the page pool cannot give that many pages now; never leaves the engine
    ├── CacheCorrupt               an integrity check failed: our bug
    ├── CacheFileRefused           a file of the disk tier that is damaged, foreign or in use; stays in the engine
    ├── Unsupported                a back end lacks a named capability
    ├── StateInvalid               a saved state that is damaged, or of another format or vocabulary
    └── ProgramError               a call of a program failed; carries program, step, the prompt's end and cause
        └── BudgetExceeded         the run had spent its budget; `limit` names which part of it

Asserts are for our own bugs only. The HTTP status of each class stands in one table, `runtime/server/errors.py`.
"""

from __future__ import annotations

from typing import ClassVar


class BosquetError(Exception):
    """Base of all. `code` is stable and crosses process and HTTP boundaries."""

    code: ClassVar[str] = "internal_error"


class RequestRejected(BosquetError):
    """The request cannot be served as it is. `field` is a path such as `messages[0].content`, or None."""

    code = "invalid_request"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidParameter(RequestRejected):
    """A value is of the wrong type or out of range."""

    code = "invalid_parameter"


class PromptTooLong(RequestRejected):
    """The prompt does not fit the context or the cache."""

    code = "context_length_exceeded"


class GrammarInvalid(RequestRejected):
    """A schema, regex or grammar that cannot be compiled, or not be enforced."""

    code = "invalid_grammar"


class TemplateFailed(RequestRejected):
    """The chat template refuses these messages."""

    code = "template_failed"


class UnknownModel(RequestRejected):
    """No such model here."""

    code = "model_not_found"


class NotAuthenticated(RequestRejected):
    """No key, or a wrong one."""

    code = "invalid_api_key"


class NotPermitted(RequestRejected):
    """The key's role does not allow this."""

    code = "permission_denied"


class UnknownHandle(RequestRejected):
    """No such run or branch: it is over, has expired, or belongs to another tenant."""

    code = "handle_not_found"


class BranchBusy(RequestRejected):
    """The branch is in the middle of another step."""

    code = "branch_busy"


class BodyTooLarge(RequestRejected):
    """The body is over the limit."""

    code = "body_too_large"


class Overloaded(BosquetError):
    """The bounded queue is full."""

    code = "overloaded"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(BosquetError):
    """No engine can take the request now."""

    code = "unavailable"

    def __init__(self, message: str, retry_after: float = 2.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineDied(Unavailable):
    """The engine process ended while it held this request."""

    code = "engine_died"


class HeadTooLarge(BosquetError):
    """The request's line and headers are over the limit."""

    code = "head_too_large"


class ArrivedLate(BosquetError):
    """The request's bytes did not all come in time."""

    code = "request_timeout"


class DeadlineExceeded(BosquetError):
    """The request's time is over."""

    code = "deadline_exceeded"


class ModelLoadError(BosquetError):
    """A model cannot be loaded. One line; the command line ends with exit code 2."""

    code = "model_load_error"


class ConfigError(BosquetError):
    """Settings that contradict each other. One line; exit code 2."""

    code = "config_error"


class OutOfPages(BosquetError):
    """The pool has fewer free pages than were asked for. The scheduler evicts, waits or preempts."""

    code = "out_of_pages"


class OutOfDeviceMemory(BosquetError):
    """A pass found too little memory on its device. The engine computes it again in smaller parts."""

    code = "out_of_memory"


class CacheCorrupt(BosquetError):
    """An integrity check failed: our bug."""

    code = "cache_corrupt"


class CacheFileRefused(BosquetError):
    """A file or folder of the disk tier is damaged, foreign or in use. What it holds is computed instead."""

    code = "cache_file_refused"


class Unsupported(BosquetError):
    """A back end was asked for something that it cannot do. `capability` names it."""

    code = "unsupported"

    def __init__(self, message: str, capability: str) -> None:
        super().__init__(message)
        self.capability = capability


class StateInvalid(BosquetError):
    """A saved state cannot be gone on from: it is damaged, of another format, or its ids are of another vocabulary."""

    code = "state_invalid"


class ProgramError(BosquetError):
    """A call inside a program failed. `__cause__` is the original exception. `program` is the one that was run,
    `programs` are that one and those within it to which the step belongs, outermost first. `prompt` is the end of what
    the model was to go on from, as far as it was known, with turns as `role: text`; a traceback shows it too."""

    code = "program_error"

    def __init__(
        self, message: str, *, program: str, step: str, prompt: str = "", programs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.program = program
        self.programs = programs or (program,)
        self.step = step
        self.prompt = prompt
        if prompt:
            self.add_note(f"the prompt of {step!r} ended with {prompt!r}")


class BudgetExceeded(ProgramError):
    """The run had spent its budget. `limit` is "tokens", "calls" or "seconds"."""

    code = "budget_exceeded"

    def __init__(
        self, message: str, *, program: str, step: str, limit: str, prompt: str = "", programs: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, program=program, step=step, prompt=prompt, programs=programs)
        self.limit = limit


_BY_CODE: dict[str, type[RequestRejected]] = {
    cls.code: cls
    for cls in (
        RequestRejected, InvalidParameter, PromptTooLong, GrammarInvalid, TemplateFailed, UnknownModel,
        NotAuthenticated, NotPermitted, UnknownHandle, BranchBusy, BodyTooLarge,
    )
}  # fmt: skip


def rejection(code: str, message: str, field: str | None = None) -> BosquetError:
    """The exception that stands for `code` on this side of a process or HTTP boundary."""
    if code == Overloaded.code:
        return Overloaded(message)
    if code in (Unavailable.code, EngineDied.code):
        return (EngineDied if code == EngineDied.code else Unavailable)(message)
    if code == DeadlineExceeded.code:
        return DeadlineExceeded(message)
    return _BY_CODE.get(code, RequestRejected)(message, field)
