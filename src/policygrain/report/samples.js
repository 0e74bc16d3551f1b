"use strict";
const { runs, benchmarks, protocol } = JSON.parse(document.getElementById("data").textContent);
const PAGE = 50, HEAD = 900, TAIL = 700; // samples per page; characters of a long response that are shown before it is opened
const two = runs.length > 1;
const some = (test) => (sample) => sample[2].some((r) => r && test(r));
const kind = (outcome) => some((r) => r[0] === outcome);
const right = (r) => Boolean(r) && r[0] === "correct";
const whose = two ? " of either run" : "";

/* [name in the address, label, what it means, test of a sample] */
const FILTERS = [
  ["all", "all", "every sample", () => true],
  ["right", "right", `response${whose} is right`, some(right)],
  ["wrong", "wrong", `response${whose} is not right, for whatever reason`, some((r) => !right(r))],
  ["unparsable", "unparsable", "no answer could be read", kind("unparsable")],
  ["timeout", "timeout", "grading took too long", kind("timeout")],
  ["error", "error", "grading failed", kind("error")],
  ["truncated", "truncated", "the response ended at the length limit", some((r) => !r[2])],
  two
    ? ["disagreement", "runs differ", "one run is right, the other is not", ([, , [a, b]]) => Boolean(a && b) && right(a) !== right(b)]
    : ["disagreement", "samples differ", "problems with right and wrong samples", ([problem]) => current().mixed.has(problem)],
  ...(two ? [
    ["gained", "gained", `only ${runs[1].name} is right`, ([, , [a, b]]) => Boolean(a && b) && !right(a) && right(b)],
    ["lost", "lost", `only ${runs[0].name} is right`, ([, , [a, b]]) => Boolean(a && b) && right(a) && !right(b)],
  ] : []),
];

for (const benchmark of benchmarks) {
  const seen = new Map();
  for (const [problem, , responses] of benchmark.samples)
    for (const r of responses) if (r) seen.set(problem, (seen.get(problem) || 0) | (right(r) ? 1 : 2));
  benchmark.mixed = new Set([...seen].filter(([, bits]) => bits === 3).map(([problem]) => problem));
}

const at = (id) => document.getElementById(id);
const state = { benchmark: benchmarks[0].name, show: "all", q: "", at: 1 }; // at: position among the samples shown, from 1
const current = () => benchmarks.find((b) => b.name === state.benchmark);
let shown = []; // the samples that match filter and search
let opened = new Set(); // samples whose long responses are shown in full

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick") made.onclick = value;
    else if (value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined)); // strings become text, never markup
  return made;
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  state.benchmark = benchmarks.some((b) => b.name === given.get("benchmark")) ? given.get("benchmark") : benchmarks[0].name;
  state.show = FILTERS.some(([name]) => name === given.get("show")) ? given.get("show") : "all";
  state.q = given.get("q") || "";
  state.at = Math.max(1, parseInt(given.get("at"), 10) || 1);
  at("q").value = state.q;
}

function writeAddress() {
  const address = new URLSearchParams({ benchmark: state.benchmark });
  if (state.show !== "all") address.set("show", state.show);
  if (state.q) address.set("q", state.q);
  if (state.at > 1) address.set("at", state.at);
  history.replaceState(null, "", `#${address}`);
}

function found(query, sample, problems) {
  const has = (text) => text.toLowerCase().includes(query);
  return problems[sample[0]].some(has) || sample[2].some((r) => r && has(r[3]));
}

function select() {
  const { samples, problems } = current(), query = state.q.toLowerCase();
  const matching = query ? samples.filter((sample) => found(query, sample, problems)) : samples;
  const counts = Object.fromEntries(FILTERS.map(([name, , , test]) => [name, matching.filter(test).length]));
  shown = matching.filter(FILTERS.find(([name]) => name === state.show)[3]);
  state.at = Math.min(Math.max(1, state.at), Math.max(1, shown.length));
  at("tabs").replaceChildren(...benchmarks.map((b, i) => element("button", {
    role: "tab", "aria-selected": String(b.name === state.benchmark), "data-benchmark": b.name,
    title: b.accuracy.map((a, run) => (a ? `${runs[run].name}: ${percent(a[0])}% [${percent(a[1])}, ${percent(a[2])}]` : "")).join("\n"),
    onclick: () => go({ benchmark: b.name, at: 1 }),
  }, b.name, " ", element("small", {}, b.accuracy.map((a) => (a ? `${percent(a[0])}%` : "–")).join(" | ")))));
  at("filters").replaceChildren(...FILTERS.map(([name, label, meaning]) => element("button", {
    "aria-pressed": String(name === state.show), class: counts[name] ? "" : "none", title: meaning, "data-show": name,
    onclick: () => go({ show: name, at: 1 }),
  }, label, " ", element("small", {}, counts[name].toLocaleString("en")))));
  document.body.style.setProperty("--top", `${document.querySelector(".controls").offsetHeight}px`); // where cards may start
}

const percent = (share) => (100 * share).toFixed(1);
const first = () => Math.floor((state.at - 1) / PAGE) * PAGE;

function render() {
  const from = first(), part = shown.slice(from, from + PAGE);
  at("status").textContent = shown.length
    ? `${(from + 1).toLocaleString("en")}–${(from + part.length).toLocaleString("en")} of ${shown.length.toLocaleString("en")}`
    : "nothing matches";
  for (const id of ["back", "back2"]) at(id).disabled = from === 0;
  for (const id of ["on", "on2"]) at(id).disabled = from + PAGE >= shown.length;
  at("list").replaceChildren(...part.map(card));
  point(false);
}

function card(sample, i) {
  const [problem, number, responses] = sample, [id, text, gold] = current().problems[problem];
  const prompts = [...new Set(runs.map((r) => r.prompt && r.prompt[0] + text + r.prompt[1]))].filter(Boolean);
  return element("article", { tabindex: "-1", "data-id": id, onclick: () => mark(first() + i + 1) },
    element("header", {}, element("span", {}, ...marked(id)), element("span", {}, `sample ${number}`),
      element("span", {}, "gold ", element("b", {}, ...marked(gold)))),
    element("pre", { class: "problem" }, ...marked(text)),
    element("div", { class: two ? "responses two" : "responses" }, ...responses.map((r, run) => response(sample, r, run))),
    ...prompts.map((prompt) => element("details", {}, element("summary", {}, "prompt"), element("pre", {}, prompt))));
}

function response(sample, r, run) {
  const name = two ? element("b", {}, runs[run].name) : null;
  if (!r) return element("div", { class: "response" }, element("header", {}, name, "no such sample"));
  const [outcome, tokens, finished, text] = r;
  return element("div", { class: `response ${["correct", "incorrect"].includes(outcome) ? outcome : ""}` },
    element("header", {}, name, element("span", { class: "outcome" }, outcome),
      element("span", {}, `${tokens.toLocaleString("en")} ${tokens === 1 ? "token" : "tokens"}`),
      finished ? null : element("span", { class: "cut", title: "ended at the length limit" }, "truncated")),
    text ? element("pre", {}, ...body(sample, text)) : element("pre", { class: "empty" }, "(empty)"));
}

/* Only the beginning and the end of a long response, where the answer is, are shown; all of it during a search. */
function body(sample, text) {
  const left = text.length - HEAD - TAIL;
  if (left <= HEAD || state.q || opened.has(sample)) return marked(text);
  const more = element("button", { class: "more", onclick: () => open(sample) }, `… ${left.toLocaleString("en")} characters more …`);
  return [text.slice(0, HEAD), "\n", more, "\n", text.slice(-TAIL)];
}

function marked(text) {
  const query = state.q.toLowerCase(), low = text.toLowerCase();
  if (!query || low.length !== text.length) return [text]; // a few letters change length in lower case; nothing is marked then
  const parts = [];
  let from = 0;
  for (let hit = low.indexOf(query); hit >= 0; hit = low.indexOf(query, from)) {
    parts.push(text.slice(from, hit), element("mark", {}, text.slice(hit, hit + query.length)));
    from = hit + query.length;
  }
  return [...parts, text.slice(from)];
}

function open(sample) {
  if (!sample) return;
  if (!opened.delete(sample)) opened.add(sample);
  render();
}

/* Outline the current sample, write it to the address, and scroll to it if ``scroll``. */
function point(scroll) {
  const cards = at("list").children, chosen = cards[state.at - 1 - first()];
  for (const other of cards) other.classList.toggle("current", other === chosen);
  if (chosen && scroll) {
    chosen.focus({ preventScroll: true });
    chosen.scrollIntoView({ block: "start" });
  }
  writeAddress();
}

function mark(place, scroll = false) {
  if (place < 1 || place > shown.length) return;
  const before = first();
  state.at = place;
  if (first() === before) point(scroll);
  else { render(); point(scroll); }
}

function go(changes) {
  Object.assign(state, changes);
  select();
  render();
}

function arrive() {
  readAddress();
  go({});
  if (state.at > 1) point(true);
}

let typing;
at("q").oninput = () => { clearTimeout(typing); typing = setTimeout(() => go({ q: at("q").value, at: 1 }), 150); };
function turn(by) {
  mark(first() + by * PAGE + 1);
  at("list").children[0].scrollIntoView();
}
for (const id of ["back", "back2"]) at(id).onclick = () => turn(-1);
for (const id of ["on", "on2"]) at(id).onclick = () => turn(1);
addEventListener("hashchange", arrive);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target === at("q")) { if (event.key === "Escape") at("q").blur(); return; }
  const does = {
    j: () => mark(state.at + 1, true),
    k: () => mark(state.at - 1, true),
    n: () => mark(first() + PAGE + 1, true),
    p: () => mark(first() - PAGE + 1, true),
    o: () => { open(shown[state.at - 1]); point(true); },
    "/": () => at("q").focus(),
  }[event.key];
  const benchmark = /^[1-9]$/.test(event.key) ? benchmarks[event.key - 1] : undefined;
  if (!does && !benchmark) return;
  event.preventDefault();
  if (does) does(); else go({ benchmark: benchmark.name, at: 1 });
});

at("protocol").textContent = protocol;
arrive();
