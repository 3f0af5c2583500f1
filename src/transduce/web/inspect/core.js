/* The ground of the inspection page: elements, arrays, numbers, colours, state.
 *
 * Plain scripts in one namespace, joined in order. Texts become text nodes, never markup.
 *
 * @typedef {{id: number, text: string, special: boolean}} Token
 * @typedef {{shape: number[], data: ArrayLike<number>}} Numbers
 * @typedef {{id: string, name: string, there?: function(Object): boolean, missing: function(Object): string,
 *            draw: function(HTMLElement, Object, Object): void,
 *            keys?: Object<string, function(Object, Object): Object>,
 *            help?: string[][]}} View
 */
var transduce = { views: [] };

(function (t) {
  "use strict";

  // Elements -------------------------------------------------------------------------------------

  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") {
        for (const [event, does] of Object.entries(value)) node.addEventListener(event, does);
      } else if (name === "style") {
        Object.assign(node.style, value);
      } else {
        node.setAttribute(name, value === true ? "" : value);
      }
    }
    for (const child of children.flat(3)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    }
    return node;
  }

  /** Make an element; strings among the children become text. */
  t.el = (tag, attributes, ...children) =>
    filled(document.createElement(tag), attributes, children);

  /** Make an SVG element. */
  t.svg = (tag, attributes, ...children) =>
    filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  /** Put children into an element that is there. */
  t.fill = (node, ...children) => filled(node, {}, children);

  /** A button that changes the state. */
  t.button = (text, change, attributes) =>
    t.el("button", { type: "button", on: { click: () => t.set(change()) }, ...attributes }, text);

  /** A labelled choice. `options` are [value, text]; `change` makes a state of the value. */
  t.choice = (id, label, value, options, change) =>
    t.el("label", { class: "choice" }, t.el("span", {}, label),
      t.el("select", { id, on: { change: (event) => t.set(change(event.target.value)) } },
        options.map(([key, text]) =>
          t.el("option", { value: key, selected: String(key) === String(value) }, text))));

  /** A labelled box to tick. */
  t.tick = (id, label, value, change) =>
    t.el("label", { class: "tick" },
      t.el("input", { id, type: "checkbox", checked: value,
        on: { change: (event) => t.set(change(event.target.checked)) } }),
      label);

  /**
   * A labelled slider: while it moves, `move` is called; where it rests, the state changes.
   * `text` makes of a value what stands beside it.
   */
  t.slider = (id, label, value, { min, max, step, text }, change, move) => {
    const said = t.el("output", { for: id }, text(value));
    const now = (event) => Number(event.target.value);
    return t.el("label", { class: "choice slider" }, t.el("span", {}, label),
      t.el("input", { id, type: "range", min, max, step, value, "aria-valuetext": text(value), on: {
        input: (event) => {
          said.textContent = text(now(event));
          event.target.setAttribute("aria-valuetext", text(now(event)));
          if (move) move(now(event));
        },
        change: (event) => t.set(change(now(event))),
      } }),
      said);
  };

  /** What tells one trace from the other: the sentence, or else the model. */
  t.nameOf = (i) => {
    const other = t.traces.some((own) => own.source.text !== t.traces[0].source.text);
    const { source, name } = t.traces[i];
    const text = other || !name ? source.text : name;
    return `${i + 1}: ${text.length > 40 ? `${text.slice(0, 39)}…` : text}`;
  };

  /** Have a screen reader say something. */
  t.say = (text) => { document.getElementById("said").textContent = text; };

  // Tokens ---------------------------------------------------------------------------------------

  /** A token's text; those that are no text by their names. */
  t.label = (token) => token.text;

  /** A token as an element; reserved ones look different from text that is spelled alike. */
  t.token = (token, attributes) =>
    t.el("span", { dir: "auto", ...attributes,
      class: `token${token.special ? " special" : ""} ${(attributes || {}).class || ""}` },
    t.label(token));

  /** The tokens on both sides of a kind of attention: queries, as what they produced or were. */
  t.sides = (trace, kind) => ({
    queries: kind === "encoder_self" ? trace.source.tokens
      : kind === "cross" ? trace.target.tokens : trace.target.inputs,
    keys: kind === "decoder_self" ? trace.target.inputs : trace.source.tokens,
  });

  t.kinds = {
    encoder_self: "encoder self-attention",
    decoder_self: "decoder self-attention",
    cross: "cross-attention",
  };

  // Arrays ---------------------------------------------------------------------------------------

  const decoded = new Map();

  /** Return the numbers of an array of the trace: nested lists, or an entry of `arrays`. */
  t.numbers = (trace, array) => {
    if (array === null || array === undefined) return null;
    if (Array.isArray(array)) {
      const shape = [];
      for (let inner = array; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
      return { shape, data: array.flat(Infinity) };
    }
    const packed = trace.arrays[array.array];
    if (!decoded.has(packed)) decoded.set(packed, unpacked(packed));
    return decoded.get(packed);
  };

  function unpacked(packed) {
    const bytes = Uint8Array.from(atob(packed.base64), (c) => c.charCodeAt(0));
    if (packed.type === "share8") {
      return { shape: packed.shape, data: Float32Array.from(bytes, (b) => b / 255), rough: true };
    }
    const Kind = packed.type === "float32" ? Float32Array : Uint8Array;
    const data = new Kind(bytes.buffer, 0, bytes.length / Kind.BYTES_PER_ELEMENT);
    return { shape: packed.shape, data };
  }

  /** Return one row of the last two dimensions: row([L, h, q, k], l, h, i) has k numbers. */
  t.row = (numbers, ...at) => {
    const width = numbers.shape[numbers.shape.length - 1];
    let place = 0;
    at.forEach((i, axis) => { place = place * numbers.shape[axis] + i; });
    const { data } = numbers, from = place * width;
    return data.subarray ? Array.from(data.subarray(from, from + width)) : data.slice(from, from + width);
  };

  /** Return a matrix of a stack of matrices, as rows. */
  t.matrixOf = (numbers, ...at) => {
    const rows = numbers.shape[at.length];
    return Array.from({ length: rows }, (_, i) => t.row(numbers, ...at, i));
  };

  t.dot = (a, b) => { let sum = 0; for (let i = 0; i < a.length; i++) sum += a[i] * b[i]; return sum; };
  t.norm = (a) => Math.sqrt(t.dot(a, a));
  t.transposed = (rows) => rows.length ? rows[0].map((_, j) => rows.map((row) => row[j])) : [];

  // Numbers and colours --------------------------------------------------------------------------

  /** Write a number with the digits that are chosen, and a true minus. */
  t.number = (x, digits) => {
    if (x === null || x === undefined || Number.isNaN(x)) return "–";
    if (x === -Infinity) return "−∞";
    const text = x.toFixed(digits === undefined ? t.state.digits : digits);
    return text.startsWith("-") ? `−${text.slice(1)}` : text;
  };
  t.percent = (x) => `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`;

  function parsed(name) {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  }

  let scale = null;
  const scales = () => scale || (scale = {
    zero: parsed("--heat-0"), half: parsed("--heat-1"), one: parsed("--heat-2"),
    minus: parsed("--heat-minus"), ink: parsed("--ink"), paper: parsed("--paper"),
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    scale = null;
    t.draw();
  });

  const mixed = (a, b, share) => a.map((x, i) => Math.round(x + share * (b[i] - x)));
  const css = (rgb) => `rgb(${rgb.join(",")})`;

  /** Place of a value among 256 shades: from 0 up, or, where the range is two-sided, from the middle. */
  function shadeOf(value, range) {
    const share = range[0] < 0 ? 0.5 + value / (2 * Math.max(1e-12, range[1]))
      : (value - range[0]) / Math.max(1e-12, range[1] - range[0]);
    return Math.round(255 * Math.max(0, Math.min(1, share)));
  }

  /** The shades of both kinds of range, each as [colour, colour of text on it, numbers]. */
  function palettes() {
    const { zero, half, one, minus } = scales();
    const up = (x) => x < 0.5 ? mixed(zero, half, 2 * x) : mixed(half, one, 2 * x - 1);
    const both = (x) => x < 0.5 ? mixed(zero, minus, 1 - 2 * x) : mixed(zero, one, 2 * x - 1);
    return [up, both].map((shade) => Array.from({ length: 256 }, (_, n) => {
      const rgb = shade(n / 255);
      return [css(rgb), light(rgb) ? "#14181a" : "#ffffff", rgb];
    }));
  }

  const light = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b) > 140;
  const shades = (range) => {
    const own = scales();
    own.palettes = own.palettes || palettes();
    return own.palettes[range[0] < 0 ? 1 : 0];
  };

  /** Return the colour of a value: from paper to full, or two-sided where the range is. */
  t.colour = (value, range) => shades(range)[shadeOf(value, range)][0];
  /** Return the colour in which text can be read on it. */
  t.inkOn = (value, range) => shades(range)[shadeOf(value, range)][1];
  /** Return the colours of 256 weights as numbers. */
  t.palette = () => shades([0, 1]).map(([, , rgb]) => rgb);

  // State ----------------------------------------------------------------------------------------

  const FIRST = {
    view: "stations", trace: 0, kind: "encoder_self", layer: 0, head: 0, token: 0, key: 0,
    station: 0, part: 0, form: "paper", digits: 4, table: false, step: 0, decoding: 0,
    threshold: 0.1, heads: "one", sort: "place", norm: "rows", later: false, words: true, node: 0, temperature: 1,
    layers: "one", dropped: true, beside: "", links: "most", across: false,
    alignment_layer: -1, alignment_head: -1,
  };
  t.state = { ...FIRST };

  /** Take over a change of the state, write it into the address, and draw. */
  t.set = (change) => {
    if (!change) return;
    Object.assign(t.state, change);
    const parts = Object.entries(t.state).filter(([key, value]) => value !== t.first[key]);
    history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
    t.draw();
  };

  /** Read the state from the address: a view can be mailed. */
  t.read = () => {
    const state = { ...t.first };
    for (const [key, text] of new URLSearchParams(location.hash.slice(1))) {
      if (!(key in FIRST)) continue;
      const usual = FIRST[key];
      if (typeof usual === "number") state[key] = Number.isFinite(+text) ? +text : usual;
      else if (typeof usual === "boolean") state[key] = text === "true";
      else state[key] = text;
    }
    t.state = state;
  };

  /** Start from what the trace has: its chosen layer and head. */
  t.begin = (traces) => {
    t.traces = traces;
    t.first = { ...FIRST, ...(traces[0].first || {}) };
    t.read();
  };
})(transduce);
