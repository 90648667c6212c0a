// One message on the screen.

import { h, icon, iconButton, copyText } from "./dom.js";
import { codeBlock, MarkdownView } from "./markdown.js";
import { CUT, FAILED, STOPPED, WRITING } from "./answer.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Tool result" };

function pretty(json) {
    try {
        return JSON.stringify(JSON.parse(json), null, 2);
    } catch {
        return json;
    }
}

function stateText(node) {
    if (node.state === STOPPED) return "Stopped.";
    if (node.state === FAILED) return node.error;
    if (node.state === CUT) return "The tab was closed before the end.";
    return node.finish === "length" && node.state !== WRITING ? "The token limit was reached." : "";
}

function statsText({ prompt, cached, answer, perSecond }) {
    const speed = perSecond ? `${perSecond < 10 ? perSecond.toFixed(1) : Math.round(perSecond)} tokens/s` : null;
    if (answer === undefined) return speed;
    return [speed, `${answer} tokens`, `prompt ${prompt}${cached ? `, ${cached} of it cached` : ""}`]
        .filter(Boolean)
        .join(" · ");
}

export class MessageView {
    // actions: edit(node, text), again(node), goOn(node), show(node), giveResult(node, call, text), siblings(node),
    // hasResult(node, call)
    constructor(node, actions) {
        this.node = node;
        this.actions = actions;
        this.text = h("div", { class: "markdown" });
        this.view = new MarkdownView(this.text);
        this.reasoningText = h("div", { class: "markdown" });
        this.reasoningView = new MarkdownView(this.reasoningText);
        this.reasoning = h(
            "details",
            { class: "reasoning", hidden: true },
            h("summary", {}, "Reasoning"),
            this.reasoningText,
        );
        this.calls = h("div", { class: "calls" });
        this.state = h("p", { class: "state" });
        this.foot = h("div", { class: "message-foot" });
        this.body = h("div", { class: "message-body" }, this.reasoning, this.text, this.calls, this.state);
        this.element = h(
            "article",
            { class: `message ${node.role}`, "aria-label": NAMES[node.role] || node.role },
            h("h2", { class: "who" }, NAMES[node.role] || node.role),
            this.body,
            this.foot,
        );
    }

    // isLast: it is the last one shown.
    update(node, isLast) {
        const isWriting = node.state === WRITING;
        this.node = node;
        this.element.classList.toggle("writing", isWriting);
        this.element.setAttribute("aria-busy", String(isWriting));
        if (node.role === "user" && this.text.textContent !== node.content)
            this.text.replaceChildren(h("p", { class: "plain" }, node.content));
        else if (node.role === "tool") this.text.replaceChildren(codeBlock(node.content, "result"));
        else if (node.role === "assistant") this.view.update(node.content, !isWriting);
        this.updateReasoning(node, isWriting);
        this.updateCalls(node, isWriting, isLast);
        this.state.textContent = stateText(node);
        this.state.className = `state ${node.state === FAILED ? "failed" : ""}`;
        this.updateFoot(node, isWriting, isLast);
    }

    // Open while there is nothing else to read, unless the reader has said otherwise.
    updateReasoning(node, isWriting) {
        if (!node.reasoning) return;
        this.reasoning.hidden = false;
        this.reasoningView.update(node.reasoning, !isWriting);
        const opens = isWriting && !node.content && !node.calls.length;
        if (opens !== this.opened && !this.folded) {
            this.opened = opens;
            this.reasoning.open = opens;
            this.reasoning.querySelector("summary").onclick = () => {
                this.folded = true;
            };
        }
    }

    updateCalls(node, isWriting, isLast) {
        const calls = node.calls || [];
        const key = JSON.stringify([calls, isWriting, isLast]);
        if (key === this.callsKey) return;
        this.callsKey = key;
        this.calls.replaceChildren(
            ...calls
                .filter(Boolean)
                .map((call) =>
                    h(
                        "section",
                        { class: "call", "aria-label": `Call of ${call.name}` },
                        h("h3", {}, "Calls ", h("code", {}, call.name)),
                        codeBlock(isWriting ? call.arguments : pretty(call.arguments), "json"),
                        !isWriting && !this.actions.hasResult(node, call) ? this.resultForm(node, call) : null,
                    ),
                ),
        );
    }

    resultForm(node, call) {
        const area = h("textarea", {
            rows: "2",
            "aria-label": `Result of ${call.name}`,
            placeholder: "The tool's result",
        });
        const send = (event) => {
            event.preventDefault();
            this.actions.giveResult(node, call, area.value);
        };
        return h(
            "form",
            { class: "result-form", onsubmit: send },
            area,
            h("button", { type: "submit", class: "button" }, "Send result"),
        );
    }

    updateFoot(node, isWriting, isLast) {
        const siblings = this.actions.siblings(node);
        const at = siblings.findIndex((n) => n.id === node.id);
        const key = JSON.stringify([isWriting, isLast, siblings.length, at, node.stats, node.state, node.finish]);
        if (key === this.footKey) return;
        this.footKey = key;
        const focused = this.foot.contains(document.activeElement)
            ? document.activeElement.getAttribute("aria-label")
            : null;
        this.foot.replaceChildren(...(isWriting ? [] : this.buttons(node, siblings, at, isLast)));
        if (focused)
            // what was just pressed keeps the focus
            [...this.foot.querySelectorAll("button")].find((b) => b.getAttribute("aria-label") === focused)?.focus();
    }

    buttons(node, siblings, at, isLast) {
        const show = (i) => this.actions.show(siblings[i]);
        const branches =
            siblings.length < 2
                ? null
                : h(
                      "span",
                      { class: "branches" },
                      iconButton("left", "Previous branch", () => show(at - 1), { disabled: at === 0 }),
                      h(
                          "span",
                          { class: "branch-count" },
                          h("span", { class: "hidden-text" }, "Branch "),
                          `${at + 1}/${siblings.length}`,
                      ),
                      iconButton("right", "Next branch", () => show(at + 1), { disabled: at === siblings.length - 1 }),
                  );
        const canGoOn =
            isLast &&
            node.role === "assistant" &&
            node.content &&
            !node.calls.length &&
            ([STOPPED, FAILED, CUT].includes(node.state) || node.finish === "length");
        const goOn = canGoOn
            ? h(
                  "button",
                  { type: "button", class: "text-button", onclick: () => this.actions.goOn(node) },
                  icon("on"),
                  "Continue",
              )
            : null;
        return [
            branches,
            iconButton("copy", "Copy message", () => copyText(node.content)),
            node.role === "user" ? iconButton("edit", "Edit message", () => this.edit()) : null,
            node.role === "assistant" ? iconButton("again", "Answer again", () => this.actions.again(node)) : null,
            goOn,
            node.stats ? h("span", { class: "stats" }, statsText(node.stats)) : null,
        ].filter(Boolean);
    }

    edit() {
        const area = h("textarea", { class: "edit-area", "aria-label": "Message", rows: "3" });
        const close = () => {
            form.replaceWith(this.body);
            this.foot.hidden = false;
        };
        const submit = (event) => {
            event.preventDefault();
            if (!area.value.trim()) return;
            close();
            this.actions.edit(this.node, area.value);
        };
        const onkeydown = (event) => {
            if (event.key === "Escape") close();
            else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
            else return;
            event.stopPropagation();
        };
        const form = h(
            "form",
            { class: "edit-form", onsubmit: submit, onkeydown },
            area,
            h(
                "div",
                { class: "edit-buttons" },
                h("button", { type: "button", class: "button", onclick: close }, "Cancel"),
                h("button", { type: "submit", class: "button primary" }, "Send as a new branch"),
            ),
        );
        area.value = this.node.content;
        this.foot.hidden = true;
        this.body.replaceWith(form);
        area.focus();
    }
}
