/* Which source word a target word belongs to, read off the decoder's attention to the source. */
(function (t) {
  "use strict";
  const { el } = t;

  // Attention between words ----------------------------------------------------------------------

  /** The units of a side: words, or pieces; of a side that is one word its pieces. */
  t.units = (side, words) =>
    words && (side.words.length > 1 || side.pieces.length < 2) ? side.words : side.pieces;

  /**
   * How much each target unit attends to each source unit: a unit's columns are summed, its rows
   * averaged. What falls on END is left out and made up for nowhere. Weights that need not sum to 1
   * become shares first. With `later`, the row after a piece's own is read, where there is one.
   */
  t.wordAttention = (rows, source, target, later) => {
    const between = rows.map((row) => {
      const sum = row.reduce((total, x) => total + x, 0);
      return source.map((unit) => unit.pieces.reduce((total, p) => total + (sum > 0 ? row[p] / sum : 0), 0));
    });
    return target.map((unit) => {
      const own = unit.pieces.map((p) => p + Number(later)).filter((p) => p < rows.length);
      return source.map((_, s) => own.reduce((total, p) => total + between[p][s], 0) / Math.max(1, own.length));
    });
  };

  /**
   * The links, in the order of the source: each target unit with the one that it attends to most
   * (of equal ones the first), or, with a threshold, with all that have at least so much of it.
   */
  t.linked = (attention, threshold) => {
    const links = [];
    attention.forEach((row, j) => {
      const most = row.reduce((best, x, i) => x > row[best] ? i : best, 0);
      row.forEach((share, i) => {
        if (threshold === null ? i === most && share > 0 : share >= threshold) links.push({ i, j, share });
      });
    });
    return links.sort((a, b) => a.i - b.i || a.j - b.j);
  };

  // What is chosen -------------------------------------------------------------------------------

  function chosen(trace, state) {
    const { layers } = trace.attention.cross, { h, N_decoder } = trace.model;
    const usual = Math.max(0, N_decoder - 2);
    const layer = [state.alignment_layer, usual, layers[layers.length - 1]].find((i) => layers.includes(i));
    const head = Math.max(-1, Math.min(state.alignment_head, h - 1));
    return { layer, head };
  }

  function attention(trace, state) {
    const { layer, head } = chosen(trace, state);
    const source = t.units(trace.source, state.words), target = t.units(trace.target, state.words);
    const heads = head < 0 ? Array.from({ length: trace.model.h }, (_, i) => i) : [head];
    const each = heads.map((i) => t.wordAttention(
      t.weightsOf(trace, "cross", layer, i), source, target, state.later));
    const mean = target.map((_, j) => source.map((_, i) =>
      each.reduce((sum, own) => sum + own[j][i], 0) / heads.length));
    return { source, target, mean };
  }

  // The drawing ----------------------------------------------------------------------------------

  /** The two sentences with lines between their words; a word with the focus shows its own. */
  function drawing(source, target, mean, links, across, note) {
    const wires = t.svg("svg", { class: "wires", "aria-hidden": "true" });
    const boxes = { source: [], target: [] };
    let here = ["target", 0];

    const said = (side, at) => {
      const own = links.filter((link) => (side === "source" ? link.i : link.j) === at);
      const name = side === "source" ? source[at].text : target[at].text;
      const others = [...own].sort((a, b) => b.share - a.share)
        .map(({ i, j, share }) => `${side === "source" ? target[j].text : source[i].text} ${t.number(share)}`);
      return `${name}: ${others.length ? others.join(", ") : "no link"}`;
    };

    let marked = [];
    const mark = (node, name) => { node.classList.add(name); marked.push([node, name]); };

    function leave() {
      for (const [node, name] of marked) node.classList.remove(name);
      marked = [];
    }

    function show(side, at) {
      const other = side === "source" ? "target" : "source";
      leave();
      mark(wires, "some");
      mark(boxes[side][at], "here");
      for (const wire of wires.querySelectorAll(`[data-${side}="${at}"]`)) {
        mark(wire, "here");
        mark(boxes[other][wire.dataset[other]], "linked");
      }
      note.textContent = said(side, at);
    }

    function move(event) {
      const [side, at] = here, along = across ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
      const over = across ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
      let next = null;
      if (along.includes(event.key)) {
        const backward = getComputedStyle(boxes[side][at].parentElement).direction === "rtl" && across;
        next = [side, at + (event.key === along[backward ? 0 : 1] ? 1 : -1)];
      } else if (over.includes(event.key)) {
        const other = event.key === over[0] ? "source" : "target";
        if (other !== side) {
          const best = links.filter((link) => (side === "source" ? link.i : link.j) === at)
            .sort((a, b) => b.share - a.share)[0];
          next = [other, best ? (other === "source" ? best.i : best.j) : Math.min(at, boxes[other].length - 1)];
        }
      } else return;
      event.preventDefault();
      event.stopPropagation();
      const box = next && boxes[next[0]][next[1]];
      if (box) box.focus();
    }

    const row = (side, units) => el("ol", {
      class: `units ${side}`, dir: across ? "auto" : null, "aria-label": side === "source" ? "Source" : "Target",
    }, units.map((unit, at) => {
      const strongest = side === "target" && Math.max(...mean[at]);
      const box = el("li", {
        tabindex: side === here[0] && at === here[1] ? 0 : -1, dir: across ? null : "auto", on: {
          mouseenter: () => show(side, at), mouseleave: leave, blur: leave, keydown: move,
          click: () => box.focus(),
          focus: () => {
            boxes[here[0]][here[1]].tabIndex = -1;
            here = [side, at];
            box.tabIndex = 0;
            show(side, at);
            t.say(note.textContent);
          },
        },
      }, unit.text, el("span", { class: "unseen" }, ` ${said(side, at)}`));
      if (strongest !== false) box.title = `strongest: ${t.number(strongest)}`;
      boxes[side].push(box);
      return box;
    }));

    const root = el("div", { class: across ? "alignment across" : "alignment" },
      row("source", source), el("div", { class: "between" }, wires), row("target", target));

    function wire() {
      const box = wires.getBoundingClientRect();
      const place = (node, side) => {
        const at = node.getBoundingClientRect();
        return across ? [at.left + at.width / 2 - box.left, side === "source" ? 0 : box.height]
          : [side === "source" ? 0 : box.width, at.top + at.height / 2 - box.top];
      };
      wires.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
      wires.replaceChildren(...[...links].sort((a, b) => a.share - b.share).map(({ i, j, share }) => {
        const [x, y] = place(boxes.source[i], "source"), [u, v] = place(boxes.target[j], "target");
        const bent = across ? `C${x} ${(y + v) / 2} ${u} ${(y + v) / 2} ${u} ${v}`
          : `C${(x + u) / 2} ${y} ${(x + u) / 2} ${v} ${u} ${v}`;
        return t.svg("path", {
          d: `M${x} ${y}${bent}`, "data-source": i, "data-target": j,
          "stroke-width": 0.75 + 4.25 * share, "stroke-opacity": 0.3 + 0.7 * share,
        });
      }));
    }
    new ResizeObserver(wire).observe(root);  // once it stands in the page, and at every new width
    return root;
  }

  // The view -------------------------------------------------------------------------------------

  const pairs = (links) => links.map(({ i, j }) => `${i}-${j}`).join(" ");

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      t.say("copied");
      return "copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(document.getElementById("pairs"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      return document.execCommand("copy") ? "copied" : "selected: copy it by key";
    }
  }

  function how(trace, state, source, target) {
    const { layer, head } = chosen(trace, state);
    const heads = head < 0 ? `mean of all ${trace.model.h} heads` : `head ${head + 1}`;
    const unit = (side, units) => units === side.words ? "words"
      : state.words ? "pieces (it is one word)" : "pieces";
    return `Cross-attention of decoder layer ${layer + 1}, ${heads}, from target ${unit(trace.target, target)} ` +
      `to source ${unit(trace.source, source)}. The columns of a word's pieces are summed, its rows ` +
      "averaged; what falls on END is left out. " + (state.later
      ? "Read one step later: at the step that has the word as its input, not the one that produces it."
      : "Read at the step that produces the word.");
  }

  const table = (links, source, target) => el("table", { class: "numbers links" },
    el("caption", { class: "unseen" }, "Links"),
    el("thead", {}, el("tr", {}, ["i", "source", "j", "target", "share"].map((name, c) =>
      el("th", { scope: "col", class: c === 4 ? "n" : null }, name)))),
    el("tbody", {}, links.map(({ i, j, share }) => el("tr", {},
      el("td", { class: "quiet" }, i), el("td", { dir: "auto" }, source[i].text),
      el("td", { class: "quiet" }, j), el("td", { dir: "auto" }, target[j].text),
      el("td", { class: "n" }, t.number(share))))));

  const matrix = ({ source, target, mean }) => t.matrix({
    id: "words", name: "Share of each source word in the look of each target word",
    title: "All shares: target words in rows, source words in columns",
    rows: target.map((unit) => unit.text), columns: source.map((unit) => unit.text), values: mean,
    range: [0, 1], saved: "alignment", hint: "Rows sum to what did not fall on END.",
  });

  /** What depends on the threshold, around `shares`, which do not. */
  function result(trace, state, { source, target, mean }, shares, threshold) {
    const links = t.linked(mean, state.links === "most" ? null : threshold);
    const note = el("p", { class: "said quiet" }, "Point at a word, or move with the arrow keys.");
    const copied = el("span", { class: "quiet", role: "status" });
    const text = pairs(links);
    const rounding = t.rounding(trace, { ...chosen(trace, state), kind: "cross", heads: "mean", layers: "one" });
    const drawn = [t.scrolling("Words and their links", { class: "scroll fits" },
      drawing(source, target, mean, links, state.across, note)), note];
    return el("div", { class: "beside" },
      state.across && el("div", { class: "whole" }, drawn),
      el("div", {}, !state.across && drawn, shares),
      el("section", { class: "aside", "aria-label": "Links" },
        el("p", {}, how(trace, state, source, target)),
        rounding && el("p", { class: "quiet" }, rounding),
        el("h3", {}, "Links as i-j, the source first, from 0"),
        t.scrolling("Pairs", { class: "pairs-text" }, el("code", { id: "pairs" }, text || "none")),
        el("div", { class: "saves" },
          el("button", { type: "button", class: "plain", on: {
            click: async () => { copied.textContent = await copy(text); } } }, "Copy"),
          el("button", { type: "button", class: "plain", on: {
            click: () => t.save("alignment.txt", `${text}\n`, "text/plain") } }, "Save"),
          copied),
        t.scrolling("Table of links", { class: "scroll tall" }, table(links, source, target))));
  }

  function draw(root, trace, state) {
    const { layer, head } = chosen(trace, state);
    const { layers } = trace.attention.cross;
    const own = attention(trace, state), shares = own.target.length ? matrix(own) : null;
    const body = el("div", {});
    const threshold = Math.max(0, Math.min(1, state.threshold));
    root.append(
      el("h2", { class: "unseen" }, "Alignment"),
      el("div", { class: "controls" },
        t.choice("alignment-layer", "layer", layer, layers.map((i) => [i, i + 1]),
          (i) => ({ alignment_layer: Number(i) })),
        t.choice("alignment-head", "heads", head,
          [[-1, "mean of all"], ...Array.from({ length: trace.model.h }, (_, i) => [i, `head ${i + 1}`])],
          (i) => ({ alignment_head: Number(i) })),
        t.choice("links", "links", state.links,
          [["most", "each word's strongest"], ["threshold", "all from a share on"]], (links) => ({ links })),
        state.links === "threshold" && t.slider("threshold", "share", threshold,
          { min: 0.01, max: 1, step: 0.01, text: (x) => t.number(x, 2) }, (x) => ({ threshold: x }),
          (x) => t.redraw(body, result(trace, state, own, shares, x))),
        t.choice("units", "units", state.words ? "words" : "pieces",
          [["words", "words"], ["pieces", "pieces"]], (units) => ({ words: units === "words" })),
        t.tick("later", "read one step later", state.later, (later) => ({ later })),
        t.tick("across", "sentences as rows", state.across, (across) => ({ across }))),
      body);
    body.append(shares ? result(trace, state, own, shares, threshold)
      : el("p", { class: "empty" }, "The target is empty: there is nothing to align."));
  }

  const nextLayer = (by) => (state, trace) => {
    const { layers } = trace.attention.cross;
    const next = layers[layers.indexOf(chosen(trace, state).layer) + by];
    return next === undefined ? null : { alignment_layer: next };
  };
  const nextHead = (by) => (state, trace) => ({
    alignment_head: Math.max(-1, Math.min(trace.model.h - 1, chosen(trace, state).head + by)),
  });

  t.views.push({
    id: "alignment", name: "Alignment", draw, there: (trace) => Boolean(trace.model),
    missing: (trace) => trace.attention.cross.layers.length ? "" : "There is no cross-attention to see.",
    keys: {
      "[": nextLayer(-1), "]": nextLayer(1), ",": nextHead(-1), ".": nextHead(1),
      l: (state) => ({ later: !state.later }),
    },
    help: [["arrows at a word", "along the sentence, over to the other"], ["l", "read one step later"]],
  });
})(transduce);
