/* The explorer: what the model says of an id, why, and what would change. */
"use strict";

const MOST_SHOWN = 6; // labels that have a column of their own: the most probable ones
const LISTED = 10; // partners in the list

const at = (name) => document.getElementById(name);
const state = { side: "row", id: null, labels: [] }; // a label is a partner, a relation or null, and the label
let model;
let settled = { ...state }; // the last state that was shown
let turn = 0, reasons = 0; // Questions have numbers: only the answer to the last one is shown.

/** A new element of a picture. */
function drawn(tag, attributes = {}, ...contents) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...contents);
  return made;
}

/** The server has loaded another model than the one that this page shows. */
class Renewed extends Error {}

/** The answer of the server to a question; its sentence, as an error, if it has none. */
async function ask(path, body) {
  const headers = {}, shown = model;
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = "Bearer " + token;
  if (body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { headers, method: body ? "POST" : "GET", body: body && JSON.stringify(body) });
  } catch {
    throw new Error("The server does not answer: is it running?");
  }
  const content = await answer.json();
  if (answer.status === 401) {
    sessionStorage.removeItem("token");
    at("enter").hidden = false;
    at("explorer").hidden = true;
    at("token").focus();
  }
  if (!answer.ok) throw new Error(content.detail);
  const version = answer.headers.get("Dyads-Model");
  if (shown && shown === model && path !== "/model" && version !== null && version !== model.version) {
    throw new Renewed("The server has loaded another model, which this page shows now.");
  }
  return content;
}

/** Run what talks to the server, and show the sentence of an error; start again if there is another model. */
async function safely(work, restarts = 5) {
  try {
    at("problem").hidden = true;
    await work();
  } catch (error) {
    if (error instanceof Renewed && restarts) {
      // The workers of a server get a new model one after the other.
      await new Promise((done) => setTimeout(done, 300));
      await safely(start, restarts - 1);
      if (!at("problem").hidden) return;
    }
    at("problem").textContent = error.message;
    at("problem").hidden = false;
  }
}

const other = (side) => (side === "row" ? "col" : "row");
const column = (side) => model.columns[side === "row" ? 0 : 1];
const relation = () => (model.relations.length ? model.relations[at("relation").selectedIndex] : null);
const ranking = () => JSON.parse(at("by").value);
const pair = (partner) => {
  const ids = state.side === "row" ? [state.id, partner] : [partner, state.id];
  return model.relations.length ? [...ids, relation()] : ids;
};
const sameId = (a, b) => String(a) === String(b);

/** Known ids that contain a text. */
const search = (side, text) => ask(`/ids?side=${side}&limit=20&text=${encodeURIComponent(text)}`);

/** Offer known ids while somebody types. */
function offering(input, list, side) {
  let asked = 0;
  input.addEventListener("input", () => safely(async () => {
    const mine = ++asked;
    const found = await search(side(), input.value);
    if (mine === asked) offer(list, found.ids.map(String));
  }));
}

/** The known id that somebody typed, or an error. */
async function known(side, text) {
  const found = await search(side, text);
  const id = found.ids.find((one) => sameId(one, text));
  if (id === undefined) {
    const near = found.ids.length ? ` Did you mean ${found.ids.slice(0, 3).join(", ")}?` : "";
    throw new Error(`The model does not know the ${column(side)} “${text}”.${near}`);
  }
  return id;
}

// ------------------------------------------------------------------------------------------------------ best partners

/**
 * What the model says of the state: the best partners, with their probabilities now and, if labels are supposed, before
 * them, and the list as it was before them.
 */
async function consult() {
  const { side, id, labels } = state;
  const kind = relation();
  const common = { side, n: LISTED, by: ranking(), relation: kind };
  const recommended = async () => (id === null ? [] : (await ask("/recommend", { ...common, ids: [id] })).recommended[0]);
  if (!labels.length) {
    const best = await recommended();
    const pairs = best.map((one) => pair(one.id));
    if (!pairs.length) return { best };
    const [now, bounds] = await Promise.all([ask("/predict", { pairs }), model.draws ? ask("/intervals", { pairs }) : null]);
    return { best, now, bounds };
  }
  const given = labels.map((one) => (one.kind === null ? [one.partner, one.label] : [one.partner, one.kind, one.label]));
  const [{ recommended: best }, plain] = await Promise.all([ask("/fold-in", { ...common, labels: given, id }), recommended()]);
  const partners = best.map((one) => one.id);
  if (!partners.length) return { best };
  const [now, before] = await Promise.all([ask("/fold-in", { ...common, labels: given, id, n: 1, partners }),
    id === null ? null : ask("/predict", { pairs: partners.map(pair) })]);
  return { best, now, before, plain: plain.map((one) => one.id) };
}

/** Show what the model says of the state. */
async function show() {
  const mine = ++turn;
  const said = await consult().catch((error) => {
    if (mine === turn) throw error;
  });
  if (mine !== turn) return;
  settled = { ...state };
  const name = state.id === null ? `a new ${column(state.side)}` : String(state.id);
  // Of three or more labels without an order none is known to be the best.
  const by = ranking();
  at("best-title").textContent = by === null || model.labels.length === 2
    ? `Best ${column(other(state.side))} for ${name}` : `Likeliest ${column(other(state.side))} to be “${by}” for ${name}`;
  at("best-note").textContent = noteOn(said);
  at("best").replaceChildren(said.best.length ? bestTable(said) : element("p", {}, state.id === null
    ? `Enter labels of a new ${column(state.side)} below.` : "Nothing is left to recommend."));
  at("why").hidden = true;
  showSupposed();
  at("news").textContent = said.best.length
    ? `${at("best-title").textContent}: ${said.best.slice(0, 3).map((one) => one.id).join(", ")} and others.` : "";
  markOnMap();
}

function noteOn({ bounds, before }) {
  const by = ranking();
  const ranked = by === null
    ? (model.ordered ? "By expected label." : `By expected value.`) : `By the probability of “${by}”.`;
  const left = " Changes, and the marks on bars, are against the model without these labels; “Why?” can be asked of that model alone.";
  const about = bounds ? " Bars show a probability and its 90% interval."
    : !model.draws ? " The model is a point estimate, so its probabilities have no intervals." : "";
  return `${ranked} Pairs of the training data are left out.${about}${before ? left : ""}`;
}

/** The labels that have a column: all, or the most probable ones on average. */
function columnsOf(now) {
  const codes = model.labels.map((_, code) => code);
  if (codes.length <= MOST_SHOWN) return codes;
  const mean = codes.map((code) => now.reduce((sum, line) => sum + line[code], 0));
  return codes.sort((a, b) => mean[b] - mean[a]).slice(0, MOST_SHOWN).sort((a, b) => a - b);
}

function bestTable(said) {
  const { best, now, before = null, bounds = null } = said;
  const codes = columnsOf(now.probabilities);
  const names = codes.map((code) => named(model.labels[code]));
  const [p, was] = [now.probabilities, before && before.probabilities];
  const heads = [column(other(state.side)), ...(model.ordered ? ["expected"] : []), ...names, "", ""];
  const lines = best.map((one, line) => {
    const cells = codes.map((code) => probabilityCell(
      p[line][code], bounds && [bounds.low[line][code], bounds.high[line][code]], was && was[line][code]));
    const expected = model.ordered ? [element("td", { class: "number" }, now.mean[line].toFixed(2),
      ...(before ? [" ", change(now.mean[line] - before.mean[line], 2)] : []))] : [];
    const why = element("button", { type: "button", class: "small", "aria-label": `Why ${one.id}?` }, "Why?");
    why.addEventListener("click", () => safely(() => explain(one.id)));
    return element("tr", {}, element("th", { scope: "row" }, one.id, ...moved(one, said.plain)), ...expected, ...cells,
      element("td", {}, ...(state.id === null || state.labels.length ? [] : [why])),
      element("td", {}, ...(supposes() ? [whatIf(one.id)] : [])));
  });
  return element("table", {}, tableHead(heads, ["expected"]), element("tbody", {}, ...lines));
}

/** How a partner moved in the list by the labels that were added; `plain` : the list without them. */
function moved({ id, rank }, plain) {
  if (!state.labels.length || state.id === null) return [];
  const place = (partner) => plain.findIndex((one) => sameId(one, partner)) + 1;
  const before = place(id);
  if (before === 0) return [" ", element("span", { class: "change more" }, "new")];
  const gone = state.labels.filter(({ partner, kind }) => kind === relation() && place(partner) > 0 && place(partner) < before);
  const by = before - gone.length - rank;
  return by ? [" ", change(by, 0)] : [];
}

/** A label as a heading: a number is said to be a label. */
const named = (label) => (typeof label === "string" ? label : `label ${label}`);

function probabilityCell(p, bounds, before) {
  const picture = drawn("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { class: "track", x: 0, y: 2, width: 100, height: 4 }));
  if (bounds) {
    picture.append(drawn("rect", { class: "band", x: 100 * bounds[0], y: 0, width: 100 * (bounds[1] - bounds[0]), height: 8 }));
    picture.append(drawn("rect", { class: "tick", x: Math.min(98, 100 * p - 1), y: 0, width: 2, height: 8 }));
  } else {
    picture.append(drawn("rect", { class: "tick", x: 0, y: 2, width: 100 * p, height: 4 }));
    if (before !== null) picture.append(drawn("rect", { class: "was", x: Math.min(98, 100 * before), y: 0, width: 1.5, height: 8 }));
  }
  const more = bounds ? [" ", element("span", { class: "interval" }, bounds.map((end) => Math.round(100 * end)).join("–"))]
    : before === null ? [] : [" ", change(100 * (p - before), 0)];
  return element("td", { class: "cell" }, percent(p) + "%", ...more, picture);
}

/** Percent in whole numbers; what is not quite nothing or all is not called so. */
function percent(p) {
  const whole = Math.round(100 * p);
  return whole === 0 && p > 0 ? "<1" : whole === 100 && p < 1 ? ">99" : String(whole);
}

/** A change with its sign, which a colour repeats; nothing where digits do not show it. */
function change(by, digits) {
  const shown = Math.abs(by).toFixed(digits);
  if (Number(shown) === 0) return "";
  return element("span", { class: `change ${by > 0 ? "more" : "less"}` }, (by > 0 ? "▲" : "▼") + shown);
}

// ------------------------------------------------------------------------------------------------------------ what if

/** Whether labels of the id can be added. */
const supposes = () => (state.id === null ? model.can.fold_in : model.can.suppose).includes(state.side);

/** A choice of a label that the id might give a partner. */
function whatIf(partner) {
  const choice = element("select", { class: "small", "aria-label": `Label to suppose for ${partner}` },
    ...model.labels.map((label, code) => element("option", { value: code, selected: label === model.by }, label)));
  const add = element("button", { type: "button", class: "small", "aria-label": `What if ${partner} had this label?` }, "What if?");
  add.addEventListener("click", () => safely(async () => {
    await suppose(partner, model.labels[Number(choice.value)]);
    at("best-title").focus();
  }));
  return element("div", { class: "what-if" }, choice, add);
}

/** Suppose a label, or with null as label none, of a partner. */
async function suppose(partner, label, kind = relation()) {
  const others = state.labels.filter((one) => !sameId(one.partner, partner) || one.kind !== kind);
  await turnTo({ labels: label === null ? others : [...others, { partner, kind, label }] });
}

function showSupposed() {
  const chips = state.labels.map(({ partner, kind, label }) => {
    const name = kind === null ? partner : `${partner}, ${kind}`;
    const off = element("button", { type: "button", class: "small", "aria-label": `Remove ${label} for ${name}` },
      `${name}: ${label} ✕`);
    off.addEventListener("click", () => safely(async () => {
      await suppose(partner, null, kind);
      at("best-title").focus();
    }));
    return element("li", {}, off);
  });
  const what = state.id === null ? "Its labels:" : "What if it also gave:";
  at("supposed").replaceChildren(element("ul", { class: "chips" }, element("li", {}, what), ...chips));
  at("supposed").hidden = !chips.length;
  at("suppose-note").textContent = state.id === null ? `A label of the new ${column(state.side)}:`
    : `What if ${state.id} also had this label?`;
  at("suppose").hidden = !supposes();
}

// ---------------------------------------------------------------------------------------------------------------- why

/** Show why a partner has its probabilities: the parts of the log-odds of a label. */
async function explain(partner) {
  const mine = turn, reason = ++reasons;
  const [{ parts: [parts] }, { probabilities: [now], predicted: [predicted] }] = await Promise.all([
    ask("/explain", { pairs: [pair(partner)] }), ask("/predict", { pairs: [pair(partner)] })]);
  if (mine !== turn || reason !== reasons) return;
  const best = model.labels.findIndex((label) => label === predicted);
  const choice = element("select", { id: "reason" },
    ...model.labels.map((label, code) => element("option", { value: code, selected: code === best }, label)));
  const table = element("div");
  const fill = () => table.replaceChildren(partsTable(parts, Number(choice.value), now));
  choice.addEventListener("change", fill);
  fill();
  at("why-title").textContent = `Why ${partner} for ${state.id}`;
  const before = model.calibrated ? " These are log-odds before the calibration of the probabilities." : "";
  at("reasons").replaceChildren(
    element("p", { class: "faint" }, "The log-odds of a label against the mean of the other labels are exactly the sum of these parts." + before),
    element("p", {}, element("label", { for: "reason" }, "Label"), choice), table);
  at("why").hidden = false;
  at("why-title").focus();
}

function partsTable(parts, code, now) {
  const against = parts.map(({ part, values }) => {
    const others = values.filter((_, each) => each !== code);
    return { part, value: values[code] - others.reduce((a, b) => a + b, 0) / others.length };
  });
  const total = against.reduce((sum, { value }) => sum + value, 0);
  const most = Math.max(...against.map(({ value }) => Math.abs(value)), 1e-9);
  const order = [...against].sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
  const lines = order.map(({ part, value }) => element("tr", {}, element("th", { scope: "row" }, part in PARTS ? PARTS[part]() : part),
    element("td", { class: "number" }, signed(value)), element("td", {}, diverging(value / most))));
  return element("table", { class: "parts" }, tableHead(["part", "log-odds", ""], ["log-odds"]),
    element("tbody", {}, ...lines),
    element("tfoot", {}, element("tr", {}, element("th", { scope: "row" }, "sum"),
      element("td", { class: "number" }, signed(total)), element("td", {}, `probability ${(100 * now[code]).toFixed(1)}%`))));
}

/** What parts are called. */
const PARTS = {
  "row bias": () => `bias of this ${column("row")}`,
  "column bias": () => `bias of this ${column("col")}`,
  latent: () => "latent: how well both match",
  averaging: () => "averaging over draws",
};

const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);

function diverging(share) {
  const made = bar(Math.abs(share) / 2, share >= 0 ? "positive" : "negative");
  if (share < 0) made.style.marginLeft = (50 * (1 + share)).toFixed(1) + "%";
  return element("div", { class: "diverging" }, made);
}

// ----------------------------------------------------------------------------------------------------- map, calibration

let placed = { side: null };

/** Show the map of one side, with ids that can be chosen, and ids like the chosen one. */
async function showMap() {
  at("map-part").hidden = !model.can.map;
  if (!model.can.map) return;
  const { side } = state, shown = model;
  if (placed.side !== side) {
    const places = await ask(`/map?side=${side}`);
    if (side !== state.side || shown !== model) return;
    const [w, h, edge] = [400, 320, 16];
    const scale = (values, from, to) => {
      const [low, high] = [Math.min(...values), Math.max(...values)];
      return values.map((value) => from + (to - from) * (high > low ? (value - low) / (high - low) : 0.5));
    };
    const xs = scale(places.x, edge, w - edge), ys = scale(places.y, h - edge, edge);
    const most = Math.max(...places.n_labels, 1);
    const dots = places.ids.map((id, i) => {
      const dot = drawn("circle", { class: "dot", cx: xs[i].toFixed(1), cy: ys[i].toFixed(1),
        r: (1.5 + 2.5 * Math.sqrt(places.n_labels[i] / most)).toFixed(1) }, drawn("title", {}, String(id)));
      dot.addEventListener("click", () => safely(() => visit(id)));
      return dot;
    });
    const title = `Map of ${places.ids.length} ${places.column} ids`;
    const picture = drawn("svg", { class: "picture", viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": title }, ...dots);
    const shares = places.shares.map((share) => `${percent(share)}%`).join(" and ");
    at("map").replaceChildren(picture, element("p", { class: "faint" },
      `Near ids have similar labels; larger dots have more of them. The axes hold ${shares} of the variance of the latent weights.`));
    placed = { side, places, dots, xs, ys, picture };
  }
  markOnMap();
}

function markOnMap() {
  if (placed.side !== state.side) return;
  placed.picture.querySelectorAll(".halo").forEach((text) => text.remove());
  placed.dots.forEach((dot, i) => {
    const here = state.id !== null && sameId(placed.places.ids[i], state.id);
    dot.classList.toggle("here", here);
    if (!here) return;
    placed.picture.append(dot);
    const right = placed.xs[i] > 280;
    placed.picture.append(drawn("text", { class: "halo", x: placed.xs[i] + (right ? -9 : 9), y: placed.ys[i] + 4,
      "text-anchor": right ? "end" : "start" }, String(state.id).slice(0, 24)));
  });
}

async function showSimilar() {
  if (!model.can.map || state.id === null) {
    at("similar").replaceChildren();
    return;
  }
  const { id: asked, side } = state, shown = model;
  const { recommended: [like] } = await ask("/similar", { ids: [asked], side, n: 6 });
  if (asked !== state.id || side !== state.side || shown !== model) return;
  const buttons = like.map(({ id }) => {
    const button = element("button", { type: "button", class: "small" }, id);
    button.addEventListener("click", () => safely(() => visit(id)));
    return element("li", {}, button);
  });
  at("similar").replaceChildren(element("ul", { class: "chips" },
    element("li", {}, `Most like ${asked}:`), ...buttons));
}

async function showCalibration() {
  const { pairs, curves } = await ask("/calibration");
  if (!pairs) {
    const held = model.held_out_log_loss === null ? ""
      : ` Its log-loss on pairs that the fit held out is ${model.held_out_log_loss.toFixed(3)}.`;
    at("calibration").replaceChildren(element("p", {},
      `Not known: the server was not given pairs that the model has not seen (dyads serve --held-out).${held}`));
    return;
  }
  const [w, h, edge] = [400, 320, 44];
  const x = (p) => edge + p * (w - edge - 24), y = (p) => h - edge - p * (h - edge - 14);
  const points = (xs, ys) => xs.map((p, i) => `${x(p).toFixed(1)},${y(ys[i]).toFixed(1)}`).join(" ");
  const picture = drawn("svg", { class: "picture", viewBox: `0 0 ${w} ${h}`, role: "img",
    "aria-label": `Reliability on ${pairs} held-out pairs: observed frequency by predicted probability` },
    drawn("line", { class: "diagonal", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }));
  for (const tick of [0, 0.5, 1]) {
    picture.append(
      drawn("line", { class: "axis", x1: x(tick), y1: y(0), x2: x(tick), y2: y(1) }),
      drawn("line", { class: "axis", x1: x(0), y1: y(tick), x2: x(1), y2: y(tick) }),
      drawn("text", { x: x(tick), y: h - edge + 16, "text-anchor": "middle" }, `${100 * tick}%`),
      drawn("text", { x: edge - 5, y: y(tick) + 4, "text-anchor": "end" }, `${100 * tick}%`));
  }
  picture.append(drawn("text", { x: x(0.5), y: h - 8, "text-anchor": "middle" }, "predicted probability"));
  const keys = curves.map(({ label, predicted, observed, low, high }, i) => {
    const outline = points([...predicted, ...[...predicted].reverse()], [...low, ...[...high].reverse()]);
    picture.append(drawn("g", { class: `curve-${i}` }, drawn("polygon", { class: "area", points: outline }),
      drawn("polyline", { class: "line", points: points(predicted, observed) }),
      ...predicted.map((p, k) => drawn("circle", { class: "dots", cx: x(p), cy: y(observed[k]), r: 2.5 }))));
    return element("li", { class: `curve-${i}` }, element("span", { class: "key" }), label);
  });
  at("calibration").replaceChildren(picture, element("ul", { class: "chips" }, ...keys), element("p", { class: "faint" },
    `Observed frequency of each label by its predicted probability, on ${pairs.toLocaleString("en")} held-out pairs, with 90% intervals. Calibrated probabilities lie on the diagonal.`));
}

// --------------------------------------------------------------------------------------------------------------- start

/** Show another state; what the page shows stays as it is if the server does not answer. */
async function turnTo(next) {
  Object.assign(state, next);
  const shown = show(), mine = turn;
  try {
    await shown;
  } catch (error) {
    if (mine === turn) Object.assign(state, settled);
    throw error;
  } finally {
    nameFields();
  }
}

/** Name the fields after the side that is shown. */
function nameFields() {
  for (const choice of document.getElementsByName("side")) choice.checked = choice.value === state.side;
  at("id-label").textContent = column(state.side);
  at("partner-label").textContent = column(other(state.side));
  at("new").textContent = `A new ${column(state.side)}`;
  at("new").hidden = !model.can.fold_in.includes(state.side);
}

/** Show another id; null is a new one. */
async function choose(id, side = state.side) {
  await turnTo({ side, id, labels: [] });
  at("id").value = state.id === null ? "" : String(state.id);
  await Promise.all([showMap(), showSimilar()]);
}

/** Show another id, and go to it. */
async function visit(id) {
  await choose(id);
  at("best-title").focus();
}

/** Show the id of a side with the most labels. */
async function first(side) {
  const mine = ++turn;
  try {
    const { ids } = await search(side, "");
    if (mine !== turn) return;
    offer(at("ids"), ids.map(String));
    offer(at("partners"), []);
    await choose(ids[0], side);
  } finally {
    nameFields();
  }
}

async function start() {
  const { token } = await ask("/health");
  if (token && !sessionStorage.getItem("token")) {
    at("enter").hidden = false;
    at("token").focus();
    return;
  }
  model = await ask("/model");
  placed = { side: null };
  at("enter").hidden = true;
  at("name").textContent = model.name;
  document.title = `${model.name} – dyads explorer`;
  const kind = model.draws ? `${model.draws} posterior draws` : "a point estimate";
  at("facts").textContent = `${model.estimator}, ${model.structure}, rank ${model.rank}, ${kind}: ` +
    `${model.n_rows.toLocaleString("en")} ${column("row")} × ${model.n_cols.toLocaleString("en")} ${column("col")} ids, ` +
    `${model.pairs.toLocaleString("en")} training pairs. dyads ${model.library}, version ${model.version}.`;
  at("explorer").hidden = !model.can.recommend;
  if (!model.can.recommend) {
    throw new Error("The model has features of pairs, which this page does not know: ask the server by a program.");
  }
  const sides = ["row", "col"].map((side) => {
    const choice = element("input", { type: "radio", name: "side", value: side, checked: side === "row" });
    choice.addEventListener("change", () => safely(() => first(side)));
    return element("label", {}, choice, column(side));
  });
  at("sides").replaceChildren(at("sides").firstElementChild, ...sides);
  at("sides").hidden = model.one_set;
  at("relation").replaceChildren(...model.relations.map((kind) => element("option", {}, kind)));
  at("relation-choice").hidden = !model.relations.length;
  const ranked = model.labels.map((label) =>
    element("option", { value: JSON.stringify(label), selected: label === model.by }, label));
  at("by").replaceChildren(...(model.by === null ? [element("option", { value: "null" }, "expected label")] : []), ...ranked);
  at("by-choice").hidden = model.labels.length < 3 && model.by !== null && model.one_set;
  at("label").replaceChildren(...model.labels.map((label, code) => element("option", { value: code }, label)));
  await first("row");
  await showCalibration();
}

at("search").addEventListener("submit", (event) => {
  event.preventDefault();
  safely(async () => {
    const mine = turn, id = await known(state.side, at("id").value);
    if (mine === turn) await visit(id);
  });
});
for (const name of ["by", "relation"]) at(name).addEventListener("change", () => safely(show));
at("new").addEventListener("click", () => safely(async () => {
  await choose(null);
  at("partner").focus();
}));
at("suppose").addEventListener("submit", (event) => {
  event.preventDefault();
  safely(async () => {
    const mine = turn, partner = await known(other(state.side), at("partner").value);
    if (mine !== turn) return;
    await suppose(partner, model.labels[Number(at("label").value)]);
    at("partner").value = "";
    at("partner").focus();
  });
});
at("enter").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value);
  safely(start);
});
offering(at("id"), at("ids"), () => state.side);
offering(at("partner"), at("partners"), () => other(state.side));
safely(start);
