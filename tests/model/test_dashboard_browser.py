"""The dashboard in a real browser while agents run on the embedded model: what it shows is what the API says and what
the clients counted themselves."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from browser import CHROMIUM, MISSING, chromium
from live_engine import Served, serving
from playwright.sync_api import Browser, Page, expect

pytestmark = [pytest.mark.alone, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]

ROOT, ADA, BOB = ({"Authorization": f"Bearer key-of-{name}"} for name in ("root", "ada", "bob"))
RULES = " ".join(f"Rule {i}: keep item {i} in box {i * 7 % 91}." for i in range(12))
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> \x1b[31mred\x07 \u202egnp.exe ${x}'
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["a", "b"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
VIEWS = ("overview", "requests", "why", "tree", "programs", "whatif", "speculation")


@dataclass
class Client:
    """What the clients count themselves, by request."""

    url: str
    usage: dict[str, Any] = field(default_factory=dict)
    looked: threading.Event = field(default_factory=threading.Event)

    def chat(self, key: dict[str, str], program: str, run: str, step: str, messages: list[Any], **more: Any) -> Any:
        names = {"X-Bosquet-Program": program, "X-Bosquet-Run": run, "X-Bosquet-Step": step}
        body = {"messages": messages, "max_tokens": 8, "temperature": 0, **more}
        answer = httpx.post(f"{self.url}/v1/chat/completions", json=body, headers={**key, **names}, timeout=120)
        assert answer.status_code == 200, answer.text
        if key is not BOB:
            self.usage[answer.json()["id"]] = answer.json()["usage"]
        return answer.json()["choices"][0]["message"]

    def agents(self) -> None:
        """Two runs of an agent whose prompt holds a clock, of two turns each; text that means harm; a typed result."""
        for run in ("08:22:12", "08:21:11"):
            messages = [{"role": "system", "content": f"You plan trips. It is {run}. {RULES}"}]
            for turn in ("one", "two"):
                messages.append({"role": "user", "content": f"Turn {turn}: a train to Paris?"})
                messages.append(self.chat(ADA, "trips", f"run-{run}", turn, messages))
        assert self.looked.wait(60), "the page is looked at while there is more to come"
        self.chat(ADA, "harm", "h", "one", [{"role": "user", "content": HOSTILE}])
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        self.chat(
            ADA, "typed", "t", "one", [{"role": "user", "content": "A person."}], response_format=schema, max_tokens=40
        )
        self.chat(BOB, "secret-program", "s", "one", [{"role": "user", "content": "Bob's own."}])

    def total(self, name: str) -> int:
        return sum(one[name] for one in self.usage.values())


@dataclass
class World:
    server: Served
    browser: Browser
    client: Client
    faults: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def api(self, path: str) -> Any:
        answer = httpx.get(f"{self.server.url}{path}", headers=ROOT, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def page(self, key: str = "key-of-root", **options: Any) -> Page:
        """A new tab that has a key."""
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        page = context.new_page()
        if key:
            page.add_init_script(f"if (location.host) sessionStorage.setItem('bosquet-key', {key!r})")
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.asked.add(request.url))
        return page

    def open(self, page: Page, where: str) -> None:
        page.goto("about:blank")
        page.goto(f"{self.server.url}/dashboard/#/{where}")
        page.wait_for_selector(".view[data-ready]")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server with keys and three agents on it, which begin when the overview is open."""
    keys: Path = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("key-of-root house operator\nkey-of-ada ada\nkey-of-bob bob\n")
    options = ("--keys-file", str(keys), "--capture-text", "--cache-tokens", "8192")
    with serving(*options) as server, chromium() as browser:
        world = World(server, browser, Client(server.url))
        page = world.page(key="")
        sign_in(world, page)
        agents = threading.Thread(target=world.client.agents)
        agents.start()
        expect(page.locator("[data-fact=requests]")).to_have_text("4", timeout=60_000)
        world.client.looked.set()
        agents.join()
        overview(world, page)
        yield world


def fact(page: Page, name: str) -> str:
    return page.inner_text(f"[data-fact={name}]")


def number(text: str) -> float:
    """The first number of what the page says."""
    found = re.search(r"[\d,]+(\.\d+)?", text)
    assert found, text
    return float(found[0].replace(",", ""))


def sign_in(world: World, page: Page) -> None:
    """The page asks for a key, tells a wrong one, and takes a right one."""
    page.goto(f"{world.server.url}/dashboard")
    for key, why in (("key-of-nobody", "asks for a key"), ("key-of-root", "not known")):
        expect(page.locator("#ask-why")).to_contain_text(why)
        page.fill("#ask-key", key)
        page.keyboard.press("Enter")
    page.wait_for_selector(".view[data-ready]")
    assert not page.query_selector(".fault")


def overview(world: World, page: Page) -> None:
    """It comes to what was counted."""
    requests = len(world.client.usage) + 1
    expect(page.locator("[data-fact=requests]")).to_have_text(str(requests), timeout=10_000)
    bob = world.api("/v1/requests?tenant=bob")["data"][0]
    generated = world.client.total("completion_tokens") + bob["completion_tokens"]
    expect(page.locator("[data-fact=generation_tokens]")).to_have_text(str(generated), timeout=10_000)
    prompt = world.client.total("prompt_tokens") + bob["prompt_tokens"]
    cached = (
        sum(one["prompt_tokens_details"]["cached_tokens"] for one in world.client.usage.values()) + bob["cached_tokens"]
    )
    said = f"{cached:,} of {prompt:,} tokens"
    expect(page.locator("[data-fact=hit_rate] + .more")).to_have_text(said, timeout=10_000)
    assert number(fact(page, "hit_rate")) == pytest.approx(100 * cached / prompt, abs=0.06)
    free, all_pages = pages(world)
    assert f"{free:,.0f} free" in fact(page, "pages")
    assert f"{all_pages:,.0f} pages" in page.inner_text(".view")
    page.context.close()


def pages(world: World) -> tuple[float, float]:
    tree = world.api("/v1/cache/tree")
    return tree["pages_free"], tree["pages_total"]


def test_the_list_holds_what_the_clients_counted(world: World):
    page = world.page()
    world.open(page, "requests")
    rows = {
        row.get_attribute("data-id"): row.inner_text().split("\t") for row in page.query_selector_all("tr[data-id]")
    }
    assert len(rows) == len(world.client.usage) + 1
    for id, usage in world.client.usage.items():
        cells = rows[id]
        assert number(cells[3]) == usage["prompt_tokens"]
        share = 100 * usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
        assert number(cells[4]) == pytest.approx(share, abs=0.06)
    page.click("a[href$='program=trips']")
    expect(page.locator("tr[data-id]")).to_have_count(4)
    assert page.url.endswith("#/requests?program=trips")
    page.click(f"a[href*='run={quote('run-08:22:12')}']")
    expect(page.locator("tr[data-id]")).to_have_count(2)
    assert page.inner_text(".lanes").split("\n")[0] == "one", "a run is shown in time, its first step first"


def test_one_request_is_its_record(world: World):
    page = world.page()
    line = next(one for one in world.api("/v1/requests")["data"] if one["program"] == "trips" and one["step"] == "two")
    world.open(page, f"requests/{line['id']}")
    usage = world.client.usage[line["id"]]
    assert number(fact(page, "prompt_tokens")) == usage["prompt_tokens"]
    assert number(fact(page, "completion_tokens")) == usage["completion_tokens"]
    record = world.api(f"/v1/requests/{line['id']}")
    by_message = page.locator("section", has_text="by origin and message").locator(".lanes .value").all_inner_texts()
    assert [number(text) for text in by_message if text] == [part[3] - part[2] for part in record["parts"]]
    widths = page.eval_on_selector_all(
        ".stack.tall >> nth=0 >> span", "all => all.map((one) => parseFloat(one.style.width))"
    )
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert widths[0] == pytest.approx(100 * cached / usage["prompt_tokens"], abs=0.01)
    output = page.locator("section", has_text="The output, by origin").locator(".legend").inner_text()
    assert [number(text) for text in output.split("\n")] == [
        line["tokens"][n] for n in ("forced", "drafted", "sampled")
    ]
    waterfall = page.locator("section", has_text="Where the time went").locator(".name").all_inner_texts()
    assert waterfall == ["server", "queue", "prefill", "decode"]


def test_a_miss_is_shown_side_by_side_with_what_to_do(world: World):
    page = world.page()
    world.open(page, "why")
    lines = [
        one for one in world.api("/v1/requests")["data"] if one["program"] == "trips" and one["cause"] == "diverged"
    ]
    planted = next(one for one in lines if one["run"] == "run-08:21:11")
    page.click(f"tr[data-id='{planted['id']}'] a")
    page.wait_for_selector("[data-fact=lost_tokens]")
    told = world.api(f"/v1/requests/{planted['id']}/cache")
    assert fact(page, "cause") == told["cause"] == "diverged"
    assert number(fact(page, "cached_tokens")) == told["cached_tokens"]
    assert number(fact(page, "position")) == told["position"]
    assert number(fact(page, "lost_tokens")) == told["lost_tokens"] > 0
    assert fact(page, "hint") == told["hint"]
    assert "time or date" in told["hint"]
    sides = page.eval_on_selector_all(".versus pre", "all => all.map((one) => one.textContent)")
    assert sides == [told["ours"]["text"], told["theirs"]["text"]]
    marked = page.eval_on_selector_all(".versus mark", "all => all.map((one) => one.textContent)")
    assert marked
    assert all(mark.isdigit() for mark in marked), "only the clock is marked"


def test_two_prompts_are_compared_without_running_them(world: World):
    page = world.page()
    world.open(page, "why")
    before = len(world.api("/v1/requests")["data"])
    areas = page.query_selector_all("textarea")
    areas[0].fill("The sky is blue today.")
    areas[1].fill('[{"role": "user", "content": "<b>The</b> sky"}]')
    page.click("text=Compare >> nth=-1")
    page.wait_for_selector(".sentence")
    assert "tokens would be reused" in page.inner_text(".sentence")
    assert len(world.api("/v1/requests")["data"]) == before


def test_the_tree_is_the_cache_and_arrow_keys_walk_it(world: World):
    page = world.page()
    world.open(page, "tree?colour=tenant")
    tree = world.api("/v1/cache/tree")
    assert number(fact(page, "pages_cached")) == tree["pages_cached"]
    assert number(fact(page, "nodes")) == len(tree["nodes"])
    boxes = page.query_selector_all(".tree rect")
    assert len(boxes) == sum(node["tokens"] > 0 for node in tree["nodes"])
    assert set(page.locator(".legend").inner_text().split("\n")) == {node["tenant"] for node in tree["nodes"]}
    assert len(page.query_selector_all(".tree rect[tabindex='0']")) == 1, "one stop for the tab key"
    page.focus(".tree rect[tabindex='0']")
    seen = set()
    for key in ("ArrowDown", "ArrowUp", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
        label = page.evaluate("document.activeElement.getAttribute('aria-label')")
        begin, end = map(int, re.findall(r"\d+", label)[:2])
        facts = dict(
            zip(page.locator(".facts dt").all_inner_texts(), page.locator(".facts dd").all_inner_texts(), strict=True)
        )
        assert facts["tokens"] == f"{begin:,} to {end:,}"
        assert any((node["start"], node["start"] + node["tokens"]) == (begin, end) for node in tree["nodes"])
        seen.add(label)
    assert len(seen) > 1


def test_programs_are_the_ledger_and_its_price(world: World):
    page = world.page()
    world.open(page, "programs")
    lines = world.api("/v1/ledger")["data"]
    assert number(fact(page, "calls")) == sum(line["calls"] for line in lines) == len(world.client.usage) + 1
    assert number(fact(page, "computed_tokens")) == sum(line["computed_tokens"] for line in lines)
    trips = next(line for line in lines if line["program"] == "trips")
    cells = page.inner_text("tr[data-line=trips]").split("\t")
    assert number(cells[2]) == trips["calls"] == 4
    assert number(cells[5]) == trips["prompt_tokens"]
    for name, price in (("input", "1000"), ("cached", "100"), ("output", "5000")):
        page.fill(f"input[name={name}]", price)
    saved = sum(line["cached_tokens"] for line in lines) * 900 / 1e6
    assert number(fact(page, "saved_money").lstrip("$")) == pytest.approx(saved, abs=0.006)


def test_what_if_and_speculation_say_what_the_server_counts(world: World):
    page = world.page()
    world.open(page, "whatif")
    reuse = world.api("/v1/cache/reuse")
    assert number(fact(page, "asked_pages")) == reuse["asked_pages"]
    assert number(fact(page, "hit_rate_best")) == pytest.approx(100 * reuse["points"][-1]["hit_rate"], abs=0.06)
    assert page.query_selector(".chart polyline")
    world.open(page, "speculation")
    text = httpx.get(f"{world.server.url}/metrics", headers=ROOT).text
    for row in page.query_selector_all("tr[data-source]"):
        cells = row.inner_text().split("\t")
        label = f'bosquet_draft_tokens_total{{source="{cells[0]}",verdict="accepted"}} '
        assert number(cells[2]) == float(text.split(label)[1].split("\n")[0])
    assert number(fact(page, "grammar_requests")) == 1


def test_hostile_text_stays_text(world: World):
    page = world.page()
    line = next(one for one in world.api("/v1/requests")["data"] if one["program"] == "harm")
    for where in (f"requests/{line['id']}", f"why/{line['id']}"):
        world.open(page, where)
        assert page.evaluate("window.hacked") is None
        assert not page.query_selector("main img, main script, main iframe")
    world.open(page, f"requests/{line['id']}")
    page.click("summary >> text=Prompt")
    shown = page.locator("details pre").first.inner_text()
    assert '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> ␛[31mred␇ ⟨202E⟩gnp.exe ${x}' in shown
    world.open(page, f"requests?program={quote(HOSTILE)}")
    assert page.input_value("input[name=program]").startswith("<img src=x")
    page.goto(f"{world.server.url}/dashboard/#/requests/{quote(HOSTILE.replace('/', ''), safe='')}")
    expect(page.locator(".fault")).to_contain_text("there is no request '<img src=x")
    assert page.evaluate("window.hacked") is None
    assert not page.query_selector("main img, main script")


def test_a_tenant_sees_its_own_and_nothing_of_others(world: World):
    page = world.page(key="key-of-ada")
    world.open(page, "requests")
    assert len(page.query_selector_all("tr[data-id]")) == len(world.client.usage)
    assert "secret-program" not in page.content()
    world.open(page, "programs")
    assert "secret-program" not in page.content()
    for view in ("tree", "overview", "whatif"):
        page.goto(f"{world.server.url}/dashboard/#/{view}")
        page.wait_for_selector(f"[data-view={view}] .fault")
        assert "operator" in page.inner_text(".fault")


def test_it_reads_well_small_and_large_by_day_and_by_night(world: World):
    for width, scheme in ((390, "light"), (1280, "dark")):
        page = world.page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        for view in VIEWS:
            world.open(page, view)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (view, width)
            ink, ground = page.evaluate(
                "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
            )
            assert contrast(ink, ground) > 10
            assert (luminance(ground) < 0.1) == (scheme == "dark")
        page.context.close()
    page = world.page()
    world.open(page, "programs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(2):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Overview"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-view=requests][data-ready]")


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_nothing_failed_and_nothing_was_fetched_from_elsewhere(world: World):
    assert world.faults == []
    assert world.asked
    assert all(url.startswith((world.server.url, "about:")) for url in world.asked)
