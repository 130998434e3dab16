// The state of the filters, kept in the address. Tables and charts listen to "filtered".
(() => {
  "use strict";
  const sections = JSON.parse(document.getElementById("data").textContent);
  const form = document.querySelector("form.filters");
  const SEVERAL = ["split", "length", "pe"];
  const DEFAULTS = {
    task: "", metric: "error", split: [], length: [], pe: [], find: "", band: "interval",
    power: "1", others: "", theme: "", sort: "", at: "",
  };
  const state = structuredClone(DEFAULTS);
  // By name, the title and the unit of each metric.
  const metrics = Object.fromEntries(
    [...form?.elements.metric.options ?? []].map((option) =>
      [option.value, { label: option.text, ...option.dataset }]));
  window.report = { sections, metrics, state, matching, shownSplits, publish };

  // Whether the filters select a setting or a run; what it does not have is not filtered by.
  function selected({ task, pe, split, label }) {
    const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
    return (!state.task || !task || state.task === task)
      && (!state.pe.length || !pe || state.pe.includes(pe))
      && (!state.split.length || !split || state.split.includes(split))
      && words.every((word) => (label ?? pe ?? "").toLowerCase().includes(word));
  }

  // The ranks of a section's settings that the filters select, best first.
  function matching(section) {
    if (!shownSplits(section).length) return [];
    const { task, split } = section;
    return [...section.settings.keys()].filter((place) => {
      const { pe, label } = section.settings[place];
      return selected({ task, split, pe, label });
    });
  }

  // The columns that the filters select: splits, or the lengths of evaluations.
  function shownSplits(section) {
    const ticked = section.split ? state.length : state.split;
    return section.splits.filter((split) => !ticked.length || ticked.includes(split));
  }

  function fromAddress() {
    const hash = location.hash.slice(1);
    const params = new URLSearchParams(hash.includes("=") || !hash ? hash : `at=${hash}`);
    for (const [key, value] of Object.entries(DEFAULTS)) {
      const text = params.get(key);
      if (SEVERAL.includes(key)) state[key] = text ? text.split(",").map(unescaped) : [];
      else state[key] = text ?? value;
    }
    toForm();
  }

  function address() {
    const kept = new URLSearchParams();
    for (const [key, value] of Object.entries(state))
      if (String(value) !== String(DEFAULTS[key]))
        kept.set(key, SEVERAL.includes(key) ? value.map(escaped).join(",") : value);
    const hash = kept.toString().replaceAll("%2C", ",");
    // A link to a section, and nothing else.
    return hash === `at=${state.at}` ? state.at : hash;
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
      // An unknown value in the address.
      if (field.tagName === "SELECT" && field.selectedIndex < 0) {
        field.value = state[field.name] = DEFAULTS[field.name];
      }
    }
    for (const key of SEVERAL) state[key] = ticked(key);
    // Without a field, for lack of a choice.
    if (!form?.elements.task) state.task = "";
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
    const hash = address();
    if (hash || location.hash) history.replaceState(null, "", `#${hash}`);
    for (const element of document.querySelectorAll("[data-pe]"))
      element.hidden = !selected(element.dataset);
    document.dispatchEvent(new Event("filtered"));
    showCounts();
  }

  function showCounts() {
    for (const id of ["inspected", "unfinished"]) {
      const none = document.querySelector(`#${id} .none`);
      if (none) none.hidden = Boolean(document.querySelector(`#${id} [data-pe]:not([hidden])`));
    }
    const status = document.getElementById("status");
    if (!status) return;
    const shown = sections.filter((s) => !state.task || s.task === state.task);
    const all = shown.reduce((n, s) => n + s.settings.length, 0);
    const left = shown.reduce((n, s) => n + matching(s).length, 0);
    status.textContent = `${left} of ${all} settings shown`;
    document.getElementById("nothing").hidden = left > 0;
  }

  form?.addEventListener("input", fromForm);
  form?.addEventListener("submit", (event) => event.preventDefault());
  form?.addEventListener("reset", (event) => {
    event.preventDefault();
    Object.assign(state, structuredClone(DEFAULTS), { theme: state.theme });
    toForm();
    publish();
  });
  // Links inside the page keep the filters in the address.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    state.at = link.hash.slice(1);
    if (location.hash !== `#${address()}`) history.pushState(null, "", `#${address()}`);
    goTo(state.at);
  });
  function goTo(id) {
    const target = document.getElementById(id);
    target?.scrollIntoView();
    target?.focus({ preventScroll: true });
  }
  addEventListener("popstate", () => {
    fromAddress();
    publish();
    goTo(state.at);
  });
  addEventListener("DOMContentLoaded", () => {
    fromAddress();
    if (matchMedia("(max-width: 60rem)").matches) form?.querySelector("details")?.removeAttribute("open");
    publish();
    goTo(state.at);
  });
})();
