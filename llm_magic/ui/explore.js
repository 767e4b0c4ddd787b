// The page's side of a reply's live view. Comes in: the settled state (a trait) and messages with new
// rows. Goes out: hello, branch, stop. Everything is set as text; nothing is fetched.

const SILENT = 2500; // ms until a kernel that does not answer is mentioned

function node(tag, className, props = {}, children = []) {
  const el = document.createElement(tag);
  if (className) el.className = className;
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) el.addEventListener(key.slice(2), value);
    else if (key in el) el[key] = value;
    else el.setAttribute(key, value);
  }
  el.append(...children);
  return el;
}

class View {
  constructor(model, el) {
    this.model = model;
    this.views = []; // [title, rows]
    this.shown = 0; // which of them
    this.at = -1; // which token
    this.busy = false;
    this.tabs = node("div", "lmx-tabs", { role: "tablist", "aria-label": "Answer and branches" });
    this.text = node("div", "lmx-text", { role: "listbox", "aria-label": "Tokens" });
    this.panel = node("div", "lmx-panel", { role: "group", "aria-label": "Token" });
    this.note = node("div", "lmx-note", { role: "status", "aria-live": "polite" });
    this.root = node("div", "lmx", {}, [this.tabs, this.text, this.panel, this.note]);
    this.root.addEventListener("keydown", (e) => this.key(e));
    this.text.addEventListener("pointerover", (e) => this.over(e));
    this.text.addEventListener("focusin", (e) => this.over(e));
    this.text.addEventListener("click", (e) => this.click(e));
    el.append(this.root);
    this.take(model.get("state"));
    this.send({ t: "hello" });
  }

  // ---------------------------------------------------------------- messages

  send(message) {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => {
      this.say("No answer from the kernel: what was saved is shown, new branches need a kernel.");
    }, SILENT);
    try {
      this.model.send(message);
    } catch {
      // The comm is closed: the timer says so.
    }
  }

  receive(message) {
    clearTimeout(this.waiting);
    if (message.t === "all") {
      this.busy = message.busy;
      this.take(message.state);
      this.say("");
    } else if (message.t === "open") {
      this.views[message.view] = [message.title, message.rows];
      this.busy = true;
      this.show(message.view);
    } else if (message.t === "add") {
      const view = this.views[message.view];
      if (!view || view[1].length !== message.from) return this.send({ t: "hello" });
      view[1].push(...message.rows);
      if (message.view === this.shown) this.append(message.from);
    } else if (message.t === "end") {
      this.busy = false;
      this.say(message.note === "stop" || message.note === "length" ? "" : message.note);
      this.head();
      this.detail();
    }
  }

  take(state) {
    if (!state || state.v !== 1) return this.say("This view was saved by another version.");
    this.views = state.views.map(([title, rows]) => [title, rows.slice()]);
    this.shown = Math.min(this.shown, this.views.length - 1);
    this.show(this.shown, this.at);
  }

  // ---------------------------------------------------------------- drawing

  show(i, at = -1) {
    this.shown = i;
    this.at = at;
    this.head();
    this.text.replaceChildren();
    this.append(0);
    this.detail();
  }

  head() {
    const tabs = this.views.map(([title], i) =>
      node("button", "", {
        type: "button",
        role: "tab",
        textContent: title,
        "aria-selected": String(i === this.shown),
        onclick: () => this.show(i),
      }),
    );
    const stop = node("button", "lmx-stop", {
      type: "button",
      textContent: "Stop",
      onclick: () => this.send({ t: "stop" }),
    });
    this.tabs.replaceChildren(...(this.views.length > 1 ? tabs : []), ...(this.busy ? [stop] : []));
  }

  append(from) {
    const rows = this.views[this.shown][1].slice(from);
    const fragment = document.createDocumentFragment();
    rows.forEach((row, k) => {
      const i = from + k;
      const [text, percent, shade, rank] = row;
      fragment.append(
        node("span", `lmx-token lmx-${shade}`, {
          textContent: text,
          role: "option",
          tabIndex: i === Math.max(this.at, 0) ? 0 : -1,
          "data-i": String(i),
          "aria-selected": String(i === this.at),
          "aria-label": `${text.trim() || "blank"}, ${percent}${rank ? `, rank ${rank}` : ""}`,
        }),
      );
    });
    this.text.append(fragment);
  }

  detail() {
    const row = this.views[this.shown]?.[1][this.at];
    if (!row) {
      const hint = "Point at a token, or move with the arrow keys; Enter reaches its alternatives.";
      this.panel.replaceChildren(node("div", "lmx-facts", { textContent: hint }));
      return;
    }
    const [, percent, , rank, bits, tops] = row;
    const facts = [`token ${this.at}`, percent];
    if (rank) facts.push(`rank ${rank}`);
    if (bits !== null) facts.push(`entropy at least ${bits} bits`);
    const choices = tops.map(([text, share, part, taken, allowed], k) => {
      const bar = node("span", "lmx-bar");
      bar.style.width = `${Math.max(2, Math.round(part * 100))}%`;
      const name = taken ? "taken" : allowed ? "" : "forbidden";
      return node("button", taken ? "lmx-taken" : allowed ? "" : "lmx-banned", {
        type: "button",
        disabled: taken || !allowed || this.busy,
        title: taken || !allowed ? name : "Go on from here",
        "aria-label": `${text} ${share} ${name || "go on from here"}`,
        onclick: () => this.send({ t: "branch", view: this.shown, at: this.at, choice: k }),
      }, [node("span", "", {}, [node("code", "", { textContent: text }), ` ${share}`]), bar]);
    });
    this.panel.replaceChildren(
      node("div", "lmx-facts", { textContent: facts.join(" · ") }),
      node("div", "lmx-choices", {}, choices),
    );
  }

  say(text) {
    this.note.textContent = text;
  }

  // ---------------------------------------------------------------- pointer and keys

  select(i, focus) {
    const old = this.text.querySelector('[tabindex="0"]');
    if (old) {
      old.tabIndex = -1;
      old.setAttribute("aria-selected", "false");
    }
    this.at = i;
    const el = this.text.children[i];
    el.tabIndex = 0;
    el.setAttribute("aria-selected", "true");
    if (focus) el.focus();
    this.detail();
  }

  over(e) {
    const el = e.target.closest?.(".lmx-token");
    if (!el || (this.pinned && e.type === "pointerover")) return;
    if (Number(el.dataset.i) !== this.at) this.select(Number(el.dataset.i), false);
  }

  click(e) {
    const el = e.target.closest(".lmx-token");
    if (!el) return;
    const i = Number(el.dataset.i);
    this.pinned = !(this.pinned && i === this.at); // so that the way to the panel changes nothing
    this.select(i, true);
  }

  key(e) {
    const inText = this.text.contains(e.target);
    const choices = [...this.panel.querySelectorAll("button:not([disabled])")];
    const k = choices.indexOf(e.target);
    const last = this.text.children.length - 1;
    const at = Math.max(this.at, 0);
    let handled = true;
    if (e.key === "Escape" && (k >= 0 || this.pinned)) {
      this.pinned = false;
      if (k >= 0) this.select(at, true);
    } else if (inText && e.key === "ArrowRight") this.select(Math.min(at + 1, last), true);
    else if (inText && e.key === "ArrowLeft") this.select(Math.max(at - 1, 0), true);
    else if (inText && e.key === "Home") this.select(0, true);
    else if (inText && e.key === "End") this.select(last, true);
    else if (inText && (e.key === "Enter" || e.key === "ArrowDown") && choices.length) {
      this.pinned = true;
      choices[0].focus();
    } else if (k >= 0 && e.key === "ArrowRight") choices[(k + 1) % choices.length].focus();
    else if (k >= 0 && e.key === "ArrowLeft") choices.at(k - 1).focus();
    else if (k >= 0 && e.key === "ArrowUp") this.select(at, true);
    else handled = k >= 0 && e.key === "Enter"; // the button's own
    if (handled) {
      // Notebook shortcuts must not see it; a button's Enter still has to do its work.
      e.stopPropagation();
      if (!(k >= 0 && e.key === "Enter")) e.preventDefault();
    }
  }
}

function render({ model, el }) {
  const view = new View(model, el);
  const receive = (message) => view.receive(message);
  model.on("msg:custom", receive);
  return () => {
    clearTimeout(view.waiting);
    model.off("msg:custom", receive);
  };
}

export default { render };
