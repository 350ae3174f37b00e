// The page of `kvfs web`: asks the server again and again for what the store is and does, and draws it.
//
// Names in a store are any bytes that anyone has chosen. They come as JSON and go into the page as
// text (`textContent`) and never as HTML.
"use strict";

const byId = (id) => document.getElementById(id);

// The token is behind the # of the address that was printed. It stays in this tab, and leaves the
// address, so that it is in no history and on no picture of the screen.
const fromAddress = location.hash.slice(1);
if (fromAddress) {
  sessionStorage.setItem("token", fromAddress);
  history.replaceState(null, "", location.pathname);
}
const token = sessionStorage.getItem("token") ?? "";

class Refused extends Error {}

async function ask(path, body) {
  const headers = { "X-KVFS-Token": token };
  const options = { headers, cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const answer = await fetch("/api/" + path, options);
  if (!(answer.headers.get("Content-Type") ?? "").startsWith("application/json")) {
    throw new Refused((await answer.text()).trim());
  }
  const value = await answer.json();
  if (!answer.ok) {
    const { message, hint } = value.error;
    throw new Refused(hint ? `${message}: ${hint}` : message);
  }
  return value;
}

// ------------------------------------------------------------------ text and elements

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function fill(id, ...children) {
  byId(id).replaceChildren(...children);
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (bytes >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

function number(n) {
  if (n >= 1e6) return `${(n / 1e6).toFixed(1)}M`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(0)}k`;
  return n >= 100 || Number.isInteger(n) ? String(Math.round(n)) : n.toFixed(1);
}

function duration(ms) {
  if (ms < 1000) return `${ms} ms`;
  if (ms < 120e3) return `${Math.floor(ms / 1000)} s`;
  if (ms < 7200e3) return `${Math.floor(ms / 60e3)} min`;
  return `${Math.floor(ms / 3600e3)} h`;
}

function micros(us) {
  return us < 1000 ? `${us < 10 ? us.toFixed(1) : Math.round(us)} µs` : `${(us / 1000).toFixed(1)} ms`;
}

function table(heads, rows, empty) {
  if (rows.length === 0) return element("p", { className: "empty", textContent: empty });
  const head = element("tr", {}, ...heads.map((text) => element("th", { textContent: text })));
  const cell = (value) =>
    value instanceof Node ? value : element("td", { textContent: value });
  const body = rows.map((row) => element("tr", {}, ...row.map(cell)));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

const named = (text) => element("td", { className: "name", textContent: text });

function bar(share) {
  const inside = element("i");
  inside.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return element("div", { className: "bar" }, inside);
}

const shareCell = (share) => element("td", { className: "share" }, bar(share));

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A canvas for so many CSS pixels, sharp on any screen.
function drawing(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

// ------------------------------------------------------------------ figures

const KEPT = 90;
let before = null;
const past = new Map();

// What a counter grew by, a second.
function rate(now, read) {
  if (!before) return null;
  return Math.max(0, read(now.state) - read(before.state)) / ((now.at - before.at) / 1000);
}

function remember(name, value) {
  const series = past.get(name) ?? [];
  if (value !== null) series.push(value);
  if (series.length > KEPT) series.shift();
  past.set(name, series);
  return series;
}

function curve(canvas, series) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  const context = drawing(canvas, width, height);
  const top = Math.max(1e-9, ...series);
  const x = (at) => width - ((series.length - 1 - at) * width) / (KEPT - 1);
  const y = (value) => height - 1 - (value / top) * (height - 3);
  context.beginPath();
  series.forEach((value, at) => context.lineTo(x(at), y(value)));
  context.strokeStyle = style("--accent");
  context.lineWidth = 1.5;
  context.stroke();
  context.lineTo(width, height);
  context.lineTo(x(0), height);
  context.globalAlpha = 0.13;
  context.fillStyle = style("--accent");
  context.fill();
}

const totalOf = (object) => Object.values(object ?? {}).reduce((sum, n) => sum + n, 0);
const writtenOf = (state) => totalOf(mapValues(state.store.io, (io) => io.write_bytes ?? 0));
const readOf = (state) => totalOf(mapValues(state.store.io, (io) => io.read_bytes ?? 0));
const mapValues = (object, change) =>
  Object.fromEntries(Object.entries(object ?? {}).map(([key, value]) => [key, change(value)]));

const RATES = [
  ["requests", "requests/s of the kernel", (s) => totalOf(s.store.requests), number],
  ["commands", "commands/s of clients", (s) => s.server.commands, number],
  ["commits", "commits/s", (s) => s.store.commits.count, number],
  ["written", "written/s", writtenOf, size],
  ["read", "read/s", readOf, size],
];

function figures(now) {
  const { store } = now.state;
  const used = store.space.total - store.space.free;
  const memory = store.memory.memtables + store.memory.cache;
  const figure = (value, text, below) =>
    element("div", { className: "figure" }, element("b", { textContent: value }),
      element("span", { textContent: text }), below);
  const curves = [];
  const rates = RATES.map(([name, text, read, show]) => {
    const value = rate(now, read);
    const canvas = element("canvas");
    curves.push([canvas, remember(name, value)]);
    return figure(value === null ? "…" : show(value), text, canvas);
  });
  fill("figures",
    figure(size(used), `of ${size(store.space.total)} in use`, bar(used / store.space.total)),
    figure(size(memory), `of ${size(store.memory.budget)} memory`, bar(memory / store.memory.budget)),
    ...rates,
    // (Of next to nothing it says nothing.)
    figure(store.commits.bytes < 1 << 20 ? "–" : store.write_amplification.toFixed(2),
      "written for each byte committed", ""));
  curves.forEach(([canvas, series]) => curve(canvas, series));
}

// ------------------------------------------------------------------ zones

const PURPOSES = { superblock: 0, journal: 35, manifest: 300, tuples: 215, index: 265, pages: 160 };
let cells = [];
let layout = null;

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;

// The newest is the strongest. Between there is room for as many zones as there are.
function ageColour(age, zones) {
  if (age === null) return isDark() ? "hsl(210 8% 42%)" : "hsl(210 10% 70%)";
  const share = Math.min(1, Math.log1p(age) / Math.log1p(Math.max(8, zones)));
  const hue = 24 + share * 190;
  return isDark() ? `hsl(${hue} ${75 - share * 30}% ${60 - share * 12}%)`
    : `hsl(${hue} ${80 - share * 30}% ${50 + share * 8}%)`;
}

function purposeColour(purpose) {
  if (!(purpose in PURPOSES)) return ageColour(null, 1);
  return isDark() ? `hsl(${PURPOSES[purpose]} 55% 60%)` : `hsl(${PURPOSES[purpose]} 55% 47%)`;
}

const colouring = () => document.querySelector("input[name=colour]:checked").value;

function cellOf(zones, array) {
  return Object.fromEntries(zones.fields.map((field, at) => [field, array[at]]));
}

// A square: its frame says that it is used, its filling how much of it is alive.
function square(context, x, y, side, cell, zones) {
  const colour = colouring() === "age" ? ageColour(cell.age, zones.zones) : purposeColour(cell.purpose);
  if (cell.used === 0) {
    context.fillStyle = style("--fill");
    const inset = cell.given_back > 0 ? side * 0.36 : 0;
    context.fillRect(x + inset, y + inset, side - 2 * inset, side - 2 * inset);
    return;
  }
  const room = cell.used * zones.zone_bytes;
  const full = cell.purpose === "superblock" ? 1 : cell.live_bytes / room;
  context.fillStyle = colour;
  context.globalAlpha = 0.28;
  context.fillRect(x, y, side, side);
  context.globalAlpha = 1;
  const height = side * Math.max(full > 0 ? 0.08 : 0, full);
  context.fillRect(x, y + side - height, side, height);
  if (cell.open > 0) {
    context.strokeStyle = style("--text");
    context.lineWidth = 1.5;
    context.strokeRect(x + 0.75, y + 0.75, side - 1.5, side - 1.5);
  }
}

function map(zones) {
  const canvas = byId("map"), width = canvas.clientWidth;
  if (!width || !zones) return;
  cells = zones.cells.map((array) => cellOf(zones, array));
  const side = cells.length > 1200 ? 8 : cells.length > 400 ? 12 : 18;
  const step = side + 2, across = Math.max(1, Math.floor(width / step));
  const height = Math.ceil(cells.length / across) * step;
  canvas.style.height = `${height}px`;
  const context = drawing(canvas, width, height);
  layout = { step, across, zones };
  cells.forEach((cell, at) =>
    square(context, (at % across) * step, Math.floor(at / across) * step, side, cell, zones));
  const used = cells.reduce((sum, cell) => sum + cell.used, 0);
  byId("zones-note").textContent = `${used} of ${zones.zones} in use, ${size(zones.zone_bytes)} each` +
    (zones.zones_per_cell > 1 ? `; a square has ${zones.zones_per_cell}` : "");
}

function legend() {
  const item = (text, cell) => {
    const canvas = element("canvas");
    square(drawing(canvas, 12, 12), 0, 0, 12, cell, { zones: 64, zone_bytes: 1 });
    return element("li", {}, canvas, text);
  };
  const full = { used: 1, open: 0, given_back: 0, live_bytes: 1, purpose: null, age: 0 };
  const colours = colouring() === "age"
    ? [["newest", 0], ["older", 8], ["oldest", 64], ["from before the mount", null]]
        .map(([text, age]) => item(text, { ...full, age }))
    : Object.keys(PURPOSES).map((purpose) => item(purpose, { ...full, purpose }))
        .concat(item("from before the mount", full));
  fill("legend", ...colours,
    item("half alive", { ...full, live_bytes: 0.5, age: 8, purpose: "pages" }),
    item("written to", { ...full, open: 1, age: 0, purpose: "pages" }),
    item("free", { ...full, used: 0 }),
    item("given back to the host", { ...full, used: 0, given_back: 1 }));
}

function describe(at) {
  const cell = cells[at], { zones } = layout;
  const first = at * zones.zones_per_cell;
  const last = Math.min(zones.zones, first + zones.zones_per_cell) - 1;
  const name = first === last ? `zone ${first}` : `zones ${first} to ${last}`;
  if (cell.purpose === "superblock" && first === last) return `${name}: the superblocks`;
  if (cell.used === 0) return `${name}: free${cell.given_back ? ", its space is the host's" : ""}`;
  const age = cell.age === null ? "from before the mount"
    : cell.age === 0 ? "the newest" : `${cell.age} taken after it`;
  const parts = [`${size(cell.live_bytes)} alive`, cell.purpose ?? "contents not known", age];
  if (cell.open) parts.push("being written to");
  return `${name}: ${parts.join(", ")}`;
}

byId("map").addEventListener("mousemove", (event) => {
  if (!layout) return;
  const x = Math.floor(event.offsetX / layout.step), y = Math.floor(event.offsetY / layout.step);
  const at = y * layout.across + x;
  byId("zone").textContent = x < layout.across && at < cells.length ? describe(at) : "";
});
document.querySelectorAll("input[name=colour]").forEach((input) =>
  input.addEventListener("change", redraw));

// ------------------------------------------------------------------ levels, requests

function levels(store) {
  const rows = [];
  const sum = (runs, field) => runs.reduce((all, run) => all + run[field], 0);
  const all = store.dictionaries.flatMap((d) => d.levels.flat());
  const most = Math.max(1, ...store.dictionaries.flatMap((d) => d.levels.map((runs) => sum(runs, "bytes"))));
  for (const d of store.dictionaries) {
    const used = d.levels.map((runs, level) => [runs, level]).filter(([runs]) => runs.length > 0);
    if (used.length === 0 && d.memtable_bytes === 0) continue;
    const name = d.branch ? `${d.name} of clone ${d.branch}` : d.name;
    rows.push([named(name), "memory", "", "", size(d.memtable_bytes), "", ""]);
    for (const [runs, level] of used) {
      const spans = sum(runs, "block_spans") + sum(runs, "value_spans");
      rows.push([named(""), level, runs.length, number(sum(runs, "items")), size(sum(runs, "bytes")),
        number(spans), shareCell(sum(runs, "bytes") / most)]);
    }
  }
  fill("levels",
    table(["dictionary", "level", "runs", "items", "bytes", "spans", ""], rows, "nothing is stored yet"),
    element("p", { className: "note", textContent:
      `${all.length} runs; ${store.merges.flushes} flushes, ${store.merges.compactions} compactions: ` +
      `${size(store.merges.written_bytes)} written, ${size(store.merges.stitched_bytes)} stitched` }));
}

function requests(now) {
  const seconds = before ? (now.at - before.at) / 1000 : null;
  const rows = [];
  const add = (name, count, time, earlier, earlierTime) => {
    const fresh = count - earlier, took = time - earlierTime;
    const mean = fresh > 0 ? took / fresh : count > 0 ? time / count : 0;
    rows.push({ name, count, mean, rate: seconds ? fresh / seconds : 0, live: fresh > 0 });
  };
  const was = before?.state;
  const [kinds, times] = [now.state.store.requests ?? {}, now.state.store.request_micros ?? {}];
  for (const [kind, count] of Object.entries(kinds)) {
    add(kind.toLowerCase().replaceAll("_", " "), count, times[kind] ?? 0,
      was?.store.requests?.[kind] ?? 0, was?.store.request_micros?.[kind] ?? 0);
  }
  for (const [name, c] of Object.entries(now.state.server.by_command)) {
    // What this page asks for says nothing of the store.
    if (name.startsWith("kvfs.")) continue;
    const earlier = was?.server.by_command[name];
    add(name.toUpperCase(), c.calls, c.microseconds, earlier?.calls ?? 0, earlier?.microseconds ?? 0);
  }
  rows.sort((a, b) => b.rate - a.rate || b.count - a.count);
  fill("requests", table(["kind", "a second", "in all", "mean"],
    rows.slice(0, 14).map((row) => [named(row.name), number(row.rate), number(row.count), micros(row.mean)]),
    "none yet"));
}

// ------------------------------------------------------------------ transactions

function transactions(state) {
  const rows = state.transactions.map((t) => {
    const button = element("button", { textContent: "Review" });
    button.addEventListener("click", () => review(t.id));
    const id = t.within === null ? String(t.id) : `${t.id} within ${t.within}`;
    return [id, named(t.label), t.isolation === "ser" ? "serializable" : "snapshot",
      duration(t.age_ms), duration(t.idle_ms), number(t.changes), size(t.memory + t.run_bytes),
      element("td", {}, button)];
  });
  // A button that is being pressed is not taken away.
  const shown = JSON.stringify(state.transactions.map((t) => [t.id, t.label, t.changes, Math.floor(t.age_ms / 5000)]));
  if (shown === transactions.shown) return;
  transactions.shown = shown;
  fill("transactions", table(["id", "label", "isolation", "age", "idle", "changes", "size", ""], rows,
    "none is open"));
  byId("transactions").querySelectorAll("th").item(1)?.classList.add("name");
}

let reviewed = null;
let readOnly = false;

const KINDS = { A: "added", D: "removed", M: "changed", R: "moved" };

function lines(all, kindOf) {
  fill("review-lines", ...all.map((text) =>
    element("div", { textContent: text || " ", className: kindOf(text) ?? "" })));
  byId("review-lines").scrollTop = 0;
}

function problem(text) {
  byId("review-error").textContent = text;
}

function buttons(enabled) {
  for (const id of ["commit", "abort"]) byId(id).disabled = !enabled || readOnly;
}

async function review(id) {
  reviewed = null;
  problem("");
  buttons(false);
  byId("abort").textContent = "Abort";
  byId("contents").textContent = "Show contents";
  byId("review-title").textContent = `Transaction ${id}`;
  byId("review-facts").textContent = "";
  byId("review-summary").textContent = "looking …";
  fill("review-lines");
  if (!byId("review").open) byId("review").showModal();
  try {
    const answer = await ask(`transactions/${id}`);
    reviewed = { id, answer };
    const { status } = answer;
    byId("review-title").textContent = `Transaction ${id}` + (status.label ? `: ${status.label}` : "");
    byId("review-facts").textContent =
      `${status.isolation === "ser" ? "serializable" : "snapshot isolation"}, begun ${duration(status.age_ms)} ago, ` +
      `last used ${duration(status.idle_ms)} ago; its files are in ${answer.view}`;
    list(answer);
    buttons(true);
  } catch (error) {
    byId("review-summary").textContent = "";
    problem(error.message);
  }
}

function list(answer) {
  lines(answer.lines, (text) => KINDS[text[0]]);
  const missing = answer.lines_in_all - answer.lines.length;
  byId("review-summary").textContent = answer.summary;
  problem(missing > 0
    ? `${missing} more lines are not shown: see all with kvfs txn diff before you commit` : "");
}

async function contents() {
  if (!reviewed) return;
  if (byId("contents").textContent === "Show list") {
    byId("contents").textContent = "Show contents";
    return list(reviewed.answer);
  }
  const { id } = reviewed;
  try {
    const answer = await ask(`transactions/${id}/patch`);
    if (reviewed?.id !== id) return;
    const marks = [["diff ", "head"], ["--- ", "head"], ["+++ ", "head"], ["@@", "hunk"], ["+", "added"],
      ["-", "removed"], ["#", "hunk"]];
    lines(answer.lines, (text) => marks.find(([mark]) => text.startsWith(mark))?.[1]);
    byId("contents").textContent = "Show list";
    problem(answer.whole ? "" : "The contents are cut off here: see all with kvfs txn diff --patch");
  } catch (error) {
    problem(error.message);
  }
}

async function end(how) {
  if (!reviewed) return;
  const { id, answer } = reviewed;
  if (how === "abort" && byId("abort").textContent === "Abort") {
    byId("abort").textContent = "Abort: drop all of it";
    return;
  }
  buttons(false);
  problem("");
  try {
    await ask(`transactions/${id}/${how}`, how === "commit" ? { state: answer.state } : {});
    byId("review").close();
  } catch (error) {
    problem(error.message);
    buttons(true);
  }
  transactions.shown = null;
  poll.soon();
}

byId("commit").addEventListener("click", () => end("commit"));
byId("abort").addEventListener("click", () => end("abort"));
byId("contents").addEventListener("click", contents);
byId("again").addEventListener("click", () => reviewed ? review(reviewed.id) : null);
byId("close").addEventListener("click", () => byId("review").close());

// ------------------------------------------------------------------ snapshots

async function snapshots() {
  const { snapshots, clones } = await ask("snapshots");
  const time = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19);
  const rows = snapshots.slice().reverse().map((s) =>
    [named(s.name), time(s.created), size(s.bytes), size(s.unique_bytes), s.clone ? `of clone ${s.clone}` : ""]);
  const parts = [table(["snapshot", "made (UTC)", "bytes", "held alone", ""], rows,
    "There are no snapshots: kvfs snapshot create gives a state a name.")];
  if (clones.length > 0) {
    parts.push(table(["clone", "of snapshot"], clones.map((c) => [named(c.name), c.snapshot ?? ""]), ""));
  }
  fill("snapshots", ...parts);
}

// ------------------------------------------------------------------ again and again

function redraw() {
  legend();
  if (last) map(last.state.zones);
}

let last = null;
let round = 0;

async function poll() {
  try {
    const state = await ask("state");
    const now = { state, at: performance.now() };
    readOnly = state.read_only;
    byId("where").textContent = state.mount_point;
    document.title = `KVFS ${state.mount_point}`;
    figures(now);
    map(state.zones);
    levels(state.store);
    requests(now);
    transactions(state);
    if (round++ % 15 === 0) await snapshots();
    before = last = now;
    const failed = state.store.failed;
    byId("status").textContent = failed ? `takes no more writes: ${failed}` : readOnly ? "live, read-only" : "live";
    byId("status").className = failed ? "wrong" : "live";
    return 1000;
  } catch (error) {
    before = null;
    round = 0;
    byId("status").textContent = error instanceof Refused ? error.message
      : "kvfs web does not answer";
    byId("status").className = "wrong";
    return 3000;
  }
}

let waiting = null;
poll.soon = async () => {
  clearTimeout(waiting);
  const pause = document.hidden ? 1000 : await poll();
  clearTimeout(waiting);
  waiting = setTimeout(poll.soon, pause);
};
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
legend();
poll.soon();
