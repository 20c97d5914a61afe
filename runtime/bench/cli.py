"""`bosquet bench` and what is under it: the options, and nothing that takes time to import."""

from __future__ import annotations

from typing import Annotated

import typer

bench_app = typer.Typer(rich_markup_mode="rich", invoke_without_command=True)


@bench_app.callback()
def bench(
    context: typer.Context,
    workload: Annotated[
        list[str], typer.Option("--workload", "-w", help="single, prefill, streams, agents, json, tree, chat, few-shot")
    ] = [],  # noqa: B006
    url: Annotated[str, typer.Option(help="A running server; empty: start one on the embedded model.")] = "",
    against: Annotated[
        list[str], typer.Option(help="In turn with vllm, llama.cpp, openvino, transformers, or NAME=URL that runs.")
    ] = [],  # noqa: B006
    peers: Annotated[str, typer.Option(help="The folder that holds those, see benchmarks/peers/README.md.")] = "peers",
    rounds: Annotated[int, typer.Option(min=1, help="How often each workload is run; medians are printed.")] = 1,
    out: Annotated[str, typer.Option(help="Write the results as JSON to this file, and a plot.")] = "",
    profile: Annotated[bool, typer.Option(help="Show where a step's time goes, too.")] = False,
) -> None:
    """Measure a server: tokens per second, time to first token, time per token, valid JSON per second.

    Without --url it starts a server of its own on the embedded model, and ends it.

    \b
    [dim]bosquet bench -w single -w streams --profile
    bosquet bench --against vllm,llama.cpp --rounds 3 --out bench.json
    bosquet bench --against other=http://127.0.0.1:8100
    bosquet bench structured                 schemas, grammars and tools
    bosquet bench programs                   runs of agent programs
    bosquet bench speculation                drafts, on and off[/dim]
    """
    if context.invoked_subcommand is not None:
        if workload or url or against or peers != "peers" or rounds != 1 or out or profile:
            raise typer.BadParameter(f"options of {context.invoked_subcommand} come after its name")
        return
    from .command import measure

    measure(workload, url=url, against=against, peers=peers, rounds=rounds, out=out, profile=profile)


@bench_app.command("structured")
def bench_structured(
    data: Annotated[
        str, typer.Option(help="Schemas with instances, in the form of the MaskBench sample; empty: a small set.")
    ] = "",
    limit: Annotated[int, typer.Option(min=0, help="Take so many schemas, spread over the file; 0: all.")] = 0,
    model: Annotated[str, typer.Option(help="Whose vocabulary grammars are compiled for.")] = "embedded",
    url: Annotated[str, typer.Option(help="A running server; empty: start one on the model.")] = "",
    serve: Annotated[bool, typer.Option("--server/--no-server", help="Measure streams on a server, too.")] = True,
    rounds: Annotated[int, typer.Option(min=1, help="How often held and free streams take turns.")] = 3,
    out: Annotated[str, typer.Option(help="Write the results as JSON to this file.")] = "",
) -> None:
    """Measure structured output: what passes, what is refused, what masks and compiles cost.

    Each schema is compiled strictly and relaxed. It passes if it compiles, every
    valid instance can be written, token by token, and no invalid one can.

    Then: new schemas of 2 KB; 128 tools in one request; and on a server, 16 streams
    that are held to a schema beside 16 free ones, and valid JSON records a second.

    A line of --data: {"id": …, "schema": …, "tests": [{"valid": …, "data": …}]}.

    \b
    [dim]bosquet bench structured --no-server            a few seconds
    bosquet bench structured --data sample.jsonl --limit 60 --rounds 1
    bosquet bench structured --data sample.jsonl --out structured.json[/dim]
    """
    from .structured import measure

    measure(data, limit=limit, model=model, url=url, serve=serve, rounds=rounds, out=out)


@bench_app.command("speculation")
def bench_speculation(
    case: Annotated[
        list[str],
        typer.Option(
            "--case", "-c", help="json, 'tool calls', city, character, fresh, misleading, 'code, replayed', …"
        ),
    ] = [],  # noqa: B006
    source: Annotated[
        list[str], typer.Option(help="What may draft: forced, suffix, model. All if this is not given.")
    ] = [],  # noqa: B006
    model: Annotated[str, typer.Option(help="What is measured.")] = "embedded",
    draft_model: Annotated[str, typer.Option(help="A smaller model that drafts, too.")] = "",
    transcripts: Annotated[
        str, typer.Option(help="Conversations to replay, one JSON object a line; empty: those that come with this.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="How often both sides take turns.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Few prompts, one round.")] = False,
    identity: Annotated[
        bool, typer.Option("--answers/--no-answers", help="Compare the answers of 500 prompts, too.")
    ] = True,
    out: Annotated[str, typer.Option(help="Write the results as JSON to this file, and plots.")] = "",
) -> None:
    """Measure what drafts gain and that they change nothing: on and off in turn, in one engine in this process.

    JSON, tool calls and forms at 1, 8 and 32 streams; transcripts that are replayed:
    the model computes, and what it says is what was said; text that cannot be drafted.
    Then the answers to 500 prompts with drafts and without, which must be the same.

    A line of --transcripts: {"kind": …, "messages": [{"role": …, "content": …}, …]}.

    \b
    [dim]bosquet bench speculation --quick           two minutes
    bosquet bench speculation -c json -c 'tool calls' --no-answers
    bosquet bench speculation --out speculation.json[/dim]
    """
    from .speculation import measure

    measure(
        case,
        sources=source,
        model=model,
        draft_model=draft_model,
        transcripts=transcripts,
        rounds=rounds,
        quick=quick,
        identity=identity,
        out=out,
    )
