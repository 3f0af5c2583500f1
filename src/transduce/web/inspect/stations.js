/* One head, step by step: on the left the chosen token's vectors, on the right the matrices. */
(function (t) {
  "use strict";
  const { el } = t;

  const REASONS = ["", "in the future", "padding", "outside the window"];
  const SIDES = { encoder_self: ["encoder", "encoder"], decoder_self: ["decoder", "decoder"], cross: ["decoder", "encoder"] };

  /** Read what a station needs, as rows of numbers; in the lecture's form everything is transposed. */
  function reading(trace, state) {
    const own = trace.stations[state.kind], one = own.one || {};
    const rows = (array) => array ? t.matrixOf(t.numbers(trace, array)) : null;
    const { queries, keys } = sidesOf(trace, state.kind);
    const lecture = state.form === "lecture";
    return {
      trace, state, own, queries, keys, lecture, rows,
      i: Math.min(state.token, queries.length - 1), j: Math.min(state.key, keys.length - 1),
      q: rows(one.q), k: rows(one.k), v: rows(one.v), raw: rows(one.raw), s: rows(one.s),
      hidden: rows(one.hidden), alpha: rows(one.alpha), b: rows(one.b),
      d_k: one.q ? t.numbers(trace, one.q).shape[1] : 0,
    };
  }

  /** Queries are what the sub-layer is given: in the decoder the tokens before, BEGIN first. */
  const sidesOf = (trace, kind) => ({
    ...t.sides(trace, kind),
    queries: kind === "encoder_self" ? trace.source.tokens : trace.target.inputs,
  });

  /** A matrix whose rows are tokens (the paper's form), or its transpose (the lecture's). */
  function tokenMatrix(r, o) {
    const { rows: labels, values, name, symbol } = o;
    const columns = o.columns || values[0].map((_, c) => String(c + 1));
    const size = `${labels.length} × ${columns.length}`;
    const flipped = r.lecture;
    const shown = flipped
      ? { rows: columns, columns: labels, values: t.transposed(values), hidden: o.hidden && ((i, j) => o.hidden(j, i)) }
      : { rows: labels, columns, values, hidden: o.hidden };
    const sizes = flipped ? `${columns.length} × ${labels.length}` : size;
    return t.matrix({
      ...shown, id: o.id, name: `${symbol}: ${name}`, range: o.range, cell: o.cell || (columns.length > 24 && !o.keyed ? 12 : undefined),
      title: [el("i", {}, symbol), ` ${name} `, el("span", { class: "quiet" }, `[${sizes}]`)],
      picked: flipped ? undefined : r.i, pickedColumn: flipped ? r.i : undefined,
      pick: o.keyed ? (i, j) => flipped ? { token: j, key: i } : { token: i, key: j } : (i, j) => ({ token: flipped ? j : i }),
      saved: o.saved,
    });
  }

  const sum = (terms) => terms.reduce((total, x) => total + x, 0);
  const num = t.number;
  const vec = (name, values, o) => t.vector(name, values, o || {});
  /** A vector of the model's width, of which a large page may have the beginning alone. */
  const wide = (r, name, values, o) => vec(name, values, { ...o, size: r.trace.model ? r.trace.model.d_model : values.length });
  const sub = (letter, index) => [el("i", {}, letter), el("sub", {}, index)];
  const sup = (letter, index) => [el("i", {}, letter), el("sup", {}, index)];

  /** A sum with its terms: the first eight, then what is left, then the result. */
  function opened(r, a, b, names, bias, result) {
    const terms = a.map((x, i) => x * b[i]);
    const shown = r.state.table ? terms.length : 8;
    const rest = terms.slice(shown);
    const row = (cells, attributes) => el("tr", attributes || {}, cells.map((cell, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: i ? "n" : null }, cell)));
    return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "the terms of the sum" },
      el("table", { class: "numbers" },
        el("thead", {}, el("tr", {}, ["component", names[0], names[1], "product"].map((x, i) => el("th", { scope: "col", class: i ? "n" : null }, x)))),
        el("tbody", {},
          terms.slice(0, shown).map((x, i) => row([String(i + 1), num(a[i]), num(b[i]), num(x)])),
          rest.length > 0 && row([`the other ${rest.length}`, "", "", num(sum(rest))], { class: "quiet" }),
          bias !== null && bias !== undefined && row(["bias", "", "", num(bias)]),
          row([el("b", {}, "sum"), "", "", el("b", {}, num(result))]))));
  }

  const bare = (projection, trace) => {
    const bias = projection.bias ? t.row(t.numbers(trace, projection.bias)) : null;
    return { W: t.matrixOf(t.numbers(trace, projection.W)), bias };
  };

  // The stations ---------------------------------------------------------------------------------

  /** @type {{name: string, there: function, draw: function}[]} */
  const STATIONS = [
    {
      name: "Tokens", there: (own) => Boolean(own.x),
      draw: (r) => {
        const { own, i, rows } = r;
        const { layer } = own, token = r.queries[i];
        const x = rows(own.x);
        const left = [];
        if (own.embedded) {
          const scaled = rows(own.embedded.scaled), position = rows(own.embedded.position);
          left.push(
            el("p", {}, t.token(token), ` has the number ${token.id}. Its row of the embedding matrix, times `, num(own.embedded.scale), own.embedded.scale === 1 ? "" : " = √d_model", ", and the vector of its position are added:"),
            wide(r, "row · scale", scaled[i]), wide(r, `position ${i}`, position[i]), wide(r, ["sum ", el("i", {}, "x")], x[i]));
        } else if (own.kind === "cross") {
          left.push(el("p", {}, t.token(token), " comes from the decoder's self-attention before it, in the same layer."), wide(r, el("i", {}, "x"), x[i]));
        } else {
          left.push(el("p", {}, t.token(token), layer > 0 ? ` comes out of layer ${layer}.` : " enters the layer."), wide(r, el("i", {}, "x"), x[i]));
        }
        if (own.norm_before) {
          left.push(el("p", {}, "This model normalises before each sub-layer: attention is given the normalised vector, and what attention makes is added to ", el("i", {}, "x"), " as it was."), normed(r, own.norm_before));
        }
        const right = [tokenMatrix(r, { id: "m-x", symbol: r.lecture ? "I" : "X", name: "what enters", rows: r.queries, values: x })];
        if (own.kind === "cross") {
          right.push(tokenMatrix(r, { id: "m-memory", symbol: "memory", name: "what the encoder made of the source", rows: r.keys, values: rows(own.memory) }));
        }
        return { left, right };
      },
    },
    {
      name: "q, k, v", there: (own) => own.one,
      draw: (r) => {
        const { own, i, j, state } = r, left = [];
        const part = Math.min(state.part, Math.min(8, r.d_k) - 1);
        const pick = { id: "q", pick: (c) => ({ part: c }), picked: part };
        if (own.input) {
          const input = r.rows(own.input), memory = r.rows(own.memory), same = own.kind !== "cross";
          left.push(el("p", {}, same ? "Three matrices make three vectors of every token: what it asks (query), what it offers to be found by (key), what it gives (value)."
            : "The query comes from the decoder, key and value from what the encoder made of the source: that is all that makes it cross-attention."));
          left.push(wide(r, ["input of ", t.token(r.queries[i])], input[i]),
            vec(sub("q", i + 1), r.q[i], pick));
          if (!same) left.push(wide(r, ["memory of ", t.token(r.keys[j])], memory[j]));
          const at = same ? i : j;
          left.push(vec(sub("k", at + 1), r.k[at]), vec(sub("v", at + 1), r.v[at]));
          const { W, bias } = bare(own.W_Q, r.trace);
          if (W[part] && W[part].length === input[i].length) {
            left.push(el("h3", {}, `Component ${part + 1} of the query, term by term`),
              opened(r, W[part], input[i], [`row ${part + 1} of W_Q`, "input"], bias && bias[part], r.q[i][part]));
          }
        } else {
          left.push(vec(sub("q", i + 1), r.q[i]), vec(sub("k", j + 1), r.k[j]), vec(sub("v", j + 1), r.v[j]));
        }
        const right = [
          tokenMatrix(r, { id: "m-q", symbol: "Q", name: "queries", rows: r.queries, values: r.q }),
          tokenMatrix(r, { id: "m-k", symbol: "K", name: "keys", rows: r.keys, values: r.k }),
          tokenMatrix(r, { id: "m-v", symbol: "V", name: "values", rows: r.keys, values: r.v }),
        ];
        return { left, right };
      },
    },
    {
      name: "Scores", there: (own) => own.one,
      draw: (r) => {
        const { i, j } = r;
        const left = [
          el("p", {}, "How well does the query of ", t.token(r.queries[i]), " fit each key? The dot product says, divided by √", el("i", {}, "d_k"), ` = √${r.d_k} = ${num(Math.sqrt(r.d_k))}: without the division the sums of ${r.d_k} products would be so far apart that the softmax would take one key alone.`),
          keyTable(r, ["q · k", "s = q · k / √d_k"], (key) => [num(r.raw[i][key]), num(r.s[i][key])]),
          el("h3", {}, "q · k for ", t.token(r.keys[j]), ", term by term"),
          opened(r, r.q[i], r.k[j], ["q", "k"], null, r.raw[i][j]),
        ];
        const right = [
          tokenMatrix(r, { id: "m-raw", keyed: true, symbol: r.lecture ? "Kᵀ Q" : "Q Kᵀ", name: "raw scores", rows: r.queries, columns: r.keys, values: r.raw }),
          tokenMatrix(r, { id: "m-s", keyed: true, symbol: "A", name: "scaled scores s", rows: r.queries, columns: r.keys, values: r.s }),
        ];
        return { left, right };
      },
    },
    {
      name: "Mask", there: (own) => own.one,
      draw: (r) => {
        const { i, own } = r, count = r.hidden[i].filter((x) => x).length;
        const kinds = { decoder_self: "A position must not look ahead: what it is to predict stands there. Everything strictly above the diagonal is hidden, the diagonal itself is not: a token may look at itself. The mask for all positions at once is a triangle; position by position in decoding, the later keys are simply not there yet.",
          encoder_self: "Every source token may look at every other. In a batch, shorter sentences are filled up with PAD, and PAD is hidden from all; alone, as here, there is none.",
          cross: "Every target position may look at the whole source, which is there from the beginning. Only padding would be hidden." };
        const left = [
          el("p", {}, own.kind in kinds ? kinds[own.kind] : "What is hidden is hidden before the softmax, so that the weights of the rest still sum to 1."),
          el("p", {}, count ? `From ${t.label(r.queries[i])} ${count} of ${r.keys.length} keys are hidden. Their scores are kept here in grey; the softmax is given the lowest number instead.` : `Nothing is hidden from ${t.label(r.queries[i])}.`),
          keyTable(r, ["s", "may be seen"], (key) => [num(r.s[i][key]), r.hidden[i][key] ? `no: ${REASONS[r.hidden[i][key]]}` : "yes"]),
        ];
        const right = [tokenMatrix(r, { id: "m-mask", keyed: true, symbol: "A", name: "with the mask over it", rows: r.queries, columns: r.keys, values: r.s, hidden: (a, b) => REASONS[r.hidden[a][b]] })];
        return { left, right };
      },
    },
    {
      name: "Softmax", there: (own) => own.one,
      draw: (r) => {
        const { i, own } = r, right = [alphaMatrix(r)];
        if (own.normaliser !== "softmax") {
          return { left: [el("p", {}, `This model makes weights of scores by ${own.normaliser}, not softmax: many are exactly 0.`), keyTable(r, ["s", "weight α"], (key) => [num(r.s[i][key]), num(r.alpha[i][key])], r.alpha[i])], right };
        }
        const seen = r.s[i].filter((_, key) => !r.hidden[i][key]);
        if (!seen.length) return { left: [el("p", {}, "No key may be seen: all weights are 0, never undefined.")], right };
        const most = Math.max(...seen);
        const exp = r.s[i].map((x, key) => r.hidden[i][key] ? 0 : Math.exp(x - most));
        const left = [
          el("p", {}, "The greatest score, ", num(most), ", is taken from each (it changes nothing, but no exponential gets too large); exponentials are positive; divided by their sum, ", num(sum(exp)), ", they are the weights α, which sum to 1."),
          keyTable(r, ["s − max", "exp", "α"], (key) => r.hidden[i][key] ? ["hidden", num(0), num(r.alpha[i][key])]
            : [num(r.s[i][key] - most), num(exp[key]), num(r.alpha[i][key])], r.alpha[i]),
        ];
        return { left, right };
      },
    },
    {
      name: "Output b", there: (own) => own.one,
      draw: (r) => {
        const { i } = r, order = r.alpha[i].map((_, key) => key).filter((key) => r.alpha[i][key] > 0);
        order.sort((a, b) => r.alpha[i][b] - r.alpha[i][a]);
        const running = r.v[0].map(() => 0), rowsOf = [];
        const most = r.state.table ? order.length : 6;
        const range = t.rangeOf([r.b[i], ...order.slice(0, most).map((key) => r.v[key])]);
        order.slice(0, most).forEach((key) => {
          r.v[key].forEach((x, c) => { running[c] += r.alpha[i][key] * x; });
          rowsOf.push(el("li", {},
            el("p", { class: "quiet" }, `${num(r.alpha[i][key])} · v of `, t.token(r.keys[key])),
            vec("v", r.v[key], { range }), vec("sum so far", running.slice(), { range })));
        });
        const left = [
          el("p", {}, "Each value vector is taken as much as its weight says, the greatest weight first; the sum is what this head gives to ", t.token(r.queries[i]), "."),
          el("ol", { class: "adding" }, rowsOf),
          order.length > most && el("p", { class: "quiet" }, `and ${order.length - most} more with smaller weights (t shows all)`),
          vec([...sub("b", i + 1)], r.b[i], { range }),
        ];
        const right = [alphaMatrix(r), tokenMatrix(r, { id: "m-b", symbol: "O", name: r.lecture ? "= V A′, outputs b" : "= A′ V, outputs b", rows: r.queries, values: r.b })];
        return { left, right };
      },
    },
    {
      name: "All heads", there: (own) => own.concat && (own.h > 1 || own.attended),
      draw: (r) => {
        const { own, i, state } = r, concat = r.rows(own.concat), attended = r.rows(own.attended);
        const width = r.b[0].length, { h } = own;
        const whole = concat[i].length === h * width;
        const { W, bias } = own.W_O ? bare(own.W_O, r.trace) : { W: [], bias: null };
        const part = attended ? Math.min(state.part, Math.min(8, attended[i].length) - 1) : 0;
        const left = [
          el("p", {}, h === 1 ? "There is one head." : `The b of all ${h} heads are put side by side, and W_O makes one vector of the model's width of them.`),
          whole && Array.from({ length: h }, (_, head) => vec(head === own.head ? el("b", {}, `head ${head + 1} (this one)`) : `head ${head + 1}`, concat[i].slice(head * width, (head + 1) * width))),
          attended && wide(r, "W_O · joined", attended[i], { id: "o", pick: (c) => ({ part: c }), picked: part }),
          W[part] && W[part].length === concat[i].length && [el("h3", {}, `Component ${part + 1}, term by term`),
            opened(r, W[part], concat[i], [`row ${part + 1} of W_O`, "joined"], bias && bias[part], attended[i][part])],
        ];
        const right = [
          tokenMatrix(r, { id: "m-concat", symbol: "Concat", name: "all heads", rows: r.queries, values: concat }),
          attended && tokenMatrix(r, { id: "m-attended", symbol: r.lecture ? "W_O O" : "Concat W_Oᵀ", name: "what attention gives", rows: r.queries, values: attended }),
        ];
        return { left, right };
      },
    },
    {
      name: "Add & norm", there: (own) => own.sum || own.norm_after,
      draw: (r) => {
        const { own, i } = r, x = own.sum ? r.rows(own.x) : null, out = r.rows(own.out);
        const left = [
          x && el("p", {}, "The sub-layer's input is added to what it made (the residual connection), so that each layer has only to say what is to change."),
          x && wide(r, el("i", {}, "x"), x[i]),
          own.sum && [wide(r, "attention", r.rows(own.attended)[i]), wide(r, "sum", r.rows(own.sum)[i])],
          own.norm_after ? [own.sum && el("p", {}, "Then the norm, the paper's order (post-norm):"), normed(r, own.norm_after)]
            : own.norm_before && el("p", {}, "No norm follows: this model normalises before each sub-layer (pre-norm), see station 1."),
        ];
        const right = [tokenMatrix(r, { id: "m-out", symbol: "out", name: "what leaves the sub-layer", rows: out.length === r.queries.length ? r.queries : out.map((_, n) => String(n + 1)), values: out })];
        return { left, right };
      },
    },
    {
      name: "Feed-forward", there: (own) => Boolean(own.feed_forward),
      draw: (r) => {
        const { own, i } = r, after = own.feed_forward;
        const zeros = Array.isArray(after.zeros) ? after.zeros : t.row(t.numbers(r.trace, after.zeros));
        const left = [
          el("p", {}, `Every position by itself: W_1 makes ${after.d_ff} hidden units of it, of which ${zeros[i]} are exactly 0 after ${r.trace.model.activation === "relu" ? "max(0, ·)" : r.trace.model.activation}; W_2 makes one vector of the model's width of them. In short:`),
          after.norm_before && normed(r, after.norm_before),
          wide(r, "FFN", r.rows(after.result)[i]), wide(r, "+ input", r.rows(after.sum)[i]),
          after.norm_after && normed(r, after.norm_after),
          wide(r, "out", r.rows(after.out)[i]),
        ];
        const right = [tokenMatrix(r, { id: "m-ff", symbol: "out", name: "what leaves the layer", rows: r.queries, values: r.rows(after.out) })];
        return { left, right };
      },
    },
    {
      name: "Where this is", there: (own, trace) => Boolean(trace.model),
      draw: (r) => ({ left: [el("p", {}, where(r)), links(r)], right: [figure(r)] }),
    },
  ];

  const alphaMatrix = (r) => tokenMatrix(r, { id: "m-alpha", keyed: true, symbol: "A′", name: "weights α", rows: r.queries, columns: r.keys, values: r.alpha, range: [0, 1], hidden: (a, b) => REASONS[r.hidden[a][b]], saved: "weights" });

  /** A row for each key: buttons to choose one, numbers, and bars of weights. */
  function keyTable(r, columns, cells, bars) {
    const { i, j } = r;
    return el("div", { class: "scroll keys-table", tabindex: 0, role: "group", "aria-label": "one row for each key" },
      el("table", { class: "numbers" },
        el("thead", {}, el("tr", {}, ["key", ...columns].map((c, n) => el("th", { scope: "col", class: n ? "n" : null }, c)), bars && el("td"))),
        el("tbody", {}, r.keys.map((key, place) => el("tr", { class: place === j ? "picked" : r.hidden[i][place] ? "quiet" : null },
          el("th", { scope: "row" }, el("button", { type: "button", class: "plain", id: `key-${place}`, "aria-pressed": String(place === j), on: { click: () => t.set({ key: place }) } }, t.token(key))),
          cells(place).map((cell) => el("td", { class: "n" }, cell)),
          bars && el("td", { class: "bar-cell" }, el("span", { class: "weight", style: { width: `${100 * bars[place]}%` } })))))));
  }

  /** A norm, step by step, for the chosen token. */
  function normed(r, norm) {
    const input = r.rows(norm.input), output = r.rows(norm.output);
    const i = Math.min(r.i, input.length - 1);
    const own = (array) => t.row(t.numbers(r.trace, array));
    const one = (array) => { const all = own(array); return norm.kind !== "batch" ? all[i] : null; };
    const mean = norm.mean ? one(norm.mean) : 0, variance = one(norm.variance);
    const bias = norm.bias ? own(norm.bias) : null;
    if (norm.kind === "batch" || variance === null) {
      return [el("p", {}, "Batch norm: mean and variance of each feature over the training's positions, not over this position's features."), wide(r, "normalised", output[i])];
    }
    const scale = Math.sqrt(variance + norm.epsilon);
    const plain = input[i].map((x) => (x - (mean || 0)) / scale);
    return el("div", { class: "norm" },
      el("p", {}, norm.kind === "rms" ? "The root of the mean square of this position's features divides them: "
        : "Mean and variance are over the features of this one position (not over other positions or sentences), the variance with divisor n: ",
      norm.kind === "rms" ? `mean square ${num(variance)}` : `mean ${num(mean)}, variance ${num(variance)}`,
      `, epsilon ${norm.epsilon}, so the divisor is √(${num(variance)} + ${norm.epsilon}) = ${num(scale)}.`),
      wide(r, "(x − mean) / √…", plain), wide(r, "· gain", own(norm.gain)), bias && wide(r, "+ bias", bias), wide(r, "normalised", output[i]));
  }

  function where(r) {
    const { own, trace } = r;
    if (!trace.model) return "Numbers typed by hand, no model.";
    const [from, to] = SIDES[own.kind] || ["", ""];
    const count = from === "encoder" ? trace.model.N_encoder : trace.model.N_decoder;
    return own.kind === "cross"
      ? `Cross-attention in decoder layer ${own.layer + 1} of ${count}: queries come from the ${from}, keys and values from the last layer of the ${to}.`
      : `Self-attention in ${from} layer ${own.layer + 1} of ${count}: queries, keys and values come from the same tokens.`;
  }

  const links = (r) => el("p", {}, "The same stations for ", Object.entries(t.kinds).filter(([kind]) => kind !== r.own.kind && r.trace.stations[kind]).map(([kind, name], n) => [n ? " and " : "", t.button(name, () => ({ kind, station: 0, token: 0, key: 0 }), { class: "plain" })]));

  /** A small drawing of the model, with the place that is being looked at. */
  function figure(r) {
    const { model } = r.trace, { own } = r, boxes = [];
    const tops = {};
    const draw = (x, side, count, parts) => {
      const wanted = [0, own.layer, count - 1].filter((layer) => layer < count);
      const shown = count <= 3 ? [...Array(count).keys()]
        : [...new Set(wanted)].sort((a, b) => a - b);
      shown.forEach((layer, n) => parts.forEach(([name, kind], p) => {
        const here = kind === own.kind && layer === own.layer;
        const y = 250 - (n * parts.length + p) * 26 - n * 10;
        if (kind === "cross") {
          boxes.push(t.svg("path", { d: `M185 ${y + 11} H${x}`, class: "memory-line" }));
          tops.cross = y + 11;
          tops.lowest = tops.lowest || y + 11;
        }
        boxes.push(t.svg("rect", { x, y, width: 150, height: 22, rx: 4, class: here ? "box here" : "box" }),
          t.svg("text", { x: x + 75, y: y + 15, "text-anchor": "middle", class: here ? "here" : "" }, `${layer + 1} ${name}`));
        tops[side] = y;
      }));
    };
    draw(10, "encoder", model.N_encoder, [["self-attention", "encoder_self"], ["feed-forward", ""]]);
    draw(205, "decoder", model.N_decoder, [["self-attention", "decoder_self"], ["cross-attention", "cross"], ["feed-forward", ""]]);
    const out = tops.encoder - 12, low = Math.max(out, tops.lowest), high = Math.min(out, tops.cross);
    return el("figure", {}, el("figcaption", {}, "The model: encoder left, decoder right, layers from the bottom; what the encoder makes of the source goes to every cross-attention"),
      t.svg("svg", { viewBox: "0 0 370 300", class: "model-map", role: "img", "aria-label": where(r) },
        t.svg("text", { x: 85, y: 292, "text-anchor": "middle" }, "source"), t.svg("text", { x: 280, y: 292, "text-anchor": "middle" }, "target so far"),
        t.svg("path", { d: `M85 ${tops.encoder} V${out} H185 M185 ${high} V${low}`, class: "memory-line" }), boxes));
  }

  // The view -------------------------------------------------------------------------------------

  const there = (trace, state) => STATIONS.filter((station) => station.there(trace.stations[state.kind], trace));

  function draw(root, trace, state) {
    const r = reading(trace, state), shown = there(trace, state);
    const at = Math.max(0, Math.min(state.station, shown.length - 1)), station = shown[at];
    const { left, right } = station.draw(r);
    const kinds = Object.keys(trace.stations).filter((kind) => trace.stations[kind]);
    t.fill(root,
      el("h1", { class: "unseen" }, "One head, step by step"),
      el("div", { class: "controls" },
        kinds.length > 1 && t.choice("kind", "attention", state.kind, kinds.map((kind) => [kind, t.kinds[kind]]), (kind) => ({ kind, token: 0, key: 0 })),
        t.choice("form", "form", state.form, [["paper", "paper: rows are tokens"], ["lecture", "lecture: columns are tokens"]], (form) => ({ form })),
        t.choice("digits", "digits", state.digits, [[4, "4"], [8, "8"]], (digits) => ({ digits: +digits })),
        t.tick("table", "as tables", state.table, (table) => ({ table }))),
      el("p", { class: "lead quiet" }, `${where(r)} Head ${r.own.head + 1} of ${r.own.h}. `,
        state.form === "paper" ? "On screen: the paper's form, softmax(QKᵀ/√d_k)V; a row is a token." : "On screen: the lecture's form, A = KᵀQ/√d_k, O = VA′; a column is a token. (Lectures that write α before the softmax and α′ after it mean s and α here.)"),
      el("div", { class: "tokens", role: "group", "aria-label": "the token that is followed" },
        r.queries.map((token, i) => el("button", { type: "button", id: `token-${i}`, "aria-pressed": String(i === r.i), on: { click: () => t.set({ token: i }) } }, t.token(token)))),
      el("nav", { class: "stations", "aria-label": "Stations" },
        t.button("‹ back", () => ({ station: Math.max(0, at - 1) }), { id: "back", disabled: at === 0 }),
        el("ol", {}, shown.map((other, n) => el("li", {}, el("button", { type: "button", class: "plain", id: `station-${n}`, "aria-current": n === at ? "step" : null, on: { click: () => t.set({ station: n }) } }, `${n + 1} ${other.name}`)))),
        t.button("next ›", () => ({ station: Math.min(shown.length - 1, at + 1) }), { id: "next", disabled: at === shown.length - 1 })),
      el("h2", { class: "station-name" }, `${at + 1}. ${station.name}`),
      el("div", { class: "halves" }, el("section", { "aria-label": "vectors" }, left), el("section", { "aria-label": "matrices" }, right)));
  }

  t.views.push({
    id: "stations", name: "One head",
    missing: (trace, state) => {
      if (Object.values(trace.stations).every((own) => !own)) return `There is no attention to follow: ${trace.cannot_show.join("; ")}.`;
      if (!trace.stations[state.kind]) t.state.kind = Object.keys(trace.stations).find((kind) => trace.stations[kind]);
      return "";
    },
    draw,
    keys: {
      n: (state, trace) => ({ station: Math.min(there(trace, state).length - 1, state.station + 1) }),
      p: (state) => ({ station: Math.max(0, state.station - 1) }),
      ArrowUp: (state) => ({ key: state.key - 1 }), ArrowDown: (state) => ({ key: state.key + 1 }),
      f: (state) => ({ form: state.form === "paper" ? "lecture" : "paper" }),
    },
    help: [["n p", "next, previous station"], ["↑ ↓", "another key"], ["f", "paper's or lecture's form"]],
  });
})(transduce);
