// The conversation on the screen: its messages, the user's actions, and answers that arrive.

import { announce, byId, h, toast } from "./dom.js";
import { Answer, CUT, WRITING } from "./answer.js";
import { keep, kept } from "./keep.js";
import { MessageView } from "./message.js";
import { addNode, childrenOf, newConversation, pathOf } from "./tree.js";

const SAVE_EVERY_MS = 2000; // while an answer arrives
const ABANDONED_MS = 8000; // an answer of another tab that has not changed for so long is taken to be abandoned
const DRAFT = "moebius.draft";

// This tab's name, which survives a reload.
const tabId = kept("sessionStorage", "moebius.tab") || String(Math.random());
keep("sessionStorage", "moebius.tab", tabId);

export class Chat {
    // changed(conversation): called when its entry in the list may have changed; wantsKey(): when the server wants a
    // key.
    constructor(store, connection, { changed, wantsKey }) {
        this.store = store;
        this.connection = connection;
        this.changed = changed;
        this.wantsKey = wantsKey;
        this.answers = new Map(); // answers that are arriving, by their message's id
        this.open = new Map(); // conversations with such answers, by id
        this.views = new Map(); // by message
        this.removed = new Set(); // ids of removed conversations, which answers that still end must not save again
        this.progress = new Map(); // what answers wait for, by message
        this.spoken = new Map(); // how many characters of answers screen readers have heard, by message
        this.list = byId("messages");
        this.scroller = byId("scroller");
        this.input = byId("input");
        this.sticks = true; // the page follows the end of the conversation
        this.scroller.addEventListener(
            "scroll",
            () => {
                this.sticks = this.isAtEnd();
            },
            { passive: true },
        );
        byId("to-end").addEventListener("click", () => this.toEnd());
        this.input.addEventListener("input", () => this.inputChanged());
        this.input.addEventListener("keydown", (event) => this.onKey(event));
        byId("composer").addEventListener("submit", (event) => {
            event.preventDefault();
            this.submit();
        });
        byId("stop").addEventListener("click", () => this.stop());
        this.input.value = kept("localStorage", DRAFT) || "";
        this.show(newConversation());
        this.inputChanged();
    }

    // ---- conversations -------------------------------------------------------------------------------------------

    show(conversation) {
        this.conversation = this.open.get(conversation.id) || conversation;
        this.views.clear();
        this.list.replaceChildren();
        this.findAbandoned(this.conversation);
        this.render();
        this.toEnd();
    }

    // Marks answers whose tab is gone as cut.
    findAbandoned(c) {
        for (const n of Object.values(c.nodes)) {
            if (n.state !== WRITING || this.answers.has(n.id)) continue;
            if (n.writer === tabId || Date.now() - n.changed > ABANDONED_MS) n.state = CUT;
            else setTimeout(() => this.reload(c.id), ABANDONED_MS);
        }
    }

    // Reads a conversation again that another tab has written.
    async reload(id) {
        if (id !== this.conversation.id || this.open.has(id)) return;
        const there = await this.store.get(id);
        if (!there || id !== this.conversation.id || this.open.has(id)) return;
        this.conversation = { ...there, chosen: { ...there.chosen, ...this.conversation.chosen } };
        this.findAbandoned(this.conversation);
        this.render();
    }

    async save(c) {
        if (Object.keys(c.nodes).length === 0 || this.removed.has(c.id)) return;
        try {
            const whole = await this.store.put(c);
            // What another tab has added:
            for (const [id, node] of Object.entries(whole.nodes)) c.nodes[id] ||= node;
        } catch (e) {
            toast(`The conversation could not be saved: ${e.message}`);
        }
        this.changed(c);
    }

    // ---- what the user does --------------------------------------------------------------------------------------

    inputChanged() {
        this.input.style.height = "auto";
        this.input.style.height = `${Math.min(this.input.scrollHeight, 260)}px`;
        byId("send").disabled = !this.input.value.trim();
        keep("localStorage", DRAFT, this.input.value.slice(0, 100000));
    }

    onKey(event) {
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            this.submit();
        }
    }

    isBusy() {
        return pathOf(this.conversation).some((n) => this.answers.has(n.id));
    }

    submit() {
        const text = this.input.value.trim();
        if (!text || this.isBusy()) return;
        const last = pathOf(this.conversation).at(-1);
        this.input.value = "";
        this.inputChanged();
        this.ask(addNode(this.conversation, last ? last.id : "", { role: "user", content: text }));
    }

    // Requests an answer to a message.
    ask(node) {
        const answer = addNode(this.conversation, node.id, {
            role: "assistant",
            reasoning: "",
            calls: [],
            state: WRITING,
            writer: tabId,
        });
        this.run(this.conversation, answer);
    }

    async run(c, node) {
        const answer = new Answer(c, node, this.connection, {
            changed: () => this.schedule(c, node),
            progress: (text) => {
                this.progress.set(node.id, text);
                this.schedule(c, node);
            },
        });
        node.writer = tabId;
        this.answers.set(node.id, answer);
        this.open.set(c.id, c);
        this.sticks = true;
        this.spoken.set(node.id, node.content.length);
        this.render();
        this.toEnd();
        await this.save(c);
        await answer.run();
        this.answers.delete(node.id);
        this.progress.delete(node.id);
        if (!this.answersOf(c).length) this.open.delete(c.id);
        if (c === this.conversation) this.finish(node);
        this.spoken.delete(node.id);
        if (answer.wantsKey) this.wantsKey();
        await this.save(c);
    }

    answersOf(c) {
        return Object.keys(c.nodes).filter((id) => this.answers.has(id));
    }

    finish(node) {
        this.render();
        this.speak(node, true);
        announce(node.error ? `The answer failed: ${node.error}` : "The answer has ended.");
    }

    stop() {
        for (const id of this.answersOf(this.conversation)) this.answers.get(id).stop();
        this.input.focus();
    }

    actions = {
        siblings: (node) => childrenOf(this.conversation, node.parent).filter((n) => n.role === node.role),
        hasResult: (node, call) =>
            childrenOf(this.conversation, node.id).length > 0 &&
            pathOf(this.conversation).some((n) => n.role === "tool" && n.callId === call.id),
        show: (node) => {
            this.conversation.chosen[node.parent] = node.id;
            this.render();
            this.save(this.conversation);
        },
        edit: (node, text) => this.ask(addNode(this.conversation, node.parent, { role: "user", content: text.trim() })),
        again: (node) => this.ask(this.conversation.nodes[node.parent]),
        goOn: (node) => this.run(this.conversation, node),
        // The results are sent when all calls have one.
        giveResult: (node, call, text) => {
            const last = pathOf(this.conversation).at(-1);
            const result = addNode(this.conversation, last.id, { role: "tool", content: text, callId: call.id });
            if (node.calls.every((other) => this.actions.hasResult(node, other))) this.ask(result);
            else this.render();
        },
    };

    again() {
        const last = pathOf(this.conversation).findLast((n) => n.role === "assistant");
        if (last && !this.isBusy()) this.actions.again(last);
    }

    editLast() {
        const last = pathOf(this.conversation).findLast((n) => n.role === "user");
        if (last && !this.isBusy()) this.views.get(last.id)?.edit();
    }

    // ---- showing -------------------------------------------------------------------------------------------------

    // Shows what has arrived, as often as the browser can keep up.
    schedule(c, node) {
        const now = Date.now();
        if (node.state === WRITING && now - (this.savedAt || 0) > SAVE_EVERY_MS) {
            this.savedAt = now;
            this.save(c);
        }
        if (c !== this.conversation || this.frame) return;
        const wait = Math.min(this.cost * 6 || 0, 1000);
        this.frame = setTimeout(
            () =>
                requestAnimationFrame(() => {
                    const begin = performance.now();
                    this.frame = 0;
                    if (c !== this.conversation) return;
                    this.renderOne(node);
                    if (this.sticks) this.toEnd();
                    this.speak(node, false);
                    this.cost = performance.now() - begin;
                }),
            wait,
        );
    }

    renderOne(node) {
        const last = pathOf(this.conversation).at(-1);
        this.views.get(node.id)?.update(node, node === last);
        this.renderStatus();
    }

    render() {
        const path = pathOf(this.conversation);
        const wanted = path.map((node, i) => {
            let view = this.views.get(node.id);
            if (!view) this.views.set(node.id, (view = new MessageView(node, this.actions)));
            view.update(node, i === path.length - 1);
            return view.element;
        });
        wanted.forEach((element, i) => {
            if (this.list.children[i] !== element) this.list.insertBefore(element, this.list.children[i] || null);
        });
        while (this.list.children.length > wanted.length) this.list.lastElementChild.remove();
        byId("welcome").hidden = path.length > 0;
        byId("title").value = this.conversation.title;
        document.title = this.conversation.title ? `${this.conversation.title} – moebius` : "moebius";
        this.renderStatus();
    }

    renderStatus() {
        const ids = this.answersOf(this.conversation);
        const text = ids.map((id) => this.progress.get(id)).filter(Boolean)[0] || "";
        const status = byId("status");
        byId("send").hidden = ids.length > 0;
        byId("stop").hidden = ids.length === 0;
        if (status.textContent !== text) status.textContent = text;
    }

    // Has screen readers say the answer, sentence by sentence.
    speak(node, isWhole) {
        const spoken = this.spoken.get(node.id) || 0;
        const rest = node.content.slice(spoken);
        const end = isWhole ? rest.length : Math.max(rest.lastIndexOf(". "), rest.lastIndexOf("\n")) + 1;
        if (end <= 0) return;
        announce(rest.slice(0, Math.min(end, 2000)));
        this.spoken.set(node.id, spoken + end);
    }

    isAtEnd() {
        const s = this.scroller;
        const isAtEnd = s.scrollHeight - s.scrollTop - s.clientHeight < 80;
        byId("to-end").hidden = isAtEnd;
        return isAtEnd;
    }

    toEnd() {
        this.sticks = true;
        this.scroller.scrollTop = this.scroller.scrollHeight;
        byId("to-end").hidden = true;
    }
}

// Shows the list of conversations. choose(id), remove(id): called when the user does so.
export function renderHistory(all, current, { choose, remove }) {
    byId("history").replaceChildren(
        ...all.map((c) =>
            h(
                "li",
                { class: c.id === current ? "current" : null },
                h(
                    "button",
                    {
                        type: "button",
                        class: "entry",
                        "aria-current": c.id === current ? "true" : null,
                        onclick: () => choose(c.id),
                    },
                    c.title || "Untitled",
                ),
                h(
                    "button",
                    {
                        type: "button",
                        class: "icon-button remove",
                        "aria-label": `Delete ${c.title || "Untitled"}`,
                        title: "Delete",
                        onclick: () => remove(c.id),
                    },
                    h("span", { "aria-hidden": "true" }, "×"),
                ),
            ),
        ),
    );
    byId("no-history").hidden = all.length > 0;
}
