"use strict";
// Searches, sorts and shows the articles. All other parts of the page need no script.

const narrow = matchMedia("(max-width: 600px)").matches;
const ROWS = narrow ? 10 : 50; // of a page of the table
const WRONG = 2; // the kind of fact that is in neither source nor reference, as in utils/metrics/facts.py
const byId = (id) => document.getElementById(id);
const numeral = new Intl.NumberFormat("en");
const list = byId("article-list");
const dialog = byId("article");
// Of article i, texts[k][i] is the k-th text beside its source, facts[k][i] its facts as [begin, end, kind, begin, ...],
// where facts[k] is not null, and columns[k][i] a number or null.
const { texts, columns, facts, sources } = JSON.parse(byId("article-data").textContent);
const everyone = sources.map((_, i) => i);
let found = everyone; // articles that hold the query, in the file's order
let order, opened, typing; // the same, sorted; the open one; a timer
let sorting = { by: "number", descending: false };
let query = "";
let hidden = 0; // articles that hold the query, but have no wrong facts where these alone are wanted
let page = 0;

/** Write an article's texts and numbers into the elements that say which one they show. */
function fillIn(place, i) {
  for (const element of place.querySelectorAll("[data-text]")) element.textContent = texts[element.dataset.text][i];
  for (const element of place.querySelectorAll("[data-column]")) {
    const { column, digits, signed } = element.dataset;
    const value = columns[column][i];
    const text = value === null ? "–" : value.toFixed(digits).replace("-", "−");
    element.textContent = signed !== undefined && value > 0 ? `+${text}` : text;
  }
}

function row(i) {
  const line = byId("row").content.firstElementChild.cloneNode(true);
  line.querySelector("a").href = `#article-${i + 1}`;
  line.querySelector("a").textContent = numeral.format(i + 1);
  fillIn(line, i);
  return line;
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

/** Sort what was found, and show its first page. */
function arrange() {
  const { by, descending } = sorting;
  const values = columns[by] ?? everyone;
  const sign = descending ? -1 : 1;
  // Articles without a value come last; equals keep the order of the file.
  order = [...found].sort((a, b) => (values[a] === null) - (values[b] === null) || sign * (values[a] - values[b]));
  for (const cell of list.tHead.querySelectorAll("[data-column]")) {
    cell.setAttribute("aria-sort", cell.dataset.column !== by ? "none" : descending ? "descending" : "ascending");
  }
  const all = `${numeral.format(everyone.length)} article${everyone.length === 1 ? "" : "s"}`;
  const some = order.length || !query ? `${numeral.format(order.length)} of ${all}` : "No article";
  const holding = query ? ` hold${order.length ? "" : "s"} “${query}”` : ` of the ${list.dataset.split} split`;
  const others = hidden ? `; ${numeral.format(hidden)} without wrong facts ${hidden === 1 ? "is" : "are"} hidden` : "";
  byId("search-status").textContent = (query || hidden ? some : all) + holding + others;
  turnTo(0);
}

/** Numbers begin with the greatest, since readers look for the best; another click turns the order round. */
function sortBy(by) {
  sorting = { by, descending: sorting.by === by ? !sorting.descending : by !== "number" };
  arrange();
}

/** Show the columns of one metric, where several runs are compared. */
function choose(metric) {
  for (const place of [list.tHead, byId("row").content]) {
    for (const cell of place.querySelectorAll("[data-metric]")) cell.hidden = cell.dataset.metric !== metric;
  }
  sorting = { by: "number", descending: false };
  arrange();
}

function search() {
  clearTimeout(typing); // more may be typed
  typing = setTimeout(() => {
    query = byId("search").value;
    const needle = query.toLowerCase();
    const holding = everyone.filter((i) => [sources, ...texts].some((each) => each[i].toLowerCase().includes(needle)));
    found = byId("wrong-only").checked ? holding.filter((i) => facts.some((_, k) => factsOf(k, i, WRONG).length)) : holding;
    hidden = holding.length - found.length;
    arrange();
  }, 150);
}

/** Words of a text, by the rules of utils/metrics/text_statistics.py, with where they begin and end. */
function wordsOf(text) {
  const place = ({ 0: word, index }) => ({ word: word.toLowerCase(), begin: index, end: index + word.length });
  return Array.from(text.matchAll(/[\p{L}\p{N}]+/gu), place);
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

/** Where the facts of some kinds are in the k-th text of article i, or in its reference: [begin, end, kind]. */
function factsOf(k, i, ...kinds) {
  const numbers = facts[k]?.[i] ?? [];
  const found = [];
  for (let at = 0; at < numbers.length; at += 3) {
    if (kinds.includes(numbers[at + 2])) found.push(numbers.slice(at, at + 3));
  }
  return found;
}

/** Put a text into an element, with marks: [begin, end, class]. Marks may overlap. */
function mark(element, text, marks) {
  const cuts = new Set([0, text.length, ...marks.flatMap(([begin, end]) => [begin, end])]);
  const places = [...cuts].sort((a, b) => a - b);
  element.replaceChildren(...places.slice(1).map((end, n) => {
    const begin = places[n];
    const classes = marks.filter((one) => one[0] <= begin && end <= one[1]).map((one) => one[2]);
    if (!classes.length) return text.slice(begin, end);
    const piece = document.createElement("mark");
    piece.className = classes.join(" ");
    piece.textContent = text.slice(begin, end);
    return piece;
  }));
}

function show(i) {
  opened = i;
  const place = order.indexOf(i);
  byId("article-title").textContent = `Article ${numeral.format(i + 1)}`;
  byId("article-position").textContent = place < 0 ? "" : `${place + 1} of ${order.length}${query ? " found" : ""}`;
  byId("article-before").disabled = place <= 0;
  byId("article-after").disabled = place < 0 || place === order.length - 1;
  fillIn(dialog, i);
  const source = wordsOf(sources[i]);
  const chosen = Number(byId("mark-text").value);
  const marksOf = (words, runs) =>
    runs.map(([first, length]) => [words[first].begin, words[first + length - 1].end, "copied"]);
  dialog.querySelectorAll("#article-texts section").forEach((section, k) => {
    const words = wordsOf(texts[k][i]);
    const copied = fragmentsOf(source, words).filter(({ length }) => length >= Number(byId("mark-length").value));
    const sum = copied.reduce((total, { length }) => total + length, 0);
    section.querySelector(".note").textContent = `${numeral.format(words.length)} words, ${sum} of them copied`;
    const told = "reference" in section.dataset ? factsOf(chosen, i, 0) : factsOf(k, i, 1, WRONG);
    mark(section.querySelector(".text"), texts[k][i], [
      ...marksOf(words, copied.map(({ begin, length }) => [begin, length])),
      ...told.map(([begin, end, kind]) => [begin, end, ["missing", "added", "wrong"][kind]]),
    ]);
    if (k !== chosen) return;
    mark(byId("article-source"), sources[i], marksOf(source, copied.map(({ start, length }) => [start, length])));
  });
}

/** Open the article that the address names, so that articles can be linked to and Back closes them. */
function follow() {
  byId(location.hash.slice(1))?.querySelector(":scope > .part")?.setAttribute("open", "");
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
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
  if (dialog.open) go({ ArrowRight: 1, j: 1, ArrowLeft: -1, k: -1 }[event.key]);
  else if (event.key === "/") {
    event.preventDefault();
    byId("search").focus();
  }
}

for (const part of document.querySelectorAll(".part")) part.open = !narrow;
choose(byId("metric").value);
window.onkeydown = press;
window.onhashchange = follow;
follow();
