// Markdown as DOM nodes: headings, lists, tables, quotes, code, emphasis, and links to http and https. Markup of HTML
// is text, and images are links. An answer grows, so what can't change any more stays as it was rendered, and the rest
// is read again. All of it takes time in proportion to the text, whatever the text is.

import { h, iconButton, copyText } from "./dom.js";

const MAX_DEPTH = 8; // of lists and quotes in each other
const MAX_INLINE = 20000; // characters of a block in which emphasis and links are looked for
const MAX_GROWING = 4000; // the same while it grows
const MAX_LABEL = 1000; // of a link
const MAX_URL = 2000;
const MAX_OPEN = 32; // emphasis that has begun and not ended
const MAX_BLOCKS = 2000; // beside each other; what follows is shown as it is
const MAX_REREAD = 500; // blocks, of which more are not read again at the end
const HEAD = 400; // characters of a line that may say what block it begins

// ---- inline ------------------------------------------------------------------------------------------------------

export function safeUrl(text) {
    if (text.length > MAX_URL || !/^https?:\/\//i.test(text)) return null;
    try {
        const url = new URL(text);
        return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
    } catch {
        return null;
    }
}

function link(url, ...children) {
    return h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, ...children);
}

// Where a character that is not escaped comes next, within `max` characters; -1: it doesn't.
function find(text, from, max, character) {
    for (let i = from; i < text.length && i < from + max; i++) {
        if (text[i] === "\\") i++;
        else if (text[i] === character) return i;
        else if (text[i] === "\n" && character === ")") return -1;
    }
    return -1;
}

// [label](url) at text[i]: {end, node}, or null.
function readLink(text, i) {
    const close = find(text, i + 1, MAX_LABEL, "]");
    if (close < 0 || text[close + 1] !== "(") return null;
    const end = find(text, close + 2, MAX_URL, ")");
    const target =
        end < 0
            ? ""
            : text
                  .slice(close + 2, end)
                  .trim()
                  .replace(/\s+["'(].*$/, "")
                  .replace(/^<(.*)>$/, "$1");
    const url = safeUrl(target);
    const label = text.slice(i + 1, close);
    return url ? { end: end + 1, node: link(url, label || url) } : null;
}

// An address at text[i]; what closes a sentence is no part of it.
function readAddress(text, i) {
    const found = /^https?:\/\/[^\s<>"'`\\]+/i.exec(text.slice(i, i + MAX_URL));
    const address = found ? found[0].replace(/[.,:;!?)\]*_]+$/, "") : "";
    const url = safeUrl(address);
    return url ? { end: i + address.length, node: link(url, address) } : null;
}

// `code` at text[i]; `without` has the lengths of runs of backticks that don't come again.
function readCode(text, i, without) {
    let n = 1;
    while (text[i + n] === "`") n++;
    const fence = "`".repeat(n);
    if (!without.has(n))
        for (let at = text.indexOf(fence, i + n); at >= 0; at = text.indexOf(fence, at)) {
            let end = at + n;
            while (text[end] === "`") end++;
            if (end - at === n) {
                const code = text.slice(i + n, at);
                const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
                return { end, node: h("code", {}, isPadded ? code.slice(1, -1) : code) };
            }
            at = end;
        }
    without.add(n);
    return { end: i + n, node: fence };
}

const EMPHASIS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };
const isWord = (c) => c !== undefined && /[\p{L}\p{N}_]/u.test(c);
const isSpace = (c) => c === undefined || /\s/.test(c);

// A mark of emphasis at text[i], with whether it can begin or end some; null: it is none.
function readMark(text, i) {
    const c = text[i];
    const mark = text[i + 1] === c ? c + c : c;
    const before = text[i - 1];
    const after = text[i + mark.length];
    if (!EMPHASIS[mark]) return null;
    const within = c === "_" && isWord(before) && isWord(after);
    return { mark, opens: !isSpace(after) && !within, closes: !isSpace(before) && !within };
}

// Reads a block's text once, from left to right.
class InlineReader {
    constructor(text) {
        this.text = text;
        this.at = 0;
        this.plain = ""; // text that is not among the nodes yet
        this.without = new Set(); // readCode's
        this.stack = [{ mark: "", nodes: [] }]; // emphasis that has begun
    }

    read() {
        while (this.at < this.text.length) this.step(this.text[this.at]);
        this.unwind(1);
        return this.stack[0].nodes;
    }

    step(c) {
        const found = this.find(c);
        if (found) this.add(found);
        else if (c === "\\" && /[!-/:-@[-`{-~]/.test(this.text[this.at + 1] || ""))
            this.take(this.text[this.at + 1], 2);
        else if (c === "\n") this.endLine();
        else if (!this.emphasize(c)) this.take(c, 1);
    }

    take(text, n) {
        this.plain += text;
        this.at += n;
    }

    flush() {
        if (this.plain) this.stack.at(-1).nodes.push(this.plain);
        this.plain = "";
    }

    add({ end, node }) {
        this.flush();
        this.stack.at(-1).nodes.push(node);
        this.at = end;
    }

    // Emphasis that did not end is text.
    unwind(n) {
        this.flush();
        while (this.stack.length > n) {
            const open = this.stack.pop();
            this.stack.at(-1).nodes.push(open.mark, ...open.nodes);
        }
    }

    // Code, a link or an address that begins here.
    find(c) {
        const { text, at } = this;
        if (c === "`") return readCode(text, at, this.without);
        if (c === "[" || (c === "!" && text[at + 1] === "[")) return readLink(text, c === "[" ? at : at + 1);
        if (c === "<") {
            const found = readAddress(text, at + 1);
            return found && text[found.end] === ">" ? { ...found, end: found.end + 1 } : null;
        }
        return (c === "h" || c === "H") && !isWord(text[at - 1]) ? readAddress(text, at) : null;
    }

    // Two spaces or a backslash before it make it a break.
    endLine() {
        const isBreak = this.plain.endsWith("  ") || this.plain.endsWith("\\");
        this.plain = this.plain.replace(/(?: +|\\)$/, "");
        if (isBreak) this.add({ end: this.at + 1, node: h("br") });
        else this.take("\n", 1);
    }

    // False: here is no mark of emphasis.
    emphasize(c) {
        const m = c === "*" || c === "_" || c === "~" ? readMark(this.text, this.at) : null;
        if (!m) return false;
        const begin = m.closes ? this.stack.findLastIndex((open) => open.mark === m.mark) : -1;
        if (begin > 0) {
            this.unwind(begin + 1);
            const open = this.stack.pop();
            this.stack.at(-1).nodes.push(h(EMPHASIS[m.mark], {}, open.nodes));
        } else if (m.opens && this.stack.length < MAX_OPEN) {
            this.flush();
            this.stack.push({ mark: m.mark, nodes: [] });
        } else {
            this.plain += m.mark;
        }
        this.at += m.mark.length;
        return true;
    }
}

// The nodes of a block's text.
export const inline = (text) => new InlineReader(text).read();

const inlineBounded = (text, max) => (text.length > max ? [text] : inline(text));

// ---- blocks ------------------------------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const isBlank = (line) => !/\S/.test(line);

function isTableAt(lines, i) {
    const next = lines[i + 1];
    return (
        next !== undefined && lines[i].includes("|") && next.includes("-") && DELIMITERS.test(next.slice(0, HEAD * 4))
    );
}

// Whether a line ends the paragraph before it.
function interrupts(lines, i) {
    const line = lines[i].slice(0, HEAD);
    return (
        isBlank(line) ||
        FENCE.test(line) ||
        HEADING.test(line) ||
        RULE.test(line) ||
        QUOTE.test(line) ||
        ITEM.test(line) ||
        isTableAt(lines, i)
    );
}

function fenceEnd(lines, i, fence) {
    const close = new RegExp(`^ {0,3}${fence[0] === "`" ? "`" : "~"}{${fence.length},}[ \\t]*$`);
    while (i < lines.length && !close.test(lines[i].slice(0, HEAD))) i++;
    return i;
}

// Lines that belong to a list: items, what is indented below them, and blank lines between.
function listEnd(lines, i) {
    const first = ITEM.exec(lines[i]);
    const isOrdered = /\d/.test(first[2]);
    for (i++; i < lines.length; i++) {
        const line = lines[i].slice(0, HEAD);
        if (isBlank(line)) {
            const next = (lines[i + 1] || "").slice(0, HEAD);
            const item = ITEM.exec(next);
            if (!(item && /\d/.test(item[2]) === isOrdered) && !/^ {2,}\S/.test(next)) return i;
        } else if (!ITEM.test(line) && !/^ {2,}/.test(line) && interrupts(lines, i)) {
            return i;
        } else if (RULE.test(line)) {
            return i;
        }
    }
    return i;
}

// One past the last line of the block that begins at line i, which is not blank.
function blockEnd(lines, i) {
    const line = lines[i].slice(0, HEAD);
    const fence = FENCE.exec(line);
    if (fence) return Math.min(fenceEnd(lines, i + 1, fence[1]) + 1, lines.length);
    if (HEADING.test(line) || RULE.test(line)) return i + 1;
    const isQuote = QUOTE.test(line);
    if (!isQuote && ITEM.test(line)) return listEnd(lines, i);
    const isTable = !isQuote && isTableAt(lines, i);
    for (i += isTable ? 2 : 1; i < lines.length; i++) {
        const next = lines[i].slice(0, HEAD);
        if (
            isBlank(next) ||
            (isTable && !lines[i].includes("|")) ||
            (!isTable && !(isQuote && QUOTE.test(next)) && interrupts(lines, i))
        )
            return i;
    }
    return i;
}

export function codeBlock(text, language) {
    const code = h("code", {}, text);
    return h(
        "div",
        { class: "code-block" },
        h(
            "div",
            { class: "code-head" },
            h("span", {}, language || "text"),
            iconButton("copy", "Copy code", () => copyText(code.textContent)),
        ),
        h("pre", { tabindex: "0", role: "region", "aria-label": `Code, ${language || "text"}` }, code),
    );
}

function cells(line) {
    const all = line
        .trim()
        .replace(/^\|/, "")
        .replace(/\|$/, "")
        .split(/(?<!\\)\|/);
    return all.slice(0, 100).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function table(lines, max) {
    const align = cells(lines[1]).map((c) => (/^:.*:$/.test(c) ? "center" : c.endsWith(":") ? "right" : null));
    const row = (line, tag) =>
        h(
            "tr",
            {},
            cells(line).map((text, i) =>
                h(
                    tag,
                    { class: align[i] ? `to-${align[i]}` : null, scope: tag === "th" ? "col" : null },
                    inlineBounded(text, max),
                ),
            ),
        );
    return h(
        "div",
        { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "Table" },
        h(
            "table",
            {},
            h("thead", {}, row(lines[0], "th")),
            h(
                "tbody",
                {},
                lines.slice(2).map((line) => row(line, "td")),
            ),
        ),
    );
}

// A list's items, each the lines in it without their indent.
function list(lines, depth, max) {
    const first = ITEM.exec(lines[0]);
    const base = first[1].length;
    const isOrdered = /\d/.test(first[2]);
    const items = [];
    let indent = 0;
    for (const line of lines) {
        const item = ITEM.exec(line.slice(0, HEAD));
        if (item && item[1].length <= base + 1) {
            indent = item[0].length;
            items.push([line.slice(item[0].length)]);
        } else {
            const spaces = /^ */.exec(line)[0].length;
            items.at(-1).push(line.slice(Math.min(spaces, indent)));
        }
    }
    const start = isOrdered ? parseInt(first[2], 10) : 1;
    return h(
        isOrdered ? "ol" : "ul",
        { start: start !== 1 ? start : null },
        items.map((item) => {
            const task = /^\[([ xX])\] /.exec(item[0]);
            if (task) item[0] = (task[1] === " " ? "☐ " : "☑ ") + item[0].slice(4);
            const nodes = blocks(item, depth + 1, max);
            const isTight = nodes[0]?.tagName === "P" && nodes.filter((n) => n.tagName === "P").length === 1;
            return h("li", {}, isTight ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes);
        }),
    );
}

// The block of these lines, which begins with one that is not blank.
function block(lines, depth, max) {
    const line = lines[0].slice(0, HEAD);
    const fence = FENCE.exec(line);
    if (fence) {
        const isClosed = fenceEnd(lines, 1, fence[1]) < lines.length;
        return codeBlock(lines.slice(1, isClosed ? -1 : undefined).join("\n"), fence[2].slice(0, 40));
    }
    const heading = HEADING.exec(line);
    if (heading && lines[0].length <= HEAD)
        // the page has levels of its own above
        return h(`h${Math.min(heading[1].length + 2, 6)}`, {}, inline(heading[2] || ""));
    if (RULE.test(line)) return h("hr");
    if (depth < MAX_DEPTH && QUOTE.test(line))
        return h(
            "blockquote",
            {},
            blocks(
                lines.map((l) => l.replace(/^ {0,3}> ?/, "")),
                depth + 1,
                max,
            ),
        );
    if (depth < MAX_DEPTH && ITEM.test(line)) return list(lines, depth, max);
    if (isTableAt(lines, 0)) return table(lines, max);
    return h("p", {}, inlineBounded(lines.join("\n"), max));
}

const plain = (lines) => h("p", { class: "plain" }, lines.join("\n"));

function blocks(lines, depth, max) {
    const nodes = [];
    for (let i = 0; i < lines.length;) {
        if (isBlank(lines[i])) {
            i++;
            continue;
        }
        if (nodes.length >= MAX_BLOCKS) {
            nodes.push(plain(lines.slice(i)));
            break;
        }
        const end = blockEnd(lines, i);
        nodes.push(block(lines.slice(i, end), depth, max));
        i = end;
    }
    return nodes;
}

export function markdown(text) {
    return blocks(text.split("\n"), 0, MAX_INLINE);
}

// ---- text that grows -----------------------------------------------------------------------------------------------

// Shows Markdown in an element. update() may be called with the text of before and more behind it; any other text is
// read anew.
export class MarkdownView {
    constructor(element) {
        this.element = element;
        this.clear();
    }

    clear() {
        this.element.replaceChildren();
        this.text = "";
        this.begin = 0; // of the last block in the text
        this.last = []; // its nodes
        this.growing = null; // the text node of a last block that only grows
        this.isPlain = false; // it takes all that comes
    }

    // isWhole: nothing follows.
    update(text, isWhole) {
        if (!text.startsWith(this.text)) this.clear();
        if (isWhole) this.renderWhole(text);
        else if (this.growing && this.canGrow(text)) this.growing.appendData(text.slice(this.text.length));
        else this.renderTail(text);
        this.text = text;
    }

    // What was shown while it came is mostly right; what is stays as it is, with what the reader has selected in it.
    renderWhole(text) {
        const there = [...this.element.childNodes];
        if (there.length > MAX_REREAD) {
            this.renderTail(text);
            return;
        }
        const nodes = markdown(text);
        nodes.forEach((node, i) => {
            if (i >= there.length) this.element.append(node);
            else if (!there[i].isEqualNode(node)) there[i].replaceWith(node);
        });
        for (const node of there.slice(nodes.length)) node.remove();
        this.begin = 0;
        this.last = [...this.element.childNodes];
        this.growing = null;
    }

    // Whether what is new only makes the last block longer.
    canGrow(text) {
        return this.isPlain || !text.slice(this.text.lastIndexOf("\n") + 1).includes("\n");
    }

    renderTail(text) {
        const lines = text.slice(this.begin).split("\n");
        let i = 0;
        for (const node of this.last) node.remove();
        this.last = [];
        this.growing = null;
        this.isPlain = false;
        while (i < lines.length) {
            if (isBlank(lines[i])) {
                this.begin += i < lines.length - 1 ? lines[i].length + 1 : 0;
                i++;
                continue;
            }
            if (this.element.childNodes.length >= MAX_BLOCKS) {
                this.appendPlain(lines.slice(i));
                return;
            }
            const end = blockEnd(lines, i);
            const isLast = lines.slice(end, end + 3).every(isBlank); // a list may go on after blank lines
            this.append(lines.slice(i, end), isLast);
            if (isLast) return;
            for (; i < end; i++) this.begin += lines[i].length + 1;
            this.last = [];
        }
    }

    appendPlain(lines) {
        this.last = [plain(lines)];
        this.element.append(...this.last);
        this.growing = this.last[0].firstChild;
        this.isPlain = true;
    }

    append(lines, grows) {
        const node = block(lines, 0, grows ? MAX_GROWING : MAX_INLINE);
        const leaf = node.tagName === "P" ? node : node.matches(".code-block") ? node.querySelector("pre code") : null;
        const isLong = lines.reduce((n, line) => n + line.length + 1, 0) > MAX_GROWING;
        this.element.append(node);
        this.last = [node];
        if (grows && isLong && leaf?.childNodes.length === 1 && leaf.firstChild.nodeType === Node.TEXT_NODE)
            this.growing = leaf.firstChild;
    }
}
