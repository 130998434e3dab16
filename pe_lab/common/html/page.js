// Draws charts as they come into view, sorts tables and filters their rows.
(() => {
  "use strict";
  const options = { renderer: "svg", actions: false, ast: true, tooltip: { theme: "custom" }, logLevel: 1 };

  // Panels and their legend take the room that there is.
  function fit(spec, room) {
    const panel = spec.spec ?? spec;
    if (!spec.$schema.includes("vega-lite") || typeof panel.width !== "number") return;
    panel.width = Math.max(120, Math.min(panel.width, room - 80));
    if (spec.spec) spec.columns = Math.max(1, Math.floor((room - 40) / (panel.width + 30)));
    spec.config.legend = { ...spec.config.legend, columns: Math.max(1, Math.floor(room / 230)) };
  }

  async function draw(box) {
    const spec = JSON.parse(box.querySelector("script").textContent);
    fit(spec, box.clientWidth);
    await vegaEmbed(box, spec, options);
    box.dataset.drawn = "true";
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(target).catch(console.error);
    }
  }, { rootMargin: "300px" });

  function show(id) {
    const target = id && document.getElementById(id);
    if (!target) return;
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    target.scrollIntoView();
  }

  // Numbers by value, in the order that tablesort asks of a comparison.
  Tablesort.extend("number", () => false, (a, b) => Number(b) - Number(a));
  for (const table of document.querySelectorAll("table.sortable")) new Tablesort(table);
  for (const link of document.querySelectorAll("th a")) {
    link.addEventListener("click", (event) => event.stopPropagation());
  }
  for (const box of document.querySelectorAll(".chart")) seen.observe(box);
  document.getElementById("filter")?.addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const row of document.querySelectorAll("table.sortable tbody tr")) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
  addEventListener("hashchange", () => show(location.hash.slice(1)));
  addEventListener("beforeprint", () => {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
  });
  show(location.hash.slice(1));
})();
