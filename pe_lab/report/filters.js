// The state of the filters, kept in the URL. Tables and charts listen to it.
(() => {
  "use strict";
  const sections = JSON.parse(document.getElementById("data").textContent);
  const form = document.querySelector("form.filters");
  const SEVERAL = ["split", "pe"];
  const DEFAULTS = {
    task: "", metric: "error", split: [], pe: [], find: "", band: "interval", power: "1",
    others: "", theme: "", sort: "ood",
  };
  const state = structuredClone(DEFAULTS);
  // By name, the title and the unit of each metric.
  const metrics = Object.fromEntries(
    [...form?.elements.metric.options ?? []].map((option) => [option.value, option.dataset]));
  window.report = { sections, metrics, state, matching, shownSplits, publish };

  // The ranks of a section's settings that the filters select, best first.
  function matching(section) {
    const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
    return [...section.settings.keys()].filter((place) => {
      const { pe, label } = section.settings[place];
      const text = label.toLowerCase();
      return (!state.pe.length || state.pe.includes(pe)) && words.every((w) => text.includes(w));
    });
  }

  function shownSplits(section) {
    const left = section.splits.filter((split) => state.split.includes(split));
    return left.length ? left : section.splits;
  }

  function fromAddress() {
    const params = new URLSearchParams(location.hash.slice(1));
    for (const [key, value] of Object.entries(DEFAULTS)) {
      const text = params.get(key);
      if (SEVERAL.includes(key)) state[key] = text ? text.split(",").map(unescaped) : [];
      else state[key] = text ?? value;
    }
    toForm();
  }

  function toAddress() {
    const kept = new URLSearchParams();
    for (const [key, value] of Object.entries(state))
      if (String(value) !== String(DEFAULTS[key]))
        kept.set(key, SEVERAL.includes(key) ? value.map(escaped).join(",") : value);
    const hash = kept.toString().replaceAll("%2C", ",");
    // A link to a section stays in the URL until a filter is set.
    if (hash || location.hash.includes("=")) history.replaceState(null, "", `#${hash}`);
  }

  // An encoding's name may hold commas: combined:parts=[cope,rope].
  const escaped = (name) => name.replaceAll("%", "%25").replaceAll(",", "%2C");
  const unescaped = (name) => name.replaceAll("%2C", ",").replaceAll("%25", "%");

  function toForm() {
    for (const field of form?.elements ?? []) {
      if (!field.name) continue;
      if (field.type === "checkbox")
        field.checked = [state[field.name]].flat().includes(field.value);
      else field.value = state[field.name];
      // An unknown value in the URL.
      if (field.tagName === "SELECT" && field.selectedIndex < 0) {
        field.value = state[field.name] = DEFAULTS[field.name];
      }
    }
    for (const key of SEVERAL) state[key] = ticked(key);
  }

  function ticked(name) {
    return [...form?.querySelectorAll(`[name=${name}]:checked`) ?? []].map((box) => box.value);
  }

  function fromForm() {
    for (const field of form.elements) {
      if (!field.name) continue;
      if (SEVERAL.includes(field.name)) state[field.name] = ticked(field.name);
      else if (field.type === "checkbox") state[field.name] = field.checked ? field.value : "";
      else state[field.name] = field.value;
    }
    publish();
  }

  function publish() {
    document.documentElement.dataset.theme = state.theme;
    toAddress();
    document.dispatchEvent(new Event("filtered"));
    tell();
  }

  function tell() {
    const status = document.getElementById("status");
    if (!status) return;
    const shown = sections.filter((s) => !state.task || s.task === state.task);
    const all = shown.reduce((n, s) => n + s.settings.length, 0);
    const left = shown.reduce((n, s) => n + matching(s).length, 0);
    status.textContent = `${left} of ${all} settings shown`;
  }

  form?.addEventListener("input", fromForm);
  form?.addEventListener("submit", (event) => event.preventDefault());
  form?.addEventListener("reset", (event) => {
    event.preventDefault();
    Object.assign(state, structuredClone(DEFAULTS), { theme: state.theme });
    toForm();
    publish();
  });
  addEventListener("hashchange", () => {
    if (!location.hash.includes("=") && location.hash.length > 1) return;
    fromAddress();
    publish();
  });
  addEventListener("DOMContentLoaded", () => {
    fromAddress();
    if (matchMedia("(max-width: 60rem)").matches) form?.querySelector("details")?.removeAttribute("open");
    publish();
  });
})();
