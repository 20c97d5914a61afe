// The frame: the view that the address names, kept fresh while the tab is looked at; the key; dark and light.

import { get, key, setKey } from "./api.js";
import { h, show } from "./dom.js";

/** Name → title and module; each module has `view(context)`, which fills `context.main` and may set `context.again`. */
const VIEWS = {
  overview: ["Overview", "./overview.js"],
  requests: ["Requests", "./requests.js"],
  why: ["Misses", "./why.js"],
  tree: ["Tree", "./tree.js"],
  programs: ["Programs", "./programs.js"],
  whatif: ["What if", "./whatif.js"],
  speculation: ["Speculation", "./speculation.js"],
};

const main = document.getElementById("main");
const nav = document.getElementById("nav");
let shown = null;

/** "#/requests/ID?run=r" → the view's name, what follows it, and the fields. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  return { name: name in VIEWS ? name : "overview", rest, fields: Object.fromEntries(new URLSearchParams(query)) };
}

async function open() {
  if (location.hash === "#main") return; // the link to the content
  shown?.stop.abort();
  const { name, rest, fields } = parse(location.hash);
  const stop = new AbortController();
  const context = { main: h("div", { class: "view", "data-view": name }), rest, fields, signal: stop.signal, again: null, every: 0 };
  const here = { stop, context, busy: false };
  shown = here;
  show(nav, Object.entries(VIEWS).map(([key, [title]]) =>
    h("a", { href: `#/${key}`, "aria-current": key === name ? "page" : null }, title)));
  nav.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  document.title = `${VIEWS[name][0]} · Bosquet`;
  show(main, context.main);
  window.scrollTo(0, 0);
  await guarded(here, async () => {
    const { view } = await import(VIEWS[name][1]);
    await view(context);
  });
  while (!stop.signal.aborted && context.again) {
    await new Promise((done) => setTimeout(done, context.every));
    if (!stop.signal.aborted && !document.hidden) await guarded(here, context.again);
  }
}

/** Says what went wrong above the view, and asks for a key where one is needed. */
async function guarded(here, work) {
  try {
    await work();
    here.context.main.querySelector(":scope > .fault")?.remove();
    here.context.main.dataset.ready = "";
  } catch (error) {
    if (here.stop.signal.aborted) return;
    here.context.main.querySelector(":scope > .fault")?.remove();
    const said = error.status ? error.message : error instanceof TypeError ? `The server does not answer. (${error.message})` : String(error);
    here.context.main.prepend(h("p", { class: "fault", role: "alert" }, said));
    if (error.status === 401) askKey(key() ? "This key is not known to the server." : "This server asks for a key.");
  }
}

function askKey(why) {
  const dialog = document.getElementById("ask");
  show(document.getElementById("ask-why"), why);
  if (dialog.open) return;
  document.getElementById("ask-key").value = "";
  dialog.showModal();
}

async function state() {
  const place = document.getElementById("state");
  try {
    const health = await get("/health");
    show(place, h("span", { class: "dot good" }), h("span", { class: "model" }, health.model ?? health.status));
  } catch {
    show(place, h("span", { class: "dot bad" }), h("span", { class: "model" }, "not ready"));
  }
}

function theme(next) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = next ?? (now === "dark" ? "light" : "dark");
  localStorage.setItem("bosquet-theme", document.documentElement.dataset.theme);
}

if (localStorage.getItem("bosquet-theme")) theme(localStorage.getItem("bosquet-theme"));
document.getElementById("theme").addEventListener("click", () => theme());
document.getElementById("key").addEventListener("click", () => askKey(key() ? "A key is in use. Another one, or none:" : "Without keys, a server asks for none."));
document.getElementById("ask-cancel").addEventListener("click", () => document.getElementById("ask").close());
document.getElementById("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(document.getElementById("ask-key").value.trim());
  document.getElementById("ask").close();
  document.getElementById("key").classList.toggle("set", key() !== "");
  open();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", open);
document.getElementById("key").classList.toggle("set", key() !== "");
state();
setInterval(() => document.hidden || state(), 10_000);
open();
