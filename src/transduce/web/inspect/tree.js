/* A search as a tree: BEGIN at the left, every candidate a node, every step a column. */
(function (t) {
  "use strict";
  const { el, svg } = t;

  const SHOWN = 24;
  const NODE = 34, ROW = 42, HEAD = 26, NARROW = 108, WIDE = 176, GAP = 24;

  /** What became of a candidate: in words, and as a mark of two strokes or a circle at most. */
  t.fates = {
    kept: { short: "kept", text: "kept", mark: null },
    finished: { short: "finished", text: "finished", mark: [["circle", { cx: 5, cy: 5, r: 3.5, class: "full" }]] },
    cut: { short: "dropped: others better", text: "dropped: others better",
      mark: [["path", { d: "M2 2L8 8M8 2L2 8" }]] },
    forbidden: { short: "dropped: forbidden", text: "dropped: may not come here",
      mark: [["circle", { cx: 5, cy: 5, r: 4 }], ["path", { d: "M2.2 7.8L7.8 2.2" }]] },
    duplicate: { short: "dropped: duplicate", text: "dropped: an equal output is as good",
      mark: [["path", { d: "M1 3.5H9M1 6.5H9" }]] },
    limit: { short: "dropped: length limit", text: "dropped: no room for more, the length limit",
      mark: [["path", { d: "M1 5H8M8 1V9" }]] },
  };
  const DROPPED = ["cut", "forbidden", "duplicate", "limit"];

  const marked = (fate, x, y) => t.fates[fate].mark && svg("g",
    { class: `fate-mark ${fate}`, transform: `translate(${x} ${y})` },
    t.fates[fate].mark.map(([tag, attributes]) => svg(tag, attributes)));

  /** A fate in words, with its mark. */
  t.fate = (fate) => [
    t.fates[fate].mark && svg("svg", { class: "fate-icon", viewBox: "0 0 10 10", "aria-hidden": "true" },
      marked(fate, 0, 0)),
    t.fates[fate].text,
  ];

  t.tokens = (n) => `${n} token${n === 1 ? "" : "s"}`;

  /** The divisor of a score at a length, as the search computes it. */
  t.divisor = ({ kind, alpha }, n) =>
    kind === "none" ? 1 : kind === "average" ? Math.max(n, 1) : ((5 + n) / 6) ** alpha;

  /** A score written out: sum / divisor = score; what coverage adds, where it adds something. */
  t.division = (decoding, { total, score }, n, digits) => {
    const divisor = t.divisor(decoding.penalty, n), added = score - total / divisor;
    const more = decoding.penalty.beta ? ` + ${t.number(added, digits)}` : "";
    return `${t.number(total, digits)} / ${t.number(divisor, digits)}${more} = ${t.number(score, digits)}`;
  };

  // The search as nodes --------------------------------------------------------------------------

  const known = new WeakMap();

  /** The nodes of a search by number; each knows its step, its length and its parent's number. */
  t.searched = (decoding) => {
    if (known.has(decoding)) return known.get(decoding);
    const nodes = new Map([[0, { id: 0, parent: null, step: -1, n: 0, total: 0, fate: "kept", token: null }]]);
    decoding.steps.forEach(({ candidates }, step) => {
      for (const one of candidates) nodes.set(one.id, { ...one, step, n: step + 1 });
    });
    const path = (id) => {
      const found = [];
      for (let node = nodes.get(id); node && node.id; node = nodes.get(node.parent)) found.unshift(node);
      return found;
    };
    const best = decoding.outputs.length ? path(decoding.outputs[0].id) : [];
    const others = decoding.outputs.slice(1).flatMap((output) => path(output.id));
    const found = {
      nodes, path, final: new Set(best.map((node) => node.id)), best,
      outputs: new Set(others.map((node) => node.id)),
    };
    known.set(decoding, found);
    return found;
  };

  const spaced = (text) => text.replaceAll("▁", " ");

  /** The tokens of a hypothesis as elements; of a long one, the last ones. */
  t.hypothesis = (search, id, most) => {
    const nodes = search.path(id), left = most && nodes.length > most ? nodes.length - most : 0;
    if (!nodes.length) return t.token({ text: "BEGIN", special: true });
    return el("span", { class: "hypothesis", dir: "auto" }, left > 0 && "… ",
      nodes.slice(left).map((node) => node.token.special ? t.token(node.token) : spaced(node.token.text)));
  };
  t.hypothesisText = (search, id, most) => {
    const texts = search.path(id).map((node) => node.token.text);
    if (!texts.length) return "BEGIN";
    return (most && texts.length > most ? "… " : "") + texts.slice(most ? -most : 0).map(spaced).join("");
  };

  // Places ---------------------------------------------------------------------------------------

  /** Columns of nodes from top to bottom: no lines cross, and the final path is straight. */
  function columns(decoding, search, dropped, chosen) {
    const row = new Map([[0, 0]]);
    return decoding.steps.map(({ candidates }, step) => {
      const there = candidates.filter((one) => dropped || step === chosen || !DROPPED.includes(one.fate)
        || search.final.has(one.id));
      there.sort((a, b) => row.get(a.parent) - row.get(b.parent) || a.rank - b.rank);
      const straight = there.findIndex((one) => search.final.has(one.id));
      const shift = straight >= 0 ? -straight : Math.round(
        there.reduce((sum, one, i) => sum + row.get(one.parent) - i, 0) / Math.max(1, there.length));
      there.forEach((one, i) => row.set(one.id, i + shift));
      return there.map((one) => ({ ...search.nodes.get(one.id), row: row.get(one.id), from: row.get(one.parent) }));
    });
  }

  /** Which steps are drawn: all, or some around the chosen one. */
  function range(count, chosen) {
    if (count <= SHOWN) return [0, count];
    const half = SHOWN / 2;
    const start = Math.max(0, Math.min(count - SHOWN, half * Math.floor((chosen - half / 2) / half)));
    return [start, start + SHOWN];
  }

  const clipped = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

  // The drawing ----------------------------------------------------------------------------------

  const scrolled = {};

  /**
   * Draw a search.
   *
   * @param {Object} decoding
   * @param {Object} o  id, name, step, node (the chosen candidate), dropped (draw those of all
   *   steps), pick: node -> change of state
   */
  t.tree = (decoding, o) => {
    const search = t.searched(decoding), { step } = o;
    const all = columns(decoding, search, o.dropped, step);
    const [start, end] = range(all.length, step);
    const shown = all.slice(start, end);
    const rows = shown.flat().map((node) => node.row).concat(start ? [] : [0]);
    const top = Math.min(...rows), height = HEAD + (Math.max(...rows) - top + 1) * ROW;
    const ends = (node) => node.fate === "finished" || node.fate === "duplicate" || node.fate === "limit";
    const widths = shown.map((column) => column.some(ends) ? WIDE : NARROW);
    const begin = start ? 30 : 76;
    const lefts = widths.map((_, i) => begin + widths.slice(0, i).reduce((a, b) => a + b, 0));
    const width = begin + widths.reduce((a, b) => a + b, 0) + 8;
    const middle = (row) => HEAD + (row - top) * ROW + NODE / 2 + 2;
    const edges = [], boxes = [], heads = [];

    shown.forEach((column, i) => {
      const left = lefts[i] + GAP, right = lefts[i] + widths[i];
      const before = i ? lefts[i] : start ? 0 : begin - 12;
      heads.push(svg("text", { class: start + i === step ? "head here" : "head", x: (left + right) / 2, y: 14 }, `step ${start + i + 1}`));
      for (const node of column) {
        const final = search.final.has(node.id), output = search.outputs.has(node.id);
        const kind = `${node.fate}${final ? " final" : output ? " output" : ""}`;
        const y = middle(node.row), from = middle(node.from), bend = (left - before) / 2;
        edges.push([final ? 2 : output ? 1 : 0, svg("path", {
          class: `edge ${kind}`, "data-node": node.id,
          d: `M${before} ${from}C${before + bend} ${from} ${left - bend} ${y} ${left} ${y}`,
        })]);
        boxes.push(box(decoding, node, kind, left, y, right - left, ends(node), o));
      }
    });
    edges.sort((a, b) => a[0] - b[0]);
    const at = step - start;
    const picture = svg("svg", { class: "tree", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": `${o.name}: the search as a tree. The table below has the chosen step in words.` },
    at in lefts && svg("rect", { class: "column", x: lefts[at] + GAP - 8, y: 0, width: widths[at] - GAP + 16, height, rx: 6 }),
    heads, edges.map(([, edge]) => edge),
    !start && svg("g", { class: "node begin" },
      svg("rect", { x: 0, y: middle(0) - NODE / 2, width: begin - 12, height: NODE, rx: 5 }),
      svg("text", { x: (begin - 12) / 2, y: middle(0) + 4 }, "BEGIN")),
    boxes);

    const scroll = t.scrolling(`${o.name}: tree`, {
      class: "scroll tree-scroll", id: `${o.id}-scroll`,
      on: { scroll: (event) => { scrolled[o.id] = event.target.scrollLeft; } },
    }, picture);
    t.after(() => {
      scroll.scrollLeft = scrolled[o.id] || 0;
      if (!(at in lefts)) return;
      const { scrollLeft, clientWidth } = scroll;
      if (lefts[at] < scrollLeft || lefts[at] + widths[at] + 12 > scrollLeft + clientWidth) {
        scroll.scrollLeft = lefts[at] - clientWidth / 3;
      }
    });
    return el("figure", { class: "search-tree" }, scroll,
      all.length > SHOWN && el("figcaption", { class: "quiet" },
        `Steps ${start + 1} to ${end} of ${all.length} are drawn, around the chosen one.`));
  };

  function box(decoding, node, kind, x, y, width, ends, o) {
    const label = t.label(node.token), rough = 3;
    const mark = t.fates[node.fate].mark, room = mark ? 8 : 9;
    const centre = x + width / 2 + (mark && !ends ? 6 : 0);
    const title = `rank ${node.rank}: ${label}, log p ${t.number(node.log_probability)}, ` +
      `sum ${t.number(node.total)}, score ${t.number(node.score)}; ${t.fates[node.fate].text}`;
    return svg("g", {
      class: `node ${kind}${node.id === o.node ? " chosen" : ""}`, "data-node": node.id,
      on: { click: () => t.set(o.pick(node)) },
    },
    svg("title", {}, title),
    svg("rect", { x, y: y - NODE / 2, width, height: NODE, rx: 5 }),
    marked(node.fate, x + 6, y - 11),
    svg("text", { class: node.token.special ? "special" : null, x: centre, y: y - 3 },
      clipped(label, ends ? 12 : room), ends && ` · ${t.tokens(node.n)}`),
    svg("text", { class: "small", x: centre, y: y + 11 },
      ends ? t.division(decoding, node, node.n, rough) : t.number(node.total, rough)));
  }

  /** What the lines and marks mean, and how many there are of each. */
  t.treeLegend = (decodings) => {
    const count = {};
    for (const { steps } of decodings) {
      for (const { candidates } of steps) {
        for (const { fate } of candidates) count[fate] = (count[fate] || 0) + 1;
      }
    }
    const sample = (kind, fate) => svg("svg", { class: "sample", viewBox: "0 0 40 12", "aria-hidden": "true" },
      svg("path", { class: `edge ${kind}`, d: "M1 6H26" }), fate && marked(fate, 29, 1));
    return el("ul", { class: "tree-legend", "aria-label": "Legend" },
      el("li", {}, sample("kept final"), "the output's path"),
      decodings.some(({ outputs }) => outputs.length > 1) && el("li", {}, sample("kept output"), "another output's path"),
      Object.keys(t.fates).filter((fate) => count[fate]).map((fate) =>
        el("li", {}, sample(fate, fate), t.fates[fate].short, el("span", { class: "quiet" }, ` ${count[fate]}`))));
  };
})(transduce);
