/* SPDX-License-Identifier: Apache-2.0 */
/* The callers of the focused device: a table to search and sort, and the colours of their blocks on the map. It counts nothing;
   figures come from plot.py. */
const PALETTE = 6;   // colours, which those who see few colours can tell apart, too; all other callers are grey
let takersBy = 1, takersUp = false;
let takersFind = "";
let coloured = false;  // blocks by caller

// The callers that took the memory of the focused device, as summary has them: of the whole trace, not only of the part shown. Their
// heads sort them; a caller that is chosen has its blocks strong on the map.
function takersSort(i) {
  [takersBy, takersUp] = i === takersBy ? [i, !takersUp] : [i, i === 0];
  takers();
  $("takers").querySelectorAll("th button")[i].focus();
}

// from: the element whose button was pressed, as the buttons are made again.
function takersChoose(caller, from) {
  chosenCaller = caller === chosenCaller ? null : caller;
  takers();
  redraw();
  const same = [...$(from).querySelectorAll("button")].find(b => b.dataset.caller === caller);
  if (same) same.focus();
}

function takersSearch(text) {
  takersFind = text;
  takers();
}

// Whether its name, or a frame of its stack where blocks have that, has the text of the search.
function takersMatch(tr, name) {
  const b = tr.blocks, k = b.callers ? b.callers.indexOf(name) : -1;
  return [name, ...(k < 0 ? [] : b.stacks[k].map(f => b.frames[f]))].some(x => x.toLowerCase().includes(takersFind.toLowerCase()));
}

function takersLine(name, cells, press) {
  const row = element("tr");
  cells.forEach((text, i) => {
    const on = press && press(i);
    const cell = row.appendChild(element(name, on ? undefined : text, i ? {} : {class: "l"}));
    if (!on) return;
    const button = cell.appendChild(element("button", text, {class: "plain"}));
    button.addEventListener("click", on);
    if (name === "th") cell.setAttribute("aria-sort", i !== takersBy ? "none" : takersUp ? "ascending" : "descending");
    else {
      button.setAttribute("aria-pressed", text === chosenCaller);
      button.dataset.caller = text;
    }
  });
  return row;
}

function takers() {
  const tr = tracks[focus], into = $("takers");
  into.hidden = !tr || !(tr.figures.callers.length + tr.figures.physical.length);
  if (tr && !(tr.blocks.callers || []).includes(chosenCaller)) chosenCaller = null;
  callersLegend(tr);
  if (into.hidden) return;
  const past = c => "past the pool: " + c.object + " (" + c.by + "), at its own peak";
  const callers = tr.figures.callers.filter(c => takersMatch(tr, c.caller)), physical = tr.figures.physical.filter(c => takersMatch(tr, past(c)));
  const key = c => [c.caller, c.live_at_peak, c.live_at_end, c.requests][takersBy];
  const order = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (takersUp ? 1 : -1);
  into.querySelector("h2 span").textContent = "Callers that held most at the peak: " + titleOf(tr);
  $("takersfound").textContent = takersFind ? callers.length + physical.length + " of " + (tr.figures.callers.length + tr.figures.physical.length) : "";
  into.querySelector("thead").replaceChildren(takersLine("th", ["caller", "at the peak", "at the end", "requests"], i => () => takersSort(i)));
  into.querySelector("tbody").replaceChildren(
    ...callers.sort(order).map(c => takersLine("td", [c.caller, size(c.live_at_peak), size(c.live_at_end), c.requests],
      i => !i && tr.blocks.callers && tr.blocks.callers.includes(c.caller) ? () => takersChoose(c.caller, "takers") : null)),
    ...physical.map(c => takersLine("td", [past(c), size(c.peak), size(c.now), c.created])));
}

// ---- colours ----

// Callers come in the order of what they held at the peak.
const callerColor = k => k === null || k >= PALETTE ? css["caller-other"] : css["caller-" + k];

function setColoured(on) {
  coloured = on;
  $("coloured").checked = on;
  callersLegend(tracks[focus]);
  redraw();
}

// One row; names that do not fit end in an ellipsis, and are whole as titles.
function callersLegend(tr) {
  const known = tr && tr.blocks.callers, into = $("callers");
  $("colouredbox").hidden = !known;
  into.hidden = !known || !coloured;
  if (into.hidden) return;
  const swatch = name => element("span", undefined, {class: "swatch", style: "background: var(--caller-" + name + ")"});
  into.replaceChildren(...known.slice(0, PALETTE).map((name, k) => {
    const button = element("button", undefined, {class: "plain", title: name, "aria-pressed": name === chosenCaller, "data-caller": name});
    button.append(swatch(k), element("span", name));
    button.addEventListener("click", () => takersChoose(name, "callers"));
    return button;
  }));
  const others = known.length - PALETTE, unknown = tr.blocks.caller.includes(null);
  if (others <= 0 && !unknown) return;
  const rest = element("span", undefined, {class: "other"});
  rest.append(swatch("other"), element("span", [others > 0 ? others + (others === 1 ? " other" : " others") : "", unknown ? "unknown" : ""].filter(Boolean).join(", ")));
  into.append(rest);
}

// The blocks of each colour, with the colour.
function blocksByColor(b) {
  const by = new Map();
  b.caller.forEach((k, i) => {
    const color = callerColor(k);
    if (!by.has(color)) by.set(color, []);
    by.get(color).push(i);
  });
  return [...by].map(([color, of]) => [color, pick(b, of)]);
}

const pick = (b, of) => Object.fromEntries(["t0", "t1", "region", "offset", "n"].map(name => [name, of.map(i => b[name][i])]));

// The blocks of one caller.
function blocksOf(b, caller) {
  const k = b.callers.indexOf(caller);
  return pick(b, [...b.caller.keys()].filter(i => b.caller[i] === k));
}

function drawBlocks(g, c, tr) {
  const inner = new Path2D(), edge = (x, y, w, h) => { if (w > 5 && h > 7) inner.rect(x + .5, y + .5, w - 1, h - 1); };
  const byCaller = coloured && tr.blocks.callers;
  if (!byCaller) fill(g, c, tr, tr.blocks, chosenCaller === null ? css.live : css["live-range"], edge);
  else {
    g.globalAlpha = chosenCaller === null ? 1 : .25;
    for (const [color, blocks] of blocksByColor(tr.blocks)) fill(g, c, tr, blocks, color, edge);
    g.globalAlpha = 1;
  }
  if (chosenCaller !== null) fill(g, c, tr, blocksOf(tr.blocks, chosenCaller), byCaller ? callerColor(tr.blocks.callers.indexOf(chosenCaller)) : css.live);
  g.strokeStyle = css.card;
  g.globalAlpha = .55;
  g.stroke(inner);
  g.globalAlpha = 1;
}
