/* The search, step by step: its tree, each step as a table, the next tokens, the look at the source. */
(function (t) {
  "use strict";
  const { el } = t;

  const FEW = 4;  // tokens of a hypothesis that a table shows

  // What is looked at ----------------------------------------------------------------------------

  const percent = (x) => x === 0 ? "0 %" : x < 0.0005 ? "< 0.1 %" : t.percent(x);
  const within = (x, count) => Math.max(0, Math.min(Math.round(x), count - 1));

  const named = (decoding) => decoding.method === "sample" ? `sampling, ${decoding.beam_size} drawn`
    : decoding.beam_size > 1 ? `beam ${decoding.beam_size}` : "greedy";

  /** The searches that are shown: the chosen one, and what is beside it. */
  function subjects(trace, state) {
    const one = trace.decodings[within(state.decoding, trace.decodings.length)];
    const shown = [{ trace, decoding: one, at: state.trace }];
    const [i, j] = state.beside.split(".").map(Number);
    const other = state.beside && t.traces[i] && t.traces[i].decodings[j];
    if (other && other !== one) shown.push({ trace: t.traces[i], decoding: other, at: i });
    return shown.map((own, i) => ({
      ...own, search: t.searched(own.decoding), id: `search-${i}`,
      name: t.traces.length > 1 ? `${t.nameOf(own.at)} · ${named(own.decoding)}` : named(own.decoding),
    }));
  }

  const last = (shown) => Math.max(...shown.map((own) => own.decoding.steps.length)) - 1;

  /** The chosen candidate of a step, and the hypothesis that it continues. */
  function place({ decoding, search }, step, node) {
    const { live, candidates } = decoding.steps[step];
    const chosen = candidates.find((one) => one.id === node);
    if (chosen) return { chosen, parent: chosen.parent };
    if (node && live.some((one) => one.id === node)) return { chosen: null, parent: node };
    const usual = candidates.find((one) => search.final.has(one.id)) || candidates[0];
    return { chosen: usual || null, parent: usual ? usual.parent : live.length ? live[0].id : 0 };
  }

  // The whole of a search ------------------------------------------------------------------------

  function penalty({ penalty: { kind, alpha, beta } }) {
    return ["Score: the sum of the log-probabilities",
      kind === "none" ? "; nothing divides it"
        : kind === "average" ? " divided by n, the number of tokens with END"
          : [" divided by ((5 + n) / 6)", el("sup", {}, alpha), " for n tokens, END counted"],
      beta ? `; ${beta} times the coverage of the source is added.` : "."];
  }

  function ended({ end, steps, limit }) {
    if (!end) return "";
    const after = `Ended after step ${steps.length}`;
    const live = end.best_live === null ? ""
      : `the best hypothesis that was still live had the sum ${t.number(end.best_live)}`;
    if (end.reason === "nothing lives") return `${after}: no hypothesis was left to go on.`;
    if (end.reason === "limit") {
      return `${after}: that is the length limit, ${limit} tokens. No more could be added` +
        `${live && `, though ${live}`}.`;
    }
    return `${after}, because nothing better could come: ${live}. Further tokens only lower it, and ` +
      `the divisor is at most ${t.number(end.divisor)}, at the limit of ${limit} tokens, so that its ` +
      `score could be ${t.number(end.bound)} at best. The last of the outputs kept has ${t.number(end.to_beat)}.`;
  }

  function outputs({ decoding, search, name }, o, other) {
    const texts = (best) => best.filter((node) => !node.token.special).map((node) => node.token);
    const list = decoding.outputs.map((output, i) => {
      const node = search.nodes.get(output.id), own = texts(search.path(output.id));
      const compared = i === 0 && other && own.length > 0;
      return el("li", {},
        el("span", { class: "output-text", dir: "auto" },
          compared ? t.running(own, t.differing(own, texts(other.search.best))[0])
            : output.text || el("span", { class: "quiet" }, "the empty text")),
        " ", el("span", { class: "quiet" },
          t.division(decoding, { total: output.log_probability, score: output.score }, output.n),
          `, ${t.tokens(output.n)}${output.finished ? "" : ", unfinished: cut off by the length limit"}`,
          node && o.pick && [" ", el("button", { type: "button", class: "plain",
            on: { click: () => t.set(o.pick(node)) } }, "show its end")]));
    });
    return el("section", { class: "card" },
      el("h3", {}, `Output${list.length > 1 ? "s" : ""} (${name})`),
      list.length ? el("ol", { class: "outputs" }, list) : el("p", { class: "empty" }, "There is none."),
      el("p", {}, ended(decoding)),
      el("p", { class: "quiet" }, penalty(decoding)));
  }

  // One step -------------------------------------------------------------------------------------

  function candidates(own, step, o) {
    const { decoding, search, name } = own, { chosen } = place(own, step, o.node);
    return t.scrolling(`${name}: candidates of the step`, {},
      el("table", { class: "numbers candidates" },
        el("caption", { class: "unseen" }, `${name}: candidates of step ${step + 1}`),
        el("thead", {}, el("tr", {}, ["rank", "hypothesis", "token", "log p", "sum", "score", "what became of it"].map(
          (title, c) => el("th", { scope: "col", class: c === 0 || (c > 2 && c < 6) ? "n" : null }, title)))),
        el("tbody", {}, decoding.steps[step].candidates.map((one) => el("tr", {
          class: `${chosen && one.id === chosen.id ? "picked" : ""} ${search.final.has(one.id) ? "final" : ""}`,
          "data-node": one.id,
        },
        el("td", { class: "n quiet" }, one.rank),
        el("td", { dir: "auto", title: t.hypothesisText(search, one.parent) }, t.hypothesis(search, one.parent, FEW)),
        el("th", { scope: "row" }, o.pick ? el("button", {
          type: "button", class: "plain", id: `${own.id}-${one.rank}`, "aria-pressed": String(Boolean(chosen && one.id === chosen.id)),
          on: { click: () => t.set(o.pick(search.nodes.get(one.id))) },
        }, t.token(one.token)) : t.token(one.token)),
        el("td", { class: "n" }, t.number(one.log_probability)),
        el("td", { class: "n" }, t.number(one.total)),
        el("td", { class: "n" }, t.number(one.score)),
        el("td", { class: "fate" }, t.fate(one.fate), search.final.has(one.id) ? ", the output's path" : ""))))));
  }

  /** The most probable next tokens; at other temperatures, as shares of those that are shown. */
  function next(hopes, chosen, temperature) {
    const own = hopes.log_probabilities.map((x) => x === null ? -Infinity : x);
    const usual = Math.abs(temperature - 1) < 1e-9, most = Math.max(...own);
    const raised = own.map((x) => Math.exp((x - most) / temperature));
    const sum = raised.reduce((a, b) => a + b, 0);
    const shares = usual ? own.map(Math.exp) : raised.map((x) => x / sum);
    const rest = Math.max(0, 1 - own.reduce((total, x) => total + Math.exp(x), 0));
    const rows = hopes.tokens.map((token, i) => ({
      label: t.token(token), value: shares[i], text: [percent(shares[i]), t.number(own[i])],
      marked: Boolean(chosen) && token.id === chosen.token.id,
    }));
    if (usual) rows.push({ label: el("span", { class: "quiet" }, "all others"), value: rest, text: [percent(rest), ""], quiet: true });
    return [
      t.bars("The most probable next tokens", ["token", usual ? "probability" : "share", "log p"], rows),
      el("p", { class: "quiet" }, usual
        ? `Shown are ${t.tokens(rows.length - 1)}, the most probable; all others have ${percent(rest)} together.`
        : `Shares of these ${rows.length} among themselves at temperature ${t.number(temperature, 1)}. ` +
          `At temperature 1 all others have ${percent(rest)} together; what they would have here, ` +
          "the ten most probable do not tell."),
    ];
  }

  function look({ trace, decoding, at }, hopes, state) {
    const weights = Array.from(t.numbers(t.traces[at], hopes.attention).data);
    const tokens = trace.source.tokens, end = tokens.length - 1;
    const units = [...t.units(trace.source, state.words), { text: "END", pieces: [end], special: true }];
    const shares = units.map((unit) => unit.pieces.reduce((sum, p) => sum + (weights[p] || 0), 0));
    const range = [0, Math.max(...shares, 1e-9)];
    return [
      el("h3", {}, "Where this step looks"),
      el("ol", { class: "looked", dir: "auto", "aria-label": "Source with shares of the look" }, units.map((unit, i) =>
        el("li", { style: { background: t.colour(shares[i], range), color: t.inkOn(shares[i], range) } },
          el("span", { class: unit.special ? "end" : null }, unit.text), " ",
          el("span", { class: "share" }, `${Math.round(100 * shares[i])} %`)))),
      el("p", { class: "quiet" }, `Cross-attention of decoder layer ${decoding.attention_layer + 1}, mean of its heads, rounded.`),
    ];
  }

  function details(own, state, o) {
    const { decoding, search, name, id } = own;
    if (o.step >= decoding.steps.length) {
      return el("section", { class: "details" }, el("h3", {}, name),
        el("p", { class: "empty" }, `Over: it ended after step ${decoding.steps.length}.`));
    }
    const { live, candidates: all } = decoding.steps[o.step];
    const { chosen, parent } = place(own, o.step, o.node);
    const hopes = live.find((one) => one.id === parent);
    const bars = el("div", {});
    if (hopes) bars.append(...next(hopes, chosen, state.temperature));
    return el("section", { class: "details", "aria-label": `${name}, step ${o.step + 1}` },
      el("h3", {}, `${o.both ? `${name}: s` : "S"}tep ${o.step + 1}: ${live.length} live, ${all.length} candidates`),
      el("div", { class: "step-parts" },
        el("div", {}, candidates(own, o.step, o), hopes && look(own, hopes, state)),
        el("div", { class: "next" },
          el("h3", {}, "What may come next"),
          el("div", { class: "controls" },
            o.pick ? t.choice(`${id}-hypothesis`, "after", parent,
              live.map((one) => [one.id, t.hypothesisText(search, one.id, 6)]), (node) => ({ node: Number(node) }))
              : el("p", { class: "quiet" }, "after ", t.hypothesis(search, parent, 6)),
            o.pick && t.slider("temperature", "temperature", state.temperature,
              { min: 0.1, max: 3, step: 0.1, text: (x) => t.number(x, 1) }, (x) => ({ temperature: x }),
              (x) => bars.replaceChildren(...next(hopes, chosen, x)))),
          bars)));
  }

  // The view -------------------------------------------------------------------------------------

  function result(shown, state, step) {
    const both = shown.length > 1;
    const options = shown.map((own, i) => ({
      id: own.id, name: own.name, step, both, dropped: state.dropped,
      node: i === 0 && step < own.decoding.steps.length ? place(own, step, state.node).chosen?.id : null,
      pick: i === 0 ? (node) => ({ step: node.step, node: node.id }) : null,
    }));
    return [
      el("div", { class: "cards" }, shown.map((own, i) => outputs(own, options[i], both ? shown[1 - i] : null))),
      shown.map((own, i) => [
        both && el("h3", {}, own.name),
        t.tree(own.decoding, { ...options[i], pick: options[i].pick || ((node) => ({ step: node.step, node: 0 })) }),
      ]),
      t.treeLegend(shown.map((own) => own.decoding)),
      shown.map((own, i) => details(own, state, { ...options[i], node: i === 0 ? state.node : 0 })),
    ].flat(2).filter(Boolean);
  }

  function draw(root, trace, state) {
    const shown = subjects(trace, state), count = last(shown) + 1;
    const step = within(state.step, count);
    const all = t.traces.flatMap((own, i) => own.decodings.map((decoding, j) =>
      [`${i}.${j}`, t.traces.length > 1 ? `${t.nameOf(i)} · ${named(decoding)}` : named(decoding)]));
    const own = `${state.trace}.${trace.decodings.indexOf(shown[0].decoding)}`;
    const body = el("div", { class: "search" });
    const to = (next) => ({ step: within(next, count), node: 0 });
    root.append(
      el("h2", { class: "unseen" }, "Search"),
      el("div", { class: "controls" },
        t.choice("decoding", "search", own, all, (value) => {
          const [i, j] = value.split(".").map(Number);
          return { trace: i, decoding: j, node: 0 };
        }),
        all.length > 1 && t.choice("beside", "beside it", shown.length > 1 ? state.beside : "",
          [["", "nothing"], ...all.filter(([value]) => value !== own)], (beside) => ({ beside })),
        el("div", { class: "stepper" },
          t.button("‹", () => to(step - 1), { id: "step-back", "aria-label": "one step back", disabled: step === 0 }),
          t.slider("step", "step", step + 1, { min: 1, max: count, step: 1, text: (x) => `${x} of ${count}` },
            (x) => to(x - 1), (x) => t.redraw(body, ...result(shown, { ...state, node: 0 }, x - 1))),
          t.button("›", () => to(step + 1), { id: "step-on", "aria-label": "one step on", disabled: step === count - 1 })),
        t.tick("dropped", "dropped ones of all steps", state.dropped, (dropped) => ({ dropped }))),
      body);
    t.redraw(body, ...result(shown, state, step));
  }

  const to = (by) => (state, trace) => {
    const count = last(subjects(trace, state)) + 1;
    return { step: within(within(state.step, count) + by, count), node: 0 };
  };
  const candidate = (by) => (state, trace) => {
    const [own] = subjects(trace, state), step = within(state.step, own.decoding.steps.length);
    const { candidates: all } = own.decoding.steps[step];
    const now = all.indexOf(place(own, step, state.node).chosen);
    const next = all[within(now + by, all.length)];
    return next ? { step, node: next.id } : null;
  };

  t.views.push({
    id: "decoding", name: "Search", draw, there: (trace) => Boolean(trace.model),
    missing: (trace) => trace.decodings.length ? ""
      : "The target was given, so nothing was searched for. Without --target there is a search to see.",
    keys: {
      n: to(1), p: to(-1), ArrowRight: to(1), ArrowLeft: to(-1), j: candidate(1), k: candidate(-1),
    },
    help: [["n p, ← →", "another step"], ["j k", "another candidate of the step"]],
  });
})(transduce);
