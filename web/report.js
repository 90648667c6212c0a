// How much memory a model takes and how fast it is: the plan, current measurements and those of earlier runs, as charts
// and as tables.

import { bandBar, partClass, stackedBar, table, timeline } from "./charts.js";
import { formatBytes, h } from "./dom.js";

const TIERS = { ram: "Memory", vram: "GPU memory", drive: "Drive" };
// What a plan's rows are of (src/planner/plan.c), in the order of the bars.
const CLASSES = [
    "program",
    "driver",
    "weights",
    "experts",
    "expert copies",
    "texts",
    "checkpoints",
    "prompt cache",
    "activations",
];
const MAX_RECEIPTS = 40; // in a chart
const MAX_ROWS = 100; // in a table

const sum = (list) => list.reduce((all, x) => all + x, 0);

export const formatSpeed = (x) => (x < 10 ? x.toFixed(2) : x < 100 ? x.toFixed(1) : Math.round(x).toLocaleString("en"));

// The legend of colours and marks: [class, text] of each; false ones are left out.
function legend(marks) {
    const there = marks.filter(Boolean);
    if (!there.length) return null;
    return h(
        "ul",
        { class: "chart-legend", "aria-label": "Colours" },
        ...there.map(([className, text]) => h("li", {}, h("span", { class: `swatch ${className}` }), text)),
    );
}

// ---- memory --------------------------------------------------------------------------------------------------------

// Bytes by tier and class, as {tier: {class: bytes}}.
function plannedMemory(plan) {
    const tiers = {};
    for (const { what, where, bytes } of plan.memory.map) {
        tiers[where] ||= {};
        tiers[where][what] = (tiers[where][what] || 0) + bytes;
    }
    return tiers;
}

function measuredMemory(now) {
    const tiers = { ram: {} };
    for (const { where, weights, experts, texts, activations } of now.devices) {
        const tier = (tiers[where] ||= {});
        for (const [name, bytes] of Object.entries({ weights, experts, texts, activations }))
            tier[name] = (tier[name] || 0) + bytes;
    }
    tiers.ram.program = Math.max(0, now.resident_bytes - sum(Object.values(tiers.ram)));
    if (now.drive_bytes) tiers.drive = { experts: now.drive_bytes };
    return tiers;
}

// A bar for each tier of the plan and of the current state: [{tier, when, parts, total}].
function memoryBars({ plan, now }) {
    const sources = [plan && ["planned", plannedMemory(plan)], now && ["now", measuredMemory(now)]].filter(Boolean);
    return Object.keys(TIERS).flatMap((tier) =>
        sources
            .filter(([, tiers]) => tiers[tier])
            .map(([when, tiers]) => {
                const parts = CLASSES.filter((name) => tiers[tier][name] > 0).map((name) => ({
                    name,
                    value: tiers[tier][name],
                    text: formatBytes(tiers[tier][name]),
                }));
                return { tier, when, parts, total: sum(parts.map((p) => p.value)) };
            }),
    );
}

function renderMemory(report) {
    const bars = memoryBars(report);
    const limits = { ram: report.plan?.memory.ram_limit_bytes, vram: report.plan?.memory.vram_limit_bytes };
    const most = Math.max(...bars.map((b) => b.total), 1);
    const whole = Math.max(most, ...Object.values(limits).filter((x) => x && x < 1.5 * most));
    const used = CLASSES.filter((name) => bars.some((b) => b.parts.some((p) => p.name === name)));
    const title = (b) => `${TIERS[b.tier]}, ${b.when}`;
    const label = (b) => `${title(b)}: ${b.parts.map((p) => `${p.name} ${p.text}`).join(", ")}`;
    return h(
        "section",
        { "aria-label": "Memory" },
        h("h4", {}, "Memory"),
        ...bars.map((b) =>
            h(
                "div",
                { class: "chart-row" },
                h("span", { class: "chart-name" }, title(b)),
                stackedBar(b.parts, whole, limits[b.tier], label(b)),
                h("span", { class: "chart-value" }, formatBytes(b.total)),
            ),
        ),
        legend([
            ...used.map((name) => [partClass(name), name]),
            bars.some((b) => limits[b.tier] <= whole) && ["limit", "limit"],
        ]),
        limits.ram ? h("p", { class: "quiet" }, memoryNote(report.plan)) : null,
        table(
            "Memory as a table",
            [{ heading: "Where" }, { heading: "What" }, { heading: "Bytes", isNumber: true }],
            bars.flatMap((b) => b.parts.map((p) => [title(b), p.name, p.value.toLocaleString("en")])),
        ),
    );
}

function memoryNote({ memory, settings }) {
    const texts = settings.texts === 1 ? "a text" : `${settings.texts} texts`;
    const read = memory.experts && memory.slots < memory.experts;
    return (
        `Planned for ${texts} of ${settings.ctx.toLocaleString("en")} tokens; ` +
        `memory limit ${formatBytes(memory.ram_limit_bytes)}` +
        (read ? `, ${memory.slots} of ${memory.experts} experts fit.` : ".")
    );
}

// ---- speed ---------------------------------------------------------------------------------------------------------

// [{name, ceiling, low, mid, high, measured}]; null: not known. A speed that was measured with several answers at once
// is shown beside the forecast for several.
function speeds({ plan, now }) {
    const row = (name, key, measured) => ({
        name,
        ceiling: plan?.ceiling[key] ?? null,
        low: plan?.forecast[key]?.low ?? null,
        mid: plan?.forecast[key]?.mid ?? null,
        high: plan?.forecast[key]?.high ?? null,
        measured: measured ?? null,
    });
    const n = plan?.settings.texts ?? 1;
    const isAlone = (now?.decode_texts ?? 1) < 1.5;
    const rows = [row("One answer", "decode_one", isAlone ? now?.decode : null)];
    if (n > 1) rows.push(row(`${n} answers at once`, "decode", isAlone ? null : now?.decode));
    rows.push(row("Prompt", "prefill", now?.prefill));
    return rows.filter((r) => r.ceiling || r.high || r.measured);
}

function speedText(r) {
    const said = [];
    if (r.measured) said.push(`${formatSpeed(r.measured)} measured`);
    if (r.high) said.push(`${formatSpeed(r.low)} to ${formatSpeed(r.high)} forecast`);
    else if (r.ceiling) said.push(`at most ${formatSpeed(r.ceiling)}`);
    return said.join(", ");
}

function renderSpeed(report) {
    const rows = speeds(report);
    const number = (x) => (x === null ? "–" : formatSpeed(x));
    const whole = (r) => 1.05 * Math.max(r.ceiling || 0, r.high || 0, r.measured || 0);
    const isForecast = rows.some((r) => r.high);
    return h(
        "section",
        { "aria-label": "Speed" },
        h("h4", {}, "Tokens per second"),
        ...rows.map((r) =>
            h(
                "div",
                { class: "chart-row" },
                h("span", { class: "chart-name" }, r.name),
                bandBar(r, whole(r), `${r.name}: ${speedText(r)}`),
                h("span", { class: "chart-value" }, speedText(r)),
            ),
        ),
        legend([
            isForecast && ["band", "forecast"],
            rows.some((r) => r.measured) && ["dot", "measured"],
            rows.some((r) => r.ceiling) && ["ceiling", "ceiling"],
        ]),
        isForecast || !report.plan
            ? null
            : h(
                  "p",
                  { class: "quiet" },
                  "No forecast yet. It needs the machine's measurements (moebius probe) and receipts of runs.",
              ),
        rows.length
            ? table(
                  "Speed as a table",
                  [
                      { heading: "What" },
                      ...["Measured", "Forecast, low", "high", "Ceiling"].map((heading) => ({
                          heading,
                          isNumber: true,
                      })),
                  ],
                  rows.map((r) => [r.name, ...[r.measured, r.low, r.high, r.ceiling].map(number)]),
              )
            : null,
    );
}

// ---- receipts ------------------------------------------------------------------------------------------------------

const when = (seconds) => (seconds ? new Date(1000 * seconds).toISOString().slice(0, 16).replace("T", " ") : "–");

// The measurements of one kind ("decode" or "prefill"), oldest first.
const measurements = (receipts, kind) =>
    receipts
        .filter((r) => r[kind] > 0)
        .map((r) => ({
            value: r[kind],
            low: r[`${kind}_low`] || 0,
            high: r[`${kind}_high`] || 0,
            ceiling: r[`${kind}_ceiling`] || 0,
            time: r.time || 0,
            method: r.method,
            texts: r.texts || 1,
            tip: `${when(r.time)} by ${r.method}: ${formatSpeed(r[kind])} tokens/s`,
        }));

function renderTimeline(name, points) {
    const shown = points.slice(-MAX_RECEIPTS);
    const last = shown.at(-1);
    const label = `${name}, ${shown.length} runs, latest ${formatSpeed(last.value)} tokens per second`;
    const { picture, most } = timeline(shown, label);
    return h(
        "figure",
        { class: "timeline-frame" },
        h("figcaption", {}, `${name}: latest ${formatSpeed(last.value)} tokens/s`),
        h("span", { class: "axis-top" }, formatSpeed(most)),
        picture,
        h(
            "div",
            { class: "axis-ends" },
            h("span", {}, when(shown[0].time)),
            shown.length > 1 ? h("span", {}, when(last.time)) : null,
        ),
    );
}

function renderReceipts(receipts) {
    const kinds = [
        ["Answers", measurements(receipts, "decode")],
        ["Prompts", measurements(receipts, "prefill")],
    ].filter(([, points]) => points.length > 0);
    const share = (p) => (p.ceiling ? `${Math.round((100 * p.value) / p.ceiling)}%` : "–");
    return h(
        "section",
        { "aria-label": "Receipts" },
        h("h4", {}, "Earlier runs"),
        kinds.length
            ? null
            : h(
                  "p",
                  { class: "quiet" },
                  "No receipts yet. A run of at least half a second leaves one when its model is unloaded.",
              ),
        h("div", { class: "timelines" }, ...kinds.map(([name, points]) => renderTimeline(name, points))),
        kinds.length
            ? table(
                  "Earlier runs as a table",
                  [
                      { heading: "When (UTC)" },
                      { heading: "What" },
                      { heading: "By" },
                      ...["Tokens/s", "Forecast", "Of ceiling", "Texts"].map((heading) => ({
                          heading,
                          isNumber: true,
                      })),
                  ],
                  kinds
                      .flatMap(([name, points]) => points.map((p) => ({ name, ...p })))
                      .sort((a, b) => b.time - a.time)
                      .slice(0, MAX_ROWS)
                      .map((p) => [
                          when(p.time),
                          p.name,
                          p.method,
                          formatSpeed(p.value),
                          p.high ? `${formatSpeed(p.low)} to ${formatSpeed(p.high)}` : "–",
                          share(p),
                          String(p.texts),
                      ]),
              )
            : null,
    );
}

// ---- the whole -----------------------------------------------------------------------------------------------------

// The answer of /plan/NAME, and the receipts of that model.
export function renderReport(report, receipts) {
    const { plan } = report;
    return [
        report.error ? h("p", { class: "failed" }, `No plan: ${report.error}`) : null,
        plan?.refused
            ? h(
                  "div",
                  { class: "failed" },
                  h("p", {}, `This cannot run: ${plan.refusal}`),
                  plan.nearest.length ? h("ul", {}, ...plan.nearest.map((text) => h("li", {}, text))) : null,
              )
            : null,
        plan || report.now ? renderMemory(report) : null,
        plan || report.now ? renderSpeed(report) : null,
        renderReceipts(receipts),
        plan?.assumptions.length
            ? h("p", { class: "quiet" }, `The plan assumes: ${plan.assumptions.join("; ")}.`)
            : null,
    ].filter(Boolean);
}
