"""Who calls, as a dependency of the routes."""

from __future__ import annotations

from starlette.requests import Request

from .keys import Caller, Keyring, require_operator
from .record import record_of


async def identified(request: Request) -> Caller:
    """Raises NotAuthenticated where keys are set and none, or a wrong one, was given."""
    keys: Keyring = request.app.state.keys
    caller = keys.identify(request)
    record = record_of(request.scope)
    record.tenant = caller.tenant
    record.route = getattr(request.scope.get("route"), "path", "")
    return caller


async def operator(request: Request) -> Caller:
    """As `identified`; raises NotPermitted for other roles."""
    caller = await identified(request)
    require_operator(caller)
    return caller
