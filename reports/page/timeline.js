// The bricks of one step, one by one: the host's lane and a lane for each stream of the device, nested by block.

const ROW = 19, GAP = 26;

class Timeline extends Picture {
  constructor(parent, steps, readout) {
    super(parent, "the bricks of one step, nested, by lane", 200);
    Object.assign(this, { steps, readout });
    this.choose(0);
  }

  /** Shows another of the steps. */
  choose(at) {
    this.shown = this.steps[at];
    this.full = [0, this.shown.ns];
    for (const [start, length] of this.shown.lanes.flatMap((lane) => lane.bricks)) {
      this.full = [Math.min(this.full[0], start), Math.max(this.full[1], start + length)];
    }
    [this.low, this.high] = this.full;
    this.cursor = null;
    let top = 4;
    this.lanes = this.shown.lanes.map((lane) => {
      const deep = lane.bricks.reduce((most, brick) => Math.max(most, brick[2]), 0) + 1, at = top + GAP - 6;
      top = at + deep * ROW;
      return { lane, top: at, deep };
    });
    this.height = top + 28;
  }

  get left() { return 8; }
  get right() { return this.paper.size.width - 8; }
  x(ns) { return this.left + ((ns - this.low) / (this.high - this.low)) * (this.right - this.left); }
  time(x) { return this.low + ((x - this.left) / (this.right - this.left)) * (this.high - this.low); }

  paint(pen) {
    this.clock(pen);
    for (const { lane, top } of this.lanes) {
      pen.fillStyle = colour("dim");
      pen.textAlign = "left";
      const more = lane.left_out ? ` (the ${whole(lane.left_out)} shortest bricks are left out)` : "";
      pen.fillText(lane.name + more, this.left, top - 9);
      let row = -1, edge = -Infinity;
      for (const [start, length, depth, name, part] of lane.bricks) {
        const from = Math.max(this.x(start), this.left), to = Math.min(this.x(start + length), this.right);
        if (to < this.left || from > this.right) continue;
        const wide = Math.max(to - from, 0.7);
        if (depth === row && from + wide < edge + 0.4) continue;  // too small to be seen beside the one before
        [row, edge] = [depth, from + wide];
        this.brick(pen, from, top + depth * ROW, wide, this.shown.names[name], this.shown.parts[part]);
      }
    }
  }

  brick(pen, x, y, wide, name, part) {
    pen.fillStyle = colour("part-" + part);
    pen.fillRect(x, y, wide > 2 ? wide - 0.6 : wide, ROW - 2);
    if (wide < 34) return;
    pen.fillStyle = colour("ink");
    pen.textAlign = "left";
    pen.fillText(this.short(pen, name, wide - 9), x + 5, y + ROW / 2 - 0.5);
  }

  /** The name, its last part, or its beginning; nothing where even that would say nothing. */
  short(pen, name, width) {
    const parts = name.split("."), ends = [parts.slice(-2).join("."), parts[parts.length - 1]];
    for (const one of [name, ...ends.filter((end) => !/^[\d.]+$/.test(end))]) {
      if (pen.measureText(one).width <= width) return one;
    }
    if (width < 46) return "";
    let few = 1, many = Math.min(name.length, 120);
    while (few < many) {
      const some = (few + many + 1) >> 1;
      if (pen.measureText(name.slice(0, some) + "…").width <= width) few = some; else many = some - 1;
    }
    return name.slice(0, few) + "…";
  }

  clock(pen) {
    const bottom = this.paper.size.height - 18;
    pen.strokeStyle = colour("grid");
    pen.lineWidth = 1;
    pen.textAlign = "center";
    for (const tick of ticks(this.low, this.high, this.paper.size.width / 130)) {
      pen.beginPath();
      pen.moveTo(this.x(tick), 4); pen.lineTo(this.x(tick), bottom);
      pen.stroke();
      pen.fillStyle = colour("dim");
      const text = tick ? amount(Math.abs(tick), "ns") : "0";
      pen.fillText(tick < 0 ? "-" + text : text, clamp(this.x(tick), this.left + 14, this.right - 22), bottom + 11);
    }
  }

  over(pen) {
    selection(pen, this, 4, this.paper.size.height - 22);
    if (!this.cursor) { this.readout.textContent = ""; return; }
    const [number_, at] = this.cursor, { lane, top } = this.lanes[number_];
    const [start, length, depth, name, part] = lane.bricks[at], { names, parts, ns } = this.shown;
    const share = `${Number(((100 * length) / ns).toPrecision(2))} % of the step`;
    const from_ = `${start < 0 ? "-" : ""}${amount(Math.abs(start), "ns")}`;
    const where = `${names[name]} · ${parts[part]} · ${lane.name}`;
    this.readout.textContent = `${where} · ${amount(length, "ns")} (${share}), from ${from_}`;
    const from = clamp(this.x(start), this.left, this.right), to = clamp(this.x(start + length), this.left, this.right);
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1.5;
    pen.strokeRect(from - 0.5, top + depth * ROW - 0.5, Math.max(to - from, 3), ROW - 1);
  }

  /** The brick under a point: of those in its row the one whose edge is nearest. */
  hover(x, y) {
    const number_ = this.lanes.findIndex(({ top, deep }) => y >= top && y < top + deep * ROW);
    this.cursor = null;
    if (number_ >= 0) {
      const { lane, top } = this.lanes[number_], depth = Math.floor((y - top) / ROW), time = this.time(x);
      let best = this.time(x + 3) - time;
      lane.bricks.forEach(([start, length, deep], at) => {
        const off = Math.max(start - time, time - start - length, 0);
        if (deep === depth && off < best) { best = off; this.cursor = [number_, at]; }
      });
    }
    this.refresh();
  }

  /** Left and right to the neighbours in a row; up to what holds a brick, down to what it holds, and to other lanes. */
  move(across, along) {
    if (!this.cursor) { this.cursor = [0, 0]; this.follow(); return; }
    const [number_, at] = this.cursor, { bricks } = this.lanes[number_].lane, depth = bricks[at][2];
    if (across) {
      let i = at + across;
      while (bricks[i] && bricks[i][2] !== depth) i += across;
      if (bricks[i]) this.cursor = [number_, i];
    } else if (along > 0) {
      const end = bricks[at][0] + bricks[at][1];
      const child = bricks.findIndex((brick, i) => i > at && brick[2] === depth + 1 && brick[0] < end);
      if (child >= 0) this.cursor = [number_, child];
      else if (number_ + 1 < this.lanes.length) this.cursor = [number_ + 1, 0];
    } else {
      let i = at - 1;
      while (i >= 0 && bricks[i][2] >= depth) i--;
      if (i >= 0) this.cursor = [number_, i];
      else if (number_ > 0) this.cursor = [number_ - 1, 0];
    }
    this.follow();
  }

  /** Keeps the chosen brick in sight. */
  follow() {
    const [number_, at] = this.cursor, [start, length] = this.lanes[number_].lane.bricks[at];
    const middle = start + length / 2, half = (this.high - this.low) / 2;
    if (start + length < this.low || start > this.high) this.within(middle - half, middle + half);
    else this.refresh();
  }

  enter() {
    if (!this.cursor) return;
    const [start, length] = this.lanes[this.cursor[0]].lane.bricks[this.cursor[1]];
    this.within(start - length * 0.05, start + length * 1.05);
  }

  leave() { this.cursor = null; this.refresh(); }
  zoom(a, b) { this.within(this.time(a), this.time(b)); }

  nearer(factor) {
    const brick = this.cursor && this.lanes[this.cursor[0]].lane.bricks[this.cursor[1]];
    const middle = brick ? brick[0] + brick[1] / 2 : (this.low + this.high) / 2;
    const half = ((this.high - this.low) / 2) * factor;
    this.within(middle - half, middle + half);
  }

  within(low, high) {
    const span = Math.min(Math.max(high - low, 50), this.full[1] - this.full[0]);
    this.low = clamp(low, this.full[0], this.full[1] - span);
    this.high = this.low + span;
    this.draw();
  }

  reset() { [this.low, this.high] = this.full; this.draw(); }
}

/** Buttons for the steps that can be shown. */
function timelineControl(parent, picture) {
  if (picture.steps.length < 2) return;
  const made = picture.steps.map((step, at) => button(`step ${whole(step.step)}: ${step.why}`, at === 0, (pressed) => {
    made.forEach((one) => one.setAttribute("aria-pressed", String(one === pressed)));
    picture.choose(at);
    picture.draw();
  }));
  parent.prepend(...made);
}
