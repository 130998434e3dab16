"use strict";
(() => {
  // One reader of every fragment on the page; a fragment that has its view already is left alone.
  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  /** The rows of a map, each up to its query. */
  const unpack = (packed, queries) => {
    const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
    const whole = packed.bits === 16 ? new Uint16Array(bytes.buffer) : bytes;
    const step = (packed.high - packed.low) / (2 ** packed.bits - 1);
    let start = 0;
    return queries.map((query) => {
      const row = Float32Array.from(whole.subarray(start, start + query + 1), (n) => packed.low + step * n);
      start += query + 1;
      return row;
    });
  };

  /** What a full shade stands for: 1 for shares, else the greatest size. */
  const reach = (rows) => {
    let most = 0;
    for (const row of rows) for (const value of row) most = Math.max(most, Math.abs(value));
    return most <= 1.001 && most > 0.2 ? 1 : most || 1;
  };

  const short = (value, most) => value.toFixed(most < 9.995 ? 2 : most < 999.5 ? 1 : 0);

  const choice = (label, options) => {
    const select = element("select", {}, ...options.map((o) => element("option", { value: o, textContent: o })));
    return [select, element("label", {}, label + " ", select)];
  };

  const start = (section) => {
    const data = JSON.parse(section.querySelector('script[type="application/json"]').textContent);
    const view = section.querySelector(".pe-inspect-view");
    const { tokens, queries, answers } = data;
    const heads = data.heads.map((head) => {
      const maps = Object.fromEntries(Object.entries(head.maps).map(([name, m]) => [name, unpack(m, queries)]));
      return { ...head, maps };
    });
    const [headChoice, headLabel] = choice("head", heads.map((head) => head.name));
    const [mapChoice, mapLabel] = choice("shade", Object.keys(heads[0].maps));
    const row = element("div", { className: "pe-inspect-tokens" });
    row.setAttribute("role", "group");
    const legend = element("p");
    const words = element("p");
    words.setAttribute("aria-live", "polite");
    const canvas = element("canvas");
    canvas.setAttribute("role", "img");
    const caption = element("figcaption");
    const scored = queries.findIndex((query) => query in answers);
    const wrong = queries.findIndex((query) => query in answers && !answers[query][3]);
    let at = wrong >= 0 ? wrong : Math.max(0, scored);
    let head = heads[0];

    const cells = tokens.map((token, position) => {
      const cell = element("button", { type: "button", tabIndex: -1 }, element("b", { textContent: token }));
      if (position in answers) {
        cell.classList.add("pe-inspect-scored");
        if (!answers[position][3]) cell.classList.add("pe-inspect-wrong");
      }
      const index = queries.indexOf(position);
      if (index < 0) cell.setAttribute("aria-disabled", "true");
      else cell.addEventListener("click", () => choose(index));
      cell.append(element("small"));
      row.append(cell);
      return cell;
    });

    const choose = (index, focus) => {
      at = index;
      draw();
      if (focus) cells[queries[at]].focus();
      cells[queries[at]].scrollIntoView({ block: "nearest" });
    };

    const numbered = () => {
      const own = Object.keys(head.maps).filter((name) => name !== "attention" && name !== "position score");
      return own.find((name) => name === "position") || mapChoice.value;
    };

    const describe = () => {
      const query = queries[at];
      const weights = [...head.maps.attention[at]].map((w, j) => [w, j]).sort((a, b) => b[0] - a[0]);
      const top = weights.slice(0, 3).filter(([w]) => w >= 0.005);
      const seen = top.map(([w, j]) => `${tokens[j]} at ${j} (${w.toFixed(2)})`).join(", ");
      let text = `Query ${query}, ${tokens[query]}, attends to ${seen || "nothing"}.`;
      if (query in answers) {
        const [target, probability, likeliest, right] = answers[query];
        text += ` It is to answer ${target} (probability ${probability === null ? "not a number" : probability.toFixed(2)}): `;
        text += right ? "right." : `wrong, it holds ${likeliest} likeliest.`;
      }
      return text;
    };

    const draw = () => {
      const name = mapChoice.value;
      const values = head.maps[name][at];
      const numbers = head.maps[numbered()][at];
      const greatest = Object.fromEntries(Object.entries(head.maps).map(([n, m]) => [n, reach(m)]));
      // Attention is a share however small it is everywhere.
      greatest.attention = 1;
      const most = greatest[name];
      const attended = head.maps.attention[at];
      cells.forEach((cell, j) => {
        const seen = j < values.length;
        cell.classList.toggle("pe-inspect-after", !seen);
        cell.style.setProperty("--share", seen ? Math.min(1, Math.abs(values[j]) / most) : 0);
        cell.style.setProperty("--shade", values[j] < 0 ? "var(--pe-less)" : "var(--pe-more)");
        cell.style.setProperty("--attended", seen ? attended[j] : 0);
        cell.lastChild.textContent = seen ? short(numbers[j], greatest[numbered()]) : "\u00a0";
        cell.setAttribute("aria-pressed", j === queries[at]);
        cell.tabIndex = j === queries[at] ? 0 : -1;
        const told = seen
          ? Object.entries(head.maps).map(([n, m]) => `${n} ${short(m[at][j], greatest[n])}`)
          : ["after the query"];
        cell.title = `${j}: ${tokens[j]}, ${told.join(", ")}`;
        cell.setAttribute("aria-label", cell.title);
      });
      legend.textContent =
        `Outlined: the query; choose another by click or arrow keys. Shade: ${name} (${short(most, most)} is full). ` +
        `Number: ${numbered()}. Bar below: attention. Underlined: its answer is scored.`;
      words.textContent = describe();
      row.setAttribute("aria-label", `tokens, shaded by ${name} of ${head.name}`);
      paint(name, most);
    };

    const paint = (name, most) => {
      const scale = Math.max(1, Math.min(10, Math.floor(720 / tokens.length)));
      canvas.width = tokens.length;
      canvas.height = queries.length;
      canvas.style.width = `${tokens.length * scale}px`;
      canvas.style.aspectRatio = `${tokens.length} / ${queries.length}`;
      canvas.style.minHeight = `${Math.min(queries.length * 3, 60)}px`;
      const brush = canvas.getContext("2d");
      const styles = getComputedStyle(section);
      const [more, less, mark] = ["--pe-more", "--pe-less", "--pe-mark"].map((name) =>
        styles.getPropertyValue(name),
      );
      head.maps[name].forEach((values, i) => {
        values.forEach((value, j) => {
          brush.globalAlpha = Math.min(1, Math.abs(value) / most);
          brush.fillStyle = value < 0 ? less : more;
          brush.fillRect(j, i, 1, 1);
        });
        brush.globalAlpha = 0.6;
        brush.fillStyle = mark;
        if (i === at) brush.fillRect(queries[i] + 1, i, canvas.width, 1);
      });
      canvas.setAttribute(
        "aria-label",
        `Map of ${name} in ${head.name}: ${queries.length} queries by ${tokens.length} keys. ${describe()}`,
      );
      caption.textContent =
        `${name} in ${head.name}: a row for each query from the top, a column for each key; ` +
        "the grey row end marks the query. Click chooses a query.";
    };

    headChoice.addEventListener("change", () => {
      head = heads.find((h) => h.name === headChoice.value);
      const names = Object.keys(head.maps);
      const kept = names.includes(mapChoice.value) ? mapChoice.value : head.shown;
      mapChoice.replaceChildren(...names.map((n) => element("option", { value: n, textContent: n })));
      mapChoice.value = kept;
      draw();
    });
    mapChoice.addEventListener("change", draw);
    row.addEventListener("keydown", (event) => {
      const last = queries.length - 1;
      const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      choose(Math.max(0, Math.min(last, to)), true);
    });
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const line = Math.floor(((event.clientY - box.top) / box.height) * queries.length);
      choose(Math.max(0, Math.min(queries.length - 1, line)));
    });

    const choices = element("div", { className: "pe-inspect-choices" }, headLabel, mapLabel);
    const figure = element("figure", {}, canvas, caption);
    view.replaceChildren(choices, row, legend, words, figure);
    mapChoice.value = head.shown;
    draw();
  };

  const all = () =>
    document.querySelectorAll(".pe-inspect:not([data-alive])").forEach((section) => {
      section.dataset.alive = "yes";
      start(section);
    });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", all);
  else all();
})();
