"use strict";
// Searches, sorts and shows the articles. All other parts of the page need no script.

const ROWS = 50; // of a page of the table
const byId = (id) => document.getElementById(id);
const numeral = new Intl.NumberFormat("en");
const list = byId("article-list");
const dialog = byId("article");
// Of article i, texts[k][i] is the k-th text beside its source, and columns[k][i] a number or null.
const { texts, columns, sources } = JSON.parse(byId("article-data").textContent);
const everyone = sources.map((_, i) => i);
let found = everyone; // articles that hold the query, in the file's order
let order, opened, typing; // the same, sorted; the open one; a timer
let sorting = { by: "number", descending: false };
let query = "";
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
  const some = `${numeral.format(order.length)} of ${all} hold “${query}”`;
  byId("search-status").textContent = query ? some : `${all} of the ${list.dataset.split} split`;
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

function search(wanted) {
  clearTimeout(typing); // more may be typed
  typing = setTimeout(() => {
    query = wanted;
    const needle = query.toLowerCase();
    found = everyone.filter((i) => [sources, ...texts].some((each) => each[i].toLowerCase().includes(needle)));
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

/** Put a text into an element and mark some runs of its words: [first word, number of words]. */
function mark(element, text, words, runs) {
  let at = 0;
  element.replaceChildren();
  for (const [first, length] of runs.sort((a, b) => a[0] - b[0])) {
    const begin = Math.max(at, words[first].begin);
    const end = Math.max(at, words[first + length - 1].end);
    const copied = document.createElement("mark");
    copied.textContent = text.slice(begin, end);
    element.append(text.slice(at, begin), copied);
    at = end;
  }
  element.append(text.slice(at));
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
  dialog.querySelectorAll("#article-texts section").forEach((section, k) => {
    const words = wordsOf(texts[k][i]);
    const copied = fragmentsOf(source, words).filter(({ length }) => length >= Number(byId("mark-length").value));
    const sum = copied.reduce((total, { length }) => total + length, 0);
    section.querySelector(".note").textContent = `${numeral.format(words.length)} words, ${sum} of them marked`;
    mark(section.querySelector(".text"), texts[k][i], words, copied.map(({ begin, length }) => [begin, length]));
    if (k !== Number(byId("mark-text").value)) return;
    mark(byId("article-source"), sources[i], source, copied.map(({ start, length }) => [start, length]));
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
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
  if (dialog.open) go({ ArrowRight: 1, j: 1, ArrowLeft: -1, k: -1 }[event.key]);
  else if (event.key === "/") {
    event.preventDefault();
    byId("search").focus();
  }
}

choose(byId("metric").value);
window.onkeydown = press;
window.onhashchange = follow;
follow();
