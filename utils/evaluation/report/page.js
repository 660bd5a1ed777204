"use strict";

const byId = (id) => document.getElementById(id);
const facts = JSON.parse(byId("data").textContent);
const counted = new Intl.NumberFormat("en");

/** An HTML element with attributes and children; strings become text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A number in at most four significant digits. */
function short(value) {
  const size = Math.abs(value);
  if (size >= 1000) return counted.format(Math.round(value));
  if (size > 0 && size < 1e-3) return value.toExponential(2).replace("-", "−");
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

// Charts

const DASHES = ["", "7 4", "2 4", "9 3 2 3", "4 2", "1 3"];
const COLOURS = 6;

/** Round values from low to high, about `wanted` of them. */
function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= 0.8 * rough);
  const first = Math.ceil(low / step - 1e-9);
  const found = [];
  for (let i = first; i * step <= high + step * 1e-9; i += 1) found.push(i * step + 0); // -0 becomes 0
  return found;
}

/** Labels of ticks, all with as many decimals as their distance needs. */
function tickLabels(values) {
  const step = values.length > 1 ? values[1] - values[0] : Math.abs(values[0]) || 1;
  const largest = Math.max(...values.map(Math.abs));
  if (largest > 0 && largest < 0.01) return values.map((v) => (v ? v.toExponential(Math.abs(v / 10 ** Math.floor(Math.log10(v)) % 1) > 1e-6 ? 1 : 0).replace("-", "−") : "0"));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return values.map((v) => v.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−"));
}

function look(index) {
  return { class: `s${index % COLOURS}`, dash: DASHES[index % DASHES.length] };
}

function drawLegend(figure, chart) {
  const legend = figure.querySelector(".legend");
  legend.replaceChildren();
  if (chart.series.length < 2) return;
  chart.series.forEach((series, index) => {
    const { class: colour, dash } = look(index);
    const sample = makeSvg("svg", { width: 28, height: 10, "aria-hidden": "true" },
      makeSvg("line", { x1: 1, x2: 27, y1: 5, y2: 5, class: `line ${colour}`, "stroke-dasharray": dash }));
    legend.append(make("span", {}, sample, series.name));
  });
}

/** The places where a chart has values to tell: x, its name, and what each series has there. */
function stops(chart) {
  const at = new Map();
  chart.series.forEach((series) => series.y.forEach((y, i) => {
    const histogram = chart.kind === "histogram";
    const x = histogram ? (series.x[i] + series.x[i + 1]) / 2 : series.x[i];
    const name = histogram ? `${short(series.x[i])} to ${short(series.x[i + 1])} ${chart.x_label}` : `${chart.x_label} ${short(series.x[i])}`;
    if (!at.has(x)) at.set(x, { x, name, values: [] });
    at.get(x).values.push({ series: series.name, y });
  }));
  return [...at.values()].sort((a, b) => a.x - b.x);
}

function describe(chart, stop) {
  const several = chart.series.length > 1;
  const values = stop.values.map(({ series, y }) => (several ? `${series} ${short(y)}` : `${short(y)} ${chart.y_label}`));
  return `${stop.name}: ${values.join(" · ")}`;
}

function drawChart(figure, chart, state) {
  const plot = figure.querySelector(".plot");
  const width = plot.clientWidth;
  if (!width) return;
  const height = Math.round(Math.min(300, Math.max(200, width * 0.5)));
  const xs = chart.series.flatMap((series) => series.x);
  const ys = chart.series.flatMap((series) => series.y);
  let [left, right] = [Math.min(...xs), Math.max(...xs)];
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (chart.from_zero) low = Math.min(0, low);
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  if (left === right) [left, right] = [left - 1, right + 1];
  const room = (high - low) * 0.05;
  high += room;
  if (!chart.from_zero) low -= room;

  const yTicks = ticks(low, high, 5);
  const yLabels = tickLabels(yTicks);
  const margin = { top: 28, right: 14, bottom: 40, left: 14 + 7 * Math.max(...yLabels.map((label) => label.length)) };
  const xTicks = ticks(left, right, Math.max(2, Math.floor((width - margin.left) / 85)));
  const xLabels = tickLabels(xTicks);
  const toX = (x) => margin.left + ((x - left) / (right - left)) * (width - margin.left - margin.right);
  const toY = (y) => height - margin.bottom - ((y - low) / (high - low)) * (height - margin.top - margin.bottom);

  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
  yTicks.forEach((y, i) => {
    svg.append(makeSvg("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: toY(y), y2: toY(y) }));
    svg.append(makeSvg("text", { x: margin.left - 8, y: toY(y) + 4, "text-anchor": "end" }, yLabels[i]));
  });
  svg.append(makeSvg("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: toY(low), y2: toY(low) }));
  xTicks.forEach((x, i) => {
    svg.append(makeSvg("line", { class: "axis", x1: toX(x), x2: toX(x), y1: toY(low), y2: toY(low) + 4 }));
    const half = 3.5 * xLabels[i].length;
    const anchor = toX(x) + half > width ? { x: width, "text-anchor": "end" } : { x: toX(x), "text-anchor": "middle" };
    svg.append(makeSvg("text", { ...anchor, y: height - margin.bottom + 18 }, xLabels[i]));
  });
  svg.append(makeSvg("text", { x: 0, y: 12 }, chart.y_label));
  svg.append(makeSvg("text", { x: width - margin.right, y: height - 4, "text-anchor": "end" }, chart.x_label));

  chart.series.forEach((series, index) => {
    const { class: colour, dash } = look(index);
    const histogram = chart.kind === "histogram";
    let path = "";
    if (histogram) {
      path = `M${toX(series.x[0])},${toY(0)}` + series.y.map((y, i) => `V${toY(y)}H${toX(series.x[i + 1])}`).join("") + `V${toY(0)}`;
      if (chart.series.length === 1) svg.append(makeSvg("path", { class: `area ${colour}`, d: path }));
    } else {
      path = series.y.map((y, i) => `${i ? "L" : "M"}${toX(series.x[i]).toFixed(1)},${toY(y).toFixed(1)}`).join("");
    }
    svg.append(makeSvg("path", { class: `line ${colour}`, "stroke-dasharray": dash, d: path }));
    if (!histogram && series.x.length <= 12) {
      series.y.forEach((y, i) => svg.append(makeSvg("circle", { class: `point ${colour}`, cx: toX(series.x[i]), cy: toY(y), r: 3 })));
    }
  });
  let free = -Infinity; // labels that would touch take turns on two lines
  let lower = false;
  [...chart.marks].sort((a, b) => a[1] - b[1]).filter(([, x]) => x >= left && x <= right).forEach(([label, x]) => {
    lower = toX(x) < free && !lower;
    svg.append(makeSvg("line", { class: "rule", x1: toX(x), x2: toX(x), y1: margin.top - 4, y2: toY(low) }));
    const end = toX(x) > width - 60;
    svg.append(makeSvg("text", { x: toX(x) + (end ? -4 : 4), y: margin.top + (lower ? 20 : 6), "text-anchor": end ? "end" : "start" }, label));
    free = toX(x) + 34;
  });
  const cursor = makeSvg("line", { class: "cursor", y1: margin.top, y2: toY(low), visibility: "hidden" });
  svg.append(cursor);
  plot.replaceChildren(svg);
  Object.assign(state, { cursor, toX, left: margin.left, span: width - margin.left - margin.right, range: [left, right] });
  if (state.stop !== null) moveTo(figure, chart, state, state.stop);
}

/** Put a chart's cursor on one of its stops, and say its values. */
function moveTo(figure, chart, state, stop) {
  state.stop = stop;
  const plot = figure.querySelector(".plot");
  const place = state.stops[stop];
  const text = describe(chart, place);
  state.cursor.setAttribute("x1", state.toX(place.x));
  state.cursor.setAttribute("x2", state.toX(place.x));
  state.cursor.setAttribute("visibility", "visible");
  figure.querySelector(".readout").textContent = text;
  plot.setAttribute("aria-valuenow", stop + 1);
  plot.setAttribute("aria-valuetext", text);
}

function nearest(places, x) {
  let best = 0;
  places.forEach((place, i) => { if (Math.abs(place.x - x) < Math.abs(places[best].x - x)) best = i; });
  return best;
}

function setUpChart(chart) {
  const figure = byId(`chart-${chart.name}`);
  const plot = figure.querySelector(".plot");
  const state = { stops: stops(chart), stop: null };
  // A slider is what assistive programs know that has values, one at a time, under the arrow keys.
  for (const [name, value] of Object.entries({
    tabindex: 0, role: "slider", "aria-label": `${chart.title}, values`, "aria-describedby": `chart-${chart.name}-text`,
    "aria-valuemin": 1, "aria-valuemax": state.stops.length, "aria-valuenow": 1, "aria-valuetext": describe(chart, state.stops[0]),
  })) plot.setAttribute(name, value);
  drawLegend(figure, chart);
  const goTo = (stop) => moveTo(figure, chart, state, Math.max(0, Math.min(state.stops.length - 1, stop)));
  plot.addEventListener("keydown", (event) => {
    const last = state.stops.length - 1;
    const now = state.stop ?? -1;
    const target = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, Home: 0, End: last,
      PageDown: now - 10, PageUp: now + 10 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    goTo(target);
  });
  plot.addEventListener("focus", () => { if (state.stop === null) goTo(0); });
  plot.addEventListener("pointermove", (event) => {
    const share = (event.clientX - plot.getBoundingClientRect().left - state.left) / state.span;
    goTo(nearest(state.stops, state.range[0] + share * (state.range[1] - state.range[0])));
  });
  figure.querySelector("details").addEventListener("toggle", () => {
    const values = figure.querySelector(".values");
    if (values.firstChild) return;
    const names = chart.series.map((series) => series.name);
    const head = make("tr", {}, ...[chart.x_label, ...names].map((name) => make("th", { scope: "col" }, name)));
    const rows = state.stops.map((stop) => make("tr", {},
      make("th", { scope: "row" }, stop.name.replace(` ${chart.x_label}`, "").replace(`${chart.x_label} `, "")),
      ...names.map((name) => make("td", {}, ...stop.values.filter((v) => v.series === name).map((v) => short(v.y))))));
    values.tabIndex = 0;
    values.append(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  });
  new ResizeObserver(() => drawChart(figure, chart, state)).observe(plot);
}

// Articles: reading

/** What a script element holds: JSON, gzipped, in base64. The element is removed, since its text is as long. */
async function unpack(id) {
  const element = byId(id);
  const binary = atob(element.textContent);
  element.remove();
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

// Articles: what is copied. Words and fragments are those of utils/evaluation/text_statistics.py.

const WORD = /[\p{L}\p{N}]+/gu;

/** Words of a text: lower-cased, with where they begin and end. */
function wordsOf(text) {
  return Array.from(text.matchAll(WORD), (match) => ({
    word: match[0].toLowerCase(), begin: match.index, end: match.index + match[0].length,
  }));
}

/** Fragments of a text that the source holds too: where each begins in both, and its length in words. */
function fragmentsOf(source, text) {
  const starts = new Map();
  source.forEach(({ word }, i) => { if (starts.has(word)) starts.get(word).push(i); else starts.set(word, [i]); });
  const fragments = [];
  for (let begin = 0; begin < text.length;) {
    let longest = 0;
    let found = 0;
    for (const start of starts.get(text[begin].word) ?? []) {
      let length = 1;
      while (begin + length < text.length && start + length < source.length
        && source[start + length].word === text[begin + length].word) length += 1;
      if (length > longest) [longest, found] = [length, start];
    }
    if (longest) fragments.push({ begin, start: found, length: longest });
    begin += Math.max(1, longest);
  }
  return fragments;
}

/** A text as nodes, with the given runs of words marked. */
function marked(text, words, runs) {
  const nodes = [];
  let at = 0;
  for (const [first, length] of runs.sort((a, b) => a[0] - b[0])) {
    const begin = Math.max(at, words[first].begin);
    const { end } = words[first + length - 1];
    if (end <= begin) continue;
    nodes.push(text.slice(at, begin), make("mark", {}, text.slice(begin, end)));
    at = end;
  }
  nodes.push(text.slice(at));
  return nodes;
}

// Articles: the table

const ROWS = 50;

class Articles {
  constructor(data) {
    this.data = data;
    this.count = data.references.length;
    this.sources = [];
    this.alternatives = [];
    this.several = data.runs.length > 1;
    this.query = "";
    this.sort = { key: "number", descending: false };
    this.page = 0;
    this.metric = 0;
    this.matching = Array.from({ length: this.count }, (_, i) => i);
    this.order = this.matching;
    this.ready = this.readSources();
  }

  /** Sources come in blocks, between which the page answers. */
  async readSources() {
    for (let block = 0; block * this.data.per_block < this.count; block += 1) {
      const { sources, alternatives } = await unpack(`article-block-${block}`);
      this.sources.push(...sources);
      this.alternatives.push(...sources.map((_, i) => alternatives.map((run) => run[i])));
      await new Promise((done) => { setTimeout(done); });
    }
  }

  /** The columns of numbers: name, digits, whether with a sign, and the values. */
  columns() {
    const { metrics, runs } = this.data;
    if (!this.several) {
      return metrics.map((metric) => ({ ...metric, values: metric.values[0], lesser: !/rouge|bleu/.test(metric.key) }));
    }
    const { key, short: score, digits, values } = metrics[this.metric];
    const each = runs.map((name, run) => ({ key: `${key}-${run}`, label: `${score}, ${name}`, digits, values: values[run] }));
    const differences = runs.slice(1).map((name, i) => ({
      key: `${key}-difference-${i + 1}`,
      label: runs.length > 2 ? `${name} − ${runs[0]}` : "Difference",
      digits,
      sign: true,
      values: values[0].map((first, n) => (first === null || values[i + 1][n] === null ? null : values[i + 1][n] - first)),
    }));
    return [...each, ...differences];
  }

  start() {
    this.head = document.querySelector("#article-list thead");
    this.body = document.querySelector("#article-list tbody");
    byId("article-list").classList.toggle("several", this.several);
    if (this.several) {
      byId("metric-control").hidden = false;
      this.data.metrics.forEach(({ label }, i) => byId("metric").append(make("option", { value: i }, label)));
      byId("metric").addEventListener("change", (event) => {
        this.metric = Number(event.target.value);
        this.sort = { key: "number", descending: false };
        this.showHead();
        this.arrange();
      });
    }
    let timer = 0;
    byId("search").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.search(byId("search").value), 150);
    });
    byId("page-before").addEventListener("click", () => this.turnTo(this.page - 1));
    byId("page-after").addEventListener("click", () => this.turnTo(this.page + 1));
    byId("page-number").addEventListener("change", (event) => this.turnTo(Math.round(Number(event.target.value)) - 1 || 0));
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (!row || event.ctrlKey || event.metaKey || event.shiftKey || String(getSelection())) return;
      event.preventDefault();
      location.hash = `article-${Number(row.dataset.article) + 1}`;
    });
    this.body.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const links = [...this.body.querySelectorAll("a")];
      const target = links[links.indexOf(event.target) + step];
      if (!step || !target) return;
      event.preventDefault();
      target.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, select, dialog")) return;
      event.preventDefault();
      byId("search").focus();
    });
    this.showHead();
    this.arrange();
  }

  showHead() {
    this.shown = this.columns();
    const row = make("tr", { role: "row" });
    const add = (key, label, kind, sortable = true, title = label) => {
      const cell = make("th", { scope: "col", role: "columnheader", class: kind });
      if (sortable) {
        const button = make("button", { type: "button", title }, make("span", { class: "arrow", "aria-hidden": "true" }), label);
        button.addEventListener("click", () => this.sortBy(key));
        cell.dataset.key = key;
        cell.append(button);
      } else cell.append(label);
      row.append(cell);
    };
    add("number", "No.", "number");
    this.data.runs.forEach((name) => add("", this.several ? name : "Summary", "word", false));
    this.shown.forEach(({ key, label, short: name = label, title }) => add(key, name, "number", true, title));
    this.head.replaceChildren(row);
  }

  /** Numbers begin with the greatest, as who sorts by a score looks for the best; another click turns it round. */
  sortBy(key) {
    const again = this.sort.key === key;
    this.sort = { key, descending: again ? !this.sort.descending : key !== "number" };
    this.arrange();
  }

  async search(query) {
    this.query = query;
    const needle = query.toLowerCase();
    if (needle && this.sources.length < this.count) {
      byId("search-status").textContent = "Reading the articles …";
      await this.ready;
      if (this.query !== query) return;
    }
    const { references, summaries } = this.data;
    const holds = (text) => text.toLowerCase().includes(needle);
    this.matching = [];
    for (let i = 0; i < this.count; i += 1) {
      if (!needle || summaries.some((texts) => holds(texts[i])) || holds(references[i]) || holds(this.sources[i])) {
        this.matching.push(i);
      }
    }
    this.arrange();
  }

  /** Sort what matches, and show its first page. */
  arrange() {
    const { key, descending } = this.sort;
    this.order = [...this.matching];
    const column = this.shown.find((one) => one.key === key);
    if (column) {
      const { values } = column;
      const sign = descending ? -1 : 1;
      // What has no value comes last either way; equals keep the order of the file.
      this.order.sort((a, b) => {
        if (values[a] === null || values[b] === null) return (values[a] === null) - (values[b] === null) || a - b;
        return sign * (values[a] - values[b]) || a - b;
      });
    } else if (descending) this.order.reverse();
    for (const cell of this.head.querySelectorAll("th[data-key]")) {
      const here = cell.dataset.key === key;
      cell.setAttribute("aria-sort", here ? (descending ? "descending" : "ascending") : "none");
      cell.querySelector(".arrow").textContent = here ? (descending ? "↓" : "↑") : "";
    }
    const all = `${counted.format(this.count)} article${this.count === 1 ? "" : "s"}`;
    byId("search-status").textContent = this.query
      ? `${counted.format(this.order.length)} of ${all} hold “${this.query}”`
      : `${all} of the ${facts.split} split`;
    this.turnTo(0);
  }

  turnTo(page) {
    const pages = Math.max(1, Math.ceil(this.order.length / ROWS));
    this.page = Math.max(0, Math.min(pages - 1, page));
    this.body.replaceChildren(...this.order.slice(this.page * ROWS, (this.page + 1) * ROWS).map((i) => this.row(i)));
    byId("page-number").value = this.page + 1;
    byId("page-number").max = pages;
    byId("page-count").textContent = `of ${counted.format(pages)}`;
    byId("page-before").disabled = this.page === 0;
    byId("page-after").disabled = this.page === pages - 1;
  }

  row(i) {
    const row = make("tr", { role: "row" });
    row.dataset.article = i;
    row.append(make("th", { scope: "row", role: "rowheader", class: "number" }, counted.format(i + 1)));
    this.data.runs.forEach((name, run) => {
      const text = this.data.summaries[run][i].trim() || "(empty summary)";
      const content = run ? make("span", {}, text) : make("a", { href: `#article-${i + 1}` }, text);
      row.append(make("td", { role: "cell", class: "preview", "data-label": name }, content));
    });
    this.shown.forEach(({ key, label, short: name = label, digits, sign, values, lesser }) => {
      const kind = `number${lesser ? " lesser" : ""}${key === this.sort.key ? " sorted" : ""}`;
      row.append(make("td", { role: "cell", class: kind, "data-label": name }, number(values[i], digits, sign)));
    });
    return row;
  }

  /** The row of an article, on whose page the table is then; null where the search has left it out. */
  reveal(i) {
    const place = this.order.indexOf(i);
    if (place < 0) return null;
    if (Math.floor(place / ROWS) !== this.page) this.turnTo(Math.floor(place / ROWS));
    return this.body.querySelector(`tr[data-article="${i}"] a`);
  }
}

function number(value, digits, sign = false) {
  if (value === null) return "–";
  const text = value.toFixed(digits).replace("-", "−");
  return sign && value > 0 ? `+${text}` : text;
}

// Articles: one of them

class ArticleView {
  constructor(articles) {
    this.articles = articles;
    this.dialog = byId("article");
    this.now = null;
    byId("article-before").addEventListener("click", () => this.go(-1));
    byId("article-after").addEventListener("click", () => this.go(1));
    byId("article-close").addEventListener("click", () => this.dialog.close());
    byId("mark-length").addEventListener("change", () => this.show());
    byId("mark-text").addEventListener("change", () => this.show());
    const names = articles.several ? articles.data.runs : ["Summary"];
    ["Reference", ...names].forEach((name, i) => byId("mark-text").append(make("option", { value: i }, name.toLowerCase() === "reference" || !articles.several ? `the ${name.toLowerCase()}` : name)));
    byId("mark-text").value = "1";
    this.dialog.addEventListener("keydown", (event) => {
      if (event.target.closest("select") || event.ctrlKey || event.metaKey || event.altKey) return;
      const step = { ArrowRight: 1, j: 1, ArrowLeft: -1, k: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.go(step);
    });
    this.dialog.addEventListener("close", () => {
      history.replaceState(null, "", location.pathname + location.search);
      this.articles.reveal(this.now)?.focus();
    });
    window.addEventListener("hashchange", () => this.follow());
    this.follow();
  }

  /** Show what the address names, so that an article can be linked to and the browser's Back closes it. */
  follow() {
    const match = /^#article-(\d+)$/.exec(location.hash);
    const i = match ? Number(match[1]) - 1 : -1;
    if (i >= 0 && i < this.articles.count) this.open(i);
    else if (this.dialog.open) this.dialog.close();
  }

  open(i) {
    this.now = i;
    if (!this.dialog.open) this.dialog.showModal();
    this.show();
    this.dialog.scrollTop = 0;
    byId("article-title").focus({ preventScroll: true });
  }

  /** The next or the previous article of the table as it is sorted and searched. */
  go(step) {
    const { order } = this.articles;
    const target = order[order.indexOf(this.now) + step];
    if (target === undefined) return;
    history.replaceState(null, "", `#article-${target + 1}`);
    this.open(target);
  }

  async show() {
    const { articles } = this;
    const { data, order } = articles;
    const i = this.now;
    const place = order.indexOf(i);
    byId("article-title").textContent = `Article ${counted.format(i + 1)}`;
    byId("article-position").textContent = place < 0 ? "" : `${counted.format(place + 1)} of ${counted.format(order.length)}${articles.query ? " found" : ""}`;
    byId("article-before").disabled = place <= 0;
    byId("article-after").disabled = place < 0 || place === order.length - 1;
    this.showScores(i);
    if (articles.sources[i] === undefined) {
      byId("article-source").textContent = "Reading the articles …";
      await articles.ready;
      if (this.now !== i) return;
    }
    const source = articles.sources[i];
    const sourceWords = wordsOf(source);
    const least = Number(byId("mark-length").value);
    const names = articles.several ? data.runs : ["Summary"];
    const texts = [["Reference", data.references[i], []], ...names.map((name, run) => [name, data.summaries[run][i], articles.alternatives[i][run]])];
    const blocks = texts.map(([name, text, alternatives], n) => {
      const words = wordsOf(text);
      const copied = fragmentsOf(sourceWords, words).filter(({ length }) => length >= least);
      if (n === Number(byId("mark-text").value)) {
        byId("article-source").replaceChildren(...marked(source, sourceWords, copied.map(({ start, length }) => [start, length])));
      }
      const block = make("section", {}, make("h3", {}, name));
      if (text.trim()) {
        block.append(make("p", { class: "text" }, ...marked(text, words, copied.map(({ begin, length }) => [begin, length]))));
      } else block.append(make("p", { class: "text empty" }, "(empty)"));
      const share = copied.reduce((sum, { length }) => sum + length, 0);
      block.append(make("p", { class: "note" }, `${counted.format(words.length)} words, ${share} of them marked`));
      if (alternatives.length) {
        const list = make("ol", {}, ...alternatives.map((other) => make("li", { class: "text" }, other)));
        block.append(make("details", {}, make("summary", {}, `${alternatives.length} more sequences`), list));
      }
      return block;
    });
    byId("article-texts").replaceChildren(...blocks);
  }

  showScores(i) {
    const { data, several } = this.articles;
    const names = several ? data.runs : [];
    if (!several) {
      const list = make("dl", { class: "facts" });
      data.metrics.forEach(({ label, digits, values }) => {
        list.append(make("div", {}, make("dt", {}, label), make("dd", {}, number(values[0][i], digits))));
      });
      byId("article-scores").replaceChildren(list);
      return;
    }
    const cell = (tag, text, attributes = {}) => make(tag, { class: "number", ...attributes }, text);
    const head = make("tr", { role: "row" }, make("th", { scope: "col", role: "columnheader" }, "Run"),
      ...data.metrics.map(({ short: label, title }) => cell("th", label, { scope: "col", role: "columnheader", title })));
    const rows = names.map((name, run) => make("tr", { role: "row" }, make("th", { scope: "row", role: "rowheader" }, name),
      ...data.metrics.map(({ short: label, digits, values }) => cell("td", number(values[run][i], digits), { role: "cell", "data-label": label }))));
    const parts = [make("thead", { role: "rowgroup" }, head), make("tbody", { role: "rowgroup" }, ...rows)];
    byId("article-scores").replaceChildren(make("table", { role: "table", class: "stacking" }, ...parts));
  }
}

async function startArticles() {
  if (!byId("article-table")) return;
  if (typeof DecompressionStream === "undefined") {
    byId("search-status").textContent = "This browser is too old to unpack the articles: it lacks DecompressionStream.";
    return;
  }
  const articles = new Articles(await unpack("article-table"));
  articles.start();
  new ArticleView(articles);
}

facts.charts.forEach(setUpChart);
startArticles();
