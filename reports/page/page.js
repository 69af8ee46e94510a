// Draws the pictures of the page. Reads the JSON in #data; asks nobody for anything; writes text only as text.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NAN = 99999, INF = 99998, ZERO = -99999, FEW = 24;
  const root = document.documentElement;
  const drawn = [];
  let ring = data.findings.length
    ? { first: data.findings[0].step, last: data.findings[0].step, brick: data.findings[0].brick }
    : null;

  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const whole = (value) => value.toLocaleString("en-US");
  const redraw = () => drawn.forEach((picture) => picture.draw());

  function number(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace(/\.?0+e/, "e");
    return String(Number(value.toPrecision(5)));
  }

  function element(tag, kind, text) {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    if (text) made.textContent = text;
    return made;
  }

  /** A canvas as wide as its place, sharp on every screen. */
  function surface(parent, label, height) {
    const canvas = element("canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    parent.append(canvas);
    const size = { width: 0, height };
    const pen = canvas.getContext("2d");
    const begin = (tall) => {
      const sharp = window.devicePixelRatio || 1;
      size.width = Math.max(canvas.clientWidth, 120);
      size.height = tall || height;
      canvas.style.height = size.height + "px";
      canvas.width = Math.round(size.width * sharp);
      canvas.height = Math.round(size.height * sharp);
      pen.setTransform(sharp, 0, 0, sharp, 0, 0);
      pen.clearRect(0, 0, size.width, size.height);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      return pen;
    };
    return { canvas, size, begin };
  }

  /** Dragging, hovering and keys, the same for every picture; `span` is what a drag has marked so far. */
  function handle(picture, canvas) {
    let from = null;
    const at = (event) => event.clientX - canvas.getBoundingClientRect().left;
    const y = (event) => event.clientY - canvas.getBoundingClientRect().top;
    canvas.addEventListener("pointerdown", (event) => {
      from = at(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      picture.marked = from !== null && Math.abs(at(event) - from) > 3 ? [from, at(event)] : null;
      picture.hover(at(event), y(event));
    });
    canvas.addEventListener("pointerup", () => {
      const marked = picture.marked;
      from = picture.marked = null;
      if (marked && Math.abs(marked[1] - marked[0]) > 6) picture.zoom(Math.min(...marked), Math.max(...marked));
    });
    canvas.addEventListener("pointercancel", () => { from = picture.marked = null; });
    canvas.addEventListener("pointerleave", () => { if (from === null) picture.leave(); });
    canvas.addEventListener("dblclick", () => picture.reset());
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (moves[event.key]) picture.move(...moves[event.key]);
      else if (event.key === "Escape") picture.reset();
      else return;
      event.preventDefault();
    });
  }

  function selection(pen, picture, top, height) {
    if (!picture.marked) return;
    pen.globalAlpha = 0.15;
    pen.fillStyle = colour("accent");
    pen.fillRect(picture.marked[0], top, picture.marked[1] - picture.marked[0], height);
    pen.globalAlpha = 1;
  }

  // -- lines over steps

  /** The steps that a group of charts shows together, and the one that is pointed at. */
  function axis(series, readout) {
    const firsts = series.map((one) => one.steps[0]), lasts = series.map((one) => one.steps[one.steps.length - 1]);
    const full = [Math.min(...firsts), Math.max(...lasts)];
    if (full[0] === full[1]) full[1] += 1;
    return { full, low: full[0], high: full[1], cursor: null, charts: [], readout };
  }

  /** The place in `steps` of the last one that is not behind `step`. */
  function place(steps, step) {
    let low = 0, high = steps.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  function nearest(steps, step) {
    const left = clamp(place(steps, step), 0, steps.length - 1), right = Math.min(left + 1, steps.length - 1);
    return Math.abs(steps[right] - step) < Math.abs(steps[left] - step) ? right : left;
  }

  function ticks(low, high, about) {
    const raw = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(raw));
    const by = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= raw) || raw;
    const found = [];
    for (let tick = Math.ceil(low / by) * by; tick <= high + by / 1e6; tick += by) found.push(tick);
    return found;
  }

  class Chart {
    constructor(parent, series, shared, height) {
      this.series = series;
      this.axis = shared;
      this.log = series.log;
      this.odd = new Map(series.odd);
      const frame = element("div", "plot"), head = element("div", "head");
      this.value = element("span", "value");
      head.append(element("strong", "", series.name), this.value);
      if (series.values.some((value) => value > 0)) {
        const scale = element("button", "", "log");
        scale.type = "button";
        scale.setAttribute("aria-pressed", String(this.log));
        scale.addEventListener("click", () => {
          this.log = !this.log;
          scale.setAttribute("aria-pressed", String(this.log));
          this.draw();
        });
        head.append(scale);
      }
      frame.append(head);
      this.paper = surface(frame, `${series.name} by step`, height);
      parent.append(frame);
      handle(this, this.paper.canvas);
      shared.charts.push(this);
      drawn.push(this);
    }

    get left() { return 58; }
    get right() { return this.paper.size.width - 8; }
    x(step) { return this.left + ((step - this.axis.low) / (this.axis.high - this.axis.low)) * (this.right - this.left); }
    step(x) { return this.axis.low + ((x - this.left) / (this.right - this.left)) * (this.axis.high - this.axis.low); }

    draw() {
      const pen = this.paper.begin(), { steps, values } = this.series;
      const top = 16, bottom = this.paper.size.height - 18;
      const from = Math.max(place(steps, this.axis.low), 0);
      const to = Math.min(place(steps, this.axis.high) + 1, steps.length - 1);
      const scaled = (value) => (this.log ? (value > 0 ? Math.log10(value) : null) : value);
      let low = Infinity, high = -Infinity;
      for (let at = from; at <= to; at++) {
        const value = values[at] === null ? null : scaled(values[at]);
        if (value === null) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
      const empty = low > high;
      if (empty) [low, high] = [0, 1];
      if (high - low < Math.abs(high) * 1e-9 || high === low) [low, high] = [low - (Math.abs(low) * 0.1 || 1), high + (Math.abs(high) * 0.1 || 1)];
      const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
      this.grid(pen, y, empty ? null : [low, high], bottom);
      this.marks(pen, top, bottom);
      pen.save();
      pen.beginPath();
      pen.rect(this.left - 4, 0, this.right - this.left + 8, this.paper.size.height);
      pen.clip();
      pen.strokeStyle = pen.fillStyle = colour("accent");
      pen.lineWidth = 1.4;
      pen.lineJoin = "round";
      pen.beginPath();
      let down = false;
      for (let at = from; at <= to; at++) {
        const value = values[at] === null ? null : scaled(values[at]);
        if (value === null) { down = false; continue; }
        if (down) pen.lineTo(this.x(steps[at]), y(value)); else pen.moveTo(this.x(steps[at]), y(value));
        down = true;
      }
      pen.stroke();
      if (to - from < 80) {
        for (let at = from; at <= to; at++) {
          const value = values[at] === null ? null : scaled(values[at]);
          if (value === null) continue;
          pen.beginPath();
          pen.arc(this.x(steps[at]), y(value), 2.2, 0, 7);
          pen.fill();
        }
      }
      this.broken(pen, top);
      pen.restore();
      this.pointed(pen, top, bottom);
      selection(pen, this, top, bottom - top);
    }

    grid(pen, y, range, bottom) {
      pen.strokeStyle = colour("grid");
      pen.fillStyle = colour("dim");
      pen.lineWidth = 1;
      pen.textAlign = "right";
      let lines = range ? ticks(...range, 3) : [];
      if (range && this.log) {
        const decades = ticks(Math.ceil(range[0]), Math.floor(range[1]), 4).filter((tick) => Number.isInteger(tick));
        if (decades.length > 1) lines = decades;
      }
      for (const tick of lines) {
        pen.beginPath();
        pen.moveTo(this.left, y(tick));
        pen.lineTo(this.right, y(tick));
        pen.stroke();
        pen.fillText(number(this.log ? 10 ** tick : Number(tick.toPrecision(10))), this.left - 8, y(tick));
      }
      pen.textAlign = "center";
      for (const tick of ticks(this.axis.low, this.axis.high, this.paper.size.width / 110)) {
        if (Number.isInteger(tick)) pen.fillText(whole(tick), clamp(this.x(tick), this.left + 6, this.right - 16), bottom + 11);
      }
    }

    /** Where findings began, and what was asked to be shown. */
    marks(pen, top, bottom) {
      if (ring && ring.last >= this.axis.low && ring.first <= this.axis.high) {
        const a = clamp(this.x(ring.first), this.left, this.right) - 4, b = clamp(this.x(ring.last), this.left, this.right) + 4;
        pen.globalAlpha = 0.16;
        pen.fillStyle = colour("ring");
        pen.fillRect(a, top, b - a, bottom - top);
        pen.globalAlpha = 1;
      }
      pen.strokeStyle = pen.fillStyle = colour("ring");
      pen.setLineDash([4, 3]);
      pen.textAlign = "left";
      let free = -Infinity;
      for (const finding of [...data.findings].sort((a, b) => a.step - b.step)) {
        if (finding.step < this.axis.low || finding.step > this.axis.high) continue;
        const x = this.x(finding.step);
        pen.beginPath();
        pen.moveTo(x, top);
        pen.lineTo(x, bottom);
        pen.stroke();
        const wide = pen.measureText(finding.id).width, put = Math.min(x + 3, this.right - wide);
        if (put > free) { pen.fillText(finding.id, put, 7); free = put + wide + 4; }
      }
      pen.setLineDash([]);
    }

    /** Points that are not finite: crosses at the top, the first with its word. */
    broken(pen, top) {
      pen.strokeStyle = pen.fillStyle = colour("bad");
      pen.lineWidth = 1.5;
      let behind = -Infinity, named = false;
      for (const [step, word] of this.series.odd) {
        const x = this.x(step);
        if (x < this.left - 1 || x > this.right + 1 || x - behind < 3) continue;
        behind = x;
        pen.beginPath();
        pen.moveTo(x - 3, top + 1); pen.lineTo(x + 3, top + 7);
        pen.moveTo(x + 3, top + 1); pen.lineTo(x - 3, top + 7);
        pen.stroke();
        if (named) continue;
        const fits = x + 44 < this.right;
        pen.textAlign = fits ? "left" : "right";
        pen.fillText(word, x + (fits ? 7 : -7), top + 16);
        named = true;
      }
    }

    pointed(pen, top, bottom) {
      this.value.textContent = "";
      if (this.axis.cursor === null) return;
      const at = nearest(this.series.steps, this.axis.cursor), step = this.series.steps[at];
      this.value.textContent = `${this.told(at)} in step ${whole(step)}`;
      if (step < this.axis.low || step > this.axis.high) return;
      pen.strokeStyle = colour("dim");
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(this.x(step), top);
      pen.lineTo(this.x(step), bottom);
      pen.stroke();
    }

    told(at) {
      const value = this.series.values[at];
      return value === null ? this.odd.get(this.series.steps[at]) || "-" : number(value);
    }

    show() {
      this.axis.charts.forEach((chart) => chart.draw());
      if (!this.axis.readout) return;
      const said = data.findings.filter((finding) => finding.step === this.axis.cursor);
      this.axis.readout.textContent = said.map((finding) => `${finding.id}: ${finding.symptom}`).join(" · ");
    }

    hover(x) {
      const step = this.series.steps[nearest(this.series.steps, this.step(clamp(x, this.left, this.right)))];
      this.axis.cursor = step;
      this.show();
    }

    move(by) {
      const { steps } = this.series, now = this.axis.cursor === null ? this.axis.low : this.axis.cursor;
      this.axis.cursor = steps[clamp(nearest(steps, now) + by, 0, steps.length - 1)];
      this.show();
    }

    leave() { this.axis.cursor = null; this.show(); }
    zoom(a, b) {
      const low = this.step(Math.max(a, this.left)), high = this.step(Math.min(b, this.right));
      if (high - low >= 1) Object.assign(this.axis, { low, high });
      this.show();
    }
    reset() { [this.axis.low, this.axis.high] = this.axis.full; this.show(); }
  }

  // -- layers over steps

  class Heat {
    constructor(parent, map, readout) {
      Object.assign(this, { map, readout, low: 0, high: map.first.length, cursor: null });
      const values = map.cells.flat().filter((cell) => cell !== null && cell !== ZERO && cell < INF);
      this.least = values.reduce((a, b) => Math.min(a, b), Infinity);
      this.most = values.reduce((a, b) => Math.max(a, b), -Infinity);
      if (this.least > this.most) [this.least, this.most] = [0, 100];
      if (this.most - this.least < 100) this.most = this.least + 100;
      this.broken = [];
      map.cells.forEach((row, r) => row.forEach((cell, c) => { if (cell >= INF) this.broken.push([r, c]); }));
      this.paper = surface(parent, "log10 of the gradient's norm by layer and step", 300);
      handle(this, this.paper.canvas);
      drawn.push(this);
    }

    get tall() { return clamp(Math.floor(460 / this.map.rows.length), 4, 40); }
    get left() { return this.paper.size.width < 480 ? 92 : 150; }
    get right() { return this.paper.size.width - 8; }
    get wide() { return (this.right - this.left) / (this.high - this.low); }
    y(row) { return 8 + row * this.tall; }
    x(column) { return this.left + (column - this.low) * this.wide; }
    column(x) { return clamp(Math.floor(this.low + (x - this.left) / this.wide), this.low, this.high - 1); }

    ramp() {
      const stops = [0, 1, 2, 3, 4].map((at) => colour("heat" + at)).map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
      return Array.from({ length: 65 }, (_, at) => {
        const where = (at / 64) * 4, low = Math.min(Math.floor(where), 3), part = where - low;
        return `rgb(${stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * part)).join(",")})`;
      });
    }

    draw() {
      this.painted = null;
      this.refresh();
    }

    /** Draws what changes with the pointer; the cells are painted once for each size, zoom and theme. */
    refresh() {
      const height = this.map.rows.length * this.tall, pen = this.paper.begin(height + 70);
      if (!this.painted) this.painted = this.paint(height);
      pen.drawImage(this.painted, 0, 8, this.paper.size.width, height);
      this.labels(pen, height);
      this.crosses(pen);
      this.ringed(pen, height);
      this.pointed(pen);
      this.legend(pen, this.ramp(), height + 42);
      selection(pen, this, 8, height);
    }

    paint(height) {
      const sheet = document.createElement("canvas"), pen = sheet.getContext("2d");
      const sharp = window.devicePixelRatio || 1, ramp = this.ramp(), broken = colour("broken"), { tall } = this;
      sheet.width = Math.round(this.paper.size.width * sharp);
      sheet.height = Math.round(height * sharp);
      pen.setTransform(sharp, 0, 0, sharp, 0, 0);
      this.map.cells.forEach((cells, r) => {
        for (let c = this.low; c < this.high; c++) {
          const cell = cells[c];
          if (cell === null) continue;
          const share = cell === ZERO ? 0 : (cell - this.least) / (this.most - this.least);
          pen.fillStyle = cell >= INF ? broken : ramp[Math.round(clamp(share, 0, 1) * 64)];
          const x = Math.floor(this.x(c));
          pen.fillRect(x, r * tall, Math.ceil(this.x(c + 1)) - x, tall > 8 ? tall - 1 : tall);
        }
      });
      return sheet;
    }

    labels(pen, height) {
      const every = Math.ceil(13 / this.tall);
      pen.fillStyle = colour("dim");
      pen.textAlign = "right";
      for (let r = 0; r < this.map.rows.length; r += every) {
        pen.fillText(this.fitted(pen, this.map.rows[r], this.left - 14), this.left - 8, this.y(r) + this.tall / 2);
      }
      pen.textAlign = "center";
      const count = Math.max(2, Math.floor((this.right - this.left) / 90));
      const seen = new Set();
      for (let at = 0; at < count; at++) {
        const c = Math.round(this.low + (at / (count - 1)) * (this.high - 1 - this.low));
        if (seen.has(c)) continue;
        seen.add(c);
        pen.fillText(whole(this.map.first[c]), clamp(this.x(c + 0.5), this.left + 8, this.right - 14), height + 20);
      }
    }

    /** The end of a long name says more than its beginning. */
    fitted(pen, name, width) {
      if (pen.measureText(name).width <= width) return name;
      let kept = name.slice(-60);
      while (kept.length > 1 && pen.measureText("…" + kept).width > width) kept = kept.slice(1);
      return "…" + kept;
    }

    /** Colour alone says nothing: what is not finite has a cross, where crosses can be told apart. */
    crosses(pen) {
      pen.strokeStyle = colour("bad");
      pen.lineWidth = 1.2;
      let row = -1, behind = -Infinity;
      for (const [r, c] of this.broken) {
        if (c < this.low || c >= this.high) continue;
        const x = this.x(c + 0.5), y = this.y(r) + (this.tall - 1) / 2, half = Math.min(3.5, this.tall / 2 - 1);
        if (r === row && x - behind < 2 * half + 3) continue;
        [row, behind] = [r, x];
        pen.beginPath();
        pen.moveTo(x - half, y - half); pen.lineTo(x + half, y + half);
        pen.moveTo(x + half, y - half); pen.lineTo(x - half, y + half);
        pen.stroke();
      }
    }

    /** The rows that a brick names: itself, what holds it, or what it holds. */
    rowsOf(brick) {
      const found = [];
      this.map.rows.forEach((row, at) => {
        if (brick && (row === brick || brick.startsWith(row + ".") || row.startsWith(brick + "."))) found.push(at);
      });
      return found.length ? [found[0], found[found.length - 1]] : [0, this.map.rows.length - 1];
    }

    /** The first and the last column that hold one of these steps; the first behind the last where none does. */
    columnsOf({ first, last }) {
      const from = place(this.map.first, first), inside = from >= 0 && this.map.last[from] >= first;
      return [inside ? from : from + 1, place(this.map.first, last)];
    }

    ringed(pen, height) {
      if (!ring) return;
      const [top, bottom] = this.rowsOf(ring.brick);
      const [a, b] = this.columnsOf(ring);
      if (a > b || b < this.low || a >= this.high) return;
      let x = this.x(Math.max(a, this.low)), wide = this.x(Math.min(b + 1, this.high)) - x, y = this.y(top);
      let tall = (bottom - top + 1) * this.tall - 1;
      if (wide < 12) { x -= (12 - wide) / 2; wide = 12; }
      if (tall < 12) { y -= (12 - tall) / 2; tall = 12; }
      x = Math.min(x, this.right - wide + 4);
      y = clamp(y, 3, Math.max(height + 8 - tall, 3));
      for (const [line, ink] of [[5, "ground"], [2.5, "ring"]]) {
        pen.lineWidth = line;
        pen.strokeStyle = colour(ink);
        pen.beginPath();
        pen.roundRect(x - 1.5, y - 0.5, wide + 3, tall + 2, 4);
        pen.stroke();
      }
    }

    pointed(pen) {
      if (!this.cursor) { this.readout.textContent = this.rest(); return; }
      const [r, c] = this.cursor, { first, last, rows, cells } = this.map, cell = cells[r][c];
      const size = cell === null ? "not sampled" : cell === NAN ? "NaN" : cell === INF ? "Inf" : cell === ZERO ? "|grad| 0" : `|grad| ${number(10 ** (cell / 100))}`;
      const steps = first[c] === last[c] ? `step ${whole(first[c])}` : `steps ${whole(first[c])}-${whole(last[c])}`;
      this.readout.textContent = `${steps} · ${rows[r]} · ${size}`;
      pen.strokeStyle = colour("ink");
      pen.lineWidth = 1;
      pen.strokeRect(this.x(c) - 0.5, this.y(r) - 0.5, Math.max(this.wide, 3) + 1, this.tall);
    }

    rest() {
      if (!ring) return "";
      const steps = ring.first === ring.last ? `step ${whole(ring.first)}` : `steps ${whole(ring.first)}-${whole(ring.last)}`;
      const [a, b] = this.columnsOf(ring);
      if (a > b) return `No gradients were sampled in ${steps}.`;
      return `Ringed: ${ring.brick ? ring.brick + ", " : ""}${steps}`;
    }

    legend(pen, ramp, top) {
      const wide = Math.min(160, (this.right - this.left) / 2.5);
      ramp.forEach((ink, at) => {
        pen.fillStyle = ink;
        pen.fillRect(this.left + (at / 65) * wide, top, wide / 65 + 1, 9);
      });
      pen.fillStyle = colour("dim");
      pen.textAlign = "left";
      pen.fillText(number(Number((10 ** (this.least / 100)).toPrecision(2))), this.left, top + 18);
      pen.textAlign = "right";
      pen.fillText(number(Number((10 ** (this.most / 100)).toPrecision(2))), this.left + wide, top + 18);
      if (!this.broken.length) return;
      const x = this.left + wide + 22;
      pen.fillStyle = colour("broken");
      pen.fillRect(x, top - 1, 11, 11);
      pen.strokeStyle = colour("bad");
      pen.lineWidth = 1.4;
      pen.beginPath();
      pen.moveTo(x + 2.5, top + 1.5); pen.lineTo(x + 8.5, top + 7.5);
      pen.moveTo(x + 8.5, top + 1.5); pen.lineTo(x + 2.5, top + 7.5);
      pen.stroke();
      pen.fillStyle = colour("dim");
      pen.textAlign = "left";
      pen.fillText("NaN or Inf", x + 17, top + 5);
    }

    hover(x, y) {
      this.cursor = [clamp(Math.floor((y - 8) / this.tall), 0, this.map.rows.length - 1), this.column(x)];
      this.refresh();
    }

    move(across, along) {
      const [r, c] = this.cursor || [this.rowsOf(ring && ring.brick)[0], this.low];
      this.cursor = [clamp(r + along, 0, this.map.rows.length - 1), clamp(c + across, this.low, this.high - 1)];
      this.refresh();
    }

    leave() { this.cursor = null; this.refresh(); }
    zoom(a, b) {
      const low = this.column(Math.max(a, this.left)), high = this.column(Math.min(b, this.right)) + 1;
      if (high - low >= 2) [this.low, this.high] = [low, high];
      this.draw();
    }
    reset() { [this.low, this.high] = [0, this.map.first.length]; this.draw(); }
  }

  // -- the page

  /** Zooms to the points next to a step, however far apart a log has them. */
  function around(shared, step) {
    const { steps } = shared.charts[0].series, at = nearest(steps, step);
    const gaps = steps.slice(1).map((next, i) => next - steps[i]).sort((a, b) => a - b);
    const far = 8 * (gaps[gaps.length >> 1] || 1);
    const reach = (by) => {
      let end = at;
      for (let n = 0; n < FEW && steps[end + by] !== undefined && Math.abs(steps[end + by] - steps[end]) <= far; n++) end += by;
      return steps[end];
    };
    const low = reach(-1), high = reach(1);
    if (high > low) Object.assign(shared, { low, high });
  }

  function build() {
    const heat = document.getElementById("heat"), proof = document.getElementById("proof");
    const course = document.getElementById("curves");
    if (heat) new Heat(heat, data.heat, heat.parentElement.querySelector(".readout"));
    if (proof) {
      const chosen = data.curves.filter((one, at) => at === 0 || one.name.startsWith("|grad|")).slice(0, 2);
      const shared = axis(chosen, proof.parentElement.querySelector(".readout"));
      chosen.forEach((one) => new Chart(proof, one, shared, chosen.length > 1 ? 180 : 260));
      if (data.findings.length) around(shared, data.findings[0].step);
    }
    if (course) {
      const shared = axis(data.curves, course.parentElement.querySelector(".readout"));
      data.curves.forEach((one, at) => new Chart(course, one, shared, at ? 110 : 180));
      document.getElementById("whole").addEventListener("click", () => shared.charts[0].reset());
    }
  }

  function choose(button) {
    document.querySelectorAll(".why.chosen").forEach((card) => card.classList.remove("chosen"));
    document.querySelectorAll("button.ring").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    button.closest(".why").classList.add("chosen");
    ring = { first: Number(button.dataset.first), last: Number(button.dataset.last), brick: button.dataset.brick };
    redraw();
    const picture = document.querySelector(".picture") || document.getElementById("course");
    if (picture) picture.scrollIntoView({ block: "nearest" });
  }

  function theme() {
    const button = document.getElementById("theme"), dark = window.matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
    const name = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      name();
      redraw();
    });
    dark.addEventListener("change", () => { name(); redraw(); });
    name();
  }

  build();
  theme();
  document.querySelectorAll("button.ring").forEach((button) => {
    if (!drawn.length) button.hidden = true;
    button.addEventListener("click", () => choose(button));
  });
  redraw();
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(redraw);
  });
  window.addEventListener("beforeprint", redraw);
})();
