// Charts as SVG, and tables with the same numbers. Positions in charts are percentages, so that they fill the available
// width; colours are those of the style sheet.

import { h, svg } from "./dom.js";

const percent = (share) => `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(3)}%`;

function picture(className, label, ...shapes) {
    const e = svg("svg", { class: className, role: "img", "aria-label": label, focusable: "false" });
    e.append(...shapes);
    return e;
}

// A shape with a tooltip.
function shape(tag, attributes, tip) {
    const e = svg(tag, attributes);
    if (tip) {
        const title = svg("title", {});
        title.textContent = tip;
        e.append(title);
    }
    return e;
}

const rect = (x, width, y, height, className, tip) =>
    shape("rect", { x: percent(x), width: percent(width), y, height, class: className }, tip);

const line = (x, y1, y2, className, tip) =>
    shape("line", { x1: percent(x), x2: percent(x), y1, y2, class: className }, tip);

// The style sheet's class for a part of this name.
export const partClass = (name) => `part-${name.replaceAll(" ", "-")}`;

// A bar of parts [{name, value, text}] one after the other, on a scale up to `whole`, with a mark at `limit` if it is
// within the scale.
export function stackedBar(parts, whole, limit, label) {
    let at = 0;
    const shapes = parts.map((p) => {
        const e = rect(at / whole, p.value / whole, 0, "100%", `part ${partClass(p.name)}`, `${p.name}: ${p.text}`);
        at += p.value;
        return e;
    });
    if (limit && limit <= whole) shapes.push(line(limit / whole, 0, "100%", "limit", "the limit"));
    return picture("bar", label, rect(0, 1, 0, "100%", "ground"), ...shapes);
}

// A band from low to high with its middle, the ceiling, and the measured value, on a scale up to `whole`; null: not
// known.
export function bandBar({ low, mid, high, ceiling, measured }, whole, label) {
    const shapes = [rect(0, 1, "38%", "24%", "ground")];
    if (high) shapes.push(rect(low / whole, (high - low) / whole, "18%", "64%", "band", "forecast"));
    if (mid) shapes.push(line(mid / whole, "18%", "82%", "middle"));
    if (ceiling) shapes.push(line(ceiling / whole, "8%", "92%", "ceiling", "ceiling"));
    if (measured)
        shapes.push(shape("circle", { cx: percent(measured / whole), cy: "50%", r: 5.5, class: "dot" }, "measured"));
    return picture("bar", label, ...shapes);
}

// Measurements [{value, low, high, ceiling, tip}] from left to right, as dots over their forecast bands.
export function timeline(points, label) {
    const most = Math.max(...points.map((p) => Math.max(p.value, p.high || 0)), 1e-9) * 1.06;
    const y = (value) => percent(1 - value / most);
    const shapes = points.flatMap((p, i) => {
        const x = (i + 0.5) / points.length;
        const wide = Math.min(0.6 / points.length, 0.03);
        const found = [];
        if (p.high)
            found.push(
                shape("rect", {
                    x: percent(x - wide / 2),
                    width: percent(wide),
                    y: y(p.high),
                    height: percent((p.high - p.low) / most),
                    class: "band",
                }),
            );
        found.push(
            shape("circle", { cx: percent(x), cy: y(p.value), r: points.length > 60 ? 2.5 : 4, class: "dot" }, p.tip),
        );
        return found;
    });
    const ground = svg("line", { x1: "0%", x2: "100%", y1: "100%", y2: "100%", class: "axis" });
    return { picture: picture("timeline", label, ground, ...shapes), most };
}

// A table with columns [{heading, isNumber}] and rows of texts, folded until it is opened.
export function table(summary, columns, rows) {
    const side = (i) => ({ class: columns[i].isNumber ? "to-right" : null });
    return h(
        "details",
        { class: "as-table" },
        h("summary", {}, summary),
        h(
            "div",
            { class: "table-wrap", tabindex: "0", role: "region", "aria-label": summary },
            h(
                "table",
                {},
                h("thead", {}, h("tr", {}, ...columns.map((c, i) => h("th", { scope: "col", ...side(i) }, c.heading)))),
                h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((text, i) => h("td", side(i), text))))),
            ),
        ),
    );
}
