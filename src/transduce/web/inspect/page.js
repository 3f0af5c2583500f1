/* What holds the views together: tabs, keys, help, the line that checks the numbers. */
(function (t) {
  "use strict";
  const { el } = t;
  let waiting = [];

  /** Do something once the view stands in the page. */
  t.after = (does) => { waiting.push(does); };

  /** Draw a part of the view anew, as while a slider moves. */
  t.redraw = (part, ...children) => {
    part.replaceChildren(...children);
    for (const does of waiting.splice(0)) does();
  };

  /** The views that have anything to do with what is here. */
  const views = () => t.views.filter((view) => !view.there || view.there(trace()));
  const current = () => views().find((view) => view.id === t.state.view) || views()[0];
  const trace = () => t.traces[Math.min(t.state.trace, t.traces.length - 1)];

  /** Keep the state within what there is: another sentence may be shorter. */
  function kept() {
    const state = t.state, own = trace();
    if (!(state.kind in t.kinds)) state.kind = t.first.kind;
    const there = own.attention[state.kind];
    if (there && there.layers.length && !there.layers.includes(state.layer)) {
      state.layer = there.layers.includes(t.first.layer) ? t.first.layer : there.layers[0];
    }
    const { queries, keys } = t.sides(own, state.kind);
    const within = (x, count) => Math.max(0, Math.min(Math.round(x), count - 1));
    state.token = within(state.token, queries.length);
    state.key = within(state.key, keys.length);
    state.head = within(state.head, own.model ? own.model.h : 1);
  }

  /** On a narrow screen the tabs are wider than the page: move them until the chosen one is seen. */
  function showTab(tabs, tab) {
    const around = tabs.getBoundingClientRect(), own = tab.getBoundingClientRect();
    if (own.right > around.right) tabs.scrollLeft += own.right - around.right;
    if (own.left < around.left) tabs.scrollLeft -= around.left - own.left;
  }

  /** Draw the whole page anew; what had the focus has it again. */
  t.draw = () => {
    kept();
    const focus = document.activeElement && document.activeElement.id;
    const view = current(), own = trace();
    waiting = [];
    document.getElementById("tabs").replaceChildren(...views().map((other, i) => {
      const chosen = other === view;
      return el("button", {
        type: "button", role: "tab", id: `tab-${other.id}`, "aria-selected": String(chosen),
        "aria-controls": "view", tabindex: chosen ? 0 : -1, title: `key ${i + 1}`,
        on: { click: () => t.set({ view: other.id }) },
      }, other.name);
    }));
    document.getElementById("which").replaceChildren(...(t.traces.length < 2 ? [] : [t.choice(
      "trace-choice", "shown", t.state.trace,
      t.traces.map((_, i) => [i, t.nameOf(i)]),
      (i) => ({ trace: +i }))]));
    const root = document.getElementById("view");
    showTab(document.getElementById("tabs"), document.getElementById(`tab-${view.id}`));
    root.setAttribute("aria-labelledby", `tab-${view.id}`);
    const missing = view.missing ? view.missing(own, t.state) : "";
    root.replaceChildren();
    if (missing) root.append(el("p", { class: "empty" }, missing));
    else view.draw(root, own, t.state);
    for (const does of waiting.splice(0)) does();
    if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
  };

  // Keys -----------------------------------------------------------------------------------------

  const step = (name, by) => (state) => ({ [name]: state[name] + by });
  const GENERAL = {
    ArrowLeft: step("token", -1), ArrowRight: step("token", 1),
    "[": (state, own) => otherLayer(state, own, -1), "]": (state, own) => otherLayer(state, own, 1),
    ",": step("head", -1), ".": step("head", 1),
    t: (state) => ({ table: !state.table }),
  };

  function otherLayer(state, own, by) {
    const { layers } = own.attention[state.kind] || { layers: [] };
    const place = layers.indexOf(state.layer) + by;
    return place in layers ? { layer: layers[place] } : null;
  }

  const HELP = [
    ["1 2 3 …", "another view"], ["← →", "another token"], ["[ ]", "another layer"],
    [", .", "another head"], ["/", "find a token"], ["t", "matrices as tables"], ["?", "these keys"],
  ];

  function key(event) {
    const at = event.target, box = document.getElementById("keys");
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName) && at.type !== "checkbox") return;
    if (event.key === "?") { help(); event.preventDefault(); return; }
    if (box.open) return;
    if (event.key === "/") { document.getElementById("find").focus(); event.preventDefault(); return; }
    if (at.getAttribute("role") === "tab" && /^Arrow(Left|Right)$/.test(event.key)) {
      const place = views().indexOf(current()) + (event.key === "ArrowRight" ? 1 : -1);
      const next = views()[(place + views().length) % views().length];
      t.set({ view: next.id });
      document.getElementById(`tab-${next.id}`).focus();
      event.preventDefault();
      return;
    }
    const number = views()[+event.key - 1];
    if (number) { t.set({ view: number.id }); return; }
    const does = (current().keys || {})[event.key] || GENERAL[event.key];
    if (!does) return;
    t.set(does(t.state, trace()));
    event.preventDefault();
  }

  function help() {
    const box = document.getElementById("keys");
    if (box.open) { box.close(); return; }
    const own = current().help || [];
    box.replaceChildren(el("h2", {}, "Keys"), el("dl", {}, [...HELP, ...own].map(([keys, does]) =>
      el("div", {}, el("dt", {}, keys), el("dd", {}, does)))),
    el("button", { type: "button", on: { click: () => box.close() } }, "Close"));
    box.showModal();
  }

  function find(text) {
    const own = trace(), wanted = text.trim().toLowerCase();
    if (!wanted) return;
    const { queries } = t.sides(own, t.state.kind);
    const found = queries.findIndex((token, i) =>
      i !== t.state.token && t.label(token).toLowerCase().includes(wanted));
    t.say(found < 0 ? `no other token with ${text}` : `token ${found + 1}: ${t.label(queries[found])}`);
    if (found >= 0) t.set({ token: found });
  }

  // Checks ---------------------------------------------------------------------------------------

  /** Follow the numbers of the page by hand; return the largest difference to the model's own,
   * of numbers above 1 in proportion to them. */
  t.checked = (own) => {
    let worst = 0;
    const differ = (a, b) => { worst = Math.max(worst, Math.abs(a - b) / Math.max(1, Math.abs(b))); };
    for (const station of Object.values(own.stations)) {
      if (!station || !station.one) continue;
      const one = station.one;
      const [q, k, v, raw, s, hidden, alpha, b] = ["q", "k", "v", "raw", "s", "hidden", "alpha", "b"]
        .map((name) => t.matrixOf(t.numbers(own, one[name])));
      q.forEach((query, i) => {
        k.forEach((key_, j) => differ(t.dot(query, key_), raw[i][j]));
        s[i].forEach((x, j) => differ(raw[i][j] / Math.sqrt(query.length), x));
        if (station.normaliser === "softmax") {
          const seen = s[i].filter((_, j) => hidden[i][j] === 0);
          const most = Math.max(...seen);
          const sum = seen.reduce((total, x) => total + Math.exp(x - most), 0);
          s[i].forEach((x, j) => differ(hidden[i][j] ? 0 : Math.exp(x - most) / sum, alpha[i][j]));
        }
        b[i].forEach((x, c) => differ(alpha[i].reduce((total, a, j) => total + a * v[j][c], 0), x));
      });
    }
    return worst;
  };

  function checks() {
    const parts = t.traces.map((own, i) => {
      const worst = t.checked(own);
      const name = t.traces.length > 1 ? `${i + 1}: ` : "";
      const good = worst < 1e-5;
      return el("span", { class: good ? "good" : "warning" },
        `${name}${good ? "✓" : "✗"} Followed by hand from the numbers shown, the largest difference ` +
        `to the model's own is ${worst.toExponential(1)}. `);
    });
    document.getElementById("check").replaceChildren(...parts);
  }

  // Start ----------------------------------------------------------------------------------------

  t.start = () => {
    const data = JSON.parse(document.getElementById("trace").textContent);
    t.begin(data.traces);
    document.addEventListener("keydown", key);
    window.addEventListener("hashchange", () => { t.read(); t.draw(); });
    document.getElementById("find").addEventListener("change", (event) => find(event.target.value));
    document.getElementById("show-keys").addEventListener("click", help);
    t.draw();
    setTimeout(checks, 50);  // the reader sees the page first
  };
})(transduce);
