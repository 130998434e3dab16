// The tables of results: rows, columns and numbers as the filters select them.
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
    return value > 0 && value < 0.1 ? value.toPrecision(2) : value.toFixed(2);
  }

  // What a column is sorted by.
  function value(setting, column, section) {
    const [kind, name] = column.split(":");
    if (kind === "label") return setting.label;
    if (kind === "seeds") return setting.seeds;
    if (kind === "cost") return setting.cost[Number(name)];
    if (kind === "ood") return setting.ood[state.metric]?.[0];
    return setting.cells[state.metric][section.splits.indexOf(name)]?.[0];
  }

  function sorted(section, places) {
    // Without a choice the errors stand as the page ranks them, other metrics by their mean.
    const chosen = state.sort || (state.metric === "error" ? "" : "ood");
    if (!chosen) return places;
    const down = chosen.startsWith("-");
    const column = chosen.replace(/^-/, "");
    const values = new Map(places.map((p) => [p, value(section.settings[p], column, section)]));
    const measured = places.filter((place) => values.get(place) != null);
    measured.sort((a, b) => {
      const [one, other] = [values.get(a), values.get(b)];
      const order = typeof one === "string" ? one.localeCompare(other) : one - other;
      return (down ? -order : order) || a - b;
    });
    return [...measured, ...places.filter((place) => !measured.includes(place))];
  }

  // The number of the darkest colour.
  function most(section) {
    if (state.metric === "error") return section.reference;
    if (metrics[state.metric].unit === "share") return 1;
    const all = section.settings.flatMap((setting) => setting.cells[state.metric]);
    return Math.max(...all.map((band) => band?.[0] ?? 0)) || 1;
  }

  function fill(cell, band, top) {
    cell.classList.toggle("shade", Boolean(band));
    if (!band) {
      cell.textContent = cell.textContent && "n/a";
      return;
    }
    const half = band[2] === null ? "" : ` ± ${shown(band[2] - band[0])}`;
    const [median, rate] = band.slice(6);
    const below = document.createElement("small");
    if (rate) {
      const first = document.createElement("b");
      first.textContent = rate;
      below.textContent = shown(band[0]) + half;
      cell.replaceChildren(first, ` ${shown(median)}`, below);
    } else {
      below.textContent = half.trim();
      cell.replaceChildren(shown(band[0]), below);
    }
    const depth = Math.min(1, Math.sqrt(Math.max(0, band[0]) / top));
    cell.style.setProperty("--v", depth.toFixed(3));
    cell.toggleAttribute("data-deep", depth > DEEP);
  }

  function update(element, section) {
    const rows = sorted(section, matching(section));
    const splits = shownSplits(section);
    const top = most(section);
    const table = element.querySelector("table.results");
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
    if ((table.dataset.metric ?? "error") !== state.metric) {
      for (const [place, row] of byPlace) numbers(row, section, section.settings[place], top);
      table.dataset.metric = state.metric;
    }
    table.querySelector("[data-metric]").textContent = metrics[state.metric].title;
    table.tFoot.hidden = state.metric !== "error";
    element.querySelector("[data-most]").textContent = shown(top);
    cue({ target: table.parentElement });
  }

  function numbers(row, section, setting, top) {
    fill(row.querySelector(".mean"), setting.ood[state.metric], top);
    for (const cell of row.querySelectorAll("[data-split]")) {
      const place = section.splits.indexOf(cell.dataset.split);
      fill(cell, setting.cells[state.metric][place], top);
    }
  }

  function sortedBy(head, splits) {
    const column = head.dataset.column;
    const [kind, split] = column.split(":");
    if (kind === "split") head.hidden = !splits.includes(split);
    const order = { [column]: "ascending", [`-${column}`]: "descending" }[state.sort];
    if (order) head.setAttribute("aria-sort", order);
    else head.removeAttribute("aria-sort");
  }

  // Where a box has more to show: its edges fade (page.css).
  function cue({ target }) {
    if (!target.matches?.(".wide, .legend")) return;
    const { scrollLeft, scrollTop, scrollWidth, scrollHeight, clientWidth, clientHeight } = target;
    target.toggleAttribute("data-more-right", scrollLeft + clientWidth < scrollWidth - 2);
    target.toggleAttribute("data-more-below", scrollTop + clientHeight < scrollHeight - 2);
  }

  document.addEventListener("scroll", cue, { capture: true, passive: true });
  const resized = new ResizeObserver((entries) => entries.forEach(cue));
  for (const box of document.querySelectorAll(".wide, .legend")) resized.observe(box);

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("[data-sort]");
    if (!button) return;
    state.sort = state.sort === button.dataset.sort ? `-${button.dataset.sort}` : button.dataset.sort;
    publish();
  });

  document.addEventListener("filtered", () => {
    const any = sections.some((section) => matching(section).length);
    for (const element of document.querySelectorAll("section.task")) {
      const section = sections[Number(element.dataset.section)];
      const left = matching(section).length > 0;
      element.hidden = !any || (Boolean(state.task) && state.task !== section.task);
      element.querySelector(".none").hidden = left;
      element.querySelector(".content").hidden = !left;
      if (left && !element.hidden) update(element, section);
    }
  });
})();
