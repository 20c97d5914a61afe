"""`bosquet draft`: the options, and nothing that takes time to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

draft_app = typer.Typer(help="Make a draft of a model's own, for speculative decoding.", no_args_is_help=True)


@draft_app.callback()
def draft() -> None:
    """Make a draft of a model's own, for speculative decoding."""


@draft_app.command("train")
def draft_train(
    out: Annotated[Path, typer.Option(help="The folder to write, which does not exist yet or is empty.")],
    model: Annotated[
        str, typer.Option(help="'embedded', a folder, a .gguf file or a Hugging Face id: what it drafts for.")
    ] = "embedded",
    prompts: Annotated[
        Path | None,
        typer.Option(help="What the model is asked: a .txt or .jsonl file like what it will be used for."),
    ] = None,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long it may take in all.")] = 60.0,
    threads: Annotated[int, typer.Option(min=0, help="Threads that compute; 0: one a core.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out that was ended.")] = False,
) -> None:
    """Train a draft from a model's own answers.

    The model answers the prompts for half of the time, and the draft
    learns for the rest. Ended in any way, --resume goes on.

    A line of a .txt file is what a user says. A line of a .jsonl file is
    {"messages": […]} or {"prompt": "text to go on with"}. Without --prompts
    a set of our own is asked.

    \b
    [dim]bosquet draft train --out my-draft
    bosquet draft train --prompts real.jsonl --out my-draft --minutes 30
    bosquet serve --draft-model my-draft[/dim]
    """
    from .command import train

    train(model, prompts, out, minutes=minutes, threads=threads, resume=resume)
