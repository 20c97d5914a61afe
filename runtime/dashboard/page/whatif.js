// What the hit rate would be with a larger or a smaller cache.

import { get } from "./api.js";
import { h, panel, show, table, tile, tiles } from "./dom.js";
import { chart, room } from "./draw.js";
import { count, percent, short } from "./format.js";

export async function view(context) {
  const body = h("div", { class: "view" });
  show(context.main, h("h1", {}, "What if the cache had another size"), body);
  const refresh = async () => show(body, ...drawn(await get("/v1/cache/reuse", context.signal)));
  await refresh();
  Object.assign(context, { again: refresh, every: 10_000 });
}

/** The hit rate of a cache of so many pages: that of the largest size that is not larger, straight in between. Pure. */
export function at(points, pages) {
  const i = points.findIndex((p) => p.pages >= pages);
  if (i < 0) return points.at(-1)?.hit_rate ?? 0;
  const [a, b] = [points[i - 1] ?? { pages: 0, hit_rate: 0 }, points[i]];
  return b.pages === a.pages ? b.hit_rate : a.hit_rate + ((b.hit_rate - a.hit_rate) * (pages - a.pages)) / (b.pages - a.pages);
}

/** The smallest size from which on no more than a hundredth of the best hit rate is to be gained. Pure. */
export function enough(points) {
  const best = points.at(-1)?.hit_rate ?? 0;
  return points.find((p) => p.hit_rate >= 0.99 * best)?.pages ?? 0;
}

function drawn(reuse) {
  const { points, page_tokens: tokens } = reuse;
  if (!points.length || !reuse.asked_pages) return [h("section", { class: "panel" }, h("p", { class: "empty" }, "Nothing has been asked for yet."))];
  const now = reuse.pages_total;
  const most = Math.max(points.at(-1).pages, now);
  const line = [...points.map((p) => [p.pages * tokens, p.hit_rate]), ...(points.at(-1).pages < now ? [[now * tokens, points.at(-1).hit_rate]] : [])];
  const sizes = [0.125, 0.25, 0.5, 1, 2, 4].map((share) => [share, Math.round(share * now)]);
  const rows = sizes.map(([share, pages]) => ({ cells: [share === 1 ? h("strong", {}, "as it is") : `× ${share}`, count(pages * tokens), percent(at(points, pages))] }));
  return [
    tiles(
      tile("As it is", percent(at(points, now)), "hit_rate_now", `with ${count(now * tokens)} tokens`),
      tile("At best", percent(points.at(-1).hit_rate), "hit_rate_best", "with room for everything"),
      tile("Enough", `${count(enough(points) * tokens)}`, "enough", "tokens, for 99 % of that"),
      tile("Asked for", count(reuse.asked_pages), "asked_pages", "pages of prompts")),
    panel("Hit rate against the size of the cache", "From the distances between uses of the same page, as if the least recently used went first.",
      chart([{ kind: "accent", points: line }], { x: short, y: (v) => percent(v), most: 1, log: true, from: points[0].pages * tokens, to: most * tokens, width: room(1), height: 260, marks: [[now * tokens, "as it is"], [enough(points) * tokens, "enough"]] }),
      h("p", { class: "note" }, `Across: tokens of cache, each step as many times larger.${reuse.one_in > 1 ? ` One page in ${count(reuse.one_in)} is followed.` : ""}`)),
    panel("Sizes", null, table([["size", ""], ["tokens", "n"], ["hit rate", "n"]], rows, "Sizes")),
  ];
}
