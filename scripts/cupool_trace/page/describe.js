/* SPDX-License-Identifier: Apache-2.0 */
/* The text about what lies under the pointer. */
function marksNear(c, tr, x) {
  return tr.marks.filter(m => Math.abs(c.x(m[0] + offsetOf(tr)) - x) < 7);
}
function markLine(tr, m) {
  return exact(tr, m[0]) + "  " + m[3] + (m[2] > 1 ? "  (and " + (m[2] - 1) + " more at about this time)" : "");
}
function capped(lines) {
  return lines.length > 8 ? [...lines.slice(0, 8), "... and " + (lines.length - 8) + " more"] : lines;
}

// What a track has at this time: name, name as text, least, greatest; or a sentence why it has nothing.
function valuesAt(tr, t) {
  const s = tr.series, local = t - offsetOf(tr), i = above(s.t, local) - 1;
  if (i < 0 || local > endOf(tr) + (view.t1 - view.t0) / 500) return i < 0 ? "before the first event" : "after the last event";
  const inside = s.width_ns > 1 && local < s.t[i] + s.width_ns, names = [["held", "held"], ["live", "live"], ["cached", "cached"], ["registered", "registered"], ["host", "pinned host memory"], ["past", "past the pool"]];
  return names.filter(([name]) => s[name]).map(([name, text]) => {
    const q = s[name];
    return [name, text, inside ? (q.min || q.last)[i] : q.last[i], inside ? (q.max || q.last)[i] : q.last[i]];
  });
}

function memoryAt(c, x) {
  const tr = tracks[c.track], s = tr.series, t = c.t(x), local = t - offsetOf(tr);
  const at = {kind: "memory", track: c.track, t, values: {}};
  const values = valuesAt(tr, t), lines = [];
  if (typeof values === "string") lines.push(values);
  else for (const [name, text, lo, hi] of values) {
    at.values[name] = [lo, hi];
    lines.push(text + ": " + (lo === hi ? bytes(hi) : bytes(lo) + " to " + bytes(hi)));
  }
  if (s.width_ns > 1) lines.push("(least and greatest within " + span(s.width_ns) + ")");
  const near = marksNear(c, tr, x);
  at.marks = near.length;
  for (const name of ["live", "held"]) {
    const peak = tr.peaks[name];
    if (!peak || Math.abs(c.x(peak.t + offsetOf(tr)) - x) >= 5) continue;
    lines.push("", "peak " + name + ": " + bytes(peak.n) + " at " + exact(tr, peak.t));
  }
  if (near.length) lines.push("", ...capped(near.map(m => markLine(tr, m))));
  const inside = rangesAt(c.track, local);
  at.ranges = inside;
  if (inside.length) lines.push("", ...capped(inside.map((name, i) => (i ? "  " : "in ") + name)));
  const step = (view.t1 - view.t0) / 1000;
  at.title = titleOf(tr) + " at " + moment(t, step) + (local === t ? "" : ", " + moment(local, step) + " after its start");
  at.lines = lines;
  return at;
}

function boxAt(c, x, y) {
  const tr = tracks[focus];
  let found = null;
  const look = (kind, b) => visible(c, tr, b, (bx, by, w, h, i) => {
    // A pixel's tolerance, so that the pointer can meet a shape one pixel wide.
    if (x >= bx - 1 && x <= bx + Math.max(2, w) && y >= by - 1 && y <= by + Math.max(1, h)) found = {kind, index: i, b};
  });
  look("merged_segments", areasOf(focus, "merged_segments"));
  look("segment", tr.segments);
  const segment = found;
  look("merged_blocks", areasOf(focus, "merged_blocks"));
  look("block", tr.blocks);
  return found && {...found, segment};
}

function describe(hit, t) {
  const tr = tracks[focus], {kind, index: i, b} = hit;
  const where = address(tr, b.region[i], b.offset[i]);
  const at = {kind, index: i, track: focus, t};
  const until = b.t1[i] === null ? "live at the end" : (kind.startsWith("merged") ? "last freed " : "freed ") + exact(tr, b.t1[i])
    + (kind === "segment" && b.why[i] ? " (with its " + b.why[i] + ")" : "");
  const life = (b.t1[i] === null ? endOf(tr) : b.t1[i]) - b.t0[i];
  if (kind.startsWith("merged")) {
    at.title = b.count[i].toLocaleString("en-US") + " " + (kind === "merged_blocks" ? "blocks" : "segments") + ", merged";
    at.lines = ["the largest " + bytes(b.most[i]) + ", together " + size(b.total[i]) + " (not all at once)", "from " + where + " on, within " + size(b.n[i]),
      "first allocated " + exact(tr, b.t0[i]), until];
    return at;
  }
  at.title = (kind === "block" ? "block of " : "segment of ") + bytes(b.n[i]);
  at.lines = ["at " + where, "allocated " + exact(tr, b.t0[i]) + (b.us && b.us[i] !== null ? " (the driver took " + span(b.us[i] * 1000) + ")" : ""), until,
    "lived " + span(life)];
  if (kind === "segment" && tr.series.registered) {
    const known = b.registered[i] || {of: [], others: 0};
    for (const [comm, t0, t1] of known.of)
      at.lines.push("registered with " + comm + " " + exact(tr, t0) + (t1 === null ? ", to its end" : " to " + exact(tr, t1)));
    if (known.others) at.lines.push("registered " + known.others + " more times");
    if (!known.of.length) at.lines.push("never registered with NCCL");
  }
  if (kind === "segment" && tr.series.live) {
    const local = t - offsetOf(tr);
    let count = 0, sum = 0;
    for (let k = 0; k < tr.blocks.t0.length; k++)
      if (tr.blocks.region[k] === b.region[i] && tr.blocks.offset[k] >= b.offset[i] && tr.blocks.offset[k] < b.offset[i] + b.n[i]
        && tr.blocks.t0[k] <= local && (tr.blocks.t1[k] === null || tr.blocks.t1[k] > local)) { count++; sum += tr.blocks.n[k]; }
    at.blocks = count;
    at.lines.push("at " + moment(t, (view.t1 - view.t0) / 1000) + ": " + (tr.merged_blocks.length ? "at least " : "") + count + (count === 1 ? " block, " : " blocks, ") + size(sum));
  }
  if (kind === "block" && hit.segment && hit.segment.kind === "segment") {
    const s = hit.segment;
    at.lines.push("in the segment of " + bytes(s.b.n[s.index]) + " at " + address(tr, s.b.region[s.index], s.b.offset[s.index]));
  }
  if (kind === "block" && b.caller && b.caller[i] !== null) {
    const stack = b.stacks[b.caller[i]];
    at.lines.push("asked for by " + b.callers[b.caller[i]], ...(stack.length > 1 ? stack.map(f => "  " + b.frames[f]) : []));
  }
  return at;
}

function mapAt(c, x, y) {
  const tr = tracks[focus], t = c.t(x), near = y < TOP + 4 ? marksNear(c, tr, x) : [];
  if (near.length) return {kind: "marks", track: focus, t, marks: near.length, title: titleOf(tr), lines: capped(near.map(m => markLine(tr, m)))};
  const hit = boxAt(c, x, y);
  return hit ? describe(hit, t) : {kind: "map", track: focus, t, title: "", lines: []};
}
