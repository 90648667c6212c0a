// The page of `moebius serve` in Chromium without a window, as somebody uses it. Run by `make check-page`.
// usage: check_page.mjs MOEBIUS MODEL.gguf [TEST...]
//
// MOEBIUS_SHOTS=DIR leaves pictures there. CHROMIUM names the browser (chromium).

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";
import { Middle } from "./middle.mjs";

const [program, model, ...chosen] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "moebius-page-"));
const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const template = join(folder, "template");
writeFileSync(template, "{% for m in messages %}{{ m.content }}\n{% endfor %}");

// ---- the server ---------------------------------------------------------------------------------------------------

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(what, holds, ms = 15000) {
    for (const end = Date.now() + ms; Date.now() < end; await sleep(25)) if (await holds()) return;
    assert.fail(`${what}: not within ${ms} ms`);
}

const freePort = () =>
    new Promise((resolve) => {
        const s = createServer().listen(0, "127.0.0.1", () => {
            const { port } = s.address();
            s.close(() => resolve(port));
        });
    });

class Server {
    constructor(port, ...args) {
        this.port = port;
        this.args = args;
    }

    async start() {
        this.log = "";
        this.process = spawn(
            program,
            [
                "serve",
                ...(this.args.includes("--models") ? [] : ["-m", model]),
                "--cold",
                "--template",
                template,
                "--ctx",
                "2048",
                "--port",
                this.port,
                ...this.args,
            ],
            { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, XDG_CACHE_HOME: folder } },
        );
        this.ended = new Promise((resolve) => this.process.on("exit", (code, signal) => resolve(code ?? signal)));
        this.process.stderr.on("data", (data) => {
            this.log += data;
        });
        await until(`the server starts: ${this.log}`, () => this.log.includes("listening at"));
        return this;
    }

    async stop(signal = "SIGTERM") {
        this.process.kill(signal);
        const code = await this.ended;
        assert.ok(signal === "SIGKILL" || code === 0, `the server ended with ${code}: ${this.log}`);
    }
}

// ---- the page -----------------------------------------------------------------------------------------------------

let browser;
let server;
let middle;

const DESK = { width: 1360, height: 860 };
const PHONE = { width: 390, height: 780 };

// A page, in a context of its own unless one is given. What it writes to the console is an error, unless expected.
async function openPage({ context, url = middle.url, viewport = DESK, scheme = "light", expected = /(?!)/ } = {}) {
    const own = context || (await browser.newContext({ viewport, colorScheme: scheme, acceptDownloads: true }));
    if (!context)
        // answers that are short, and the same each time
        await own.addInitScript(
            () => (localStorage["moebius.settings"] ??= JSON.stringify({ temperature: "0", maxTokens: "150" })),
        );
    const page = await own.newPage();
    page.wrong = [];
    page.on("console", (m) => {
        if (["error", "warning"].includes(m.type()) && !expected.test(m.text())) page.wrong.push(m.text());
    });
    page.on("response", async (r) => {
        if (r.status() >= 400 && !expected.test(String(r.status())))
            page.wrong.push(`${r.url()}: ${r.status()}: ${await r.text().catch(() => "")}`);
    });
    page.on("pageerror", (e) => page.wrong.push(String(e.stack || e)));
    page.on("dialog", (d) => {
        page.wrong.push(`a dialog: ${d.message()}`);
        d.dismiss();
    });
    await page.goto(url);
    await page.waitForSelector("body[data-ready]");
    return page;
}

const clean = (page) => assert.deepEqual(page.wrong, [], "the console is quiet");
const shot = (page, name) =>
    process.env.MOEBIUS_SHOTS ? page.screenshot({ path: join(process.env.MOEBIUS_SHOTS, `${name}.png`) }) : null;
const answers = (page) => page.locator(".message.assistant .markdown:not(.reasoning .markdown)");
const lastText = async (page) => (await answers(page).last().textContent()) || "";
const ended = (page) => page.waitForSelector("#send:visible", { timeout: 30000 });

async function say(page, text) {
    await page.fill("#input", text);
    await page.press("#input", "Enter");
}

async function converse(page, text) {
    const n = await answers(page).count();
    await say(page, text);
    await until("an answer begins", async () => (await answers(page).count()) === n + 1);
    await ended(page);
}

// An answer that the test writes.
async function scripted(page, text, script) {
    middle.script = Array.isArray(script) ? { deltas: script } : script;
    await converse(page, text);
}

async function audit(page, what) {
    await page.evaluate(axeSource);
    const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const found = violations.map(
        (v) =>
            `${v.id}: ${v.help}: ${v.nodes
                .slice(0, 3)
                .map((n) => n.html.slice(0, 160))
                .join(" | ")}`,
    );
    assert.deepEqual(found, [], `${what}: axe`);
}

// ---- tests --------------------------------------------------------------------------------------------------------

const tests = {
    async an_answer_streams_and_says_how_fast_it_was() {
        const page = await openPage();
        middle.eventMs = 5;
        await say(page, "Once upon a time there was");
        const lengths = new Set();
        await until("the answer grows", async () => {
            lengths.add((await lastText(page).catch(() => "")).length);
            return lengths.size > 5;
        });
        assert.equal(await page.locator("#stop").isVisible(), true);
        middle.eventMs = 0;
        await ended(page);
        assert.match(await page.locator(".stats").last().textContent(), /[\d.]+ tokens\/s · \d+ tokens · prompt \d+/);
        await converse(page, "And then");
        assert.match(await page.locator(".stats").last().textContent(), /\d+ of it cached/);
        assert.match(await page.locator("#announcer").textContent(), /The answer has ended/);
        assert.equal(await page.title(), "Once upon a time there was – moebius");
        assert.deepEqual(
            middle.bodies.at(-1).messages.map((m) => m.role),
            ["user", "assistant", "user"],
        );
        clean(page);
        await shot(page, "conversation");
    },

    async an_answer_can_be_stopped_and_gone_on_with() {
        const page = await openPage();
        middle.eventMs = 30;
        await say(page, "Once upon a time there was a dog");
        await until("some text", async () => (await lastText(page).catch(() => "")).length > 20);
        await page.keyboard.press("Escape");
        await ended(page);
        const part = await lastText(page);
        assert.match(await page.locator(".state").last().textContent(), /Stopped/);
        await sleep(200);
        assert.equal(await lastText(page), part, "nothing comes after the stop");
        await until("the server knows", async () =>
            (await (await fetch(`${middle.url}/slots`)).json()).every((s) => !s.is_processing),
        );
        middle.eventMs = 0;
        await page.click("text=Continue");
        await ended(page);
        const body = middle.bodies.at(-1);
        assert.equal(body.continue_final_message, true);
        const whole = await lastText(page);
        assert.ok(
            whole.replace(/\s/g, "").startsWith(part.replace(/\s/g, "")) && whole.length > part.length,
            `${part} / ${whole}`,
        );
        clean(page);
    },

    async editing_and_asking_again_make_branches_that_stay() {
        const page = await openPage();
        await converse(page, "One day a cat");
        const first = await lastText(page);
        await page.click("[aria-label='Edit message']");
        await page.fill(".edit-area", "One day a bird");
        await page.press(".edit-area", "Enter");
        await until("the edited branch", async () =>
            (await page.locator(".message.user").textContent()).includes("a bird"),
        );
        await ended(page);
        assert.equal((await page.locator(".branch-count").first().textContent()).trim(), "Branch 2/2");
        await page.click("[aria-label='Answer again']");
        await until("another answer", async () => (await page.locator(".branch-count").count()) === 2);
        await ended(page);
        await page.click(".message.user [aria-label='Previous branch']");
        assert.match(await page.locator(".message.user").textContent(), /a cat/);
        assert.equal(await lastText(page), first);
        await until("the choice is kept", () =>
            page.evaluate(async () => {
                const [{ Store }, { pathOf }] = await Promise.all([import("/web/store.js"), import("/web/tree.js")]);
                const store = new Store();
                await store.open();
                const [entry] = await store.list();
                return pathOf(await store.get(entry.id))[0].content.includes("a cat");
            }),
        );
        await page.reload();
        await page.waitForSelector(".message.assistant");
        assert.match(await page.locator(".message.user").textContent(), /a cat/, "the branch that was shown");
        await page.click(".message.user [aria-label='Next branch']");
        assert.match(await page.locator(".message.user").textContent(), /a bird/);
        assert.equal(await page.locator(".branch-count").count(), 2, "both answers of that branch");
        clean(page);
    },

    async a_reload_in_the_middle_of_an_answer_loses_nothing_that_came() {
        const page = await openPage();
        middle.eventMs = 30;
        await say(page, "Once upon a time there was a dog");
        await until("text was kept", async () => (await lastText(page).catch(() => "")).length > 250, 20000);
        await page.reload();
        await page.waitForSelector(".message.assistant");
        assert.ok((await lastText(page)).length > 100, await lastText(page));
        assert.match(await page.locator(".state").last().textContent(), /closed before the end/);
        middle.eventMs = 0;
        await page.click("text=Continue");
        await ended(page);
        clean(page);
    },

    async two_tabs_have_the_same_conversations_and_both_may_add() {
        const one = await openPage();
        await converse(one, "The sun");
        const two = await openPage({ context: one.context() });
        await two.click(".entry");
        await two.waitForSelector(".message.assistant");
        await converse(two, "The moon");
        await until("the other tab sees it", async () =>
            (await one.locator("#messages").textContent()).includes("The moon"),
        );
        await converse(one, "The stars");
        await until("and this one, too", async () =>
            (await two.locator("#messages").textContent()).includes("The stars"),
        );
        assert.equal(await answers(two).count(), 3);
        await one.click("[aria-label='Delete The sun']");
        await until("a deleted one goes everywhere", async () => (await two.locator(".entry").count()) === 0);
        await one.click("text=Undo");
        await until("and comes back", async () => (await two.locator(".entry").count()) === 1);
        clean(one);
        clean(two);
    },

    async a_conversation_that_is_deleted_while_it_is_answered_stays_deleted() {
        const page = await openPage();
        middle.eventMs = 30;
        await say(page, "Once upon a time there was a dog");
        await until("some text", async () => (await lastText(page).catch(() => "")).length > 10);
        await page.click(".remove");
        await sleep(500);
        assert.equal(await page.locator(".entry").count(), 0);
        assert.equal(await page.locator(".message").count(), 0);
        await page.click("text=Undo");
        await page.waitForSelector(".message.assistant");
        assert.match(await page.locator(".state").last().textContent(), /Stopped/);
        await page.click("text=Continue");
        middle.eventMs = 0;
        await ended(page);
        clean(page);
    },

    async the_experts_move_while_tokens_stream_and_are_fed_only_while_somebody_looks() {
        const page = await openPage();
        const pixels = () => page.evaluate(() => document.getElementById("grid").toDataURL());
        await sleep(100);
        assert.equal(middle.watchers, 0);
        await page.keyboard.press("Alt+e");
        await page.waitForSelector("#grid-frame:visible");
        await until("a picture", async () => (await page.locator("#figure-memory").textContent()).includes("of"));
        assert.equal(middle.watchers, 1);
        await sleep(200);
        const seen = new Set([await pixels()]);
        for (let i = 0; i < 12; i++) {
            await converse(page, "Once upon a time");
            seen.add(await pixels());
        }
        assert.ok(seen.size >= 4, `${seen.size} pictures`);
        await until("choices are counted", async () => {
            await page.focus("#grid-frame");
            await page.keyboard.press("ArrowRight");
            return /chosen [1-9]\d* times \([\d.]+% of the layer's\), at place 0/.test(
                await page.locator("#cell").textContent(),
            );
        });
        await shot(page, "experts");
        await page.keyboard.press("Alt+e");
        await until("nobody looks", () => middle.watchers === 0);
        clean(page);
    },

    async experts_that_are_read_and_other_places_have_colours_of_their_own() {
        const port = await freePort();
        const split = await new Server(port, "--devices", "cpu:1,cpu:1", "--expert-ram", "60%").start();
        try {
            const page = await openPage({ url: `http://127.0.0.1:${port}` });
            await page.keyboard.press("Alt+e");
            await until("reads are counted", async () => {
                await converse(page, "Once upon a time"); // until one falls between two reports
                return /^\d+%$/.test(await page.locator("#figure-hits").textContent());
            });
            assert.match(
                await page.locator("#legend").textContent(),
                /at place 0 \(cpu:1\)at place 1 \(cpu:1\)read when needed/,
            );
            const colours = () => page.evaluate(() => {
                const grid = document.getElementById("grid");
                const copy = new OffscreenCanvas(grid.width, grid.height).getContext("2d");
                copy.drawImage(grid, 0, 0);
                const { data } = copy.getImageData(0, 0, grid.width, grid.height);
                const kinds = new Set();
                for (let i = 0; i < data.length; i += 4)
                    if (data[i + 3] === 255)
                        kinds.add(
                            data[i] > data[i + 2] + 15 ? "place 1" : data[i + 1] > data[i] + 15 ? "place 0" : "read",
                        );
                return [...kinds].sort();
            });
            await until("all kinds are drawn", async () => (await colours()).join() === "place 0,place 1,read");
            await shot(page, "places");
            clean(page);
        } finally {
            await split.stop();
        }
    },

    async a_server_that_goes_away_is_said_and_the_answer_goes_on_when_it_is_back() {
        const page = await openPage({ expected: /ERR_|Failed to load resource/ });
        await page.keyboard.press("Alt+e");
        await page.waitForSelector("#grid-frame:visible");
        middle.eventMs = 20;
        await say(page, "Once upon a time there was a dog");
        await until("some text", async () => (await lastText(page).catch(() => "")).length > 40);
        await server.stop("SIGKILL");
        middle.cut();
        await page.waitForSelector("#gone:visible");
        assert.match(await page.locator("#gone").textContent(), /does not respond.*nothing is lost/);
        await until("the answer waits", async () =>
            /Waiting for the server/.test(await page.locator("#status").textContent()),
        );
        const part = await lastText(page);
        await shot(page, "gone");
        await audit(page, "the server is gone");
        await page.fill("#input", "a draft");
        middle.eventMs = 0;
        const n = middle.paths.length;
        await page.click("#retry");
        await until("it is tried", () => middle.paths.slice(n).includes("/health"), 900);
        await server.start();
        await page.waitForSelector("#gone", { state: "hidden" });
        await ended(page);
        const whole = await lastText(page);
        assert.ok(
            whole.replace(/\s/g, "").startsWith(part.replace(/\s/g, "")) && whole.length > part.length,
            `${part} / ${whole}`,
        );
        assert.equal(await page.inputValue("#input"), "a draft");
        await until("the experts are fed again", () => middle.watchers === 1);
        clean(page);
    },

    async a_server_that_is_busy_is_not_said_to_be_gone() {
        const page = await openPage({ expected: /503/ });
        await page.evaluate(() => {
            const gone = document.getElementById("gone");
            globalThis.wasGone = false;
            new MutationObserver(() => (globalThis.wasGone ||= !gone.hidden)).observe(gone, { attributes: true });
        });
        middle.script = { refusal: "the queue is full" };
        await say(page, "Once upon a time");
        await until("it is said", async () =>
            /busy: the queue is full/.test(await page.locator("#status").textContent()),
        );
        await ended(page);
        assert.notEqual(await lastText(page), "");
        assert.equal(await page.evaluate(() => globalThis.wasGone), false);
        clean(page);
    },

    async a_browser_that_keeps_nothing_has_a_page_all_the_same() {
        const context = await browser.newContext({ viewport: DESK });
        await context.addInitScript(() => {
            for (const name of ["localStorage", "sessionStorage", "indexedDB"])
                Object.defineProperty(globalThis, name, {
                    get() {
                        throw new DOMException("forbidden", "SecurityError");
                    },
                });
        });
        const page = await openPage({ context });
        assert.match(await page.locator("#toasts").textContent(), /does not allow storage/);
        await scripted(page, "Hello", [{ content: "Good day." }]);
        assert.equal(await lastText(page), "Good day.");
        await until("it is listed", async () => (await page.locator(".entry").count()) === 1);
        clean(page);
        await context.close();
    },

    async what_the_browser_has_no_room_for_lasts_as_long_as_the_page() {
        const page = await openPage();
        const lengths = await page.evaluate(async () => {
            const { keep, kept } = await import("/web/keep.js");
            const length = (text) => {
                keep("sessionStorage", "moebius.test", text);
                return kept("sessionStorage", "moebius.test")?.length;
            };
            return [length("x"), length("x".repeat(20e6)), length("xx"), length(null)];
        });
        assert.deepEqual(lengths, [1, 20e6, 2, undefined]);
        clean(page);
    },

    async a_server_that_wants_a_key_gets_one() {
        const port = await freePort();
        const locked = await new Server(port, "--api-key", "secret").start();
        try {
            const page = await openPage({ url: `http://127.0.0.1:${port}`, expected: /401/ });
            await page.waitForSelector("#key[open]");
            await audit(page, "the key");
            await page.fill("#key-input", "wrong");
            await page.press("#key-input", "Enter");
            await until("the key is wrong", async () =>
                /does not accept/.test(await page.locator("#key-error").textContent()),
            );
            await page.fill("#key-input", "secret");
            await page.press("#key-input", "Enter");
            await until("the models", async () => /llama/.test(await page.locator("#model").textContent()));
            await converse(page, "The dog");
            assert.equal(await page.evaluate(() => Object.values(localStorage).join().includes("secret")), false);
            assert.equal(await page.evaluate(() => Object.values(sessionStorage).join().includes("secret")), true);
            clean(page);
        } finally {
            await locked.stop();
        }
    },

    async a_hostile_answer_does_nothing() {
        const page = await openPage();
        const hostile = [
            "<script>globalThis.pwned = 1</script><img src=x onerror='globalThis.pwned = 1'><iframe src='javascript:globalThis.pwned = 1'></iframe>",
            "[a](javascript:globalThis.pwned=1) [b](data:text/html,<script>1</script>) [c](vbscript:x) [d](//example.com) [e](  JaVaScRiPt:1)",
            '![i](http://example.com/i.png) ![j](x "onload=alert(1)") <http://example.com/"onclick="alert(1)>',
            "<style>*{display:none}</style><a href='javascript:alert(1)'>x</a><svg onload=alert(1)>",
            "`<b>` **<b>** [x](http://example.com/'onmouseover='alert(1))",
            "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <script>alert(1)</script> | `<i>` |",
            "```<script>\n</code></pre><script>globalThis.pwned = 1</script>\n```",
            "# <svg/onload=alert(1)>",
            "- <img src=x onerror=alert(1)>",
            "> <form action=x><button>",
            "\u202eevil \u0000 \ufeff",
        ].join("\n\n");
        await scripted(
            page,
            "<img src=x onerror='globalThis.pwned = 1'>",
            Array.from(hostile, (c) => ({ content: c })),
        );
        await sleep(200);
        assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
        assert.equal(
            await page.evaluate(
                () => document.querySelectorAll("#messages :is(script, img, iframe, style, form, object)").length,
            ),
            0,
        );
        const links = await page.evaluate(() =>
            [...document.querySelectorAll("#messages a")].map((a) => [a.protocol, a.rel, a.target]),
        );
        assert.ok(
            links.length >= 2 && links.every(([protocol, rel]) => protocol === "http:" && rel.includes("noopener")),
            JSON.stringify(links),
        );
        assert.ok((await lastText(page)).includes("<script>globalThis.pwned = 1</script>"), "it is shown as text");
        await page.reload();
        await page.waitForSelector(".message.assistant");
        assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
        clean(page);
    },

    async long_lines_and_endless_marks_stay_quick() {
        const page = await openPage();
        await scripted(page, "Many", [
            { content: "# a\n".repeat(1500) },
            { content: "# b\n".repeat(1500) },
            { content: "# c" },
        ]);
        assert.equal(await page.locator(".message.assistant h3").count(), 2000);
        assert.equal(
            (await lastText(page)).replaceAll("\n", ""),
            "a".repeat(1500) + "b".repeat(500) + "# b".repeat(1000) + "# c",
        );
        const rubbish = [
            "x".repeat(100000),
            "*a ".repeat(33000),
            "[".repeat(100000),
            "`a``".repeat(25000),
            "> ".repeat(50000),
            `${"- a\n  ".repeat(4000)}`,
            "|a".repeat(50000),
            "a\n|-|\n".repeat(10000),
            "```\n".repeat(20000),
            "_*~".repeat(30000),
            "1. ".repeat(30000),
            "http://a".repeat(12000),
            "<".repeat(100000),
            "\\".repeat(100000),
        ];
        for (const text of rubbish) {
            const pieces = Array.from({ length: 1000 }, (_, i) => ({
                content: text.slice((i * text.length) / 1000, ((i + 1) * text.length) / 1000),
            }));
            await page.evaluate(() => {
                globalThis.worst = 0;
                let last = performance.now();
                globalThis.pulse = setInterval(() => {
                    globalThis.worst = Math.max(globalThis.worst, performance.now() - last);
                    last = performance.now();
                }, 10);
            });
            const begin = Date.now();
            await scripted(page, "Go", { deltas: pieces, pauseMs: 1 });
            const took = Date.now() - begin;
            const worst = await page.evaluate(() => {
                clearInterval(globalThis.pulse);
                return globalThis.worst;
            });
            assert.ok(
                took < 30000 && worst < 4000,
                `${text.slice(0, 8)}…: ${took} ms, ${Math.round(worst)} ms without a moment for the user`,
            );
            if (process.env.MOEBIUS_SHOTS)
                console.log(`    ${JSON.stringify(text.slice(0, 8))}: ${took} ms, worst pause ${Math.round(worst)} ms`);
            await page.keyboard.press("Alt+n");
        }
        clean(page);
    },

    async markdown_is_shown_as_what_it_means() {
        const page = await openPage();
        const text = [
            "# Sorting",
            "Some **bold**, *slanted*, ~~old~~ and `code_here` with snake_case_names and 2 * 3 * 4.",
            "1. one\n2. two\n   - deep\n   - deeper\n\n3. three",
            "- [x] done\n- [ ] open",
            "| Name | Time |\n|:-----|-----:|\n| merge | n log n |\n| `a\\|b` | n |",
            "> quoted\n> twice",
            "---",
            'A [link](https://example.com/a?b=1 "title"), https://example.com/c. And \\*stars\\*',
            '```python\ndef f(x):\n    return "<b>" # **not bold**\n\n```',
            "Line one  \nline two",
        ].join("\n\n");
        await scripted(
            page,
            "Markdown",
            Array.from(text, (c) => ({ content: c })),
        );
        const html = await answers(page)
            .last()
            .evaluate((e) => e.innerHTML);
        const has = (part) => assert.ok(html.includes(part), `${part} in ${html}`);
        has("<h3>Sorting</h3>");
        has(
            "<strong>bold</strong>, <em>slanted</em>, <del>old</del> and <code>code_here</code> with snake_case_names and 2 * 3 * 4.",
        );
        has("<ol><li>one</li><li>two<ul><li>deep</li><li>deeper</li></ul></li><li>three</li></ol>");
        has("<li>☑ done</li><li>☐ open</li>");
        has('<th scope="col">Name</th><th class="to-right" scope="col">Time</th>');
        has('<td><code>a|b</code></td><td class="to-right">n</td>');
        has("<blockquote><p>quoted\ntwice</p></blockquote><hr>");
        has('<a href="https://example.com/a?b=1" target="_blank" rel="noopener noreferrer nofollow">link</a>');
        has(">https://example.com/c</a>. And *stars*");
        has('<code>def f(x):\n    return "&lt;b&gt;" # **not bold**\n</code>');
        has("Line one<br>line two");
        assert.equal(await page.locator(".code-head span").last().textContent(), "python");
        await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
        await page.locator("[aria-label='Copy code']").last().click();
        assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^def f\(x\):\n {4}return/);
        await shot(page, "markdown");
        await audit(page, "markdown");
        clean(page);
    },

    async reasoning_is_folded_and_calls_get_results() {
        const page = await openPage();
        const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
        await page.click("#settings-button");
        await page.fill("[name=tools]", "[{");
        assert.match(await page.locator("#tools-error").textContent(), /Not valid JSON/);
        await page.fill("[name=tools]", JSON.stringify(tools));
        await page.fill("[name=system]", "Be brief.");
        await page.fill("[name=temperature]", "0.5");
        await page.fill("[name=topP]", "0.9");
        await page.fill("[name=maxTokens]", "77");
        await page.selectOption("[name=effort]", "low");
        await audit(page, "settings");
        await shot(page, "settings");
        await page.click("text=Done");
        await scripted(page, "Weather?", [
            { reasoning_content: "They ask " },
            { reasoning_content: "about **rain**." },
            { content: "Let me look." },
            { tool_calls: [{ index: 0, id: "c1", function: { name: "weather", arguments: '{"city":' } }] },
            { tool_calls: [{ index: 0, function: { arguments: '"Ulm"}' } }] },
        ]);
        const body = middle.bodies.at(-1);
        assert.deepEqual(
            [body.temperature, body.top_p, body.max_tokens, body.reasoning_effort, body.tools],
            [0.5, 0.9, 77, "low", tools],
        );
        assert.deepEqual(body.messages[0], { role: "system", content: "Be brief." });
        const details = page.locator(".message.assistant .reasoning");
        assert.equal(await details.evaluate((d) => d.open), false, "folded once there is an answer");
        await details.locator("summary").click();
        assert.equal(await details.locator("strong").textContent(), "rain");
        assert.match(await page.locator(".call").textContent(), /Calls weather.*"city": "Ulm"/s);
        await shot(page, "calls");
        await audit(page, "calls");
        middle.script = { deltas: [{ content: "It rains." }] };
        await page.fill(".result-form textarea", "rain");
        await page.click("text=Send result");
        await until("the answer", async () => (await lastText(page)) === "It rains.");
        const messages = middle.bodies.at(-1).messages;
        assert.deepEqual(messages.slice(2), [
            {
                role: "assistant",
                content: "Let me look.",
                reasoning_content: "They ask about **rain**.",
                tool_calls: [
                    { id: "c1", type: "function", function: { name: "weather", arguments: '{"city":"Ulm"}' } },
                ],
            },
            { role: "tool", content: "rain", tool_call_id: "c1" },
        ]);
        clean(page);
    },

    async an_answer_that_breaks_off_in_its_reasoning_begins_again() {
        const page = await openPage({ expected: /ERR_/ });
        middle.script = { deltas: [{ reasoning_content: "Hm" }], cut: true };
        await say(page, "Once upon a time");
        await until("the server's own answer", async () => (await lastText(page).catch(() => "")).length > 0);
        await ended(page);
        assert.equal(await page.locator(".reasoning:visible").count(), 0);
        assert.equal(await answers(page).count(), 1);
        clean(page);
    },

    async what_the_server_refuses_is_said() {
        const page = await openPage({ expected: /400/ });
        await converse(page, "word ".repeat(3000));
        assert.match(await page.locator(".state").last().textContent(), /prompt is too long: \d+ tokens > \d+ maximum/);
        await audit(page, "an error");
        clean(page);
    },

    async conversations_become_files() {
        const page = await openPage();
        await scripted(page, "Say ```", [{ reasoning_content: "Why?" }, { content: "A `tick`" }]);
        const save = async (name) => {
            await page.click("#export-menu summary");
            const [file] = await Promise.all([page.waitForEvent("download"), page.click(name)]);
            return [file.suggestedFilename(), readFileSync(await file.path(), "utf8")];
        };
        assert.deepEqual(await save("#export-markdown"), [
            "Say.md",
            "# Say ```\n\n## You\n\nSay ```\n\n## Answer\n\n> Why?\n\nA `tick`\n",
        ]);
        const [name, text] = await save("#export-json");
        const c = JSON.parse(text);
        assert.equal(name, "Say.json");
        assert.equal(c.format, "moebius conversation 1");
        assert.deepEqual(
            Object.values(c.nodes)
                .map((n) => n.content)
                .sort(),
            ["A `tick`", "Say ```"],
        );
        clean(page);
    },

    async the_model_list_has_all_models_and_the_chosen_one_is_asked() {
        const port = await freePort();
        const models = join(folder, "models");
        mkdirSync(models);
        for (const name of ["a.gguf", "b.gguf"]) symlinkSync(resolve(model), join(models, name));
        const two = await new Server(port, "--models", models).start();
        try {
            const page = await openPage({ url: `http://127.0.0.1:${port}` });
            await until("two models", async () => (await page.locator("#model option").count()) === 2);
            await page.keyboard.press("Alt+e");
            await until("none is loaded", async () =>
                /loads one/.test(await page.locator("#experts-note").textContent()),
            );
            await page.selectOption("#model", "b");
            await converse(page, "The dog");
            await until("b is loaded", async () => (await page.locator("#experts-model").textContent()) === "b");
            assert.equal(await page.locator("#experts-note").textContent(), "");
            clean(page);
        } finally {
            await two.stop();
        }
    },

    async models_are_loaded_and_unloaded_with_the_keyboard_and_say_how_it_went() {
        const port = await freePort();
        const models = join(folder, "told");
        mkdirSync(models);
        for (const name of ["a.gguf", "b.gguf"]) symlinkSync(resolve(model), join(models, name));
        writeFileSync(join(models, "broken.gguf"), readFileSync(model).subarray(0, 100000));
        const some = await new Server(port, "--models", models, "--ctx", "100000").start();
        try {
            const page = await openPage({ url: `http://127.0.0.1:${port}` });
            const row = (name) => page.locator("#model-list li").filter({ has: page.locator(`text="${name}"`) });
            const state = (name) => row(name).locator(".model-state").textContent();
            const becomes = (name, wanted) =>
                until(`${name} becomes ${wanted}`, async () => wanted.test(await state(name)));
            await page.keyboard.press("Alt+m");
            await becomes("a", /^not loaded · 28\.6 MB$/);
            await page.locator("[aria-label='Load: a']").focus();
            await page.keyboard.press("Enter");
            await becomes("a", /^loaded ·/);
            assert.equal(
                await page.evaluate(() => document.activeElement.getAttribute("aria-label")),
                "Unload: a",
                "the focus stays",
            );
            assert.equal(await page.locator("#models-note").textContent(), "a is loaded.");
            await until("the list above knows", async () =>
                /a · ready/.test(await page.locator("#model").textContent()),
            );
            await page.click("[aria-label='Load: broken']");
            await becomes("broken", /^could not be loaded/);
            assert.match(await row("broken").locator(".model-reason").textContent(), /broken\.gguf: key/);
            assert.match(await page.locator("#models-note").textContent(), /broken could not be loaded/);
            await shot(page, "models-failed");
            await audit(page, "models");
            await page.click("[aria-label='Load: a']");
            await becomes("a", /^loaded ·/);
            const talk = fetch(`http://127.0.0.1:${port}/v1/completions`, {
                method: "POST",
                body: JSON.stringify({ model: "a", prompt: "Once", max_tokens: 90000, ignore_eos: true, stream: true }),
            }).then((r) => r.body.getReader());
            await becomes("a", /^loaded, 1 answer under way/);
            await page.click("[aria-label='Load: b']");
            await becomes("b", /^waits until/);
            assert.equal(await page.locator("#model").inputValue(), "b", "the one that was asked for answers");
            await page.click("[aria-label='Cancel: b']");
            await becomes("b", /^not loaded/);
            await page.click("[aria-label='Unload when done: a']");
            await becomes("a", /^unloads when 1 answer has finished/);
            await shot(page, "models-busy");
            await page.click("[aria-label='Keep: a']");
            await becomes("a", /^loaded, 1 answer/);
            await page.click("[aria-label='Unload when done: a']");
            await (await talk).cancel();
            await becomes("a", /^not loaded/);
            await page.keyboard.press("Escape");
            assert.equal(await page.locator("#models").evaluate((d) => d.open), false);
            clean(page);
        } finally {
            await some.stop();
        }
    },

    async plan_and_receipts_are_pictures_and_tables() {
        const cache = join(folder, "moebius");
        const { machine } = (await (await fetch(`${middle.url}/plan`)).json()).plan;
        const facts = {
            name: machine,
            threads: 2,
            memory: [{ threads: 2, bytes_per_s: 20e9 }],
            int8_per_s: 400e9,
            float_per_s: 100e9,
            drives: [],
            gpus: [],
        };
        const receipts = Array.from({ length: 12 }, (_, i) => ({
            regime: "ram",
            time: 1790000000 + 86400 * i,
            machine,
            model: model.split("/").at(-1),
            method: i % 2 ? "bench" : "serve",
            threads: 2,
            texts: 1,
            decode: 700 + 30 * (i % 5),
            decode_ceiling: 1400,
            decode_low: 650,
            decode_high: 850,
            prefill: 2000 + 100 * i,
            prefill_ceiling: 5000,
        }));
        mkdirSync(cache, { recursive: true });
        writeFileSync(join(cache, "machine.json"), JSON.stringify(facts));
        writeFileSync(join(cache, "receipts.jsonl"), receipts.map((r) => `${JSON.stringify(r)}\n`).join(""));
        for (const [device, viewport] of [
            ["desk", DESK],
            ["phone", PHONE],
        ])
            for (const scheme of ["light", "dark"]) {
                const name = `${device}-${scheme}, models`;
                const page = await openPage({ viewport, scheme });
                await converse(page, "Once upon a time there was a dog");
                await page.click("#models-button");
                await page.waitForSelector("#report .timeline");
                const label = (section) =>
                    page
                        .locator(`#report [aria-label="${section}"] svg`)
                        .evaluateAll((all) => all.map((e) => e.getAttribute("aria-label")));
                const [planned, now] = await label("Memory");
                assert.match(planned, /^Memory, planned: program [\d.]+ MB, weights 3\.5 MB, experts 26\.5 MB/);
                assert.match(
                    now,
                    /^Memory, now: program [\d.]+ MB, weights 3\.5 MB, experts 26\.5 MB, texts [\d.]+ [KM]B/,
                );
                const [one, many, prompt] = await label("Speed");
                assert.match(one, /^One answer: [\d.,]+ measured, [\d.,]+ to [\d.,]+ forecast$/);
                assert.match(many, /^8 answers at once: [\d.,]+ to [\d.,]+ forecast$/);
                assert.match(prompt, /^Prompt: /);
                assert.deepEqual(await label("Receipts"), [
                    "Answers, 12 runs, latest 730 tokens per second",
                    "Prompts, 12 runs, latest 3,100 tokens per second",
                ]);
                assert.equal(await page.locator(".timeline").first().locator("circle").count(), 12);
                assert.equal(await page.locator(".timeline").first().locator(".band").count(), 12);
                const widths = await page
                    .locator("#report .bar")
                    .first()
                    .locator(".part")
                    .evaluateAll((all) => all.map((e) => e.getBoundingClientRect().width));
                assert.ok(widths.length === 5 && widths.every((w) => w > 1), `parts are seen: ${widths}`);
                const wide = await page.locator("#models").evaluate((d) => d.scrollWidth - d.clientWidth);
                assert.ok(wide <= 0, `${name}: ${wide} pixels wider than the dialog`);
                await shot(page, `${device}-${scheme}-models`);
                for (const summary of await page.locator(".as-table summary").all()) await summary.click();
                assert.equal(await page.locator("[aria-label='Receipts'] tbody tr").count(), 24);
                assert.match(
                    await page.locator("[aria-label='Memory'] tbody").textContent(),
                    /Memory, plannedexperts26,542,080/,
                );
                await page.locator("#models").evaluate((d) => d.scrollTo(0, d.scrollHeight));
                await shot(page, `${device}-${scheme}-models-tables`);
                await audit(page, name);
                clean(page);
                await page.context().close();
            }
        rmSync(join(cache, "receipts.jsonl"));
        rmSync(join(cache, "machine.json"));
    },

    async a_report_shows_all_memory_of_a_plan() {
        const page = await openPage();
        const [label, total, classes] = await page.evaluate(async () => {
            const { renderReport } = await import("/web/report.js");
            const map = ["weights", "expert copies", "texts", "checkpoints", "prompt cache"];
            const plan = {
                memory: { map: map.map((what) => ({ what, where: "ram", bytes: 1e9 })) },
                settings: { texts: 1, ctx: 4096 },
                ceiling: {},
                forecast: {},
                assumptions: [],
            };
            const [memory] = renderReport({ plan }, []);
            return [
                memory.querySelector(".bar").getAttribute("aria-label"),
                memory.querySelector(".chart-value").textContent,
                Array.from(memory.querySelectorAll(".part"), (e) => e.getAttribute("class")),
            ];
        });
        assert.match(label, /weights 1\.0 GB, expert copies 1\.0 GB, texts 1\.0 GB, checkpoints .*, prompt cache /);
        assert.equal(total, "5.0 GB");
        assert.ok(classes.includes("part part-prompt-cache"), classes.join());
        clean(page);
    },

    async a_report_of_hostile_names_does_nothing() {
        const port = await freePort();
        const models = join(folder, "hostile");
        mkdirSync(models);
        symlinkSync(resolve(model), join(models, "<img src=x onerror=pwned=1>.gguf"));
        writeFileSync(join(models, "b.gguf"), "GGUF<script>pwned = 1</script>");
        const some = await new Server(port, "--models", models).start();
        try {
            const page = await openPage({ url: `http://127.0.0.1:${port}` });
            await page.keyboard.press("Alt+m");
            await page.waitForSelector("#report section");
            assert.match(await page.locator("#report-title").textContent(), /^<img src=x onerror=pwned=1>: plan/);
            await page.click("[aria-label='Load: b']");
            await until("it fails", async () => /b could not/.test(await page.locator("#models-note").textContent()));
            await page.locator(".model-name", { hasText: /^b$/ }).click();
            await until("why there is no plan", async () =>
                /No plan: .*b\.gguf/.test(await page.locator("#report").textContent()),
            );
            assert.equal(await page.locator("#models :is(img, script)").count(), 0);
            assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
            clean(page);
        } finally {
            await some.stop();
        }
    },

    async the_models_dialog_says_when_the_server_goes_away() {
        const page = await openPage({ expected: /ERR_|Failed to load resource/ });
        await page.click("#models-button");
        await page.waitForSelector("#report section");
        await server.stop("SIGKILL");
        await until("it is said", async () => /does not respond/.test(await page.locator("#models-note").textContent()));
        await server.start();
        await until("and forgotten", async () => (await page.locator("#models-note").textContent()) === "");
        clean(page);
    },

    async the_history_is_bounded() {
        const page = await openPage();
        const n = await page.evaluate(async () => {
            const { Store } = await import("/web/store.js");
            const { addNode, newConversation } = await import("/web/tree.js");
            const store = new Store();
            await store.open();
            for (let i = 0; i < 310; i++) {
                const c = newConversation();
                addNode(c, "", { role: "user", content: `number ${i}` });
                c.changed = i;
                await store.put(c);
            }
            await store.trim("");
            return (await store.list()).map((c) => c.title);
        });
        assert.equal(n.length, 300);
        assert.deepEqual([n[0], n.at(-1)], ["number 309", "number 10"]);
        clean(page);
    },

    async the_keyboard_alone_suffices() {
        const page = await openPage();
        const label = () =>
            page.evaluate(
                () => document.activeElement.getAttribute("aria-label") || document.activeElement.textContent.trim(),
            );
        assert.equal(await label(), "Message");
        await page.keyboard.type("Once upon a time");
        await page.keyboard.press("Enter");
        await page.waitForSelector(".message.assistant");
        await ended(page);
        const order = [];
        await page.focus(".skip");
        for (let i = 0; i < 18; i++) {
            order.push(await label());
            await page.keyboard.press("Tab");
        }
        const wanted = [
            "To the message field",
            "New conversation",
            "Once upon a time",
            "Delete Once upon a time",
            "Settings",
            "Theme",
            "Keys",
            "Title of the conversation",
            "Models",
            "Export",
            "Experts",
            "Messages",
            "Copy message",
            "Edit message",
            "Copy message",
            "Answer again",
            "Message",
        ];
        assert.deepEqual(order.filter((name) => name !== "Model").slice(0, wanted.length), wanted);
        await page.keyboard.press("Alt+k");
        assert.equal(await page.locator("#keys").evaluate((d) => d.open), true);
        await page.keyboard.press("Escape");
        await page.keyboard.press("Alt+u");
        assert.equal(await label(), "Message");
        await page.keyboard.press("Escape");
        await page.keyboard.press("Alt+r");
        await until("another answer", async () => (await page.locator(".branch-count").count()) === 1);
        await ended(page);
        await page.keyboard.press("Alt+t");
        assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
        await page.keyboard.press("Alt+t");
        assert.equal(await page.evaluate(() => getComputedStyle(document.body).colorScheme), "dark");
        await page.keyboard.press("Alt+n");
        assert.equal(await page.locator(".message").count(), 0);
        clean(page);
    },

    async it_is_good_on_phones_and_desks_in_light_and_dark() {
        for (const [device, viewport] of [
            ["desk", DESK],
            ["phone", PHONE],
        ])
            for (const scheme of ["light", "dark"]) {
                const page = await openPage({ viewport, scheme });
                const name = `${device}-${scheme}`;
                await shot(page, `${name}-1`);
                await audit(page, `${name}, empty`);
                await converse(page, "Once upon a time there was a dog");
                const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
                assert.ok(wide <= 0, `${name}: ${wide} pixels wider than the screen`);
                await shot(page, `${name}-2`);
                await audit(page, `${name}, a conversation`);
                await page.click("#experts-button");
                await until("a picture", async () =>
                    (await page.locator("#figure-memory").textContent()).includes("of"),
                );
                await sleep(300);
                await shot(page, `${name}-3`);
                await audit(page, `${name}, experts`);
                if (device === "phone") {
                    await page.click("#experts-close");
                    assert.equal(await page.evaluate(() => document.getElementById("sidebar").inert), true);
                    await page.click("#menu");
                    await sleep(300);
                    await shot(page, `${name}-4`);
                    await audit(page, `${name}, the drawer`);
                    await page.click("#new");
                    assert.equal(await page.evaluate(() => document.body.classList.contains("drawer")), false);
                }
                clean(page);
                await page.context().close();
            }
    },
};

// ---- running ------------------------------------------------------------------------------------------------------

const names = chosen.length ? chosen : Object.keys(tests);
let n_failed = 0;
server = await new Server(await freePort()).start();
browser = await chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
});
for (const name of names) {
    const begin = Date.now();
    middle = await new Middle(server.port).open();
    try {
        await tests[name]();
        console.log(`ok    ${name} (${Date.now() - begin} ms)`);
    } catch (e) {
        n_failed++;
        console.log(`FAIL  ${name}: ${e.stack}`);
    }
    for (const context of browser.contexts()) await context.close();
    middle.close();
    if (server.process.exitCode !== null || server.process.signalCode) await server.start();
}
await browser.close();
await server.stop();
rmSync(folder, { recursive: true });
console.log(`${names.length - n_failed} passed, ${n_failed} failed`);
process.exit(n_failed ? 1 : 0);
