// Draws charts as they come into view, sorts tables and filters their rows.
(() => {
  "use strict";
  const options = { renderer: "svg", actions: false, ast: true, tooltip: { theme: "custom" }, logLevel: 1 };
  const form = document.getElementById("filters");

  // Panels and their legend take the room that there is.
  function fit(spec, room) {
    if (!spec.$schema.includes("vega-lite")) return;
    for (const chart of spec.vconcat ?? [spec]) {
      const panel = chart.spec ?? chart;
      if (typeof panel.width !== "number") return;
      panel.width = Math.max(120, Math.min(panel.width, room - 80));
      if (chart.spec) chart.columns = Math.max(1, Math.floor((room - 40) / (panel.width + 30)));
    }
    spec.config.legend = { ...spec.config.legend, columns: Math.max(1, Math.floor(room / 230)) };
  }

  // Of the leaderboard's charts, the rows that its filters choose.
  function pick(spec) {
    if (form && Array.isArray(spec.data?.values)) spec.data.values = spec.data.values.filter(chosen);
  }

  const specs = new WeakMap();
  const busy = new WeakMap();
  async function draw(box) {
    if (!specs.has(box)) specs.set(box, box.querySelector("script").textContent);
    const spec = JSON.parse(specs.get(box));
    pick(spec);
    fit(spec, box.clientWidth);
    await vegaEmbed(box, spec, options);
    box.dataset.drawn = "true";
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      // One drawing of a box after another.
      busy.set(target, Promise.resolve(busy.get(target)).then(() => draw(target)).catch(console.error));
    }
  }, { rootMargin: "300px" });

  function show(id) {
    const target = id && document.getElementById(id);
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView();
  }

  // The leaderboard's filters, which are in the address: a link keeps them.
  const field = (name) => form.elements[name]?.value.trim() ?? "";

  // Whether a row of a chart or table is of what is chosen. While a name is typed, its parts match.
  function chosen({ task, label, column }) {
    if (task && field("task") && task !== field("task")) return false;
    if (column && field("column") && column !== field("column")) return false;
    if (label === undefined) return true;
    const name = label.split(" ")[0].replace("pe=", "");
    const known = [...document.querySelectorAll("#entries option")].map((one) => one.value);
    const wanted = field("pe").split(",").map((one) => one.trim()).filter(Boolean);
    return !wanted.length ||
      wanted.some((one) => (known.includes(one) ? name === one : name.includes(one)));
  }

  function filter() {
    for (const table of document.querySelectorAll("table.sortable")) {
      const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
      for (const row of table.tBodies[0].rows) {
        const [task, label, column] = ["task", "entry", "column"]
          .map((head) => row.cells[heads.indexOf(head)]?.textContent.trim());
        row.hidden = !chosen({ task, label, column });
      }
    }
    for (const part of document.querySelectorAll("details.task")) {
      part.hidden = !chosen({ task: part.id.replace("task-", "") });
      if (field("task")) part.open = true;
    }
    for (const box of document.querySelectorAll(".chart")) {
      seen.unobserve(box);
      seen.observe(box);
    }
  }

  function toAddress() {
    const filled = [...new FormData(form)].filter(([, value]) => value.trim());
    const words = new URLSearchParams(filled).toString().replaceAll("%2C", ",");
    history.replaceState(null, "", words ? `#${words}` : location.pathname + location.search);
    filter();
  }

  function fromAddress() {
    const hash = location.hash.slice(1);
    if (form && hash.startsWith("task-")) {
      form.elements.task.value = hash.replace("task-", "");
      toAddress();
    } else if (form) {
      const words = new URLSearchParams(hash);
      // A place on the page, as that of the skip link, leaves the filters as they are.
      const changed = document.getElementById(hash) ? [] : form.elements;
      for (const one of changed) one.value = words.get(one.name) ?? "";
      filter();
    }
    show(hash);
  }

  // Numbers by value, in the order that tablesort asks of a comparison.
  Tablesort.extend("number", () => false, (a, b) => Number(b) - Number(a));
  for (const table of document.querySelectorAll("table.sortable")) new Tablesort(table);
  for (const box of document.querySelectorAll(".chart")) seen.observe(box);
  document.getElementById("filter")?.addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const row of document.querySelectorAll("table.sortable tbody tr")) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  form?.addEventListener("input", toAddress);
  addEventListener("hashchange", fromAddress);
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
  fromAddress();
})();
