// Lines over steps: what a run tells of every step, findings marked, several charts on one axis.

const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3], [4, 2], [1, 2], [12, 4], [5, 2, 1, 2]];
const LINES = ["accent", "line2", "line3", "line4"];

/** The steps that a group of charts shows together, as many as those `beside` it, and the one that is pointed at. */
function axis(panels, readout, beside = []) {
  const series = [...panels, ...beside].flatMap((panel) => panel.alone || [panel]);
  const all = series.map((one) => one.steps).filter((steps) => steps.length);
  const full = [
    all.reduce((least, steps) => Math.min(least, steps[0]), Infinity),
    all.reduce((most, steps) => Math.max(most, steps[steps.length - 1]), -Infinity),
  ];
  if (full[0] === full[1]) full[1] += 1;
  return { full, low: full[0], high: full[1], cursor: null, charts: [], readout };
}

class Chart extends Picture {
  /** `panel` is one series, with the numbers of its ranks or a band around it, or several that stand `alone`. */
  constructor(parent, panel, shared, height) {
    const frame = element("div", "plot"), head = element("div", "head");
    parent.append(frame);
    frame.append(head);
    super(frame, `${panel.name} by step`, height);
    this.panel = panel;
    this.axis = shared;
    this.log = panel.log;
    this.main = (panel.alone || [panel]).map((one) => ({ ...one, odd: one.odd, words: new Map(one.odd) }));
    this.steps = this.main.reduce((most, one) => (one.steps.length > most.length ? one.steps : most), []);
    this.value = element("span", "value");
    head.append(element("strong", "", panel.name), this.value);
    if (!panel.unit && this.main.some((one) => one.values.some((value) => value > 0))) {
      head.append(button("log", this.log, (made) => {
        this.log = !this.log;
        made.setAttribute("aria-pressed", String(this.log));
        this.draw();
      }));
    }
    shared.charts.push(this);
  }

  get left() { return 58; }
  get right() { return this.paper.size.width - (this.legend || 8); }
  get top() { return 16; }
  get about() { return this.height > 150 ? 5 : 4; }
  get bottom() { return this.paper.size.height - 18; }
  x(step) { return this.left + ((step - this.axis.low) / (this.axis.high - this.axis.low)) * (this.right - this.left); }
  step(x) { return this.axis.low + ((x - this.left) / (this.right - this.left)) * (this.axis.high - this.axis.low); }

  scaled(value) {
    if (value === null || value === undefined) return null;
    if (!this.log) return value;
    return value > 0 ? Math.log10(value) : null;
  }

  /** The places of `steps` that are in sight, and one beyond on each side. */
  seen(steps) {
    return [Math.max(place(steps, this.axis.low), 0), Math.min(place(steps, this.axis.high) + 1, steps.length - 1)];
  }

  range() {
    let low = Infinity, high = -Infinity;
    const take = (value) => {
      if (value === null) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    for (const one of this.main) {
      const [from, to] = this.seen(one.steps);
      const beside = one.band ? [one.band.low, one.band.high] : (one.lines || []).map((line) => line.values);
      for (const values of [one.values, ...beside]) for (let at = from; at <= to; at++) take(this.scaled(values[at]));
    }
    if (this.panel.unit === "share") [low, high] = [0, Math.max(1, high)];
    else if (this.panel.unit && low <= high) low = Math.min(low, 0);
    if (this.panel.level && this.panel.level.at < 1.6 * high) high = Math.max(high, this.panel.level.at);
    if (this.panel.unit && low === 0 && high > 0) high = roof(high, this.about);
    this.empty = low > high;
    if (this.empty) return [0, 1];
    const room = high === low || high - low < Math.abs(high) * 1e-9 ? Math.abs(high) * 0.1 || 1 : 0;
    return [low - room, high + room];
  }

  paint(pen) {
    this.legend = this.panel.alone ? this.room(pen) : 0;
    const [low, high] = this.range();
    const y = (value) => this.bottom - ((value - low) / (high - low)) * (this.bottom - this.top);
    this.grid(pen, y, this.empty ? null : [low, high]);
    this.marks(pen);
    pen.save();
    pen.beginPath();
    pen.rect(this.left - 4, 0, this.right - this.left + 8, this.paper.size.height);
    pen.clip();
    pen.lineJoin = "round";
    this.main.forEach((one, at) => this.series(pen, one, y, at));
    this.level(pen, y, high);
    pen.restore();
    if (this.panel.alone) this.names(pen, y);
  }

  series(pen, one, y, at) {
    if (one.band) this.band(pen, one, y);
    pen.lineWidth = 1;
    pen.strokeStyle = colour("rank");
    for (const line of one.lines || []) this.trace(pen, one.steps, line.values, y);
    pen.strokeStyle = pen.fillStyle = colour(this.panel.alone ? LINES[at % LINES.length] : "accent");
    pen.lineWidth = 1.5;
    pen.setLineDash(this.panel.alone ? DASHES[at % DASHES.length] : []);
    this.course(pen, one, y);
    pen.setLineDash([]);
    this.broken(pen, one);
  }

  /** Points denser than the screen become their envelope, with the means of stretches through it. */
  course(pen, one, y) {
    const [from, to] = this.seen(one.steps);
    if (!one.smooth || to - from < 1.5 * (this.right - this.left)) {
      this.trace(pen, one.steps, one.values, y, !this.panel.alone);
      return;
    }
    pen.globalAlpha = 0.3;
    pen.lineWidth = 1;
    this.trace(pen, one.steps, one.values, y, false);
    pen.globalAlpha = 1;
    pen.lineWidth = 1.5;
    this.trace(pen, one.smooth.steps, one.smooth.values, y, false);
  }

  trace(pen, steps, values, y, dots) {
    const [from, to] = this.seen(steps);
    let down = false;
    pen.beginPath();
    for (let at = from; at <= to; at++) {
      const value = this.scaled(values[at]);
      if (value === null) { down = false; continue; }
      if (down) pen.lineTo(this.x(steps[at]), y(value)); else pen.moveTo(this.x(steps[at]), y(value));
      down = true;
    }
    pen.stroke();
    if (!dots || to - from >= 80) return;
    for (let at = from; at <= to; at++) {
      const value = this.scaled(values[at]);
      if (value === null) continue;
      pen.beginPath();
      pen.arc(this.x(steps[at]), y(value), 2.2, 0, 7);
      pen.fill();
    }
  }

  /** From the lowest to the highest of the ranks. */
  band(pen, one, y) {
    const [from, to] = this.seen(one.steps);
    pen.fillStyle = colour("rank");
    pen.globalAlpha = 0.45;
    pen.beginPath();
    const edge = (values, at) => {
      const value = this.scaled(values[at]);
      if (value !== null) pen.lineTo(this.x(one.steps[at]), y(value));
    };
    for (let at = from; at <= to; at++) edge(one.band.high, at);
    for (let at = to; at >= from; at--) edge(one.band.low, at);
    pen.fill();
    pen.globalAlpha = 1;
  }

  level(pen, y, high) {
    if (!this.panel.level || this.panel.level.at > high) return;
    const at = y(this.panel.level.at);
    pen.strokeStyle = pen.fillStyle = colour("dim");
    pen.lineWidth = 1;
    pen.setLineDash([3, 3]);
    pen.beginPath();
    pen.moveTo(this.left, at); pen.lineTo(this.right, at);
    pen.stroke();
    pen.setLineDash([]);
    this.word(pen, this.panel.level.word, this.left + 4, at > 12 ? at - 8 : at + 8);
  }

  /** On a ground of its own, so that no line goes through it. */
  word(pen, text, x, y) {
    pen.textAlign = "left";
    pen.fillStyle = colour("ground");
    pen.fillRect(x - 3, y - 6, pen.measureText(text).width + 6, 12);
    pen.fillStyle = colour("dim");
    pen.fillText(text, x, y);
  }

  /** What the names of the lines need beside them, and no more than a third of the picture. */
  room(pen) {
    const longest = Math.max(...this.main.map((one) => pen.measureText(one.name).width));
    return Math.min(Math.ceil(longest) + 26, this.paper.size.width / 3);
  }

  /** Each line has its name at its end. */
  names(pen, y) {
    const ends = this.main.map((one, at) => {
      const [from, to] = this.seen(one.steps);
      for (let i = to; i >= from; i--) {
        const value = this.scaled(one.values[i]);
        if (value !== null) return { name: one.name, at, y: y(value) };
      }
      return null;
    }).filter(Boolean).sort((a, b) => a.y - b.y);
    let free = -Infinity;
    for (const end of ends) { end.y = Math.max(end.y, free); free = end.y + 12; }
    let most = this.bottom;
    for (const end of [...ends].reverse()) { end.y = Math.min(end.y, most); most = end.y - 12; }
    pen.textAlign = "left";
    for (const end of ends) {
      pen.strokeStyle = pen.fillStyle = colour(LINES[end.at % LINES.length]);
      pen.lineWidth = 1.5;
      pen.setLineDash(DASHES[end.at % DASHES.length]);
      pen.beginPath();
      pen.moveTo(this.right + 4, end.y); pen.lineTo(this.right + 18, end.y);
      pen.stroke();
      pen.setLineDash([]);
      pen.fillText(fittedWords(pen, end.name, this.legend - 24), this.right + 22, end.y);
    }
  }

  grid(pen, y, range) {
    pen.strokeStyle = colour("grid");
    pen.fillStyle = colour("dim");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    let lines = range ? ticks(...range, this.about) : [];
    if (range && this.log) {
      const decades = ticks(Math.ceil(range[0]), Math.floor(range[1]), 4).filter((tick) => Number.isInteger(tick));
      if (decades.length > 1) lines = decades;
    }
    for (const tick of lines) {
      pen.beginPath();
      pen.moveTo(this.left, y(tick));
      pen.lineTo(this.right, y(tick));
      pen.stroke();
      const value = this.log ? 10 ** tick : Number(tick.toPrecision(10));
      pen.fillText(this.panel.unit ? amount(value, this.panel.unit) : number(value), this.left - 8, y(tick));
    }
    pen.textAlign = "center";
    for (const tick of ticks(this.axis.low, this.axis.high, this.paper.size.width / 110)) {
      if (!Number.isInteger(tick)) continue;
      pen.fillText(whole(tick), clamp(this.x(tick), this.left + 6, this.right - 16), this.bottom + 11);
    }
  }

  /** Where findings began, and what was asked to be shown. */
  marks(pen) {
    const { top, bottom } = this;
    if (ring && ring.last >= this.axis.low && ring.first <= this.axis.high) {
      const a = clamp(this.x(ring.first), this.left, this.right) - 4;
      const b = clamp(this.x(ring.last), this.left, this.right) + 4;
      pen.globalAlpha = 0.16;
      pen.fillStyle = colour("ring");
      pen.fillRect(a, top, b - a, bottom - top);
      pen.globalAlpha = 1;
    }
    pen.strokeStyle = pen.fillStyle = colour("ring");
    pen.lineWidth = 1;
    pen.setLineDash([4, 3]);
    pen.textAlign = "left";
    let free = -Infinity;
    const seen = data.findings.filter((one) => one.step >= this.axis.low && one.step <= this.axis.high);
    for (const finding of seen.sort((a, b) => a.step - b.step)) {
      const x = this.x(finding.step), short = seen.length > 6 && finding !== data.findings[0];
      pen.beginPath();
      pen.moveTo(x, top);
      pen.lineTo(x, short ? top + 8 : bottom);
      pen.stroke();
      const wide = pen.measureText(finding.id).width, put = Math.min(x + 3, this.right - wide);
      if (put > free) { pen.fillText(finding.id, put, 7); free = put + wide + 4; }
    }
    pen.setLineDash([]);
  }

  /** Points that are not finite: crosses at the top, the first with its word. */
  broken(pen, one) {
    pen.strokeStyle = pen.fillStyle = colour("bad");
    pen.lineWidth = 1.5;
    let behind = -Infinity, named = false;
    for (const [step, word] of one.odd) {
      const x = this.x(step);
      if (x < this.left - 1 || x > this.right + 1 || x - behind < 7) continue;
      behind = x;
      cross(pen, x, this.top + 4, 3);
      if (named) continue;
      const fits = x + 44 < this.right;
      pen.textAlign = fits ? "left" : "right";
      pen.fillText(word, x + (fits ? 7 : -7), this.top + 16);
      named = true;
    }
  }

  over(pen) {
    this.value.textContent = "";
    if (this.axis.cursor !== null && this.steps.length) {
      const step = this.steps[nearest(this.steps, this.axis.cursor)];
      this.value.textContent = `${this.told(step)} in step ${whole(step)}`;
      if (step >= this.axis.low && step <= this.axis.high) {
        pen.strokeStyle = colour("dim");
        pen.lineWidth = 1;
        pen.beginPath();
        pen.moveTo(this.x(step), this.top);
        pen.lineTo(this.x(step), this.bottom);
        pen.stroke();
      }
    }
    selection(pen, this, this.top, this.bottom - this.top);
  }

  told(step) {
    const said = this.main.map((one) => {
      const at = nearest(one.steps, step), value = one.values[at];
      const shown = value === null ? one.words.get(one.steps[at]) || "-" : amount(value, this.panel.unit);
      return (this.panel.alone ? `${one.name} ${shown}` : shown) + this.among(one, at);
    });
    return said.join(" · ");
  }

  /** What the ranks say, or the two that are furthest apart. */
  among(one, at) {
    const shown = (value) => (value === null ? "not finite" : amount(value, this.panel.unit));
    if (one.lines) return ` (${one.lines.map((line) => `${line.name} ${shown(line.values[at])}`).join(", ")})`;
    if (!one.band) return "";
    const { low, high, lowest, highest } = one.band;
    return ` (rank ${lowest[at]} ${shown(low[at])} to rank ${highest[at]} ${shown(high[at])})`;
  }

  /** Draws the group again, with its lines where the axis has changed. */
  show(changed) {
    this.axis.charts.forEach((chart) => (changed ? chart.draw() : chart.refresh()));
    if (!this.axis.readout) return;
    const said = data.findings.filter((finding) => finding.step === this.axis.cursor);
    this.axis.readout.textContent = said.map((finding) => `${finding.id}: ${finding.symptom}`).join(" · ");
  }

  hover(x) {
    if (!this.steps.length) return;
    this.axis.cursor = this.steps[nearest(this.steps, this.step(clamp(x, this.left, this.right)))];
    this.show();
  }

  move(by) {
    const { steps } = this, now = this.axis.cursor === null ? this.axis.low : this.axis.cursor;
    this.axis.cursor = steps[clamp(nearest(steps, now) + by, 0, steps.length - 1)];
    this.show();
  }

  click(x) { chooseStep(this.step(x)); }
  enter() { if (this.axis.cursor !== null) chooseStep(this.axis.cursor); }
  leave() { this.axis.cursor = null; this.show(); }

  zoom(a, b) { this.within(this.step(Math.max(a, this.left)), this.step(Math.min(b, this.right))); }

  /** Half or twice as many steps, around the one that is pointed at. */
  nearer(factor) {
    const { low, high, full, cursor } = this.axis, middle = cursor === null ? (low + high) / 2 : cursor;
    const [from, to] = [middle - (middle - low) * factor, middle + (high - middle) * factor];
    this.within(Math.max(from, full[0]), Math.min(to, full[1]));
  }

  within(low, high) {
    if (high - low >= 1) Object.assign(this.axis, { low, high });
    this.show(true);
  }

  reset() { [this.axis.low, this.axis.high] = this.axis.full; this.show(true); }
}

/** Zooms to the points next to a step, however far apart a log has them. */
function around(shared, step) {
  const { steps } = shared.charts[0], at = nearest(steps, step), few = 24;
  const gaps = steps.slice(1).map((next, i) => next - steps[i]).sort((a, b) => a - b);
  const far = 8 * (gaps[gaps.length >> 1] || 1);
  const reach = (by) => {
    let end = at;
    const near = () => steps[end + by] !== undefined && Math.abs(steps[end + by] - steps[end]) <= far;
    for (let n = 0; n < few && near(); n++) end += by;
    return steps[end];
  };
  const low = reach(-1), high = reach(1);
  if (high > low) Object.assign(shared, { low, high });
}
