/* The explorer: what the model says of an id, why, and what would change. */
"use strict";

const MOST_SHOWN = 6; // labels that have a column of their own: the most probable ones
const LISTED = 10; // partners in the list

const at = (name) => document.getElementById(name);
const state = { side: "row", id: null, labels: [], plain: [] };
let model, turn = 0;

/** A new element of a picture. */
function drawn(tag, attributes = {}, ...contents) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...contents);
  return made;
}

/** The answer of the server to a question; its sentence, as an error, if it has none. */
async function ask(path, body) {
  const headers = {};
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
  return content;
}

/** Run what talks to the server, and show the sentence of an error. */
async function safely(work) {
  try {
    at("problem").hidden = true;
    await work();
  } catch (error) {
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

/** What the model says of the state: the best partners, with probabilities of now and of before any labels. */
async function consult() {
  const { side, id, labels } = state;
  const by = ranking();
  const kind = relation();
  const given = labels.map(({ partner, label }) => (kind === null ? [partner, label] : [partner, kind, label]));
  const common = { side, n: LISTED, by, relation: kind };
  if (!labels.length) {
    const best = id === null ? [] : (await ask("/recommend", { ...common, ids: [id] })).recommended[0];
    return { best, ...(await probabilities(best.map((one) => one.id))) };
  }
  const { recommended: best } = await ask("/fold-in", { ...common, labels: given, id });
  const partners = best.map((one) => one.id);
  if (!partners.length) return { best, labels: model.labels, now: [] };
  const folded = await ask("/fold-in", { ...common, labels: given, id, n: 1, partners });
  const before = id === null ? {} : await probabilities(partners);
  return { best, labels: model.labels, now: folded.probabilities, before: before.now };
}

async function probabilities(partners) {
  if (!partners.length) return { labels: model.labels, now: [] };
  const pairs = partners.map(pair);
  const [now, bounds] = await Promise.all([
    ask("/predict", { pairs }), model.draws ? ask("/intervals", { pairs }) : null]);
  return { labels: now.labels, now: now.probabilities, bounds, mean: now.mean };
}

/** Show what the model says of the state. */
async function show() {
  const mine = ++turn;
  const said = await consult();
  if (mine !== turn) return;
  if (!state.labels.length) state.plain = said.best.map((one) => one.id);
  const name = state.id === null ? `a new ${column(state.side)}` : String(state.id);
  at("best-title").textContent = `Best ${column(other(state.side))} for ${name}`;
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
  const left = state.labels.length ? " Changes, and the marks on bars, are against the model without these labels." : "";
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
  const { best, now, before, bounds } = said;
  const codes = columnsOf(now);
  const names = codes.map((code) => named(model.labels[code]));
  const supposes = state.id === null ? model.can.fold_in : model.can.suppose;
  const heads = [column(other(state.side)), ...(model.ordered ? ["expected"] : []), ...names, "", ""];
  const lines = best.map((one, line) => {
    const cells = codes.map((code) => probabilityCell(
      now[line][code], bounds && [bounds.low[line][code], bounds.high[line][code]], before && before[line][code]));
    const expected = model.ordered ? [element("td", { class: "number" }, expectedOf(now[line]).toFixed(2),
      ...(before ? [" ", change(expectedOf(now[line]) - expectedOf(before[line]), 2)] : []))] : [];
    const why = element("button", { type: "button", class: "small", "aria-label": `Why ${one.id}?` }, "Why?");
    why.addEventListener("click", () => safely(() => explain(one.id)));
    return element("tr", {}, element("th", { scope: "row" }, one.id, ...moved(one)), ...expected, ...cells,
      element("td", {}, ...(state.id === null || state.labels.length ? [] : [why])),
      element("td", {}, ...(supposes ? [whatIf(one.id)] : [])));
  });
  return element("table", {}, tableHead(heads, ["expected"]), element("tbody", {}, ...lines));
}

/** How a partner moved in the list by the labels that were added. */
function moved({ id, rank }) {
  if (!state.labels.length || state.id === null) return [];
  const before = state.plain.findIndex((one) => sameId(one, id)) + 1;
  if (before === 0) return [" ", element("span", { class: "change more" }, "new")];
  const by = before - state.labels.filter(({ partner }) => {
    const place = state.plain.findIndex((one) => sameId(one, partner)) + 1;
    return place > 0 && place < before;
  }).length - rank;
  return by ? [" ", change(by, 0)] : [];
}

/** A label as a heading: a number is said to be a label. */
const named = (label) => (typeof label === "string" ? label : `label ${label}`);

/** The mean of ordered labels; text has the values 0, 1, ... */
function expectedOf(line) {
  return line.reduce((sum, p, code) => sum + p * (typeof model.labels[code] === "number" ? model.labels[code] : code), 0);
}

function probabilityCell(p, bounds, before) {
  const picture = drawn("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawn("rect", { class: "track", x: 0, y: 2, width: 100, height: 4 }));
  if (bounds) {
    picture.append(drawn("rect", { class: "band", x: 100 * bounds[0], y: 0, width: 100 * (bounds[1] - bounds[0]), height: 8 }));
    picture.append(drawn("rect", { class: "tick", x: Math.min(98, 100 * p - 1), y: 0, width: 2, height: 8 }));
  } else {
    picture.append(drawn("rect", { class: "tick", x: 0, y: 2, width: 100 * p, height: 4 }));
    if (before !== undefined) picture.append(drawn("rect", { class: "was", x: Math.min(98, 100 * before), y: 0, width: 1.5, height: 8 }));
  }
  const more = bounds ? [" ", element("span", { class: "interval" }, bounds.map((end) => Math.round(100 * end)).join("–"))]
    : before === undefined ? [] : [" ", change(100 * (p - before), 0)];
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

/** A choice of a label that the id might give a partner. */
function whatIf(partner) {
  const choice = element("select", { class: "small", "aria-label": `What if it gave ${partner} the label` },
    element("option", { value: "" }, "What if…"),
    ...model.labels.map((label, code) => element("option", { value: code }, label)));
  choice.addEventListener("change", () => safely(async () => {
    await suppose(partner, model.labels[Number(choice.value)]);
    at("best-title").focus();
  }));
  return choice;
}

async function suppose(partner, label) {
  const labels = state.labels.filter((one) => !sameId(one.partner, partner));
  state.labels = [...labels, { partner, label }];
  await show();
}

function showSupposed() {
  const chips = state.labels.map(({ partner, label }) => {
    const off = element("button", { type: "button", class: "small", "aria-label": `Remove ${label} for ${partner}` },
      `${partner}: ${label} ✕`);
    off.addEventListener("click", () => safely(async () => {
      state.labels = state.labels.filter((one) => !sameId(one.partner, partner));
      await show();
      at("best-title").focus();
    }));
    return element("li", {}, off);
  });
  const what = state.id === null ? "Its labels:" : "What if it also gave:";
  at("supposed").replaceChildren(element("ul", { class: "chips" }, element("li", {}, what), ...chips));
  at("supposed").hidden = !chips.length;
  at("suppose-note").textContent = state.id === null ? `A label of the new ${column(state.side)}:`
    : `What if ${state.id} also had this label?`;
  at("suppose").hidden = !(state.id === null ? model.can.fold_in : model.can.suppose);
}

// ---------------------------------------------------------------------------------------------------------------- why

/** Show why a partner has its probabilities: the parts of the log-odds of a label. */
async function explain(partner) {
  const [{ parts: [parts] }, { probabilities: [now], predicted: [predicted] }] = await Promise.all([
    ask("/explain", { pairs: [pair(partner)] }), ask("/predict", { pairs: [pair(partner)] })]);
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
  if (placed.side !== state.side) {
    const places = await ask(`/map?side=${state.side}`);
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
      dot.addEventListener("click", () => safely(() => choose(id)));
      return dot;
    });
    const title = `Map of ${places.ids.length} ${places.column} ids`;
    const picture = drawn("svg", { class: "picture", viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": title }, ...dots);
    const shares = places.shares.map((share) => `${percent(share)}%`).join(" and ");
    at("map").replaceChildren(picture, element("p", { class: "faint" },
      `Near ids have similar labels; larger dots have more of them. The axes hold ${shares} of the variance of the latent weights.`));
    placed = { side: state.side, places, dots, xs, ys, picture };
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
  const asked = state.id;
  const { recommended: [like] } = await ask("/similar", { ids: [asked], side: state.side, n: 6 });
  if (asked !== state.id) return;
  const buttons = like.map(({ id }) => {
    const button = element("button", { type: "button", class: "small" }, id);
    button.addEventListener("click", () => safely(() => choose(id)));
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

/** Show another id; null is a new one. */
async function choose(id) {
  state.id = id;
  state.labels = [];
  at("id").value = id === null ? "" : String(id);
  await show();
  await Promise.all([showMap(), showSimilar()]);
}

function turnTo(side) {
  state.side = side;
  at("id-label").textContent = column(side);
  at("partner-label").textContent = column(other(side));
  at("new").textContent = `A new ${column(side)}`;
  at("new").hidden = !model.can.fold_in;
  offer(at("ids"), []);
}

async function first(side) {
  turnTo(side);
  const { ids } = await search(side, "");
  offer(at("ids"), ids.map(String));
  await choose(ids[0]);
}

async function start() {
  const { token } = await ask("/health");
  if (token && !sessionStorage.getItem("token")) {
    at("enter").hidden = false;
    at("token").focus();
    return;
  }
  model = await ask("/model");
  at("enter").hidden = true;
  at("name").textContent = model.name;
  document.title = `${model.name} – dyads explorer`;
  const kind = model.draws ? `${model.draws} posterior draws` : "a point estimate";
  at("facts").textContent = `${model.estimator}, ${model.structure}, rank ${model.rank}, ${kind}: ` +
    `${model.n_rows.toLocaleString("en")} ${column("row")} × ${model.n_cols.toLocaleString("en")} ${column("col")} ids, ` +
    `${model.pairs.toLocaleString("en")} training pairs. dyads ${model.library}, version ${model.version}.`;
  if (!model.can.recommend) {
    throw new Error("The model has features of pairs, which this page does not know: ask the server by a program.");
  }
  at("explorer").hidden = false;
  const sides = ["row", "col"].map((side) => {
    const choice = element("input", { type: "radio", name: "side", value: side, checked: side === "row" });
    choice.addEventListener("change", () => safely(() => first(side)));
    return element("label", {}, choice, column(side));
  });
  at("sides").append(...sides);
  at("sides").hidden = model.one_set;
  for (const kind of model.relations) at("relation").append(element("option", {}, kind));
  at("relation-choice").hidden = !model.relations.length;
  if (model.by === null) at("by").append(element("option", { value: "null" }, "expected label"));
  for (const label of model.labels) {
    at("by").append(element("option", { value: JSON.stringify(label), selected: label === model.by }, label));
  }
  at("by-choice").hidden = model.labels.length < 3 && model.by !== null && model.one_set;
  for (const [code, label] of model.labels.entries()) at("label").append(element("option", { value: code }, label));
  await first("row");
  await showCalibration();
}

at("search").addEventListener("submit", (event) => {
  event.preventDefault();
  safely(async () => {
    await choose(await known(state.side, at("id").value));
    at("best-title").focus();
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
    const partner = await known(other(state.side), at("partner").value);
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
