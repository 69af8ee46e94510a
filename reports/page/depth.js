// One step through the depth of the model: a number of each layer, the first layer on top.

const depths = [];
/** The step whose layers are shown; every picture that knows steps may choose it. */
const chosen = { step: null, control: null };

/** The column to begin with: where it began, else the first that broke, else the last. */
function firstStep(map) {
  if (data.findings.length) return data.findings[0].step;
  const broken = map.first.findIndex((_, c) => map.cells.some((row) => row[c] >= INF));
  return map.first[broken < 0 ? map.first.length - 1 : broken];
}

function chooseStep(step) {
  if (!chosen.control) return;
  const { first } = chosen.control.map;
  const at = clamp(place(first, step), 0, first.length - 1);
  chosen.step = first[at];
  chosen.control.slider.value = String(at);
  chosen.control.told.textContent = stepsOf(first[at], chosen.control.map.last[at]);
  depths.forEach((picture) => picture.draw());
  drawn.filter((picture) => picture instanceof Heat).forEach((picture) => picture.refresh());
}

/** The slider over the steps of `map`. */
function stepControl(parent, map) {
  const label = element("label", "slider", "Step"), slider = element("input"), told = element("output");
  slider.type = "range";
  slider.min = "0";
  slider.max = String(map.first.length - 1);
  slider.addEventListener("input", () => chooseStep(map.first[Number(slider.value)]));
  label.append(slider);
  parent.append(label, told);
  chosen.control = { map, slider, told };
}

class Depth extends Picture {
  /** `level` is a value to be marked, as a hundredfold logarithm; `bare` leaves the names to the picture beside it. */
  constructor(parent, map, meaning, readout, { level = null, bare = false } = {}) {
    super(parent, meaning.label.replace("by layer and step", "by layer in the chosen step"), 200);
    Object.assign(this, { map, meaning, readout, level, bare, cursor: null });
    let [least, most] = usualRange(map);
    if (level !== null) { least = Math.min(least, level - 100); most = Math.max(most, level + 100); }
    Object.assign(this, { least, most });
    this.height = map.rows.length * this.tall + 34;
    depths.push(this);
  }

  get tall() { return clamp(Math.floor(460 / this.map.rows.length), 4, 40); }
  get left() { return this.bare && this.paper.size.width < 420 ? 12 : this.paper.size.width < 300 ? 92 : 130; }
  get right() { return this.paper.size.width - 22; }
  get column() { return clamp(place(this.map.first, chosen.step), 0, this.map.first.length - 1); }
  y(row) { return 8 + (row + 0.5) * this.tall; }
  x(cell) {
    if (cell >= INF) return this.right + 10;
    const share = cell === ZERO ? 0 : clamp((cell - this.least) / (this.most - this.least), 0, 1);
    return this.left + share * (this.right - this.left);
  }

  paint(pen) {
    const bottom = 8 + this.map.rows.length * this.tall;
    this.scale(pen, bottom);
    if (this.left > 20) this.names(pen);
    const before = this.column > 0 ? 0 : -1;
    pen.setLineDash([3, 3]);
    if (before === 0) this.trace(pen, 0, "dim", 1, false);
    pen.setLineDash([]);
    this.trace(pen, this.column, "accent", 1.6, true);
  }

  scale(pen, bottom) {
    pen.strokeStyle = colour("grid");
    pen.fillStyle = colour("dim");
    pen.lineWidth = 1;
    pen.textAlign = "center";
    const about = Math.max(2, Math.floor((this.right - this.left) / 60));
    for (const tick of ticks(this.least / 100, this.most / 100, about).filter((each) => Number.isInteger(each))) {
      pen.beginPath();
      pen.moveTo(this.x(tick * 100), 8); pen.lineTo(this.x(tick * 100), bottom);
      pen.stroke();
      pen.fillText(number(10 ** tick), this.x(tick * 100), bottom + 12);
    }
    if (this.level === null) return;
    pen.strokeStyle = colour("ring");
    pen.setLineDash([4, 3]);
    pen.beginPath();
    pen.moveTo(this.x(this.level), 4); pen.lineTo(this.x(this.level), bottom);
    pen.stroke();
    pen.setLineDash([]);
  }

  names(pen) {
    const every = Math.ceil(13 / this.tall);
    pen.fillStyle = colour("dim");
    pen.textAlign = "right";
    for (let r = 0; r < this.map.rows.length; r += every) {
      pen.fillText(fitted(pen, this.map.rows[r], this.left - 14), this.left - 8, this.y(r));
    }
  }

  trace(pen, column, ink, line, dots) {
    pen.strokeStyle = pen.fillStyle = colour(ink);
    pen.lineWidth = line;
    pen.lineJoin = "round";
    pen.beginPath();
    let down = false;
    this.map.cells.forEach((row, r) => {
      const cell = row[column];
      if (cell === null || cell >= INF) { down = false; return; }
      if (down) pen.lineTo(this.x(cell), this.y(r)); else pen.moveTo(this.x(cell), this.y(r));
      down = true;
    });
    pen.stroke();
    if (!dots) return;
    this.map.cells.forEach((row, r) => {
      const cell = row[column];
      if (cell === null) return;
      if (cell >= INF) {
        pen.strokeStyle = colour("bad");
        if (this.tall >= 6 || r % 2 === 0) cross(pen, this.x(cell), this.y(r), Math.min(3, this.tall / 2 - 0.5));
        return;
      }
      pen.beginPath();
      const x = this.x(cell), y = this.y(r);
      const beyond = cell > this.most ? 4 : cell < this.least && cell !== ZERO ? -4 : 0;
      if (beyond) { pen.moveTo(x, y - 3); pen.lineTo(x + beyond, y); pen.lineTo(x, y + 3); }
      else pen.arc(x, y, this.tall > 8 ? 2.6 : 1.6, 0, 7);
      pen.fill();
    });
  }

  over(pen) {
    const { column } = this, at = this.map.first[column], steps = stepsOf(at, this.map.last[column]);
    if (this.cursor === null) {
      this.readout.textContent = column > 0 ? `Dashed: ${stepsOf(this.map.first[0], this.map.last[0])}` : "";
      return;
    }
    const cell = this.map.cells[this.cursor][column];
    const said = cell === null ? "not sampled" : cell === NAN ? "NaN" : cell === INF ? "Inf" : this.meaning.told(cell);
    this.readout.textContent = `${steps} · ${this.map.rows[this.cursor]} · ${said}`;
    pen.strokeStyle = colour("dim");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(this.left, this.y(this.cursor)); pen.lineTo(this.right, this.y(this.cursor));
    pen.stroke();
  }

  hover(_, y) {
    this.cursor = clamp(Math.floor((y - 8) / this.tall), 0, this.map.rows.length - 1);
    this.refresh();
  }

  move(across, along) {
    if (across) chooseStep(this.map.first[clamp(this.column + across, 0, this.map.first.length - 1)]);
    if (along) this.cursor = clamp((this.cursor === null ? -1 : this.cursor) + along, 0, this.map.rows.length - 1);
    this.refresh();
  }

  leave() { this.cursor = null; this.refresh(); }
  reset() { chooseStep(firstStep(this.map)); }
}
