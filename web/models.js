// The dialog of the server's models: the list, buttons that load and unload them, and plan and receipts of one.

import { byId, formatBytes, h } from "./dom.js";
import { getJson, GoneError, KeyError } from "./api.js";
import { renderReport } from "./report.js";

const BUSY_MS = 300; // between two requests while a model is being loaded or unloaded
const QUIET_MS = 1500;

// A model's state in words, and what can be done: [state, button's label, path, further fields of the body].
function describe(m) {
    const { value, waits, progress, failed } = m.status;
    const n = m.answers;
    const answers = n === 1 ? "1 answer" : `${n} answers`;
    if (value === "loaded" && n > 0)
        return [`loaded, ${answers} under way`, "Unload when done", "unload", { when_done: true }];
    if (value === "loaded") return ["loaded", "Unload", "unload", {}];
    if (value === "unloading" && m.state === "ready")
        return [`unloads when ${n === 1 ? "1 answer has" : `${answers} have`} finished`, "Keep", "load", {}];
    if (value === "unloading") return ["is being unloaded", null];
    if (waits) return ["waits until the other model has ended", "Cancel", "unload", {}];
    if (value === "loading") return [`loading, ${Math.floor(100 * (progress || 0))}%`, null];
    return failed ? ["could not be loaded", "Try again", "load", {}] : ["not loaded", "Load", "load", {}];
}

// One model of the list. Its elements are kept when their texts change, so that the focus is kept, too.
class Row {
    constructor(id, choose, act) {
        this.id = id;
        this.act = act;
        this.name = h("button", { type: "button", class: "model-name", onclick: () => choose(id) }, id);
        this.state = h("span", { class: "model-state" });
        this.progress = h("progress", { max: "1", value: "0", "aria-label": `Loading ${id}`, hidden: true });
        this.reason = h("p", { class: "failed model-reason", hidden: true });
        this.button = h("button", { type: "button", class: "button", onclick: () => this.press() });
        this.element = h(
            "li",
            {},
            h("div", { class: "model-text" }, this.name, this.state, this.progress, this.reason),
            this.button,
        );
    }

    press() {
        if (this.path) this.act(this.id, this.path, this.body);
    }

    update(m, isChosen) {
        const [state, label, path, body] = describe(m);
        this.path = path;
        this.body = body;
        this.name.setAttribute("aria-pressed", String(isChosen));
        this.element.classList.toggle("chosen", isChosen);
        this.state.textContent = `${state} · ${formatBytes(m.size)}`;
        this.progress.hidden = m.status.progress === undefined;
        this.progress.value = m.status.progress || 0;
        this.reason.hidden = !m.status.failed;
        this.reason.textContent = m.status.error || "";
        this.button.setAttribute("aria-disabled", String(!label));
        this.button.textContent = label || "…";
        this.button.setAttribute("aria-label", `${label || "Wait"}: ${m.id}`);
    }
}

export class Models {
    // changed(): called when states may have changed; asks(id): when this model shall answer; wantsKey(): when the
    // server wants a key; current() returns the model that answers.
    constructor({ changed, asks, wantsKey, current }) {
        this.changed = changed;
        this.asks = asks;
        this.wantsKey = wantsKey;
        this.current = current;
        this.rows = new Map();
        this.states = new Map(); // as they were last seen, by id
        this.isGone = false; // the server does not answer
        this.dialog = byId("models");
        this.list = byId("model-list");
        this.dialog.addEventListener("close", () => clearTimeout(this.timer));
        byId("models-close").addEventListener("click", () => this.dialog.close());
    }

    open() {
        this.chosen = this.current();
        this.reported = "";
        this.note("");
        this.dialog.showModal();
        this.look();
    }

    note(text) {
        if (byId("models-note").textContent !== text) byId("models-note").textContent = text;
    }

    // Asks the server for the models' states, repeatedly while the dialog is open.
    async look() {
        clearTimeout(this.timer);
        let wait = QUIET_MS;
        try {
            const { data } = await getJson("/models");
            if (!this.dialog.open) return;
            if (this.isGone) this.note("");
            this.isGone = false;
            this.show(data);
            if (data.some((m) => /ing$/.test(m.status.value))) wait = BUSY_MS;
        } catch (e) {
            this.fail(e);
        }
        clearTimeout(this.timer);
        if (this.dialog.open) this.timer = setTimeout(() => this.look(), wait);
    }

    fail(e) {
        if (e instanceof KeyError) {
            this.dialog.close();
            this.wantsKey();
        } else {
            this.isGone = e instanceof GoneError;
            this.note(this.isGone ? "The server does not respond." : e.message);
        }
    }

    show(models) {
        if (!models.some((m) => m.id === this.chosen)) this.chosen = models[0].id;
        for (const [id, row] of this.rows)
            if (!models.some((m) => m.id === id)) {
                row.element.remove();
                this.rows.delete(id);
            }
        for (const m of models) {
            if (!this.rows.has(m.id)) {
                const row = new Row(
                    m.id,
                    (id) => this.choose(id),
                    (...what) => this.change(...what),
                );
                this.rows.set(m.id, row);
                this.list.append(row.element);
            }
            this.rows.get(m.id).update(m, m.id === this.chosen);
        }
        this.tell(models);
        this.report(models.find((m) => m.id === this.chosen));
    }

    // Announces changed states to screen readers.
    tell(models) {
        const said = [];
        for (const m of models) {
            const state = m.status.failed ? "failed" : m.status.value;
            const before = this.states.get(m.id);
            this.states.set(m.id, state);
            if (before === undefined || before === state) continue;
            this.changed();
            if (state === "failed") said.push(`${m.id} could not be loaded`);
            else if (state === "loaded" || state === "unloaded") said.push(`${m.id} is ${state}`);
        }
        if (said.length) this.note(`${said.join(", ")}.`);
    }

    choose(id) {
        this.chosen = id;
        this.look();
    }

    async change(id, what, body) {
        try {
            await getJson(`/models/${what}`, { body: { model: id, ...body } });
            this.note("");
            if (what === "load") this.asks(id);
        } catch (e) {
            this.fail(e);
        }
        this.look();
    }

    // Shows plan and receipts of the chosen model, again after its state has changed.
    async report(m) {
        const key = `${m.id} ${m.status.value} ${m.answers > 0}`;
        if (key === this.reported) return;
        this.reported = key;
        byId("report-title").textContent = `${m.id}: plan and receipts`;
        try {
            const [plan, { receipts }] = await Promise.all([
                getJson(`/plan/${encodeURIComponent(m.id)}`),
                getJson("/receipts"),
            ]);
            if (this.reported === key)
                byId("report").replaceChildren(
                    ...renderReport(
                        plan,
                        receipts.filter((r) => r.id === m.id),
                    ),
                );
        } catch (e) {
            this.reported = "";
            this.fail(e);
        }
    }
}
