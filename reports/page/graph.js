// The contracts and what they rest on: joined ones in layers from left to right, the others below, with their verdicts.

const VERDICTS = {
  FAIL: { mark: "✗", ink: "bad", word: "failed" }, PASS: { mark: "✓", ink: "good", word: "held" },
  VACUOUS: { mark: "○", ink: "dim", word: "vacuous: nothing was exercised" },
  NOT_EVALUATED: { mark: "–", ink: "dim", word: "not evaluated: no evidence" },
};

class Graph extends Picture {
  constructor(parent, graph, readout) {
    super(parent, "contracts by verdict, and which rest on which", 200);
    Object.assign(this, { graph, readout, cursor: null, boxes: [] });
  }

  refresh() {
    this.paper.size.width = Math.max(this.paper.canvas.clientWidth, 120);
    this.arrange();
    super.refresh();
  }

  /** Where each node lies: layers of joined nodes, rows of judged ones, and what was not evaluated as small squares. */
  arrange() {
    const wide = this.paper.size.width, columns = Math.max(Math.floor(wide / 150), 1), box = wide / columns, tall = 22;
    const nodes = this.graph.nodes.map((node, at) => ({ node, at }));
    const rows = new Map(), layers = Math.max(...nodes.map((each) => each.node.layer ?? -1)) + 1;
    const used = clamp(layers, 1, columns), apart = Math.min(wide / used, 2 * box), broad = Math.min(apart - 10, 165);
    let top = 4;
    this.boxes = [];
    for (const { node, at } of this.untangled(nodes.filter((each) => each.node.layer !== null))) {
      const column = Math.min(node.layer, used - 1), row = rows.get(column) || 0;
      rows.set(column, row + 1);
      this.boxes[at] = { x: column * apart, y: 4 + row * tall, wide: broad, tall: 18 };
      top = Math.max(top, 4 + (row + 1) * tall);
    }
    this.splits = [];
    const lay = (some, across, by, size) => {
      if (!some.length) return;
      if (this.boxes.some(Boolean)) { this.splits.push(top + 5); top += 12; }
      some.forEach(({ at }, n) => {
        this.boxes[at] = { x: (n % across) * by, y: top + Math.floor(n / across) * tall, ...size };
      });
      top += Math.ceil(some.length / across) * tall;
    };
    const alone = nodes.filter((each) => each.node.layer === null);
    lay(alone.filter((each) => each.node.verdict !== "NOT_EVALUATED"), columns, box, { wide: box - 10, tall: 18 });
    const squares = alone.filter((each) => each.node.verdict === "NOT_EVALUATED");
    lay(squares, Math.max(Math.floor(wide / 20), 1), 20, { wide: 16, tall: 16 });
    this.height = top + 6;
  }

  /** Layer by layer, each node beside the middle of what it rests on, so that few lines cross. */
  untangled(joined) {
    const rows = new Map(), layers = Math.max(...joined.map((each) => each.node.layer), -1) + 1, ordered = [];
    for (let layer = 0; layer < layers; layer++) {
      const own = joined.filter((each) => each.node.layer === layer).map((each, place) => {
        const bases = this.graph.edges.filter(([, above]) => above === each.at).map(([base]) => rows.get(base));
        return { ...each, place: bases.length ? bases.reduce((sum, row) => sum + row, 0) / bases.length : place };
      });
      own.sort((one, other) => one.place - other.place);
      own.forEach((each, row) => rows.set(each.at, row));
      ordered.push(...own);
    }
    return ordered;
  }

  paint(pen) {
    const broken = (at) => this.graph.nodes[at].verdict === "FAIL";
    for (const [base, above] of this.graph.edges) {
      this.edge(pen, this.boxes[base], this.boxes[above], broken(base) && broken(above) ? "bad" : "line");
    }
    pen.fillStyle = colour("line");
    this.splits.forEach((y) => pen.fillRect(0, y, this.paper.size.width, 1));
    this.graph.nodes.forEach((node, at) => this.node(pen, node, this.boxes[at], false));
  }

  edge(pen, from, to, ink) {
    const x = from.x + from.wide, y = from.y + from.tall / 2, a = to.x, b = to.y + to.tall / 2;
    pen.strokeStyle = pen.fillStyle = colour(ink);
    pen.lineWidth = ink === "line" ? 1.2 : 1.8;
    pen.beginPath();
    if (a > x) {
      pen.moveTo(x, y);
      pen.bezierCurveTo((x + a) / 2, y, (x + a) / 2, b, a - 4, b);
    } else {
      pen.moveTo(from.x + from.wide / 2, from.y + from.tall);
      pen.lineTo(to.x + to.wide / 2, to.y);
    }
    pen.stroke();
    if (a <= x) return;
    pen.beginPath();
    pen.moveTo(a, b); pen.lineTo(a - 6, b - 3); pen.lineTo(a - 6, b + 3);
    pen.fill();
  }

  node(pen, node, { x, y, wide, tall }, strong) {
    const { mark, ink } = VERDICTS[node.verdict];
    pen.fillStyle = colour(node.verdict === "FAIL" ? "broken" : "raised");
    pen.strokeStyle = colour(strong ? "accent" : node.verdict === "NOT_EVALUATED" ? "line" : ink);
    pen.lineWidth = strong ? 2 : 1;
    pen.setLineDash(node.verdict === "VACUOUS" ? [3, 2] : []);
    pen.beginPath();
    pen.roundRect(x + 0.5, y + 0.5, wide, tall, 4);
    pen.fill();
    pen.stroke();
    pen.setLineDash([]);
    pen.textAlign = "left";
    pen.fillStyle = colour(ink);
    pen.fillText(mark, x + (wide > 20 ? 6 : 5), y + tall / 2 + 1);
    if (wide <= 20) return;
    pen.fillStyle = colour(node.verdict === "NOT_EVALUATED" ? "dim" : "ink");
    const told = node.finding ? `${node.id} ${node.finding}` : node.id;
    pen.fillText(fitted(pen, told, wide - 24), x + 19, y + tall / 2 + 1);
  }

  over(pen) {
    if (this.cursor === null) {
      const count = (verdict) => this.graph.nodes.filter((node) => node.verdict === verdict).length;
      this.readout.textContent = Object.entries(VERDICTS).filter(([verdict]) => count(verdict))
        .map(([verdict, { mark, word }]) => `${mark} ${count(verdict)} ${word.split(":")[0]}`).join(" · ");
      return;
    }
    const node = this.graph.nodes[this.cursor], { edges, nodes } = this.graph;
    for (const [base, above] of edges.filter((edge) => edge.includes(this.cursor))) {
      this.edge(pen, this.boxes[base], this.boxes[above], "accent");
    }
    this.node(pen, node, this.boxes[this.cursor], true);
    const rests = edges.filter(([, above]) => above === this.cursor).map(([base]) => nodes[base].id);
    const bears = edges.filter(([base]) => base === this.cursor).map(([, above]) => nodes[above].id);
    const said = [
      `${node.id} ${VERDICTS[node.verdict].word}`, node.says,
      rests.length ? `rests on ${rests.join(", ")}` : "", bears.length ? `bears ${bears.join(", ")}` : "",
    ];
    this.readout.textContent = said.filter(Boolean).join(" · ");
  }

  hover(x, y) {
    const inside = (box) => x >= box.x && x <= box.x + box.wide && y >= box.y && y <= box.y + box.tall;
    const at = this.boxes.findIndex(inside);
    this.cursor = at < 0 ? null : at;
    this.refresh();
  }

  /** To the next node in reading order, or to the nearest one above or below. */
  move(across, along) {
    if (this.cursor === null) { this.cursor = 0; this.refresh(); return; }
    if (across) this.cursor = clamp(this.cursor + across, 0, this.boxes.length - 1);
    else {
      const from = this.boxes[this.cursor], far = (box) => 4 * Math.abs(box.y - from.y) + Math.abs(box.x - from.x);
      const there = this.boxes.map((box, at) => [box, at]).filter(([box]) => (box.y - from.y) * along > 0);
      if (there.length) this.cursor = there.reduce((best, each) => (far(each[0]) < far(best[0]) ? each : best))[1];
    }
    this.refresh();
  }

  click() { this.enter(); }

  /** Goes to the contract's row in the table. */
  enter() {
    if (this.cursor === null) return;
    const { id } = this.graph.nodes[this.cursor];
    document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
    const row = [...document.querySelectorAll("tr[data-contract]")].find((one) => one.dataset.contract === id);
    if (!row) return;
    const folded = row.closest("details");
    if (folded) folded.open = true;
    row.classList.add("chosen");
    row.scrollIntoView({ block: "center" });
  }

  leave() { this.cursor = null; this.refresh(); }
}
