// The charts of the leaderboard, drawn one after another as they come into view.
(() => {
  "use strict";
  const specs = JSON.parse(document.getElementById("data").textContent);
  const options = {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, tooltip: { theme: "custom" },
    logLevel: 1,
  };
  const boxes = [...document.querySelectorAll(".chart")];
  let left = boxes.length;
  async function draw(box) {
    await vegaEmbed(box, specs[box.id], options);
    left -= 1;
    if (!left) document.documentElement.dataset.drawn = "true";
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "600px" });
  for (const box of boxes) seen.observe(box);
})();
