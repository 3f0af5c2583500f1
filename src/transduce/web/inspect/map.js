/* One attention matrix in full: of one head, or the mean or the greatest of several. */
(function (t) {
  "use strict";
  const { el } = t;

  const KINDS = Object.entries(t.kinds);
  const HIDDEN = ["", "a later token", "padding", "outside the window"];
  const JOINED = { mean: "mean of", max: "greatest of" };

  // Weights --------------------------------------------------------------------------------------

  function joined(matrices, how) {
    if (matrices.length === 1) return matrices[0];
    return matrices[0].map((row, i) => row.map((_, j) => {
      if (how === "max") return Math.max(...matrices.map((own) => own[i][j]));
      return matrices.reduce((sum, own) => sum + own[i][j], 0) / matrices.length;
    }));
  }

  /** The weights of one head as rows: exactly, where the trace has them so. */
  t.weightsOf = (trace, kind, layer, head) => {
    const station = trace.stations[kind];
    if (station && station.layer === layer && station.head === head) {
      return t.matrixOf(t.numbers(trace, station.one.alpha));
    }
    const { layers, weights } = trace.attention[kind];
    return t.matrixOf(t.numbers(trace, weights), layers.indexOf(layer), head);
  };

  /** How heads are joined; another view knows other ways. */
  t.headsOf = ({ heads }) => heads in JOINED ? heads : "one";

  /** One matrix of what is chosen; heads are joined within each layer, then the layers. */
  t.chosenWeights = (trace, state) => {
    const { kind, layer, head, layers } = state, heads = t.headsOf(state);
    const chosen = layers === "one" ? [layer] : trace.attention[kind].layers;
    const all = Array.from({ length: trace.model.h }, (_, i) => i);
    return joined(chosen.map((own) =>
      joined((heads === "one" ? [head] : all).map((i) => t.weightsOf(trace, kind, own, i)), heads)), layers);
  };

  /** What is chosen, in words. */
  t.chosenName = (trace, state) => {
    const { kind, layer, head, layers } = state, heads = t.headsOf(state);
    const which = heads === "one" ? `head ${head + 1}` : `${JOINED[heads]} all ${trace.model.h} heads`;
    const there = trace.attention[kind].layers;
    const where = layers === "one" ? `layer ${layer + 1}`
      : `${JOINED[layers]} layers ${there.map((i) => i + 1).join(", ")}`;
    return `${t.kinds[kind]}, ${where}, ${which}`;
  };

  /** Say why a cell is hidden: the mask is the same in all layers of a kind. */
  t.mask = (trace, kind) => {
    const station = trace.stations[kind];
    if (!station) return (i, j) => kind === "decoder_self" && j > i ? HIDDEN[1] : "";
    const { data, shape } = t.numbers(trace, station.one.hidden);
    return (i, j) => HIDDEN[data[i * shape[1] + j]];
  };

  /** Say that weights were rounded, where they were. */
  t.rounding = (trace, state) => {
    const { kind, layer, head, layers } = state, heads = t.headsOf(state);
    const station = trace.stations[kind], packed = t.numbers(trace, trace.attention[kind].weights);
    const exact = heads === "one" && layers === "one" && station && station.layer === layer &&
      station.head === head;
    return packed.rough && !exact
      ? "On this page these weights are rounded, by 0.002 at most, and so their sums are rough." : "";
  };

  // Parts that other views use as well -----------------------------------------------------------

  /** The choices of kind, layer and head; `joining` offers means and greatest as well. */
  t.whichWeights = (trace, state, joining) => {
    const there = trace.attention[state.kind].layers;
    const how = (one) => [["one", one], ["mean", "mean of all"], ["max", "greatest of all"]];
    return [
      t.choice("kind", "attention", state.kind, KINDS, (kind) => ({ kind, token: 0, key: 0 })),
      joining && t.choice("layers", "layers", state.layers, how("one"), (layers) => ({ layers })),
      (!joining || state.layers === "one") && t.choice("layer", "layer", state.layer,
        there.map((i) => [i, i + 1]), (layer) => ({ layer: Number(layer) })),
      joining && t.choice("heads", "heads", t.headsOf(state), how("one"), (heads) => ({ heads })),
      (!joining || t.headsOf(state) === "one") && t.choice("head", "head", state.head,
        Array.from({ length: trace.model.h }, (_, i) => [i, i + 1]), (head) => ({ head: Number(head) })),
    ];
  };

  /** A box that scrolls, also by keyboard. */
  t.scrolling = (name, attributes, ...children) => el("div", {
    class: "scroll", tabindex: 0, role: "group", "aria-label": `${name}, can be scrolled`, ...attributes,
  }, children);

  /** Bars with their numbers, as a table. Rows are {label, value, text, marked, quiet}. */
  t.bars = (caption, columns, rows, most) => el("table", { class: "bars" },
    el("caption", { class: "unseen" }, caption),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, columns[0]),
      el("td", { "aria-hidden": "true" }),
      columns.slice(1).map((column) => el("th", { scope: "col", class: "n" }, column)))),
    el("tbody", {}, rows.map((row) => el("tr", { class: row.marked ? "picked" : null },
      el("th", { scope: "row" }, row.label),
      el("td", { class: "length-cell", "aria-hidden": "true" }, el("span",
        { class: row.quiet ? "length quiet-bar" : "length", style: { width: `${100 * row.value / (most || 1)}%` } })),
      row.text.map((text) => el("td", { class: "n" }, text))))));

  /** The colours of a range. */
  t.scale = (range, text) => el("p", { class: "scale" }, text && el("span", {}, `${text} `),
    el("span", {}, t.number(range[0])),
    el("span", { class: range[0] < 0 ? "ramp two-sided" : "ramp", "aria-hidden": "true" }),
    el("span", {}, t.number(range[1])));

  // The view -------------------------------------------------------------------------------------

  const READ = {
    encoder_self: "Each row is a source token that looks, each column one that is looked at.",
    cross: "Each row is a step of the decoder, named by the token that the step produced; the step " +
      "had the token before it as its input. Columns are the source's tokens.",
    decoder_self: "Rows and columns are the decoder's inputs: BEGIN, then every token of the output " +
      "but the last. A row is the step that has this token as its input and produces the one after it.",
  };

  function read(trace, state) {
    const normal = state.norm === "columns"
      ? "Columns are divided by their sums: a column says which rows look at its token, and how much."
      : state.heads === "max" || state.layers === "max"
        ? "The greatest of several weights: rows need not sum to 1."
        : "As the model computes it: a row says how a token spreads its look, and sums to 1" +
          (trace.model.attention_normaliser === "relu" ? " or to something else (ReLU weights)." : ".");
    return `${READ[state.kind]} ${normal}`;
  }

  const byColumns = (rows) => {
    const sums = rows[0].map((_, j) => rows.reduce((sum, row) => sum + row[j], 0));
    return rows.map((row) => row.map((x, j) => sums[j] > 0 ? x / sums[j] : 0));
  };

  /** What a row is of, in one line. */
  t.rowName = (trace, kind, i) => {
    const token = t.label(t.sides(trace, kind).queries[i]);
    if (kind === "encoder_self") return token;
    const { inputs, tokens } = trace.target;
    return `Step ${i + 1} (input ${t.label(inputs[i])}, produced ${t.label(tokens[i])})`;
  };

  function draw(root, trace, state) {
    const controls = el("div", { class: "controls" },
      t.whichWeights(trace, state, true),
      t.choice("norm", "normal form", state.norm, [["rows", "rows"], ["columns", "columns"]],
        (norm) => ({ norm })),
      t.tick("table", "as a table", state.table, (table) => ({ table })));
    root.append(el("h2", { class: "unseen" }, "Matrix"), controls);
    if (!trace.attention[state.kind].layers.length) {
      root.append(el("p", { class: "empty" }, `There is no ${t.kinds[state.kind]} to see: ${trace.cannot_show.join("; ")}.`));
      return;
    }
    const { queries, keys } = t.sides(trace, state.kind);
    const weights = t.chosenWeights(trace, state);
    const values = state.norm === "columns" ? byColumns(weights) : weights;
    const range = t.rangeOf(values), hidden = t.mask(trace, state.kind);
    const name = t.chosenName(trace, state);
    const row = state.token;
    const strongest = values[row].map((value, j) => ({ j, value }))
      .filter(({ j }) => !hidden(row, j)).sort((a, b) => b.value - a.value).slice(0, 8);
    root.append(el("div", { class: "beside" },
      el("div", {},
        t.matrix({
          id: "map", name, title: `${name[0].toUpperCase()}${name.slice(1)}`, rows: queries,
          columns: keys, values, range, hidden, picked: row, column: state.key,
          pick: (i, j) => ({ token: i, key: j }),
          said: (i, j) => `${t.rowName(trace, state.kind, i)} → ${t.label(keys[j])}: ` +
            (hidden(i, j) ? `hidden, ${hidden(i, j)}` : t.number(values[i][j], 6)),
          saved: `${name.replaceAll(/[ ,]+/g, "-")}${state.norm === "columns" ? "-by-columns" : ""}`,
        }),
        t.scale(range, state.norm === "columns" ? "share of the column" : "weight")),
      el("section", { class: "aside", "aria-label": "The chosen row" },
        el("p", {}, read(trace, state)),
        t.rounding(trace, state) && el("p", { class: "quiet" }, t.rounding(trace, state)),
        el("h3", {}, state.kind === "encoder_self" ? ["Row ", t.token(queries[row])]
          : t.rowName(trace, state.kind, row)),
        t.bars("The greatest numbers of the row", ["looks at", state.norm === "columns" ? "share" : "weight"],
          strongest.map(({ j, value }) => ({
            label: t.token(keys[j]), value, text: [t.number(value)], marked: j === state.key,
          })), strongest[0].value),
        el("p", { class: "quiet" }, sums(weights, state)))));
  }

  function sums(weights, state) {
    const all = weights.map((row) => row.reduce((sum, x) => sum + x, 0));
    const own = `This row's weights sum to ${t.number(all[state.token])}`;
    return `${own}; of all rows the least sum is ${t.number(Math.min(...all))}, the greatest ${t.number(Math.max(...all))}.`;
  }

  t.views.push({
    id: "matrix", name: "Matrix", draw, there: (trace) => Boolean(trace.model),
    missing: (trace) => KINDS.some(([kind]) => trace.attention[kind].layers.length) ? ""
      : "No layer of this model has attention.",
    help: [["arrows in the matrix, Enter", "choose a cell"]],
  });
})(transduce);
