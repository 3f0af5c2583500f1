/* All heads at once: layers down, heads across, each a small map with what it does in figures. */
(function (t) {
  "use strict";
  const { el } = t;

  const BADGES = {
    entropy: ["entropy", (x) => `${x.toFixed(2)} bits`, "how spread the weights are; 0: one key has all"],
    diagonal: ["itself", t.percent, "share of the weight on the token itself"],
    previous: ["the one before", t.percent, "share on the token before"],
    ends: ["ends", t.percent, "share on BEGIN, END and punctuation"],
    share: ["one token", t.percent, "mean weight of the token that has most"],
  };
  const SIZE = 96;

  /** A small map of one head. */
  function small(weights, layer, head, name) {
    const [, , rows, columns] = weights.shape;
    const canvas = el("canvas", { width: columns, height: rows, class: "small-map", "aria-hidden": "true",
      style: { width: `${SIZE}px`, height: `${Math.max(24, Math.min(140, Math.round(SIZE * rows / columns)))}px` } });
    const pen = canvas.getContext("2d"), image = pen.createImageData(columns, rows);
    const place = (layer * weights.shape[1] + head) * rows * columns;
    const shades = t.palette();
    for (let n = 0; n < rows * columns; n++) {
      const rgb = shades[Math.max(0, Math.min(255, Math.round(255 * weights.data[place + n])))];
      image.data[4 * n] = rgb[0];
      image.data[4 * n + 1] = rgb[1];
      image.data[4 * n + 2] = rgb[2];
      image.data[4 * n + 3] = 255;
    }
    pen.putImageData(image, 0, 0);
    return canvas;
  }

  function cards(trace, state, kind) {
    const { layers, weights } = trace.attention[kind];
    const numbers = t.numbers(trace, weights);
    const { keys } = t.sides(trace, kind);
    const found = [];
    layers.forEach((layer, n) => trace.badges[kind][n].forEach((badge, head) => found.push({ layer, head, n, badge })));
    const by = state.sort || "place";
    if (by !== "place") found.sort((a, b) => by === "entropy" ? a.badge.entropy - b.badge.entropy : (b.badge[by] ?? -1) - (a.badge[by] ?? -1));
    return found.map(({ layer, head, n, badge }) => {
      const chosen = kind === state.kind && layer === state.layer && head === state.head;
      const facts = Object.entries(BADGES).filter(([key]) => badge[key] !== undefined).map(([key, [name, write]]) =>
        `${name}${key === "share" ? ` (${t.label(keys[badge.key])})` : ""} ${write(badge[key])}`);
      return el("button", {
        type: "button", class: "head-card", id: `card-${kind}-${layer}-${head}`, "aria-pressed": String(chosen),
        title: facts.join("\n"), "aria-label": `layer ${layer + 1}, head ${head + 1}: ${facts.join(", ")}`,
        on: { click: () => t.set({ kind, layer, head, view: "head", token: 0, key: 0 }) },
      },
      small(numbers, n, head),
      el("span", { class: "head-name" }, `layer ${layer + 1} head ${head + 1}`),
      el("span", { class: "head-badge quiet" }, mark(badge, by, keys)));
    });
  }

  /** The figure that says most about a head, or the one that was asked for. */
  function mark(badge, by, keys) {
    const write = (key) => `${BADGES[key][0]}${key === "share" ? ` (${t.label(keys[badge.key])})` : ""} ${BADGES[key][1](badge[key])}`;
    if (by !== "place" && badge[by] !== undefined) return write(by);
    const strongest = ["diagonal", "previous", "ends", "share"].filter((key) => badge[key] !== undefined)
      .reduce((best, key) => badge[key] > badge[best] ? key : best, "share");
    return badge[strongest] > 0.4 ? write(strongest) : write("entropy");
  }

  t.views.push({
    id: "overview", name: "All heads",
    there: (trace) => Boolean(trace.model),
    draw: (root, trace, state) => {
      const kinds = Object.keys(t.kinds).filter((kind) => trace.attention[kind].layers.length);
      t.fill(root,
        el("h1", { class: "unseen" }, "All heads"),
        el("div", { class: "controls" },
          t.choice("sort", "order", state.sort, [["place", "by layer and head"], ["entropy", "least spread first"], ["diagonal", "most on itself"], ["previous", "most on the one before"], ["ends", "most on ends"], ["share", "most on one token"]], (sort) => ({ sort }))),
        el("p", { class: "lead quiet" }, "A row of a map is a query, a column a key; dark is much weight. A click opens the head. The figures are computed from the weights: ",
          Object.values(BADGES).map(([name, , said]) => `${name}: ${said}`).join("; "), "."),
        kinds.map((kind) => el("section", { class: "kind" },
          el("h2", {}, t.kinds[kind]),
          el("div", { class: state.sort === "place" ? "heads-grid" : "heads-flow", style: { gridTemplateColumns: state.sort === "place" ? `repeat(${trace.model.h}, minmax(${SIZE + 12}px, max-content))` : null } },
            cards(trace, state, kind)))),
        trace.cannot_show.map((missing) => el("p", { class: "empty" }, `Not to be shown: ${missing}.`)));
    },
  });
})(transduce);
