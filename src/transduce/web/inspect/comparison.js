/* Two models on one sentence, or one model on two: outputs, attention, and the difference. */
(function (t) {
  "use strict";
  const { el } = t;

  const MOST = 10;  // differences that are listed

  /** Mark the tokens that two sequences do not share, in order (their longest common subsequence). */
  t.differing = (a, b) => {
    const marks = [a.map(() => true), b.map(() => true)];
    for (const [i, j] of shared(a, b)) { marks[0][i] = false; marks[1][j] = false; }
    return marks;
  };

  function shared(a, b) {
    const same = (i, j) => a[i].text === b[j].text && Boolean(a[i].special) === Boolean(b[j].special);
    const length = Array.from({ length: a.length + 1 }, () => new Array(b.length + 1).fill(0));
    for (let i = a.length - 1; i >= 0; i--) {
      for (let j = b.length - 1; j >= 0; j--) {
        length[i][j] = same(i, j) ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
      }
    }
    const pairs = [];
    for (let i = 0, j = 0; i < a.length && j < b.length;) {
      if (same(i, j)) pairs.push([i++, j++]);
      else if (length[i + 1][j] >= length[i][j + 1]) i++;
      else j++;
    }
    return pairs;
  }

  /** Tokens as running text; those that are marked stand out. */
  t.running = (tokens, marks) => tokens.map((token, i) => {
    const text = token.special ? token.text : token.text.replaceAll("▁", " ");
    return [token.special || text.startsWith(" ") ? " " : "",
      el(marks[i] ? "mark" : "span", { class: token.special ? "token special" : null }, text.trimStart())];
  });

  // Outputs --------------------------------------------------------------------------------------

  function output(i, marks) {
    const own = t.traces[i], { tokens, log_probabilities: logs, given } = own.target;
    const total = logs.reduce((a, b) => a + b, 0), [best] = own.decodings.map((one) => one.outputs[0]);
    return el("section", { class: "card" },
      el("h3", {}, t.nameOf(i)),
      el("p", { dir: "auto" }, t.running(own.source.tokens, marks.source[i])),
      el("p", { class: "output-text", dir: "auto" }, t.running(tokens, marks.target[i])),
      el("p", { class: "quiet" }, best
        ? `score ${t.division(own.decodings[0], { total: best.log_probability, score: best.score }, best.n)}, ${t.tokens(best.n)}`
        : `log-probability ${t.number(total)}, ${t.tokens(tokens.length)}${given ? ", given" : ""}`));
  }

  /** The tokens of both outputs, those that are shared in one row. */
  function tokens() {
    const [a, b] = t.traces.map((own) => own.target);
    const rows = [];
    let i = 0, j = 0;
    for (const [k, l] of [...shared(a.tokens, b.tokens), [a.tokens.length, b.tokens.length]]) {
      while (i < k || j < l) rows.push([i < k ? i++ : null, j < l ? j++ : null, false]);
      if (k < a.tokens.length) rows.push([i++, j++, true]);
    }
    const cells = (side, at, same) => at === null ? [el("td", {}), el("td", { class: "n" })] : [
      el("td", {}, same ? t.token(side.tokens[at]) : el("mark", {}, t.token(side.tokens[at]))),
      el("td", { class: "n" }, t.number(side.log_probabilities[at]))];
    return el("details", {}, el("summary", {}, "Token by token, with log-probabilities"),
      t.scrolling("Tokens of both outputs", {},
        el("table", { class: "numbers" },
          el("caption", { class: "unseen" }, "Tokens of both outputs"),
          el("thead", {}, el("tr", {}, ["1", "log p", "2", "log p", "2 − 1"].map((name, c) =>
            el("th", { scope: "col", class: c % 2 || c === 4 ? "n" : null }, name)))),
          el("tbody", {}, rows.map(([k, l, same]) => el("tr", {}, cells(a, k, same), cells(b, l, same),
            el("td", { class: "n" }, same ? t.number(b.log_probabilities[l] - a.log_probabilities[k]) : "")))))));
  }

  // Attention ------------------------------------------------------------------------------------

  /** What of the choice a trace has: another model may have fewer layers or heads. */
  function found(trace, state) {
    const { layers } = trace.attention[state.kind];
    if (!layers.length) return { problem: `there is no ${t.kinds[state.kind]} to see` };
    if (state.layers === "one" && !layers.includes(state.layer)) {
      return { problem: `of its ${t.kinds[state.kind]}, layer ${state.layer + 1} is not here` };
    }
    if (t.headsOf(state) === "one" && state.head >= trace.model.h) {
      return { problem: `it has ${trace.model.h} heads, and no head ${state.head + 1}` };
    }
    return { values: t.chosenWeights(trace, state), sides: t.sides(trace, state.kind) };
  }

  function matrix(i, one, range, state) {
    if (one.problem) {
      return el("div", {}, el("p", {}, t.nameOf(i)), el("p", { class: "empty" }, `Nothing to draw: ${one.problem}.`));
    }
    const trace = t.traces[i], name = `${t.nameOf(i)}: ${t.chosenName(trace, state)}`;
    return t.matrix({
      id: `compared-${i}`, name, title: t.nameOf(i), rows: one.sides.queries, columns: one.sides.keys,
      values: one.values, range, hidden: t.mask(trace, state.kind), picked: state.token,
      column: state.key, pick: (row, column) => ({ token: row, key: column }), saved: `compared-${i + 1}`,
    });
  }

  /** A token of both, where they are the same; else both. */
  const both = (a, b) => a.text === b.text ? a : { text: `${a.text} | ${b.text}`, special: false };

  function difference([a, b], state) {
    if (a.problem || b.problem) return null;
    const sizes = [a, b].map(({ sides }) => [sides.queries.length, sides.keys.length]);
    if (String(sizes[0]) !== String(sizes[1])) {
      return el("p", { class: "empty" }, "No difference can be taken: the first matrix has " +
        `${sizes[0][0]} rows and ${sizes[0][1]} columns, the second ${sizes[1][0]} and ${sizes[1][1]}; ` +
        "their tokens do not correspond one to one.");
    }
    const rows = a.sides.queries.map((token, i) => both(token, b.sides.queries[i]));
    const columns = a.sides.keys.map((token, j) => both(token, b.sides.keys[j]));
    const values = a.values.map((row, i) => row.map((x, j) => b.values[i][j] - x));
    const range = t.rangeOf(values), hidden = t.mask(t.traces[0], state.kind);
    const greatest = Math.max(range[1], 1e-12);
    const list = values.flatMap((row, i) => row.map((x, j) => ({ i, j, x })))
      .filter(({ i, j, x }) => x && !hidden(i, j)).sort((p, q) => Math.abs(q.x) - Math.abs(p.x)).slice(0, MOST);
    return el("div", { class: "beside" },
      el("div", {},
        t.matrix({
          id: "difference", name: "Difference, the second minus the first", title: "The second minus the first",
          rows, columns, values, range: [-greatest, greatest], hidden, picked: state.token, column: state.key,
          pick: (i, j) => ({ token: i, key: j }), saved: "difference",
        }),
        t.scale([-greatest, greatest], "less … more in the second")),
      el("section", { class: "aside", "aria-label": "The greatest differences" },
        el("h3", {}, "The greatest differences"),
        list.length ? t.scrolling("The greatest differences", {},
          el("table", { class: "numbers differences" },
          el("caption", { class: "unseen" }, "The greatest differences"),
          el("thead", {}, el("tr", {}, ["row", "column", "1", "2", "2 − 1"].map((name, c) =>
            el("th", { scope: "col", class: c > 1 ? "n" : null }, name)))),
          el("tbody", {}, list.map(({ i, j, x }) => el("tr", {},
            el("td", {}, t.token(rows[i])), el("td", {}, t.token(columns[j])),
            el("td", { class: "n" }, t.number(a.values[i][j])), el("td", { class: "n" }, t.number(b.values[i][j])),
            el("td", { class: "n" }, `${x > 0 ? "+" : ""}${t.number(x)}`))))))
          : el("p", { class: "empty" }, "There is none.")));
  }

  // The view -------------------------------------------------------------------------------------

  function draw(root, trace, state) {
    const [a, b] = t.traces, sentences = a.source.text !== b.source.text;
    const sides = ["source", "target"].map((side) => t.differing(a[side].tokens, b[side].tokens));
    const marks = { source: sides[0], target: sides[1] };
    const count = (side) => marks[side][0].filter(Boolean).length + marks[side][1].filter(Boolean).length;
    const parts = t.traces.map((own) => found(own, state));
    const there = parts.filter((one) => one.values);
    const range = [0, Math.max(...there.map((one) => t.rangeOf(one.values)[1]), 1e-12)];
    root.append(
      el("h2", { class: "unseen" }, "Comparison"),
      el("p", { class: "lead" }, sentences ? "Two sentences" : "One sentence through two models",
        count("target") ? "; the tokens in which the outputs" + (sentences ? " or the sources" : "") + " differ are underlined."
          : "; the outputs are the same."),
      el("div", { class: "cards" }, output(0, marks), output(1, marks)),
      tokens(),
      el("h3", {}, "The same attention of both"),
      el("div", { class: "controls" }, t.whichWeights(trace, state, true),
        t.tick("table", "as tables", state.table, (table) => ({ table }))),
      el("div", { class: "pair-of" }, parts.map((one, i) => matrix(i, one, range, state))),
      there.length ? t.scale(range, "weight, in both") : null,
      ...t.traces.map((own) => t.rounding(own, state)).slice(0, 1).filter(Boolean).map((text) => el("p", { class: "quiet" }, text)),
      el("h3", {}, "Their difference"),
      difference(parts, state) || el("p", { class: "empty" }, "There are not two matrices of this choice."));
  }

  t.views.push({
    id: "comparison", name: "Compare", draw, there: (trace) => t.traces.length > 1 && Boolean(trace.model),
    help: [["arrows in a matrix, Enter", "choose a cell"]],
  });
})(transduce);
