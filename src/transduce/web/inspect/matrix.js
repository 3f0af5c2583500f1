/* A matrix on a canvas, with its tokens along both sides; and a vector as a strip of numbers. */
(function (t) {
  "use strict";
  const { el } = t;

  /** Choose the side of a cell for so many columns. */
  function cellSize(columns, numbers) {
    if (numbers && columns <= 12) return t.state.digits > 4 ? 84 : 58;
    return columns <= 24 ? 28 : columns <= 60 ? 18 : 13;
  }

  /**
   * Draw a matrix. Arrow keys move within it; what is under the mouse is said below.
   *
   * @param {Object} o
   *   id, name (for the screen reader), rows and columns (labels: tokens or texts), values (rows of
   *   numbers), range, hidden (i, j) -> reason or "", picked (row), pick (i, j) -> change of state,
   *   numbers (write them into the cells), said (i, j) -> text
   */
  t.matrix = (o) => {
    const { rows, columns, values } = o;
    const height = rows.length, width = columns.length;
    const range = o.range || t.rangeOf(values);
    const numbers = o.numbers !== false && width <= 12 && height <= 40;
    const cell = o.cell || cellSize(width, numbers);
    const tall = numbers ? 28 : Math.min(cell, 28);
    const ratio = width * height > 4000 ? 1 : Math.min(2, window.devicePixelRatio || 1);
    const canvas = el("canvas", {
      id: o.id, tabindex: o.pick ? 0 : null, role: "img",
      "aria-label": `${o.name}: ${height} rows, ${width} columns.` +
        (o.pick ? " Arrow keys move, t shows it as a table." : ""),
      width: Math.round(width * cell * ratio), height: Math.round(height * tall * ratio),
      style: { width: `${width * cell}px`, height: `${height * tall}px` },
    });
    const note = el("p", { class: "said quiet" }, o.hint || "\u00a0");
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    let at = [Math.min(o.picked || 0, height - 1), Math.min(o.column || 0, width - 1)];

    const write = (text, x, y, colour) => { pen.fillStyle = colour; pen.fillText(text, x, y); };

    function paint() {
      pen.clearRect(0, 0, width * cell, height * tall);
      pen.textAlign = "center";
      pen.textBaseline = "middle";
      pen.font = "12px system-ui, sans-serif";
      const gap = cell > 14 ? 1 : 0;
      for (let i = 0; i < height; i++) {
        for (let j = 0; j < width; j++) {
          const reason = o.hidden ? o.hidden(i, j) : "";
          const x = j * cell, y = i * tall, value = values[i][j];
          pen.fillStyle = reason ? t.colour(0, range) : t.colour(value, range);
          pen.fillRect(x, y, cell - gap, tall - gap);
          if (reason) hatch(x, y, cell - gap, tall - gap);
          if (numbers) {
            const ink = reason ? "#7d8488" : t.inkOn(value, range);
            write(t.number(value), x + cell / 2, y + tall / 2, ink);
          }
        }
      }
      if (o.picked !== undefined && o.picked < height) frame(0, o.picked * tall, width * cell, tall);
      if (o.pickedColumn !== undefined && o.pickedColumn < width) {
        frame(o.pickedColumn * cell, 0, cell, height * tall);
      }
      if (o.pick && document.activeElement === canvas) {
        frame(at[1] * cell, at[0] * tall, cell, tall);
      }
    }

    function hatch(x, y, w, h) {
      pen.save();
      pen.beginPath();
      pen.rect(x, y, w, h);
      pen.clip();
      pen.strokeStyle = "#8a929788";
      pen.beginPath();
      for (let d = -h; d < w; d += 6) { pen.moveTo(x + d, y + h); pen.lineTo(x + d + h, y); }
      pen.stroke();
      pen.restore();
    }

    function frame(x, y, w, h) {
      pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, w - 2, h - 2);
    }

    const text = (label) => typeof label === "string" ? label : t.label(label);
    const said = (i, j) => {
      const reason = o.hidden ? o.hidden(i, j) : "";
      return `${text(rows[i])} → ${text(columns[j])}: ${t.number(values[i][j], 6)}` +
        (reason ? ` (hidden: ${reason})` : "");
    };
    const rowLabels = [], columnLabels = [];

    let crossed = [];
    function cross(i, j) {
      for (const label of crossed) label.classList.remove("here");
      crossed = [rowLabels[i], columnLabels[j]].filter(Boolean);
      for (const label of crossed) label.classList.add("here");
      note.textContent = (o.said || said)(i, j);
    }

    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const j = Math.floor((event.clientX - box.left) / cell);
      const i = Math.floor((event.clientY - box.top) / tall);
      return i >= 0 && j >= 0 && i < height && j < width ? [i, j] : null;
    };
    canvas.addEventListener("mousemove", (event) => { const p = under(event); if (p) cross(...p); });
    if (o.pick) {
      canvas.addEventListener("click", (event) => { const p = under(event); if (p) t.set(o.pick(...p)); });
      canvas.addEventListener("focus", () => { paint(); cross(...at); });
      canvas.addEventListener("blur", paint);
      canvas.addEventListener("keydown", (event) => {
        const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          t.set(o.pick(...at));
        } else if (by[event.key]) {
          event.preventDefault();
          event.stopPropagation();
          const [di, dj] = by[event.key];
          at = [Math.max(0, Math.min(height - 1, at[0] + di)),
            Math.max(0, Math.min(width - 1, at[1] + dj))];
          paint();
          cross(...at);
          t.say(note.textContent);
        }
      });
    }

    const labelled = (label, into, attributes) => {
      const node = typeof label === "string" ? el("span", attributes, label)
        : t.token(label, attributes);
      into.push(node);
      return node;
    };
    const small = tall < 16 ? " small" : "";
    const longest = Math.max(...columns.map((label) => text(label).length));
    const above = `${Math.min(88, (small ? 16 : 20) + (small ? 5 : 6.5) * longest)}px`;
    const body = el("div", { class: "matrix-body" },
      el("span", { class: "corner" }),
      el("div", { class: `column-labels${small}`, "aria-hidden": "true", style: { height: above } },
        columns.map((label, j) => el("span", { class: "slot", style: { width: `${cell}px` } },
          labelled(label, columnLabels, {})))),
      el("div", { class: `row-labels${small}`, "aria-hidden": "true" },
        rows.map((label, i) => el("span",
          { class: `slot${i === o.picked ? " picked" : ""}`, style: { height: `${tall}px` } },
          labelled(label, rowLabels, {})))),
      canvas);
    paint();
    t.after(() => paint());
    return el("figure", { class: "matrix" },
      o.title && el("figcaption", {}, o.title),
      t.state.table ? t.table(o) : el("div", { class: "scroll matrix-scroll", tabindex: 0, role: "group",
        "aria-label": `${o.name}, can be scrolled` }, body),
      !t.state.table && note,
      el("div", { class: "saves" }, saves(o, canvas)));
  };

  function saves(o, canvas) {
    if (!o.saved) return null;
    const name = o.saved;
    const csv = () => {
      const quoted = (label) => `"${(typeof label === "string" ? label : t.label(label)).replaceAll('"', '""')}"`;
      return ["," + o.columns.map(quoted).join(","),
        ...o.values.map((row, i) => [quoted(o.rows[i]), ...row].join(","))].join("\n") + "\n";
    };
    return [
      el("button", { type: "button", class: "plain", on: { click: () => canvas.toBlob((blob) => t.save(`${name}.png`, blob)) } }, "PNG"),
      el("button", { type: "button", class: "plain", on: { click: () => t.save(`${name}.svg`, drawn(o), "image/svg+xml") } }, "SVG"),
      el("button", { type: "button", class: "plain", on: { click: () => t.save(`${name}.csv`, csv(), "text/csv") } }, "CSV"),
      el("button", { type: "button", class: "plain", on: { click: () => t.save(`${name}.json`,
        JSON.stringify({ rows: o.rows, columns: o.columns, values: o.values }), "application/json") } }, "JSON"),
    ];
  }

  /** Return a matrix as the text of an SVG file, for papers. */
  function drawn(o) {
    const cell = 22, left = 120, top = 110, range = o.range || t.rangeOf(o.values);
    const label = (x) => typeof x === "string" ? x : t.label(x);
    const root = t.svg("svg", {
      xmlns: "http://www.w3.org/2000/svg", "font-family": "sans-serif", "font-size": 12,
      width: left + cell * o.columns.length + 10, height: top + cell * o.rows.length + 10,
    });
    o.values.forEach((row, i) => row.forEach((value, j) => root.append(t.svg("rect", {
      x: left + j * cell, y: top + i * cell, width: cell - 1, height: cell - 1,
      fill: t.colour(o.hidden && o.hidden(i, j) ? 0 : value, range),
    }))));
    o.rows.forEach((row, i) => root.append(t.svg("text",
      { x: left - 6, y: top + i * cell + 15, "text-anchor": "end" }, label(row))));
    o.columns.forEach((column, j) => root.append(t.svg("text",
      { transform: `translate(${left + j * cell + 15} ${top - 6}) rotate(-60)` }, label(column))));
    return new XMLSerializer().serializeToString(root);
  }

  /** Give a file to the reader, without any request. */
  t.save = (name, content, type) => {
    const blob = content instanceof Blob ? content : new Blob([content], { type });
    const link = el("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  /** The same matrix as a table. */
  t.table = (o) => {
    const label = (x) => typeof x === "string" ? x : t.token(x);
    return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": o.name },
      el("table", { class: "numbers" },
        el("caption", { class: "unseen" }, o.name),
        el("thead", {}, el("tr", {}, el("td"), o.columns.map((c) => el("th", { scope: "col" }, label(c))))),
        el("tbody", {}, o.rows.map((row, i) => el("tr",
          { class: i === o.picked ? "picked" : null },
          el("th", { scope: "row" }, label(row)),
          o.values[i].map((value, j) => {
            const reason = o.hidden ? o.hidden(i, j) : "";
            return el("td", { class: reason ? "n hidden" : "n" }, t.number(value), reason && el("span", { class: "unseen" }, ` hidden: ${reason}`));
          }))))));
  };

  /** From 0 to the greatest, or, where something is negative, as far to both sides. */
  t.rangeOf = (values) => {
    let low = 0, high = 0;
    for (const row of values) for (const x of row) { if (x < low) low = x; if (x > high) high = x; }
    return low < 0 ? [-Math.max(high, -low), Math.max(high, -low)] : [0, high || 1];
  };

  const SHOWN = 8;

  /**
   * A vector: its name, the first components as numbers, all of them as a strip.
   *
   * @param {string|Node[]} name
   * @param {number[]} values
   * @param {Object} o  from: how much of it is there (others were left out), pick: j -> change, picked
   */
  t.vector = (name, values, o) => {
    o = o || {};
    const range = o.range || t.rangeOf([values]);
    const shown = t.state.table ? values.length : Math.min(values.length, SHOWN);
    const cells = values.slice(0, shown).map((x, j) => {
      const style = { background: t.colour(x, range), color: t.inkOn(x, range) };
      const title = `${j + 1}: ${t.number(x, 8)}`;
      return o.pick
        ? el("button", { type: "button", class: "component", id: `${o.id}-${j}`, style, title,
          "aria-pressed": String(o.picked === j), on: { click: () => t.set(o.pick(j)) } }, t.number(x))
        : el("span", { class: "component", style, title }, t.number(x));
    });
    const rest = values.length - shown;
    const size = o.size || values.length;
    return el("div", { class: "vector" },
      el("span", { class: "vector-name" }, name),
      el("span", { class: "components" }, cells),
      el("span", { class: "quiet vector-size" },
        size > values.length ? `${shown} of ${size} numbers, of which ${values.length} are in this page`
          : `${rest > 0 ? `${shown} of ` : ""}${size} numbers, length ${t.number(t.norm(values))}`),
      values.length > SHOWN && strip(values, range));
  };

  function strip(values, range) {
    const width = Math.max(1, Math.min(6, Math.floor(512 / values.length)));
    const canvas = el("canvas", { class: "strip", "aria-hidden": "true", width: values.length * width, height: 12 });
    const pen = canvas.getContext("2d");
    const paint = () => values.forEach((x, j) => {
      pen.fillStyle = t.colour(x, range);
      pen.fillRect(j * width, 0, width, 12);
    });
    paint();
    return canvas;
  }
})(transduce);
