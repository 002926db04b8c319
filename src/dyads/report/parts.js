/* Parts of the report and of the explorer. */

/** A new element with attributes and contents: elements, or texts, which stay texts. */
function element(tag, attributes = {}, ...contents) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...contents.map((part) => (part instanceof Node ? part : String(part))));
  return made;
}

/** Fill the list that an input offers. */
function offer(list, values) {
  list.replaceChildren(...values.map((value) => element("option", { value })));
}

/** A table head of names; those of numbers are aligned to the right. */
function tableHead(names, numbers = []) {
  const cells = names.map((name) =>
    name ? element("th", { scope: "col", class: numbers.includes(name) ? "number" : null }, name) : element("td"));
  return element("thead", {}, element("tr", {}, ...cells));
}

/** A bar whose length is a share of its cell. */
function bar(share, kind = "share") {
  const made = element("span", { class: kind });
  made.style.width = (100 * share).toFixed(1) + "%";
  return made;
}

/** Probabilities of labels with bars, in their order or, of more than `most`, the largest first. */
function probabilityTable(labels, probabilities, most) {
  let shown = labels.map((label, code) => [label, probabilities[code]]);
  const table = element("table");
  if (shown.length > most) {
    shown = shown.sort((a, b) => b[1] - a[1]).slice(0, most);
    table.append(element("caption", {}, `The ${most} most probable of ${labels.length} labels.`));
  }
  const lines = shown.map(([label, probability]) => element("tr", {},
    element("th", { scope: "row" }, label),
    element("td", { class: "number" }, probability.toFixed(3)),
    element("td", { class: "bar" }, bar(probability))));
  table.append(tableHead(["label", "probability", ""], ["probability"]), element("tbody", {}, ...lines));
  return table;
}
