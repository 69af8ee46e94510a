// What the time of a step goes to: a bar for each step that was timed, its parts on top of each other.

class Bars extends Picture {
  constructor(parent, lane, name, readout, height) {
    const frame = element("div", "plot"), head = element("div", "head");
    frame.append(head);
    parent.append(frame);
    super(frame, `what the ${name}'s time went to, by step`, height);
    head.append(element("strong", "", `on the ${name}`), element("span", "value", "milliseconds of each timed step"));
    Object.assign(this, { lane, name, readout, low: 0, high: lane.steps.length, cursor: null });
    this.sums = lane.steps.map((_, at) => lane.ms.reduce((sum, part) => sum + part[at], 0));
  }

  get left() { return 58; }
  get right() { return this.paper.size.width - 8; }
  get bottom() { return this.paper.size.height - 18; }
  get wide() { return Math.min((this.right - this.left) / (this.high - this.low), 90); }
  bar(x) { return clamp(Math.floor(this.low + (x - this.left) / this.wide), this.low, this.high - 1); }

  paint(pen) {
    const most = roof(this.most(), 3), top = 14;
    const y = (ms) => this.bottom - (Math.min(ms, most) / most) * (this.bottom - top);
    pen.lineWidth = 1;
    pen.textAlign = "right";
    for (const tick of ticks(0, most, 3)) {
      pen.strokeStyle = colour("grid");
      pen.fillStyle = colour("dim");
      pen.beginPath();
      pen.moveTo(this.left, y(tick)); pen.lineTo(this.right, y(tick));
      pen.stroke();
      pen.fillText(tick ? amount(tick, "ms") : "0", this.left - 8, y(tick));
    }
    for (let at = this.low; at < this.high; at++) {
      let under = 0;
      const x = this.left + (at - this.low) * this.wide, wide = Math.max(this.wide - (this.wide > 4 ? 2 : 0), 1);
      this.lane.parts.forEach((part, row) => {
        const ms = this.lane.ms[row][at], up = y(under + ms), down = y(under);
        pen.fillStyle = colour("part-" + part);
        pen.fillRect(x, up, wide, down - up);
        if (down - up > 3 && wide > 3) { pen.fillStyle = colour("raised"); pen.fillRect(x, up, wide, 1); }
        under += ms;
      });
      if (under > 1.01 * most) this.cut(pen, x, wide, under, top);
    }
    this.labels(pen);
  }

  /** What the height stands for: the longest step, unless it would make all others tiny. */
  most() {
    const seen = this.sums.slice(this.low, this.high).sort((a, b) => a - b), middle = seen[seen.length >> 1] || 1;
    return Math.min(seen[seen.length - 1] || 1, 3 * middle);
  }

  /** A bar that is higher than the picture says how high. */
  cut(pen, x, wide, ms, top) {
    pen.fillStyle = colour("ground");
    pen.fillRect(x - 1, top + 5, wide + 2, 2);
    pen.fillStyle = colour("dim");
    pen.textAlign = "left";
    pen.fillText(`↑ ${amount(ms, "ms")}`, x, 6);
  }

  labels(pen) {
    pen.fillStyle = colour("dim");
    pen.textAlign = "center";
    let free = -Infinity;
    for (let at = this.low; at < this.high; at++) {
      const x = this.left + (at - this.low + 0.5) * this.wide, text = whole(this.lane.steps[at]);
      const half = pen.measureText(text).width / 2;
      if (x - half < free) continue;
      pen.fillText(text, x, this.bottom + 11);
      free = x + half + 14;
    }
  }

  over(pen) {
    selection(pen, this, 10, this.bottom - 10);
    if (this.cursor === null) { this.readout.textContent = ""; return; }
    const at = this.cursor, x = this.left + (at - this.low) * this.wide;
    pen.strokeStyle = colour("ink");
    pen.lineWidth = 1;
    pen.strokeRect(x - 1, 8, Math.max(this.wide, 3), this.bottom - 8);
    const parts = this.lane.parts.map((part, row) => [part, this.lane.ms[row][at]]).filter(([, ms]) => ms > 0);
    const said = parts.map(([part, ms]) => `${part} ${amount(ms, "ms")}`).join(", ");
    const step = `step ${whole(this.lane.steps[at])}`, sum = amount(this.sums[at], "ms");
    this.readout.textContent = `${step} · ${this.name} ${sum}: ${said}`;
  }

  hover(x) { this.cursor = this.bar(x); this.refresh(); }

  move(by) {
    this.cursor = clamp((this.cursor === null ? this.low - 1 : this.cursor) + by, this.low, this.high - 1);
    this.refresh();
  }

  leave() { this.cursor = null; this.refresh(); }

  zoom(a, b) {
    const low = this.bar(Math.max(a, this.left)), high = this.bar(Math.min(b, this.right)) + 1;
    if (high - low >= 2) [this.low, this.high] = [low, high];
    this.draw();
  }

  reset() { [this.low, this.high] = [0, this.lane.steps.length]; this.draw(); }
}
