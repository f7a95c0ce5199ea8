/* SPDX-License-Identifier: Apache-2.0 */
/* The list of ranks, the selectors, what ran, the notes, the legend. */
function list() {
  const head = $("head").appendChild(element("tr"));
  const columns = [["", "l"], ["rank", "l"], ["device", "l"], ["host", "l"], ["process", "l"], ["state", "l"], ["peak held", ""], ["peak live", ""],
    ["held at end", ""], ["segments", ""], ["requests", ""], ["hit rate", ""], ["driver calls", ""], ["oom", ""]];
  for (const [name, side] of columns) head.append(element("th", name, side ? {class: side} : {}));
  tracks.forEach((tr, i) => {
    const p = processOf(tr), f = tr.figures;
    const row = element("tr", undefined, {"data-track": i});
    const box = element("input", undefined, {type: "checkbox", "aria-label": "show " + titleOf(tr)});
    box.addEventListener("click", e => e.stopPropagation());
    box.addEventListener("change", () => { box.checked ? shown.add(i) : shown.delete(i); layout(); reset(); });
    const first = element("td", undefined, {class: "l"});
    first.append(box);
    row.append(first);
    const known = v => v === null || v === undefined ? "-" : v;
    const short = p.state.replace(/ \(.*/, ""), state = p.problems ? p.problems + " problems, " + short : short;
    for (const [text, side] of [[p.rank === null ? "-" : p.rank, "l"], [tr.device + " " + deviceName(tr), "l"], [known(p.host), "l"],
      [known(p.exe) + " " + known(p.pid), "l"], [state, p.complete && !p.problems ? "l" : "l bad"],
      [size(f.peak_held), ""], [f.peak_live === null ? "-" : size(f.peak_live), ""], [size(f.held_at_end), ""],
      [f.segments_alloc, ""], [known(f.requests), ""], [f.hit_rate === null ? "-" : (100 * f.hit_rate).toFixed(1) + "%", ""],
      [f.driver_calls, ""], [f.oom, f.oom ? "bad" : ""]])
      row.append(element("td", text, side ? {class: side} : {}));
    row.title = [p.file, f.uuid].filter(Boolean).join("\n");
    row.addEventListener("click", () => setFocus(i));
    $("rows").append(row);
  });
  const choices = (select, values, name) => {
    select.append(element("option", "all", {value: ""}));
    for (const v of values) select.append(element("option", name(v), {value: v}));
    select.addEventListener("change", filter);
  };
  choices($("rank"), [...new Set(tracks.map(t => t.process))], i => data.processes[i].rank === null ? data.processes[i].name : data.processes[i].rank);
  choices($("device"), [...new Set(tracks.map(t => t.device))].sort((a, b) => a - b), d => d);
  $("alignbox").hidden = data.processes.length < 2;
  $("align").checked = align;
  $("align").addEventListener("change", () => { align = $("align").checked; reset(); });
}

function filter() {
  const r = $("rank").value, d = $("device").value;
  const fit = [...tracks.keys()].filter(i => (r === "" || tracks[i].process === Number(r)) && (d === "" || tracks[i].device === Number(d)));
  shown = new Set(fit.slice(0, Math.max(SHOW_AT_FIRST, r === "" && d === "" ? 0 : 16)));
  if (fit.length && !shown.has(focus)) { focus = fit[0]; flameTop = 0; pin(null); }
  layout();
  reset();
  marksOfFocus();
}

function marksOfFocus() {
  for (const row of $("rows").children) {
    const i = Number(row.dataset.track);
    row.classList.toggle("focus", i === focus);
    row.querySelector("input").checked = shown.has(i);
  }
  takers();
  flame();
  bandsBegin();
}

function about() {
  const p = data.processes;
  const events = p.reduce((n, x) => n + x.events, 0);
  const open = p.filter(x => !x.complete).length;
  const first = p.filter(x => x.started).sort((a, b) => a.offset_ns - b.offset_ns)[0];
  const longest = Math.max(...p.map(x => x.last_ns));
  const programs = [...new Set(p.map(x => x.exe).filter(Boolean))];
  const ran = programs.slice(0, 3).join(", ") + (programs.length > 3 ? " and others" : "");
  if (ran) document.title = ran + ": GPU memory over time";
  $("about").textContent = [ran, first ? "started " + first.started : "",
    p.length ? "ran " + span(longest) : "", p.length + (p.length === 1 ? " process" : " processes"), events.toLocaleString("en-US") + " events",
    open ? open + " without an end line" : "",
    data.settings ? data.settings.length ? "settings: " + data.settings.join(", ") : "default settings" : "", data.made_by].filter(Boolean).join(" \u00b7 ");
  const notes = $("notes");
  notes.append(element("h2", "What this page leaves out"));
  const said = new Map();  // what is left out, and of whom: equal devices share a line
  const say = (who, what) => said.set(what, [...(said.get(what) || []), who]);
  for (const tr of tracks) {
    if (tr.merged.length) say(titleOf(tr), tr.merged.join("; "));
    if (!processOf(tr).allocs) say(titleOf(tr), "live memory and blocks are unknown, the trace has segments only (CUPOOL_TRACE_EVENTS=segment,alloc)"
      + (tr.figures.peak_live !== null ? "; by its stats line at most " + size(tr.figures.peak_live) + " were live" : ""));
  }
  for (const x of p) if (x.bands && x.bands.note) say(x.name, x.bands.note);
  for (const tr of tracks) if (tr.peaks.live && tr.figures.from_stats && tr.figures.peak_live > tr.peaks.live.n && data.begin_ns === 0)
    say(titleOf(tr), "curves count what was asked for, rounded up to 512 B, at most " + bytes(tr.peaks.live.n)
      + "; its stats line counts whole blocks as the pool handed them out, at most " + bytes(tr.figures.peak_live));
  for (const x of p) if (x.problems) say(x.name, x.problems + " problems in " + x.file + "; see cupool-trace check");
  for (const x of p) if (!x.complete) say(x.name, x.state + "; what it held last is drawn until its last event");
  const items = [...said].map(([what, who]) => (who.length > 3 ? who[0] + " and " + (who.length - 1) + " others" : who.join(", ")) + ": " + what);
  if (tracks.some(t => t.merged.length) || p.some(x => x.bands && x.bands.note)) items.push("for all of a shorter time: cupool-trace plot --from SECONDS --to SECONDS");
  if (data.begin_ns > 0 || data.end_ns < 2 ** 53) items.push("only from " + moment(data.begin_ns, 1e6) + " to "
    + (data.end_ns < 2 ** 53 ? moment(data.end_ns, 1e6) : "the end") + " of each trace; the table counts all of it");
  if (!data.settings && p.length) items.push("which settings are not the default: cupool-info, which has the defaults, was not found");
  if (p.length > 1) items.push("processes are placed by the clocks of their hosts, which may differ");
  if (items.length === 0) notes.append(element("p", "Nothing: every value, segment and event is drawn as it is in the trace.", {style: "margin: 0"}));
  const ul = notes.appendChild(element("ul"));
  for (const text of items) ul.append(element("li", text));
}

function legend() {
  const into = $("legend");
  const anyLive = tracks.some(t => t.series.live), anyHeld = tracks.some(t => !t.series.live);
  const entry = (name, color) => {
    const l = element("span", undefined, {class: "row", style: "gap: 5px"});
    l.append(element("span", undefined, {class: "swatch", style: "background: var(--" + color + ")"}), name);
    into.append(l);
  };
  if (anyLive) { entry("live", "live"); entry("cached", "cached"); }
  if (anyHeld) entry("held, live unknown", "held");
  if (tracks.length) entry("fainter: only at times", anyLive ? "live-range" : "held-range");
  if (tracks.some(t => t.series.registered)) entry("registered", "registered");
  if (tracks.some(t => t.series.host)) entry("pinned host memory", "host");
  if (tracks.some(t => t.series.past)) entry("past the pool", "past");
  for (const kind of Object.keys(MARKS)) if (tracks.some(t => t.marks.some(m => m[1] === kind))) {
    const l = element("span", undefined, {class: "row", style: "gap: 5px"});
    const c = element("canvas", undefined, {width: 28, height: 28, style: "width: 14px; height: 14px"});
    l.append(c, MARKS[kind]);
    c.dataset.mark = kind;
    into.append(l);
  }
}
