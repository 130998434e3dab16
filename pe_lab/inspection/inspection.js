"use strict";
// Draws every inspection on the page; those that are drawn already are left alone.
(() => {
  const draw = () => {
    for (const section of document.querySelectorAll(".pe-inspect:not([data-drawn])")) {
      section.dataset.drawn = "false";
      const spec = JSON.parse(section.querySelector('script[type="application/json"]').textContent);
      const options = { mode: "vega", renderer: "svg", actions: false, ast: true,
        tooltip: { theme: "custom" }, bind: section.querySelector(".pe-inspect-choices") };
      vegaEmbed(section.querySelector(".pe-inspect-chart"), spec, options)
        .then(() => { section.dataset.drawn = "true"; }, console.error);
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", draw);
  else draw();
})();
