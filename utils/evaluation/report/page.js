"use strict";
// Searches, sorts and shows the articles. All other parts of the page need no script.

const ROWS = matchMedia("(max-width: 600px)").matches ? 10 : 50; // of a page of the table
const COPIED = 2; // words of a run that counts as copied
const KINDS = ["missing", "added", "wrong"]; // of facts, by their numbers in utils/metrics/facts.py
const byId = (id) => document.getElementById(id);
const numeral = new Intl.NumberFormat("en");
const list = byId("article-list");
const dialog = byId("article");
const { noun } = list.dataset; // of what the run has predicted for
const isMarked = !document.querySelector(".marking").hidden;
// Texts and columns are those of utils/evaluation/report/articles.py; their values and facts are in the articles' order.
const { sources, texts, columns } = JSON.parse(byId("article-data").textContent);
const previews = texts.filter(({ name }) => !["reference", "alternatives"].includes(name)); // texts in the table
const everyone = sources.map((_, i) => i);
let matching = everyone; // articles that hold the query, in the file's order
let order, opened, typing; // the same, sorted; the open one; a timer
let sorting = {}; // by a column, or by null: the articles' numbers
let query = "";
let page = 0;

function create(tag, properties, ...content) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...content);
  return element;
}

/** The cell with a column's number of article i. */
function numberCell({ values, digits }, i) {
  return create("td", { className: "number" }, values[i]?.toFixed(digits).replace("-", "−") ?? "–");
}

function row(i) {
  const link = create("a", { href: `#article-${i + 1}` }, numeral.format(i + 1));
  const preview = ({ values }) => create("td", { className: "preview" }, create("span", {}, values[i]));
  const number = create("th", { scope: "row", className: "number" }, link);
  return create("tr", {}, number, ...previews.map(preview), ...columns.map((column) => numberCell(column, i)));
}

function turnTo(number) {
  const pages = Math.max(1, Math.ceil(order.length / ROWS));
  page = Math.max(0, Math.min(pages - 1, number));
  list.tBodies[0].replaceChildren(...order.slice(page * ROWS, (page + 1) * ROWS).map(row));
  byId("page-number").value = page + 1;
  byId("page-count").textContent = `of ${numeral.format(pages)}`;
  byId("page-before").disabled = page === 0;
  byId("page-after").disabled = page === pages - 1;
}

/** Sort the articles that hold the query, and show the first page of them. */
function arrange() {
  const { by, descending } = sorting;
  const values = by?.values ?? everyone;
  const sign = descending ? -1 : 1;
  // Articles without a value come last; equals keep the order of the file.
  order = [...matching].sort((a, b) => (values[a] === null) - (values[b] === null) || sign * (values[a] - values[b]));
  for (const [cell, column] of headers) {
    cell.ariaSort = column !== by ? "none" : descending ? "descending" : "ascending";
  }
  const all = `${numeral.format(everyone.length)} ${noun}${everyone.length === 1 ? "" : "s"}`;
  const some = order.length ? `${numeral.format(order.length)} of ${all} hold` : `No ${noun} holds`;
  byId("search-status").textContent = query ? `${some} “${query}”` : `${all} of the ${list.dataset.split} split`;
  turnTo(0);
}

/** Numbers begin with the greatest, since readers look for the best; another click turns the order round. */
function sortBy(by) {
  sorting = { by, descending: sorting.by === by ? !sorting.descending : by !== null };
  arrange();
}

function search() {
  clearTimeout(typing); // more may be typed
  typing = setTimeout(() => {
    query = byId("search").value;
    const needle = query.toLowerCase();
    const all = [sources, ...texts.map(({ values }) => values)];
    matching = everyone.filter((i) => all.some((values) => values[i].toLowerCase().includes(needle)));
    arrange();
  }, 150);
}

/** Words of a text, by the rules of utils/metrics/text_statistics.py, with where they begin and end. */
function wordsOf(text) {
  const place = ({ 0: word, index }) => ({ word: word.toLowerCase(), begin: index, end: index + word.length });
  return Array.from(text.matchAll(/[\p{L}\p{N}][\p{L}\p{M}\p{N}\u200c\u200d]*/gu), place);
}

/** Fragments of a text that the source has too, as in text_statistics.py: first word in both, and number of words. */
function fragmentsOf(source, text) {
  const starts = new Map(text.map(({ word }) => [word, []]));
  source.forEach(({ word }, i) => starts.get(word)?.push(i));
  const fragments = [];
  for (let begin = 0; begin < text.length;) {
    let best = { begin, start: 0, length: 0 };
    for (const start of starts.get(text[begin].word)) {
      let length = 1;
      while (begin + length < text.length && source[start + length]?.word === text[begin + length].word) length += 1;
      if (length > best.length) best = { begin, start, length };
    }
    if (best.length) fragments.push(best);
    begin += best.length || 1;
  }
  return fragments;
}

/** Facts of some kinds of article i: [begin, end, kind]. Those that are missing are in its reference. */
function factsOf(text, i, ...kinds) {
  return !text?.facts ? [] : text.facts[i].filter(([, , kind]) => kinds.includes(KINDS[kind]));
}

/** Put a text into an element, with marks: [begin, end, class]. Marks may overlap. */
function mark(element, text, marks) {
  const cuts = new Set([0, text.length, ...marks.flatMap(([begin, end]) => [begin, end])]);
  const places = [...cuts].sort((a, b) => a - b);
  element.replaceChildren(...places.slice(1).map((end, n) => {
    const begin = places[n];
    const classes = marks.filter((piece) => piece[0] <= begin && end <= piece[1]).map((piece) => piece[2]);
    const piece = text.slice(begin, end);
    return classes.length ? create("mark", { className: classes.join(" ") }, piece) : piece;
  }));
}

function show(i) {
  opened = i;
  const place = order.indexOf(i);
  byId("article-title").textContent = `${noun[0].toUpperCase()}${noun.slice(1)} ${numeral.format(i + 1)}`;
  byId("article-position").textContent = place < 0 ? "" : `${place + 1} of ${order.length}${query ? " found" : ""}`;
  byId("article-before").disabled = place <= 0;
  byId("article-after").disabled = place < 0 || place === order.length - 1;
  byId("article-scores").tBodies[0].rows[0].replaceChildren(...columns.map((column) => numberCell(column, i)));
  const source = wordsOf(sources[i]);
  const marksOf = (words, pieces) =>
    pieces.map(([first, length]) => [words[first].begin, words[first + length - 1].end, "copied"]);
  texts.forEach((text, k) => {
    const section = byId("article-texts").children[k];
    const value = text.values[i];
    const words = wordsOf(value);
    const copied = isMarked ? fragmentsOf(source, words).filter(({ length }) => length >= COPIED) : [];
    const sum = copied.reduce((total, { length }) => total + length, 0);
    section.querySelector(".note").textContent = isMarked ? `${numeral.format(words.length)} words, ${sum} of them copied` : "";
    const facts = text.name === "reference" ? factsOf(previews[0], i, "missing") : factsOf(text, i, "added", "wrong");
    const units = (characters) => [...value].slice(0, characters).join("").length; // JavaScript counts 16-bit units
    mark(section.querySelector(".text"), value, [
      ...marksOf(words, copied.map(({ begin, length }) => [begin, length])),
      ...facts.map(([begin, end, kind]) => [units(begin), units(end), KINDS[kind]]),
    ]);
    if (text === (previews[0] ?? texts[0])) {
      mark(byId("article-source"), sources[i], marksOf(source, copied.map(({ start, length }) => [start, length])));
    }
  });
}

/** Open the article that the address names, so that articles can be linked to and Back closes them. */
function follow() {
  const i = Number(/^#article-(\d+)$/.exec(location.hash)?.[1]) - 1;
  if (!(i in everyone)) return void dialog.close();
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  show(i);
}

/** Go to an article before or after the open one, in the order of the table. */
function go(step) {
  const target = order[order.indexOf(opened) + step];
  if (target === undefined) return;
  history.replaceState(null, "", `#article-${target + 1}`);
  follow();
}

/** When the dialog was closed, go on in the article's row. */
function comeBack() {
  history.replaceState(null, "", location.pathname + location.search);
  if (order.includes(opened)) turnTo(Math.floor(order.indexOf(opened) / ROWS));
  list.querySelector(`a[href="#article-${opened + 1}"]`)?.focus();
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input")) return;
  if (dialog.open) go({ ArrowRight: 1, j: 1, ArrowLeft: -1, k: -1 }[event.key]);
  else if (event.key === "/") {
    event.preventDefault();
    byId("search").focus();
  }
}

const headers = [null, ...columns].map((column) => { // pairs of a header cell and its column
  const heading = column ? column.heading.replace("ROUGE", "R") : "No.";
  const button = create("button", { type: "button", onclick: () => sortBy(column) }, heading);
  return [create("th", { scope: "col", className: "number" }, button), column];
});
const [number, ...numbers] = headers.map(([cell]) => cell);
const words = previews.map(({ heading }) => create("th", { scope: "col", className: "word" }, heading));
list.tHead.rows[0].replaceChildren(number, ...words, ...numbers);
sortBy(columns.find(({ heading }) => heading.endsWith("error")) ?? null); // the greatest errors first
window.onkeydown = press;
window.onhashchange = follow;
follow();
