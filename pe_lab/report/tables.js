// The heat map and the table of results: rows, columns and numbers as the filters select them.
(() => {
  "use strict";
  const { sections, metrics, state, matching, shownSplits, publish } = window.report;
  const DEEP = 0.73;

  // As pe_lab.common.console.percent.
  function percent(share) {
    return (100 * share).toFixed(share > 0 && share < 0.1 ? 2 : 1);
  }

  function shown(value) {
    if (metrics[state.metric].unit === "share") return percent(value);
    return value < 0.1 ? value.toFixed(4) : value.toFixed(2);
  }

  function mean(setting, column, section) {
    const [kind, name] = column.split(":");
    if (kind === "label") return setting.label;
    if (kind === "seeds") return setting.seeds;
    if (kind === "cost") return setting.cost[Number(name)];
    if (kind === "ood") return setting.ood?.[0];
    return setting.cells[state.metric][section.splits.indexOf(name)]?.[0];
  }

  function sorted(section, places) {
    const down = state.sort.startsWith("-");
    const column = state.sort.replace(/^-/, "");
    const known = places.filter((place) => mean(section.settings[place], column, section) != null);
    known.sort((a, b) => {
      const [one, other] = [a, b].map((place) => mean(section.settings[place], column, section));
      const order = typeof one === "string" ? one.localeCompare(other) : one - other;
      return (down ? -order : order) || a - b;
    });
    return [...known, ...places.filter((place) => !known.includes(place))];
  }

  // The number of the darkest colour.
  function most(section) {
    if (state.metric === "error") return section.reference;
    if (metrics[state.metric].unit === "share") return 1;
    const all = section.settings.flatMap((setting) => setting.cells[state.metric]);
    return Math.max(...all.map((band) => band?.[0] ?? 0)) || 1;
  }

  function fill(cell, band, top, withInterval) {
    if (!band) return;
    cell.textContent = shown(band[0]);
    if (withInterval && band[2] !== null) {
      const half = document.createElement("small");
      half.textContent = ` ± ${shown(band[2] - band[0])}`;
      cell.append(half);
    }
    if (!cell.classList.contains("shade")) return;
    const depth = Math.min(1, Math.sqrt(Math.max(0, band[0]) / top));
    cell.style.setProperty("--v", depth.toFixed(3));
    cell.toggleAttribute("data-deep", depth > DEEP);
  }

  function update(element, section) {
    const rows = sorted(section, matching(section));
    const splits = shownSplits(section);
    const top = most(section);
    for (const table of element.querySelectorAll("[data-table]")) {
      for (const cell of table.querySelectorAll("[data-split]"))
        cell.hidden = !splits.includes(cell.dataset.split);
      for (const head of table.querySelectorAll("[data-column]")) sortedBy(head, splits);
      const body = table.tBodies[0];
      const byPlace = new Map([...body.rows].map((row) => [Number(row.dataset.setting), row]));
      for (const row of byPlace.values()) row.hidden = true;
      for (const place of rows) {
        const row = byPlace.get(place);
        row.hidden = false;
        body.append(row);
      }
      if (table.dataset.metric !== state.metric) {
        for (const [place, row] of byPlace) numbers(row, section, place, top, table);
        table.dataset.metric = state.metric;
      }
      table.querySelector("[data-metric]").textContent = metrics[state.metric].title;
      if (table.tFoot) table.tFoot.hidden = state.metric !== "error";
    }
    element.querySelector("[data-most]").textContent = shown(top);
  }

  function numbers(row, section, place, top, table) {
    const bands = section.settings[place].cells[state.metric];
    for (const cell of row.querySelectorAll("[data-split]"))
      fill(cell, bands[section.splits.indexOf(cell.dataset.split)], top,
        table.dataset.table === "results");
  }

  function sortedBy(head, splits) {
    const column = head.dataset.column;
    const [kind, split] = column.split(":");
    if (kind === "split") head.hidden = !splits.includes(split);
    const order = { [column]: "ascending", [`-${column}`]: "descending" }[state.sort];
    if (order) head.setAttribute("aria-sort", order);
    else head.removeAttribute("aria-sort");
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-sort]");
    if (!button) return;
    state.sort = state.sort === button.dataset.sort ? `-${button.dataset.sort}` : button.dataset.sort;
    publish();
  });

  document.addEventListener("filtered", () => {
    for (const element of document.querySelectorAll("section.task")) {
      const section = sections[Number(element.dataset.task)];
      const left = !state.task || state.task === section.task;
      element.hidden = !left || !matching(section).length;
      if (!element.hidden) update(element, section);
    }
  });
})();
