"""The command line. Options are generated from the settings' dataclasses; heavy modules are imported by the command
that needs them, so that `bosquet version` answers at once."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import io
import json
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import typer
import typer.core
from rich.markup import escape

from . import __version__
from .errors import BosquetError, ConfigError, ModelLoadError
from .runtime.bench.cli import bench_app
from .runtime.config import Allowed
from .runtime.dashboard.command import dashboard
from .runtime.draft_training.cli import draft_app
from .runtime.server.config import ServerConfig
from .runtime.settings import EngineConfig

_WrongWords: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError")
"""What click raises: the one that typer carries in itself, or takes from outside."""


class Commands(typer.core.TyperGroup):
    """All commands. A mistake in the words of a command is one line and exit code 2."""

    def main(self, *args: Any, standalone_mode: bool = True, **more: Any) -> Any:
        """As click has it."""
        more["standalone_mode"] = False
        try:
            code = super().main(*args, **more)
        except _WrongWords as error:
            if not standalone_mode:
                raise
            _show(error)
            sys.exit(2)
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


def _show(error: Any) -> None:
    """What is wrong with the words, and what they may be."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    said = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    allowed = _ALLOWED.get(getattr(getattr(error, "param", None), "name", None) or "")
    typer.echo(f"bosquet: {said}{f'; it must be {allowed.said}' if allowed else ''}", err=True)


app = typer.Typer(
    cls=Commands,
    help="Bosquet runs agent programs on language models: prefix reuse, structured output, short latencies.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def with_knobs(*configs: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn the fields of settings classes into options. The command gets one object of each class, after its own
    parameters. Knobs that are not basic are hidden unless `--help-all` asks for them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[: -len(configs)]
        options = [_option(field, config) for config in configs for field in dataclasses.fields(config)]
        options = [o for o in options if o.name not in {p.name for p in own}]

        def wrapper(**given: Any) -> None:
            mine = {p.name: given[p.name] for p in own}
            given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
            with _options_named():
                objects = []
                for config in configs:
                    names = {field.name for field in dataclasses.fields(config)}
                    objects.append(config(**{name: value for name, value in given.items() if name in names}))
                last = list(inspect.signature(command).parameters)[-len(configs) :]
                command(**mine, **dict(zip(last, objects, strict=True)))

        wrapper.__name__ = command.__name__
        wrapper.__doc__ = command.__doc__
        wrapper.__signature__ = inspect.Signature(own + options)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in own + options}
        return wrapper

    return decorate


_ALLOWED: dict[str, Allowed | None] = {
    field.name: field.metadata["allowed"]
    for config in (EngineConfig, ServerConfig)
    for field in dataclasses.fields(config)
}


@contextmanager
def _options_named() -> Iterator[None]:
    """What is wrong with a setting is said of the option that sets it."""
    try:
        yield
    except (ConfigError, ModelLoadError) as error:
        name, is_, rest = str(error).partition(" is ")
        if name not in _ALLOWED:
            raise
        raise ConfigError(f"{name if name == 'model' else '--' + name.replace('_', '-')}{is_}{rest}") from None


def _option(field: dataclasses.Field[Any], config: type) -> inspect.Parameter:
    kind = typing.get_type_hints(config)[field.name]
    if typing.get_origin(kind) is tuple:
        kind = list[str]
    default = list(field.default) if isinstance(field.default, tuple) else field.default
    option = typer.Option(help=escape(field.metadata["help"]), hidden=not field.metadata["basic"])
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def _show_all_help(context: typer.Context, asked: bool) -> None:
    """All options as plain text: in boxes, long names would be cut short."""
    if not asked:
        return
    command: Any = context.command
    for parameter in command.params:
        parameter.hidden = False
    command.rich_markup_mode = None
    command.help = command.help.replace("[dim]", "").replace("[/dim]", "")
    typer.echo(context.get_help())
    raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", callback=_show_all_help, is_eager=True, help="Show every option, not only the usual."),
]
Model = Annotated[str, typer.Argument(help="'embedded', a folder, a .gguf file or a Hugging Face id")]
Url = Annotated[str, typer.Option(help="Use this running Bosquet server instead of starting an engine.")]


@app.command()
@with_knobs(EngineConfig, ServerConfig)
def serve(model: Model = "embedded", help_all: HelpAll = False, *, engine: EngineConfig, server: ServerConfig) -> None:
    """Serve a model over the OpenAI protocol.

    \b
    [dim]bosquet serve                      the embedded model at http://127.0.0.1:8000
    bosquet serve ./my-model --port 9000
    bosquet serve Qwen/Qwen3-0.6B --keys-file keys.json --host 0.0.0.0[/dim]
    """
    from .runtime.launch import serve as run

    where = ""

    def listening(url: str) -> None:
        nonlocal where
        where = url
        typer.echo(f"bosquet {__version__}: loading {model}", err=True)

    def ready(info: Any) -> None:
        body = json.dumps({"model": info.name, "messages": [{"role": "user", "content": "Name three trees."}]})
        key = " -H 'Authorization: Bearer KEY'" if server.keys_file else ""
        typer.echo(
            f"\n  {info.name} ({info.dtype}, {info.kernels} kernels, {info.pages * 16:,} tokens of cache)\n"
            f"  serving at  {where}\n  docs at     {where}/docs\n  dashboard   {where}/dashboard\n\n  try:\n"
            f"  curl {where}/v1/chat/completions{key} -H 'Content-Type: application/json' \\\n    -d {quote(body)}\n",
            err=True,
        )

    run(dataclasses.replace(engine, model=model), server, listening, ready)


@app.command()
def chat(
    model: Model = "embedded",
    url: Url = "",
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token.")] = 0.7,
) -> None:
    """Talk to a model in the terminal. Ctrl-C stops an answer, /reset starts over, /quit or Ctrl-D ends.

    \b
    [dim]bosquet chat                       with the embedded model
    bosquet chat Qwen/Qwen3-0.6B --system "You answer in one sentence."
    bosquet chat --url http://127.0.0.1:8000[/dim]
    """
    from .lang.loop import submit
    from .runtime.terminal_chat import converse

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # input that is not in the terminal's encoding is no reason to stop
    with _backend(model, url) as backend:
        converse(backend, system=system, max_tokens=max_tokens, temperature=temperature, run=submit)


@app.command()
def run(
    target: Annotated[str, typer.Argument(help="FILE:PROGRAM, such as examples/quickstart.py:tell")],
    arg: Annotated[list[str], typer.Option("--arg", "-a", help="An argument of the program: name=value")] = [],  # noqa: B006
    model: Annotated[str, typer.Option(help="'embedded', a folder, a .gguf file or a Hugging Face id")] = "embedded",
    url: Url = "",
) -> None:
    """Run a program of the DSL and print its text and variables.

    A value that is JSON is taken as such, anything else as text.

    \b
    [dim]bosquet run examples/quickstart.py:tell -a topic=tea -a words=30
    bosquet run agent.py:main --url http://127.0.0.1:8000[/dim]
    """
    from rich.console import Console

    from .lang.targets import argument, failing, program_in, taking

    program, arguments = program_in(target), dict(argument(text) for text in arg)
    with taking():
        program.check(**arguments)
    with _backend(model, url) as backend, failing(program, BosquetError):
        result = program.run(**arguments, backend=backend)
    console = Console()
    console.print(result.text, markup=False, highlight=False, soft_wrap=True)
    for name in result:
        console.print(f"[bold]{name}[/bold] =", escape(repr(result[name])), highlight=False)
    if result.value is not None:
        console.print("[bold]returned[/bold]", escape(repr(result.value)), highlight=False)


app.add_typer(bench_app, name="bench")
app.add_typer(draft_app, name="draft")
app.command()(dashboard)


@bench_app.command("programs")
def bench_programs(
    program: Annotated[
        list[str], typer.Option("--program", "-p", help="A program, agents, fork, overhead or transcripts; else all.")
    ] = [],  # noqa: B006
    model: Annotated[str, typer.Option(help="What programs run on; embedded unless traces are replayed.")] = "",
    url: Annotated[str, typer.Option(help="A running Bosquet server; empty: start one on the model.")] = "",
    against: Annotated[list[str], typer.Option(help="In turn with vllm, ..., or NAME=URL, see bench.")] = [],  # noqa: B006
    peers: Annotated[str, typer.Option(help="The folder that holds those.")] = "peers",
    rounds: Annotated[int, typer.Option(min=1, help="How often each program is run.")] = 1,
    trace: Annotated[list[str], typer.Option(help="Replay this file of requests, JSON lines or gzip.")] = [],  # noqa: B006
    pools: Annotated[str, typer.Option(help="Sizes of its cache, as shares of the working set.")] = "0.1,0.25,0.5",
    loads: Annotated[str, typer.Option(help="What its runs ask for, as shares of what can be computed.")] = "0.9,1.2",
    conversations: Annotated[int, typer.Option(min=0, help="So many of its runs; 0: all.")] = 0,
    scale: Annotated[int, typer.Option(min=1, help="Its lengths are divided by this.")] = 4,
    out: Annotated[str, typer.Option(help="Write the results as JSON to this file.")] = "",
) -> None:
    """Measure how agent programs run, and how many of them are served.

    Programs of the literature on a server, in the language and on an OpenAI client; 24
    agents with tools on a small cache; the pages of a fork; the language's overhead.

    With --trace, and nothing that is said of programs: its runs, 24 at a time, on the
    real scheduler and cache with a model that only takes time, beside first come, first
    served with LRU, and what an offline optimum would have reused.

    \b
    [dim]bosquet bench programs --against vllm --rounds 3 --out programs.json
    bosquet bench programs -p react -p agents
    bosquet bench programs --trace agents.jsonl.gz --pools 0.1 --loads 0.9 --conversations 48[/dim]
    """
    from .lang.classics_measured import OnServer, overhead
    from .runtime.bench.programs import Language, Programs, Replays, measure

    replays = Replays(traces=trace, pools=pools, loads=loads, runs=conversations, scale=scale)
    programs = None
    if model or url or program or against or not trace:
        model = model or "embedded"
        programs = Programs(names=program, model=model, url=url, against=against, peers=peers, rounds=rounds)
    measure(replays, programs, Language(OnServer, overhead), out)


Format = Literal["text", "mermaid", "dot", "svg", "json"]


@app.command("compile")
def compile_(
    target: Annotated[
        str, typer.Argument(help="FILE:PROGRAM, such as examples/skeleton.py:advise; FILE alone names its programs")
    ],
    arg: Annotated[list[str], typer.Option("--arg", "-a", help="An argument of the program: name=value")] = [],  # noqa: B006
    form: Annotated[Format, typer.Option("--format", "-f", help="What to write.")] = "text",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write to this file.")] = None,
    model: Annotated[str, typer.Option(help="Count tokens as this model does; empty: four characters a token.")] = "",
    url: Annotated[str, typer.Option(help="Count tokens as this running Bosquet server does.")] = "",
) -> None:
    """Show what a program will do, without running it: its steps, what runs at once, tokens computed and saved.

    The program is followed up to the line that needs a value which only a run has.
    Arguments that are not given stay open.

    \b
    [dim]bosquet compile examples/skeleton.py:advise -a points=2
    bosquet compile examples/skeleton.py:advise --model embedded
    bosquet compile examples/tree_of_thought.py:search -f svg -o tree.svg[/dim]
    """
    from .lang.report import listing, report
    from .lang.targets import argument, program_in, programs_of

    if Path(target).is_file() and not (arg or model or url or form != "text"):
        listing(programs_of(target), out)
        return
    program, arguments = program_in(target), dict(argument(text) for text in arg)
    with _backend(model or "embedded", url) if model or url else nullcontext() as backend:
        report(program, arguments, form, out, backend, url or model)


@app.command()
def explain(
    what: Annotated[list[str] | None, typer.Argument(help="A request's id, or two files with prompts")] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest request.")] = False,
    url: Annotated[str, typer.Option(help="The Bosquet server; two files need none.")] = "",
    key: Annotated[str, typer.Option(help="An API key of that server.")] = "",
    model: Annotated[str, typer.Option(help="Whose tokens count for two files without a server.")] = "embedded",
) -> None:
    """Say why a request found no more in the prefix cache, or what of prompt B is reused after prompt A.

    \b
    [dim]bosquet explain --last
    bosquet explain chatcmpl-0123... --url http://127.0.0.1:9000
    bosquet explain monday.json tuesday.json[/dim]
    """
    from .runtime.terminal_explain import lines_for

    for line in lines_for(what or [], last=last, url=url, key=key, model=model):
        typer.echo(line)


@app.command()
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(help="A folder that does not exist yet, or is empty")],
) -> None:
    """Write a model as a safetensors folder in bfloat16 that other engines read.

    \b
    [dim]bosquet export embedded ./smollm2-bf16[/dim]
    """
    from .runtime.models.export import export as write
    from .runtime.progress import loading_bar

    with loading_bar() as progress:
        write(model, out, progress)
    typer.echo(f"wrote {out}")


@app.command()
def doctor() -> None:
    """Say what this machine has, what Bosquet makes of it, and what is missing."""
    from .runtime.doctor import report

    raise typer.Exit(report())


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"bosquet {__version__}")


def _backend(model: str, url: str) -> Any:
    """A context manager around a back end: a server's, or an engine started on the spot."""
    from .lang.backends.http import BosquetServer
    from .runtime.local import LocalEngine

    return BosquetServer(url) if url else LocalEngine(model)


def main() -> None:
    """Entry of the console command. What the user can mend is one line and exit code 2, never a traceback."""
    try:
        app()
    except (ModelLoadError, ConfigError) as error:
        typer.echo(f"bosquet: {error}", err=True)
        sys.exit(2)
    except BosquetError as error:
        typer.echo(f"bosquet: {error}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, asyncio.CancelledError, typer.Abort):
        sys.exit(130)
