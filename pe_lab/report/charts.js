// The charts: rows for Vega-Lite as the filters select them, drawn one at a time when idle.
(() => {
  "use strict";
  const { sections, metrics, state, matching, shownSplits } = window.report;
  const DEFAULT_COLOURED = 6;  // settings, if none is chosen
  const SHAPES = {
    circle: "M0 -5A5 5 0 1 1 0 5A5 5 0 1 1 0 -5Z",
    square: "M-4.5 -4.5H4.5V4.5H-4.5Z",
    "triangle-up": "M0 -5L5.5 4.5H-5.5Z",
    diamond: "M0 -6L5 0L0 6L-5 0Z",
    cross: "M-2 -6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
    "triangle-down": "M0 5L5.5 -4.5H-5.5Z",
    "triangle-right": "M5 0L-4.5 5.5V-5.5Z",
    "triangle-left": "M-5 0L4.5 5.5V-5.5Z",
  };
  const NAMES = Object.keys(SHAPES);
  const BANDS = { interval: "the 95 % interval (Student's t; none for one seed or two clusters)", range: "the range of the seeds" };
  const slots = sections.map(() => new Map());
  const views = new Map();
  const waiting = [];
  let drawing = false;

  // place -> number of its colour; a setting keeps its colour while it is coloured.
  function coloured(number) {
    const section = sections[number];
    const filtered = state.pe.length || state.find;
    const left = new Set(matching(section));
    const places = section.order.filter((place) => left.has(place))
      .slice(0, filtered ? NAMES.length : DEFAULT_COLOURED);
    const before = slots[number];
    const kept = new Map(places.filter((p) => before.has(p)).map((p) => [p, before.get(p)]));
    const free = [...NAMES.keys()].filter((slot) => ![...kept.values()].includes(slot));
    for (const place of places) if (!kept.has(place)) kept.set(place, free.shift());
    slots[number] = kept;
    return new Map(places.map((place) => [place, kept.get(place)]));
  }

  function limits(band, unit, cap) {
    const [low, high] = { interval: [1, 2], range: [3, 4] }[state.band] ?? [0, 0];
    const within = (value) => Math.min(cap, Math.max(0, unit * (value ?? band[0])));
    return [within(band[low]), within(band[high])];
  }

  function digits(value) {
    return value === 0 ? "0" : String(Number(value.toPrecision(3)));
  }

  // The metric that a group shows: the chosen one, if it has been measured for it.
  function metricOf(group) {
    return group.metrics.includes(state.metric) ? state.metric : group.metrics[0];
  }

  // Those of the point; or those of the setting at its split, or on average.
  function bandOf(section, [place, , split, bands], metric) {
    if (bands) return bands[metric];
    const setting = section.settings[place];
    return split ? setting.cells[metric][section.splits.indexOf(split)] : setting.ood[metric];
  }

  function panelRows(section, group, panel, colours) {
    const metric = metricOf(group);
    const [unit, cap] = metrics[metric].unit === "share" ? [100, 100] : [1, Infinity];
    const splits = shownSplits(section);
    if (panel.split && !splits.includes(panel.split)) return [];
    const rows = [];
    for (const point of panel.points) {
      const [place, x, split] = point;
      const band = bandOf(section, point, metric);
      if (!band || (split && !splits.includes(split))) continue;
      const chosen = colours.has(place);
      if (!chosen && state.others) continue;
      const [low, high] = limits(band, unit, cap);
      const slot = colours.get(place);
      const y = unit * band[0];
      const half = band[2] === null ? "" : ` ± ${digits(unit * (band[2] - band[0]))}`;
      const rate = band[7] ? `, ${band[7]}, median ${digits(unit * band[6])}` : "";
      const y_text = `${digits(y)}${half} (${band[5]} seed${band[5] === 1 ? "" : "s"}${rate})`;
      // Bands of curves have no values of single seeds.
      const seeds = chosen && band[5] > 1 ? (band[8] ?? []).map((value) => unit * value) : [];
      const x_text = typeof x === "number" ? digits(x) : x;
      rows.push({
        label: section.settings[place].label, x, y, low, high, chosen,
        colour: chosen ? `var(--c${slot + 1})` : null, shape: chosen ? NAMES[slot] : null,
        seeds, y_text, x_text, split: split ?? panel.split,
        label_text: `${section.settings[place].label}, ${x_text}: ${y_text}`,
      });
    }
    // A single point is no curve, and grey lines alone answer nothing.
    const xs = new Set(rows.filter((row) => row.chosen).map((row) => row.x));
    return xs.size < (group.name.startsWith("against-") ? 2 : 1) ? [] : rows;
  }

  function legend(element, section, colours, rest) {
    const list = element.querySelector(".legend");
    list.replaceChildren(...[...colours].map(([place, slot]) => {
      const item = document.createElement("li");
      item.innerHTML = `<svg viewBox="-7 -7 14 14" aria-hidden="true">
        <path d="${SHAPES[NAMES[slot]]}" fill="var(--c${slot + 1})"/></svg>`;
      const { pe, label, seeds } = section.settings[place];
      const suffix = document.createElement("small");
      suffix.textContent = ` n=${seeds}${label.slice(pe.length)}`;
      item.title = label;
      item.append(pe, suffix);
      return item;
    }));
    const grey = rest && !state.others ? `; the other ${rest} in grey` : "";
    const which = matching(section).length > colours.size
      ? `Coloured in the charts: ${colours.size} from the best, first those with the most seeds and steps`
      : "Coloured in the charts: all that are selected";
    element.querySelector(".coloured span").textContent = `${which}${grey}.`;
  }

  function draw(element) {
    const number = Number(element.dataset.section);
    const section = sections[number];
    const colours = coloured(number);
    const drawn = new Set(section.groups.flatMap((g) => g.panels.flatMap((p) => p.points.map((q) => q[0]))));
    legend(element, section, colours, drawn.size - [...colours.keys()].filter((p) => drawn.has(p)).length);
    for (const figure of element.querySelectorAll("figure.group")) {
      const group = section.groups[Number(figure.dataset.group)];
      const all = group.panels.map((panel) => panelRows(section, group, panel, colours));
      // One scale for all panels of a group: they are read against each other.
      const top = Math.max(...all.flat().map((row) => (row.chosen ? Math.max(row.y, row.high, ...row.seeds) : row.y)));
      const share = metrics[metricOf(group)].unit === "share";
      const end = share ? Math.min(100, top * 1.04 || 1) : largest(all) * 1.04 || 1;
      figure.hidden = all.every((rows) => !rows.length);
      figure.querySelector("h3").textContent = titled(group);
      for (const text of figure.querySelectorAll("[data-band]"))
        text.textContent = BANDS[state.band] ?? "left out";
      for (const box of figure.querySelectorAll(".panel")) {
        const panel = group.panels[Number(box.dataset.panel)];
        const rows = all[Number(box.dataset.panel)];
        box.hidden = !rows.length;
        if (rows.length) queue(box, group, panel, rows, end);
      }
      numbers(figure, group, all);
    }
  }

  function titled(group) {
    const nats = metrics[metricOf(group)].unit === "nats";
    return nats ? group.title.replace(/error/i, (word) => (word === "Error" ? "Loss" : "loss")) : group.title;
  }

  // Intervals of the loss can be far wider than the losses: they do not set the axis.
  function largest(all) {
    return Math.max(...all.flat().flatMap((row) => [row.y, ...row.seeds]));
  }

  function queue(box, group, panel, rows, top) {
    const job = { box, group, panel, rows, top };
    const place = waiting.findIndex((other) => other.box === box);
    if (place < 0) waiting.push(job);
    else waiting[place] = job;
    if (!drawing) next();
  }

  async function next() {
    drawing = true;
    document.documentElement.dataset.drawn = "false";
    while (waiting.length) {
      try {
        await show(waiting.shift());
      } catch (error) {
        // Go on with the others.
        console.error(error);
      }
      // Keep the page responsive.
      await new Promise((done) => setTimeout(done));
    }
    drawing = false;
    document.documentElement.dataset.drawn = "true";
  }

  async function show({ box, group, panel, rows, top }) {
    const metric = metricOf(group);
    const guess = panel.guess === null || metric !== "error" ? [] : [{ y: 100 * panel.guess }];
    const seen = guess.filter((row) => row.y <= top);
    const power = metrics[metric].unit === "share" ? Number(state.power) : 1;
    const names = [...new Set(rows.filter((row) => row.chosen).map((row) => row.label))];
    const description = `${titled(group)}, ${panel.title}. Coloured: ${names.join(", ") || "none"}. ` +
      "The numbers are in the table below the charts.";
    let view = views.get(box);
    if (view && box.dataset.metric !== metric) {
      // The title of an axis cannot change.
      view.finalize();
      view = null;
    }
    if (!view) {
      const spec = structuredClone(panel.spec);
      spec.data.values = rows;
      for (const layer of spec.layer) {
        layer.encoding.y.axis.title = metrics[metric].label;
        if (layer.data?.name === "guess") layer.data.values = seen;
      }
      spec.params = [{ name: "top", value: top }, { name: "power", value: power }];
      spec.description = description;
      box.dataset.metric = metric;
      const made = await vegaEmbed(box.querySelector(".chart"), spec, {
        mode: "vega-lite", renderer: "svg", actions: false, ast: true, tooltip: { theme: "custom" },
        // Errors only: a panel without a line for guessing is fine.
        logLevel: 1,
      });
      views.set(box, made.view);
      return;
    }
    view.description(description).signal("top", top).signal("power", power).data("rows", rows);
    if (panel.guess !== null) view.data("guess", seen);
    await view.resize().runAsync();
  }

  // The coloured rows of a figure as a table, for screen readers.
  function numbers(figure, group, all) {
    const details = figure.querySelector("details.numbers");
    details.ontoggle = () => details.open && numbers(figure, group, all);
    if (!details.open) return;
    const x = group.panels[0].spec.layer[0].encoding.x ?? group.panels[0].spec.layer[1].encoding.x;
    const heads = ["panel", "setting", ...(all.flat().some((row) => row.split) ? ["split"] : []),
      group.name === "cost" ? "cost" : x.axis.title, metrics[metricOf(group)].label];
    const table = document.createElement("table");
    table.className = "plain";
    table.createCaption().textContent = `${titled(group)}: mean ± half the 95 % interval, coloured settings`;
    const head = table.createTHead().insertRow();
    for (const text of heads) head.append(cell("th", text, "col"));
    const body = table.createTBody();
    all.forEach((rows, place) => {
      for (const row of rows.filter((r) => r.chosen)) {
        const line = body.insertRow();
        const values = { panel: group.panels[place].title, setting: row.label, split: row.split ?? "" };
        for (const text of heads.slice(0, -2)) line.append(cell("td", values[text]));
        line.append(cell("td", row.x_text), cell("td", row.y_text));
      }
    });
    details.querySelector(".wide").replaceChildren(table);
  }

  function cell(kind, text, scope) {
    const made = document.createElement(kind);
    made.textContent = text;
    if (scope) made.scope = scope;
    return made;
  }

  document.addEventListener("filtered", () => {
    for (const element of document.querySelectorAll("section.task:not([hidden])"))
      if (!element.querySelector(".content").hidden) draw(element);
    if (!drawing) document.documentElement.dataset.drawn = "true";
  });
})();
