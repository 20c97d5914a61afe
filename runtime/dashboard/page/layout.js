// Where the nodes of the prefix tree are drawn. Pure. From left to right is the place in the prompt, so that what is shared
// stands left as one tall block and what differs forks to the right; a node is as tall as the leaves behind it.

/** Boxes {i, x, y, w, h} in a field of `width` × the number of leaves, in the order of `nodes`; also children and the end. */
export function layout(nodes, width) {
  const children = nodes.map(() => []);
  const roots = [];
  nodes.forEach((node, i) => (node.parent === null || node.parent === undefined ? roots : children[node.parent]).push(i));
  const leaves = new Array(nodes.length).fill(0);
  const end = Math.max(1, ...nodes.map((node) => node.start + node.tokens));
  for (let i = nodes.length - 1; i >= 0; i--) { // parents come before children
    if (!leaves[i]) leaves[i] = 1;
    const parent = nodes[i].parent;
    if (parent !== null && parent !== undefined) leaves[parent] += leaves[i];
  }
  const top = new Array(nodes.length).fill(0);
  let below = 0;
  for (const root of roots) {
    top[root] = below;
    below += leaves[root];
  }
  nodes.forEach((_, i) => {
    let y = top[i];
    for (const child of children[i].sort((a, b) => leaves[b] - leaves[a] || nodes[a].start - nodes[b].start || a - b)) {
      top[child] = y;
      y += leaves[child];
    }
  });
  const scale = width / end;
  const boxes = nodes.map((node, i) => ({ i, x: node.start * scale, w: node.tokens * scale, y: top[i], h: leaves[i] }));
  return { boxes, children, roots, end, leaves: below };
}

/** The node that an arrow key leads to from node `i`, or `i` itself. */
export function neighbour(nodes, { children, roots }, i, key) {
  const parent = nodes[i].parent ?? null;
  const beside = parent === null ? roots : children[parent];
  const at = beside.indexOf(i);
  if (key === "ArrowRight") return children[i][0] ?? i;
  if (key === "ArrowLeft") return parent === null || (nodes[parent].tokens === 0 && nodes[parent].parent == null) ? i : parent;
  if (key === "ArrowDown") return beside[at + 1] ?? i;
  if (key === "ArrowUp") return beside[at - 1] ?? i;
  return i;
}

const HUES = ["#3f8f6b", "#b8842f", "#5b7fa8", "#a8654f", "#7d6b9e", "#5f8f8f", "#98894a", "#8a5f7d"];

/** The colour of a name among others: the first eight have one each, the rest share the last. */
export function named(names) {
  const order = [...new Set(names)].sort();
  return new Map(order.map((name, i) => [name, name === "" ? "#8a8f8c" : HUES[Math.min(i - (order[0] === "" ? 1 : 0), HUES.length - 1)]]));
}

/** How much of the accent a share from 0 to 1 takes, in percent. */
export const strength = (share) => Math.round(18 + 82 * Math.min(1, Math.max(0, share)));
