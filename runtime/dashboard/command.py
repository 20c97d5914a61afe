"""`bosquet dashboard`. Light: what it needs is imported when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from ...errors import ConfigError


def dashboard(
    url: Annotated[str, typer.Argument(help="The Bosquet server, such as http://gpu-box:8000")],
    key: Annotated[str, typer.Option(help="An API key of that server; else the page asks for one.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port on this machine; 0 takes a free one.")] = 8400,
) -> None:
    """Show the dashboard of a server elsewhere, on this machine.

    A server has its own at /dashboard; this is for one that a browser here cannot reach.

    \b
    [dim]bosquet dashboard http://gpu-box:8000 --key KEY[/dim]
    """
    import httpx
    import uvicorn

    from ..server.config import ServerConfig
    from ..server.serve import listen, url_of
    from .remote import remote_app

    server = httpx.URL(url.rstrip("/"))
    if server.scheme not in ("http", "https") or not server.host:
        raise ConfigError(f"URL is {url!r}; it must be one such as http://127.0.0.1:8000")
    with listen(ServerConfig(port=port)) as sock:
        typer.echo(f"the dashboard of {server} is at {url_of(sock)}/dashboard/ (Ctrl-C ends)", err=True)
        config = uvicorn.Config(remote_app(str(server), key), log_level="warning", access_log=False)
        uvicorn.Server(config).run(sockets=[sock])
