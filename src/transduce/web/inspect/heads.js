/* One token and its heads: the sentence on both sides, lines as strong as the weights. */
(function (t) {
  "use strict";
  const { el, svg } = t;
  const LINE = 26;

  /** Two columns of tokens with the lines of one head from the chosen token. */
  function pair(trace, state, weights, place, head, told) {
    const { queries, keys } = t.sides(trace, state.kind);
    const alpha = t.row(weights, place, head, state.token);
    const height = LINE * Math.max(queries.length, keys.length);
    const lines = [];
    alpha.forEach((weight, j) => {
      if (weight < state.threshold) return;
      lines.push(svg("line", {
        x1: 0, x2: 90, y1: LINE * (state.token + 0.5), y2: LINE * (j + 0.5),
        class: "weight-line", "stroke-width": 1 + 5 * weight, "stroke-opacity": 0.25 + 0.75 * weight,
      }, svg("title", {}, `${t.label(keys[j])} ${t.number(weight)}`)));
    });
    const strongest = alpha.indexOf(Math.max(...alpha));
    return el("figure", { class: "head-pair" },
      el("figcaption", {}, `head ${head + 1} `, el("span", { class: "quiet" }, `most on ${t.label(keys[strongest])}, ${t.number(alpha[strongest])}`)),
      el("div", { class: "head-columns" },
        el("ol", { class: "side queries" }, queries.map((token, i) => el("li", { style: { height: `${LINE}px` } },
          el("button", { type: "button", class: "plain", id: `h${head}-q${i}`, "aria-pressed": String(i === state.token),
            on: { click: () => t.set({ token: i }), mouseenter: () => told(head, i) } }, t.token(token))))),
        svg("svg", { width: 90, height, viewBox: `0 0 90 ${height}`, "aria-hidden": "true" }, lines),
        el("ol", { class: "side" }, keys.map((token, j) => el("li", { style: { height: `${LINE}px` }, class: alpha[j] >= state.threshold ? "seen" : "quiet" },
          t.token(token), alpha[j] >= state.threshold && el("span", { class: "share" }, t.number(alpha[j])))))));
  }

  const READ = {
    encoder_self: "Each source token looks at every source token.",
    decoder_self: "Each token of the target so far looks at itself and at those before it, BEGIN first.",
    cross: "Row t belongs to the step that produced target token t: what the decoder looked at then (its input was the token before).",
  };

  t.views.push({
    id: "head", name: "Lines",
    there: (trace) => Boolean(trace.model),
    missing: (trace, state) => trace.attention[state.kind].layers.length ? "" : `No weights of ${t.kinds[state.kind]} are here: ${trace.cannot_show.join("; ") || "choose another kind"}.`,
    draw: (root, trace, state) => {
      const { layers, weights } = trace.attention[state.kind];
      const numbers = t.numbers(trace, weights), place = layers.indexOf(state.layer);
      const kinds = Object.keys(t.kinds).filter((kind) => trace.attention[kind].layers.length);
      const all = state.heads === "all";
      const heads = all ? [...Array(numbers.shape[1]).keys()] : [state.head];
      const { queries, keys } = t.sides(trace, state.kind);
      const note = el("p", { class: "said quiet", "aria-live": "off" }, "\u00a0");
      const told = (head, i) => {
        const alpha = t.row(numbers, place, head, i);
        const best = alpha.map((w, j) => [w, j]).sort((a, b) => b[0] - a[0]).slice(0, 3);
        note.textContent = `${t.label(queries[i])}: ${best.map(([w, j]) => `${t.label(keys[j])} ${t.number(w)}`).join(", ")}`;
      };
      t.fill(root,
        el("h1", { class: "unseen" }, "Lines from one token"),
        el("div", { class: "controls" },
          t.choice("kind", "attention", state.kind, kinds.map((kind) => [kind, t.kinds[kind]]), (kind) => ({ kind, token: 0, key: 0 })),
          t.choice("layer", "layer", state.layer, layers.map((layer) => [layer, String(layer + 1)]), (layer) => ({ layer: +layer })),
          t.choice("head", "head", all ? "all" : state.head, [...[...Array(numbers.shape[1]).keys()].map((head) => [head, String(head + 1)]), ["all", "all, side by side"]],
            (head) => head === "all" ? { heads: "all" } : { heads: "one", head: +head }),
          el("label", { class: "choice" }, el("span", {}, "lines from weight"),
            el("input", { id: "threshold", type: "range", min: 0, max: 0.5, step: 0.01, value: state.threshold, on: { change: (event) => t.set({ threshold: +event.target.value }) } }),
            el("output", { for: "threshold" }, state.threshold.toFixed(2)))),
        el("p", { class: "lead quiet" }, READ[state.kind], numbers.rough && " Weights are rounded to 256 steps here; those of the chosen head, step by step, are exact."),
        note,
        state.table ? t.matrix({ id: "m-lines", name: "weights", rows: queries, columns: keys, values: t.matrixOf(numbers, place, state.head), range: [0, 1], picked: state.token, pick: (i, j) => ({ token: i, key: j }) })
          : el("div", { class: "heads-row" }, heads.map((head) => pair(trace, state, numbers, place, head, told))));
    },
    keys: {
      ArrowUp: (state) => ({ token: state.token - 1 }), ArrowDown: (state) => ({ token: state.token + 1 }),
      a: (state) => ({ heads: state.heads === "all" ? "one" : "all" }),
    },
    help: [["↑ ↓", "another token"], ["a", "all heads side by side, or one"]],
  });
})(transduce);
