// Asks the public API of the page's own server. The key stays in this tab.

const KEY = "bosquet-key";

/** What the server refused, with its HTTP status. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(KEY) ?? "";

export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

async function ask(path, options, signal) {
  const headers = { ...options.headers };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  // the page is at …/dashboard/, the API beside it
  const answer = await fetch(new URL(`..${path}`, document.baseURI), { ...options, headers, signal, cache: "no-store" });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, body.error?.message ?? `the server answered ${answer.status}`);
}

export const get = async (path, signal) => (await ask(path, {}, signal)).json();
export const text = async (path, signal) => (await ask(path, {}, signal)).text();

export async function post(path, body, signal) {
  const options = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  return (await ask(path, options, signal)).json();
}

/** A path with a query of what is not empty. */
export function withQuery(path, fields) {
  const query = new URLSearchParams(Object.entries(fields).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return query.size ? `${path}?${query}` : path;
}
