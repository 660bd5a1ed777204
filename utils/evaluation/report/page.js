"use strict";
// Searches, sorts and shows the articles. All other parts of the page need no script.

const ROWS = matchMedia("(max-width: 600px)").matches ? 10 : 50; // of a page of the table
const KINDS = ["missing", "added", "wrong"]; // of marks, by their numbers in facts.py
const byId = (id) => document.getElementById(id);
const numeral = new Intl.NumberFormat("en");
const list = byId("article-list");
const dialog = byId("article");
const { noun } = list.dataset; // of what the run has predicted for
// Texts and columns are those of utils/evaluation/report/articles.py; values and marks are in the articles' order.
const { texts, columns } = JSON.parse(byId("article-data").textContent);
const previews = texts.filter(({ listed }) => listed);
const everyone = texts[0].values.map((_, i) => i);
let order, opened, typing; // articles that hold the query, sorted; the open one; a timer
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
  byId("page-count").textContent = `Page ${numeral.format(page + 1)} of ${numeral.format(pages)}`;
  byId("page-before").disabled = page === 0;
  byId("page-after").disabled = page === pages - 1;
}

/** Sort the articles that hold the query, and show the first page of them. */
function arrange() {
  const { by, descending } = sorting;
  const values = by?.values ?? everyone;
  const sign = descending ? -1 : 1;
  query = byId("search").value;
  const needle = query.toLowerCase();
  const holds = (i) => !needle || texts.some((text) => text.values[i].toLowerCase().includes(needle));
  // Articles without a value come last; equals keep the order of the file.
  const compare = (a, b) => (values[a] === null) - (values[b] === null) || sign * (values[a] - values[b]);
  order = everyone.filter(holds).sort(compare);
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
  typing = setTimeout(arrange, 150);
}

/** Put a text of article i into an element, with its marks: [begin, end, kind] of characters. Marks may overlap. */
function fill(element, { values, marks }, i) {
  const characters = [...values[i]];
  const cuts = new Set([0, characters.length, ...marks[i].flatMap(([begin, end]) => [begin, end])]);
  const places = [...cuts].sort((a, b) => a - b);
  element.replaceChildren(...places.slice(1).map((end, n) => {
    const begin = places[n];
    const classes = marks[i].filter((piece) => piece[0] <= begin && end <= piece[1]).map((piece) => KINDS[piece[2]]);
    const piece = characters.slice(begin, end).join("");
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
  texts.forEach((text) => fill(byId(`text-${text.name}`), text, i));
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

const headers = [...list.tHead.querySelectorAll(".number")].map((cell, n) => [cell, [null, ...columns][n]]);
for (const [cell, column] of headers) cell.firstChild.onclick = () => sortBy(column);
sortBy(columns.find(({ heading }) => heading.endsWith("error")) ?? null); // the greatest errors first
window.onhashchange = follow;
follow();
