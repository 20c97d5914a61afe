"""Every cause but divergence, which `test_why_miss` has; and who is told what."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from why_bed import LocalEngine, Server, assistant, system, user

from bosquet.radix_cache import Namespace, PagePool, RadixCache
from bosquet.radix_cache.node import Node
from bosquet.runtime.cache_look import MOST_NODES, view_tree
from bosquet.runtime.runs import Runs
from bosquet.types import PAGE, Origin, Request, SamplingParams

TEXT = "The glacier lost four metres of ice in the hot summer, and the hut below it had to be moved once more. "
OTHER = "Quarterly figures of the mill show that flour sold well while bran stayed in the store until the spring. "


def test_the_first_request_finds_nothing():
    with Server() as server:
        found = server.why_complete(TEXT)
    assert (found["cause"], found["reason"], found["position"]) == ("cold", "empty", 0)


def test_a_prompt_that_begins_like_no_other_is_cold():
    with Server() as server:
        server.complete(TEXT)
        found = server.why_complete("Th" + OTHER)
    assert (found["cause"], found["reason"], found["cached_tokens"]) == ("cold", "unlike", 2)


def test_what_goes_on_after_all_that_was_cached_is_new():
    with Server() as server:
        server.complete(TEXT[:64])
        said = server.complete(TEXT[:64])["choices"][0]["text"]
        found = server.why_complete(TEXT[:64] + said + OTHER)
    assert (found["cause"], found["reason"]) == ("cold", "goes_on")
    assert found["position"] >= 64
    assert not found["lost_tokens"]


def test_the_last_token_is_always_computed():
    with Server() as server:
        server.complete(TEXT)
        found = server.why_complete(TEXT)
    assert (found["cause"], found["reason"], found["cached_tokens"]) == ("limit", "last", len(TEXT) - 1)
    assert found["memory_tokens"] + found["copied_tokens"] == len(TEXT) - 1
    assert found["copied_tokens"] == (len(TEXT) - 1) % PAGE


def test_scored_tokens_are_computed():
    with Server() as server:
        server.complete(TEXT)
        found = server.why_complete(TEXT, echo=True, logprobs=1, prompt_logprobs_from=41)
    assert (found["cause"], found["reason"], found["cached_tokens"]) == ("limit", "prompt_logprobs", 40)
    assert found["lost_tokens"] == len(TEXT) - 1 - 40


def test_a_cache_that_is_off_is_said():
    with Server(LocalEngine(reuse=False)) as server:
        server.complete(TEXT)
        found = server.why_complete(TEXT)
    assert found["cause"] == "disabled"


def test_what_was_evicted_for_want_of_room_is_told_from_what_never_was():
    """Sixteen pages: three prompts of seven push out the first, and the ghost knows how much of it there was."""
    with Server(LocalEngine(pages=16)) as server:
        server.complete(TEXT)
        for i in range(3):
            server.complete(f"{i}{OTHER}")
        found = server.why_complete(TEXT)
    assert (found["cause"], found["reason"]) == ("evicted", "pressure")
    assert found["position"] == found["cached_tokens"]
    assert found["lost_tokens"] == (len(TEXT) - 1) // PAGE * PAGE - found["cached_tokens"]  # ghosts know whole pages
    assert found["age_s"] >= 0
    assert "evicted" in found["hint"]
    assert "X-Bosquet-Run" in found["hint"]


def test_a_way_that_was_left_before_it_was_evicted_counts_only_up_to_there():
    with Server(LocalEngine(pages=16)) as server:
        server.complete(TEXT)
        for i in range(3):
            server.complete(f"{i}{OTHER}")
        found = server.why_complete(TEXT[:64] + OTHER[:20])
    assert (found["cause"], found["lost_tokens"]) == ("evicted", 64 - found["cached_tokens"])


def test_a_prompt_that_leaves_no_room_holds_on_to_nothing():
    """A part of a page is copied, which takes a page more than there are."""
    with Server(LocalEngine(pages=8)) as server:
        server.complete((TEXT * 2)[: 7 * PAGE + 4], max_tokens=1)
        found = server.why_complete((TEXT * 2)[: 6 * PAGE + 4] + OTHER[:23], max_tokens=1)
    assert (found["cause"], found["reason"]) == ("limit", "no_room"), found


def test_the_end_of_a_prompt_that_a_sibling_computes_is_in_flight():
    """Whole pages are waited for; the tokens after the last whole page are with the other until it ends."""
    prompt = TEXT[: 3 * PAGE + 9]
    with Server() as server:
        body = {"prompt": prompt, "max_tokens": 12}
        both = server.calls([("POST", "/v1/completions", body, "", {})] * 2)
        found = [server.why(answer.json()["id"]) for answer in both]
    second = max(found, key=lambda one: one["cached_tokens"])
    assert (second["cause"], second["reason"]) == ("in_flight", "sibling")
    assert (second["cached_tokens"], second["lost_tokens"]) == (3 * PAGE, 8)


def test_the_list_says_of_each_miss_what_its_own_page_says():
    """What was lost is told at the engine's pace, whatever this request's own passes took."""
    with Server() as server:
        server.engine.engine.scheduler.runs.pace = 0.002
        prompts = (TEXT, TEXT, "The glacier: " + TEXT[12:], TEXT[:60] + OTHER + TEXT)
        told = {found["id"]: found for found in map(server.why_complete, prompts)}
        listed = server.call("GET", "/v1/requests").json()["data"]
        pace = {id: server.call("GET", f"/v1/requests/{id}").json()["engine"]["pace"] for id in told}
    assert {line["id"] for line in listed} == told.keys()
    for line in listed:
        found = told[line["id"]]
        assert (line["cause"], line["kind"]) == (found["cause"], found.get("kind"))
        assert line["lost_tokens"] == found["lost_tokens"]
        assert (
            line["lost_ms"] == found["lost_ms"] == pytest.approx(1000 * pace[line["id"]] * found["lost_tokens"], 1e-3)
        )
    assert max(line["lost_tokens"] for line in listed) > 16
    assert {line["kind"] for line in listed} >= {None, "edited"}


# ---- an answer that comes back ---------------------------------------------------------------------------------------


def test_an_answer_that_was_never_sent_back_is_compared_with_what_was_generated():
    """The nearest path is an answer of the model's, which no request has told: its tokens alone are known."""
    with Server() as server:
        turn = [system(TEXT), user("Hi")]
        said = server.chat(turn, max_tokens=40)["choices"][0]["message"]["content"]
        changed = said[:10] + "never said " + said[10:]
        found = server.why_chat([*turn, assistant(changed), user("Go on")], history="template")
    assert (found["cause"], found["kind"]) == ("diverged", "answer_changed"), found
    assert found["place"]["name"] == "messages[2].content"
    assert found["place"]["character"] == len(said[:10])


# ---- who is told what ------------------------------------------------------------------------------------------------

ANN, BOB, ROOT = "ann-key-1", "bob-key-2", "root-key-3"


@pytest.fixture
def keyed(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "keys"
    file.write_text(f"{ANN} ann\n{BOB} bob\n{ROOT} staff operator\n")
    return {"keys_file": str(file)}


def test_a_tenant_sees_its_own_cause_and_an_operator_the_other_namespace(keyed: dict[str, Any]):
    with Server(**keyed) as server:
        server.complete(TEXT, key=ANN)
        request = server.complete(TEXT, key=BOB)["id"]
        bob, staff = server.why(request, BOB), server.why(request, ROOT)
        whole = [server.call("GET", f"/v1/requests/{request}", key=key).json() for key in (BOB, ROOT)]
        export = server.call("GET", "/v1/requests/export", key=BOB).text
        listed = [server.call("GET", "/v1/requests?limit=1", key=key).json()["data"][0] for key in (BOB, ROOT)]
    assert (bob["cause"], bob["reason"]) == ("cold", "empty")
    assert (staff["cause"], staff["elsewhere"]) == ("namespace", len(TEXT) - 1)
    assert "elsewhere" not in str(bob)
    assert "elsewhere" not in str(whole[0])
    assert "elsewhere" not in export
    assert "elsewhere" in str(whole[1])
    assert [line["cause"] for line in listed] == ["cold", "namespace"]


def test_what_a_tenant_is_told_does_not_depend_on_others(keyed: dict[str, Any]):
    """Paired probes: with another tenant having sent the very same prompts, and without. Every answer is the same."""

    def told(others: bool) -> list[dict[str, Any]]:
        answers = []
        with Server(**keyed) as server:
            for prompt in (TEXT, TEXT[:50] + OTHER, TEXT, OTHER):
                if others:
                    server.complete(prompt, key=ANN)
                    server.chat([system(prompt), user("Hi")], key=ANN)
                answers.append(server.why_complete(prompt, key=BOB))
                answers.append(server.why_chat([system(prompt), user("Hi")], key=BOB))
        return [{k: v for k, v in answer.items() if k not in ("id", "lost_ms")} for answer in answers]

    assert told(others=True) == told(others=False)


def lines_until_the_last_token(anns: str, bobs: Sequence[str], *, running: bool) -> list[list[int]]:
    """How many lines of ours the engine goes through in each step of Bob's requests but the last, which makes the
    record. Before each of them Ann has sent her prompt; or else she has just sent it, and it is computed meanwhile."""
    engine = LocalEngine().engine
    counts: list[list[int]] = []
    steps = [0]

    def line(frame: FrameType, event: str, arg: Any) -> Any:
        steps[-1] += event == "line"
        return line

    def ours(frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        return line if "/runtime/" in name or "/radix_cache/" in name else None

    def ask(tenant: str, number: int, prompt: str) -> str:
        sampling = SamplingParams(max_tokens=4, ignore_eos=True)
        origin = Origin(tenant=tenant)
        engine.add(Request(id=f"{tenant}{number}", ids=list(prompt.encode()), sampling=sampling, origin=origin))
        return f"{tenant}{number}"

    for number, prompt in enumerate(bobs):
        anns_id = ask("ann", number, anns)
        while not running and engine.has(anns_id):
            engine.step()
        bobs_id = ask("bob", number, prompt)
        steps = []
        while engine.has(bobs_id):
            steps.append(0)
            sys.settrace(ours)
            try:
                engine.step()
            finally:
                sys.settrace(None)
        while engine.has(anns_id):
            engine.step()
        counts.append(steps[:-1])
    return counts


@pytest.mark.parametrize("running", [False, True])
def test_looking_for_causes_takes_the_same_steps_whatever_another_tenant_has(running: bool):
    """Invariant I6 for the explanations: paired probes, Ann having Bob's prompts or others as long. Not the time is
    compared, which has noise, but the work: until Bob's last token it is the same to the line, so that there is no
    difference in time to be found (AUC 0.5)."""
    prompts = [TEXT, TEXT[:50] + OTHER, TEXT, OTHER[:40]]
    same, other = (
        lines_until_the_last_token(anns, prompts, running=running) for anns in (TEXT, OTHER[::-1][: len(TEXT)])
    )
    assert same == other
    assert min(map(min, same)) > 50


def test_a_tenants_running_request_explains_nothing_of_anothers(keyed: dict[str, Any]):
    body = {"prompt": TEXT[: 3 * PAGE + 9], "max_tokens": 12}
    with Server(**keyed) as server:
        both = server.calls([("POST", "/v1/completions", body, key, {}) for key in (ANN, BOB)])
        found = [server.why(answer.json()["id"], key) for answer, key in zip(both, (ANN, BOB), strict=True)]
    assert [(one["cause"], one["reason"], one["cached_tokens"]) for one in found] == [("cold", "empty", 0)] * 2


def test_another_tenants_request_is_not_there(keyed: dict[str, Any]):
    with Server(**keyed) as server:
        request = server.complete(TEXT, key=ANN)["id"]
        other = server.call("GET", f"/v1/requests/{request}/cache", key=BOB)
        nobody = server.call("GET", "/v1/requests/cmpl-none/cache", key=BOB)
    assert (other.status_code, nobody.status_code) == (404, 404)
    assert other.json()["error"]["message"].replace(request, "cmpl-none") == nobody.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/cache/tree", "/v1/cache/reuse"])
def test_the_cache_itself_is_for_operators(keyed: dict[str, Any], path: str):
    with Server(**keyed) as server:
        server.complete(TEXT, key=ANN)
        assert server.call("GET", path, key=ANN).status_code == 403
        assert server.call("GET", path).status_code == 401
        assert server.call("GET", path, key=ROOT).status_code == 200


def test_texts_are_kept_only_where_that_is_asked_for():
    for capture in (False, True):
        with Server(capture_text=capture) as server:
            server.complete("Secret 4711: " + TEXT)
            request = server.complete("Secret 4712: " + TEXT)["id"]
            found = server.call("GET", f"/v1/requests/{request}/cache").text
            stored = server.call("GET", f"/v1/requests/{request}").text
        assert ("2: The glacier" in found) == ("1: The glacier" in found) == capture
        assert ("glacier" in stored) == capture
        assert '"theirs":{"tokens":24,"hash":' in found


# ---- the tree and the curve ------------------------------------------------------------------------------------------


def test_the_tree_shows_what_is_there():
    with Server(LocalEngine(pages=100)) as server:
        server.call("POST", "/v1/completions", {"prompt": TEXT, "max_tokens": 2}, **{"X-Bosquet-Program": "ice"})
        server.complete(TEXT[:48] + OTHER)
        tree = server.call("GET", "/v1/cache/tree").json()
        cache = server.engine.cache
    root, *rest = tree["nodes"]
    assert root["parent"] is None
    assert root["tokens"] == 0
    assert sum(node["pages"] for node in rest) == tree["pages_cached"] == cache.cached
    assert all(
        node["start"] == tree["nodes"][node["parent"]]["start"] + tree["nodes"][node["parent"]]["tokens"]
        for node in rest
    )
    assert {node.get("program", "") for node in rest} >= {"ice"}
    assert TEXT[:10] not in str(tree)


class Reads:
    """Stands before an attribute of nodes, and counts for each node how often it is read."""

    def __init__(self, slot: Any, counts: Counter[int]) -> None:
        self._slot = slot
        self._counts = counts

    def __get__(self, node: Node, kind: type) -> Any:
        self._counts[id(node)] += 1
        return self._slot.__get__(node, kind)

    def __set__(self, node: Node, value: Any) -> None:
        self._slot.__set__(node, value)


@pytest.mark.parametrize("tenant", [None, "t3"])
def test_a_snapshot_costs_what_it_shows_and_not_what_there_is(tenant: str | None, monkeypatch: pytest.MonkeyPatch):
    """Of trees of all sizes and of any number of tenants it reads the nodes that it tells of, a fixed number of times,
    and no others."""
    for tenants, texts in ((4, 300), (4, 1500), (1200, 1500)):
        pool = PagePool(2 * texts)
        cache = RadixCache(pool)
        for i in range(texts):
            pool.give(cache.insert(Namespace(f"t{i % tenants}"), [*[7] * PAGE, *[i] * PAGE], pool.take(2)).duplicates)
        counts: Counter[int] = Counter()
        with monkeypatch.context() as patch:
            for name in ("children", "namespace", "run", "pages", "start", "last_access"):
                patch.setattr(Node, name, Reads(Node.__dict__[name], counts))
            seen = view_tree(cache, Runs(cache, lambda: 0.0), 0.0, tenant)
        assert len(counts) == len(seen.nodes) <= MOST_NODES
        assert max(counts.values()) <= 8


def test_the_curve_tells_the_hit_rate_that_was_had():
    """Nothing was evicted, so a cache of this size had what the curve says; the rate is counted by hand."""
    with Server(LocalEngine(pages=300)) as server:
        prompts = [TEXT, TEXT, OTHER, TEXT[:64] + OTHER, OTHER, TEXT]
        hits = [server.complete(prompt)["usage"]["prompt_tokens_details"]["cached_tokens"] for prompt in prompts]
        reuse = server.call("GET", "/v1/cache/reuse").json()
    asked = sum(len(prompt) // PAGE for prompt in prompts)
    had = sum(min(hit // PAGE, len(prompt) // PAGE) for hit, prompt in zip(hits, prompts, strict=True))
    assert reuse["asked_pages"] == asked
    assert reuse["one_in"] == 1
    at_size = max(point["hit_rate"] for point in reuse["points"] if point["pages"] <= 300)
    assert at_size == pytest.approx(had / asked, abs=1e-6)
