// Exports a conversation as a file.

import { h } from "./dom.js";
import { pathOf } from "./tree.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result" };

// Fenced code, with a fence that is longer than those within the text.
function fenced(text, language) {
    const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (m) => m[0].length));
    const fence = "`".repeat(longest + 1);
    return `${fence}${language}\n${text}\n${fence}`;
}

// The path that is shown, as Markdown; reasoning is quoted.
export function toMarkdown(c) {
    const parts = [`# ${c.title || "Conversation"}`];
    for (const n of pathOf(c)) {
        parts.push(`## ${NAMES[n.role] || n.role}`);
        if (n.reasoning) parts.push(n.reasoning.trim().replace(/^/gm, "> "));
        if (n.content) parts.push(n.role === "tool" ? fenced(n.content, "") : n.content);
        for (const call of n.calls || []) parts.push(`Calls \`${call.name}\`:`, fenced(call.arguments, "json"));
    }
    return `${parts.join("\n\n")}\n`;
}

// All branches, as JSON.
export function toJson(c) {
    return `${JSON.stringify({ format: "moebius conversation 1", ...c }, null, 2)}\n`;
}

export function download(name, type, text) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function fileName(c, suffix) {
    const name = (c.title || "conversation")
        .replace(/[^\p{L}\p{N}]+/gu, "-")
        .replace(/^-+|-+$/g, "")
        .slice(0, 60);
    return `${name || "conversation"}.${suffix}`;
}
