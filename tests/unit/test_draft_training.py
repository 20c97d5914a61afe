"""A draft trained on a tiny model: it learns, it goes on after a kill as if there had been none, and it writes over
nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from tiny_models import expected_logits, make_config, make_model, save
from tokenizer_samples import CHATML, chatml_folder
from typer.testing import CliRunner

from bosquet.cli import app
from bosquet.errors import ConfigError
from bosquet.runtime.draft_training import command, learner, report, rows
from bosquet.runtime.draft_training.learner import Learner, Recipe, _columns, distil
from bosquet.runtime.draft_training.lessons import HELD_OUT, Batch, Lessons, frequent_tokens
from bosquet.runtime.draft_training.prompts import Prompt, default_prompts, read_prompts
from bosquet.runtime.draft_training.report import Worth
from bosquet.runtime.draft_training.rows import TOP, RowStore, Spoken, row_type
from bosquet.runtime.draft_training.teacher import Loaded, Task, load_target
from bosquet.runtime.templates import ChatTemplate
from bosquet.speculative.speculator import WEIGHTS

RECIPE = Recipe(tokens=200, batch=32, epochs=1.5, sampled=40, rate=3e-3)
BOUNDS = command.Bounds(1e6, 3_000)
WORDS = ("quick", "brown", "lazy", "other", "first", "long")
PROMPTS = [Prompt(text=f"the {one} {two} fox") for one in WORDS for two in WORDS]
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Loaded, Any]]:
    """A model that answers a few prompts at once, and the same in transformers."""
    folder, threads = tmp_path_factory.mktemp("target"), torch.get_num_threads()
    config = make_config("llama", vocab_size=400, num_hidden_layers=2, tie_word_embeddings=True)
    model = make_model(config)
    chatml_folder(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "WAVE", 8)
        patch.setattr(learner, "_FIRST", 500)
        yield load_target(str(save(model, folder)), 1), model
    torch.set_num_threads(threads)


def run(loaded: Loaded, out: Path) -> Worth:
    return command.make_draft(loaded, PROMPTS, out, RECIPE, BOUNDS, QUIET)


@pytest.fixture(scope="module")
def whole(target: tuple[Loaded, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Worth]:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    return out, run(target[0], out)


def test_rows_are_what_the_model_said_and_thought(target: tuple[Loaded, Any]) -> None:
    loaded, model = target
    ids = loaded.tokens(PROMPTS[0])
    greedy, drawn = loaded.teacher.answer([Task(0, ids, 0.0, 1), Task(1, ids, 1.0, 2)])
    head = model.get_output_embeddings().weight.detach()
    for spoken in (greedy, drawn):
        said = spoken.rows["token"].tolist()
        logs = expected_logits(model, ids + said)[len(ids) - 1 : -1].log_softmax(1)
        best = logs.topk(TOP)
        assert np.quantile(np.abs(spoken.rows["logs"] - best.values.numpy()), 0.95) < 0.1  # its cache is in bfloat16
        states = torch.from_numpy(spoken.rows["hidden"].astype(np.float32))
        assert ((states @ head.T).log_softmax(1) - logs).abs().quantile(0.95) < 0.1
    assert (greedy.rows["token"] == greedy.rows["ids"][:, 0]).all()
    assert (drawn.rows["token"] != drawn.rows["ids"][:, 0]).any()


def test_a_draft_learns_more_than_which_tokens_are_frequent(
    target: tuple[Loaded, Any], whole: tuple[Path, Worth]
) -> None:
    out, worth = whole
    store = RowStore(out / "training", target[0].teacher.runner.model.shape.hidden)
    tokens = np.split(store.map()["token"], np.cumsum(store.lengths)[:-1])
    learnt: Counter[int] = Counter()
    held: list[int] = []
    for prompt, answer in zip(store.prompts, tokens, strict=True):
        (held.extend if prompt % HELD_OUT == 0 else learnt.update)(answer[1:].tolist())
    (likeliest, _), *_ = learnt.most_common(1)
    unigram = sum(token == likeliest for token in held) / len(held)
    assert worth.all[0] > 2 * unigram
    assert worth.all[0] > 0.1
    assert worth.all == sorted(worth.all, reverse=True)


def test_the_loss_falls(target: tuple[Loaded, Any], whole: tuple[Path, Worth]) -> None:
    loaded, (out, _) = target[0], whole
    store = RowStore(out / "training", loaded.teacher.runner.model.shape.hidden)
    frequent = frequent_tokens(store, 400, RECIPE.tokens)
    lessons = Lessons(store, frequent, 400)
    head = command.head_rows(loaded.teacher.runner, frequent)
    fresh = Learner(command.start(lessons, head, RECIPE), lessons, RECIPE)
    trained = Learner.restore(out / "training" / "checkpoint.safetensors", lessons, RECIPE)
    batch = lessons.batch(lessons.learnt, RECIPE.depth)
    before, after = (
        float(distil(one.network, batch, RECIPE._replace(sampled=400), torch.Generator()).detach())
        for one in (fresh, trained)
    )
    assert after < before - 0.05


class Killed(BaseException):
    """Not an error that anybody handles."""


def once(function: Callable[..., Any], number: int, *, after: bool) -> Callable[..., Any]:
    """Is killed in its call number `number`, when it begins or when it has done what it does."""
    calls = 0

    def wrapped(*args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and not after:
            raise Killed
        result = function(*args, **more)
        if calls == number:
            raise Killed
        return result

    return wrapped


def test_a_run_that_is_killed_goes_on_to_the_same_bits(
    target: tuple[Loaded, Any], whole: tuple[Path, Worth], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_SAVED_S", -1.0)  # every step
    for owner, attribute, number, after in (
        (rows, "_append", 3, True),  # the rows of the second wave are there, and nothing says so
        (Learner, "save", 1, False),  # the first fit is made, and has to be made again
        (Learner, "learn", 30, True),
        (Learner, "save", 20, True),
        (learner.os, "replace", 20, False),  # a checkpoint is written, and the old one still stands
        (command, "write", 1, False),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, attribute, once(getattr(owner, attribute), number, after=after))
            with pytest.raises(Killed):
                run(target[0], tmp_path)
    resumed = run(target[0], tmp_path)
    out, worth = whole
    expected, found = load_file(out / WEIGHTS), load_file(tmp_path / WEIGHTS)
    assert expected.keys() == found.keys()
    for name in expected:
        assert torch.equal(expected[name], found[name]), name
    assert (resumed.greedy, resumed.all) == (worth.greedy, worth.all)


def test_an_answer_cut_short_by_a_kill_is_forgotten(tmp_path: Path) -> None:
    store = RowStore(tmp_path, 4)
    said = np.zeros(3, row_type(4))
    said["token"] = 1, 2, 3
    store.add([Spoken(0, said), Spoken(5, said[:1])], 2.0)
    with (tmp_path / "rows.bin").open("ab") as file:
        file.write(b"half a row")
    with (tmp_path / "answers.jsonl").open("ab") as file:
        file.write(b'{"prompts": [1], "leng')
    again = RowStore(tmp_path, 4)
    assert (again.prompts, again.lengths, again.seconds) == ([0, 5], [3, 1], 2.0)
    again.add([Spoken(7, said[1:])], 3.0)
    assert RowStore(tmp_path, 4).map()["token"].tolist() == [1, 2, 3, 1, 2, 3]


def test_what_followed_a_start_is_of_its_own_answer(tmp_path: Path) -> None:
    store = RowStore(tmp_path, 2)
    said = np.zeros(6, row_type(2))
    said["token"] = range(10, 16)
    said["ids"] = said["token"][:, None] + np.arange(TOP)
    store.add([Spoken(1, said[:4]), Spoken(2, said[4:]), Spoken(HELD_OUT, said[:3])], 1.0)
    lessons = Lessons(store, np.arange(10, 15), 64)
    assert lessons.learnt.tolist() == [0, 1, 2, 4]
    assert lessons.held.tolist() == [6, 7, 8]
    batch = lessons.batch(np.array([1, 4]), 2)
    assert batch.there.tolist() == [[True, True], [True, False]]
    assert batch.tokens[0].tolist() == [1, 2, 3]  # columns of 11, 12, 13
    assert batch.tokens[1, :2].tolist() == [4, 5]  # 15 is rare
    assert batch.ids[0, 0, :4].tolist() == [2, 3, 4, 5]
    _, judged = lessons.judged(2, sure=False)
    assert judged.tolist() == [[10, 11, 12]]


def test_a_sample_of_columns_stands_for_all_of_them() -> None:
    """The mean of the sampled sum of exponentials is the sum."""
    logits = torch.randn(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = []
    for seed in range(400):
        columns, more = _columns(torch.tensor([3, 499, 500]), 500, 50, torch.Generator().manual_seed(seed))
        assert len(set(columns.tolist())) == len(columns) == 52
        assert {3, 499} <= set(columns.tolist())
        sums.append((logits[columns] + more).exp().sum())
    mean, error = torch.stack(sums).mean(), torch.stack(sums).std() / 20
    assert abs(mean - logits.exp().sum()) < 4 * error


def test_a_rare_token_is_nothing_to_learn() -> None:
    network = command.Network(
        {
            "scale": torch.ones(4),
            "embedding": torch.randn(6, 4),
            "mix": torch.randn(68, 8),
            "down": torch.randn(4, 32),
            "head": torch.randn(5, 4),
        }
    )
    rare = torch.full((1, 1, TOP), 5)
    batch = Batch(
        torch.ones(1, 4), torch.tensor([[1, 5]]), rare, torch.rand(1, 1, TOP), torch.ones(1, 1, dtype=torch.bool)
    )
    assert float(distil(network, batch, RECIPE, torch.Generator()).detach()) == 0


class Successor:
    """Guesses that the next token is the last one plus one; says which rows it is asked to go on with."""

    ids = torch.arange(100)

    def begin(self, hidden: torch.Tensor, tokens: list[int]) -> tuple[list[int], torch.Tensor]:
        return hidden[:, 0].int().tolist(), torch.eye(100)[[token + 1 for token in tokens]]

    def step(self, state: list[int], which: list[int], tokens: list[int]) -> tuple[list[int], torch.Tensor]:
        rows = [state[i] for i in which]
        assert rows == [token // 20 for token in tokens]
        return rows, torch.eye(100)[[token + 1 for token in tokens]]


def test_a_guess_counts_while_all_before_it_were_right() -> None:
    tokens = [
        [1, 2, 3, 4, 5, 6],  # all five
        [20, 21, 22, 29, 30, 31],  # two; what is right after a wrong one was never reached
        [40, 44, 45, 46, 47, 48],  # none
        [60, 61, 62, 63, 64, 70],  # four
    ]
    hidden = torch.tensor([[float(row)] for row in range(4)])
    shares = report._accepted(Successor(), hidden, np.array(tokens))  # type: ignore[arg-type]
    assert shares == [0.75, 0.75, 0.5, 0.5, 0.25]


def test_a_prompt_that_comes_twice_is_asked_under_one_number(target: tuple[Loaded, Any]) -> None:
    """Else one that is held out would be learnt from."""
    tasks = command._tasks(target[0], [*PROMPTS, *PROMPTS, Prompt(text="fox " * 600)], 0, QUIET)
    assert [task.prompt for task in tasks] == [*range(len(PROMPTS))] * len(command.TEMPERATURES)
    assert len({(tuple(task.ids), task.temperature) for task in tasks}) == len(tasks)


def test_speed_is_predicted_from_shares_and_costs() -> None:
    """By hand: 10 ms a pass, 1 ms a token more, half of the first guesses right and a quarter of the second."""
    worth = Worth([0.5, 0.25, 0.0, 0.0, 0.0], [], 100, 9.0, 1.0, 0.5, 0.25)
    assert worth.tokens(2) == 1.75
    assert worth.speedup(2) == pytest.approx(1.75 * 10 / (10 + 2 + 0.5 + 0.25))
    assert worth.best == 2
    assert worth.pays
    dear = worth._replace(begin=6.0)
    assert dear.best == 0
    assert not dear.pays


def test_a_draft_that_does_not_pay_is_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    report.show(Worth([0.1] * 5, [0.1] * 5, 9, 5.0, 5.0, 1.0, 1.0), Console())
    assert "does not pay here" in capsys.readouterr().out


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="must be empty"):
        command.prepare(tmp_path, resume=False)
    with pytest.raises(ConfigError, match="there is none"):
        command.prepare(tmp_path, resume=True)


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_where_nothing_can_be_written_is_said_at_once(out: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="nothing can be written"):
        command.prepare(tmp_path / out, resume=False)


@pytest.mark.parametrize("said", ["trunc", "[]", '"a"'])
def test_a_run_that_cannot_be_told_is_not_gone_on_with(said: str, tmp_path: Path) -> None:
    path = tmp_path / "training" / "run.json"
    command._same_run(path, {"prompts": "a"})
    command._same_run(path, {"prompts": "a"})
    path.write_text(said)
    with pytest.raises(ConfigError, match="cannot be read"):
        command._same_run(path, {"prompts": "a"})
    assert path.read_text() == said


def test_a_run_is_not_gone_on_with_for_other_prompts(target: tuple[Loaded, Any], whole: tuple[Path, Worth]) -> None:
    with pytest.raises(ConfigError, match="another prompts"):
        command.make_draft(target[0], PROMPTS[:-1], whole[0], RECIPE, BOUNDS, QUIET)
    with pytest.raises(ConfigError, match="another recipe"):
        command.make_draft(target[0], PROMPTS, whole[0], RECIPE._replace(depth=2), BOUNDS, QUIET)
    with pytest.raises(ConfigError, match="--resume goes on"):
        command.prepare(whole[0], resume=False)


def test_prompts_are_lines_of_text_or_json(tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("Hello.\n\nWhat is tea?\n")
    assert [p.messages[0]["content"] for p in read_prompts(text)] == ["Hello.", "What is tea?"]
    messages = [{"role": "user", "content": "Hi"}]
    lines.write_text(f"{json.dumps({'messages': messages})}\n{json.dumps({'prompt': 'Once'})}\n")
    assert read_prompts(lines) == [Prompt(tuple(messages)), Prompt(text="Once")]


@pytest.mark.parametrize("end", ["\u2028", "\u0085", "\x0c", "\r"])
def test_only_a_newline_ends_a_line(end: str, tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text(json.dumps({"prompt": f"one{end}two"}, ensure_ascii=False) + "\r\n" + '{"prompt": "b"}')
    assert [prompt.text for prompt in read_prompts(lines)] == [f"one{end}two", "b"]


def test_a_file_without_a_prompt_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(" \n\n")
    with pytest.raises(ConfigError, match="there is none in it"):
        read_prompts(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "line", ["{", "[]", "[" * 100_000, '{"messages": []}', '{"prompt": ""}', '{"text": "a"}', '{"messages": ["a"]}']
)
def test_a_line_that_is_no_prompt_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n' + line)
    with pytest.raises(ConfigError, match=r"p.jsonl:2: "):
        read_prompts(path)


def test_our_own_prompts_are_many_and_the_same_for_a_seed() -> None:
    prompts = default_prompts(0)
    assert prompts == default_prompts(0)
    assert prompts != default_prompts(1)
    assert len(set(map(repr, prompts))) > 1_800
    assert 0.05 < sum(bool(p.text) for p in prompts) / len(prompts) < 0.5
    assert not any("{s}" in repr(p) or "PLAIN" in repr(p) for p in prompts)


def test_a_model_without_a_chat_template_gets_texts(tmp_path: Path) -> None:
    with_one, without = tmp_path / "with", tmp_path / "without"
    for folder, source in ((with_one, CHATML), (without, None)):
        folder.mkdir()
        chatml_folder(folder, template=source)
    assert command.own_prompts(ChatTemplate.from_folder(with_one), QUIET) == default_prompts(0)
    texts = command.own_prompts(ChatTemplate.from_folder(without), QUIET)
    assert len(texts) > 100
    assert all(prompt.text and not prompt.messages for prompt in texts)


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["draft", "train", "--out", str(tmp_path / "d"), "--prompts", "no.csv"])
    assert isinstance(result.exception, ConfigError)
    assert "it must be a .txt or .jsonl file" in str(result.exception)
    assert not (tmp_path / "d").exists()
