// Makes elements. Text is never parsed as markup, here or anywhere else in the page.

const SVG = "http://www.w3.org/2000/svg";

// Outlines of the icons, 24 units wide and high.
const ICONS = {
    menu: "M4 6h16M4 12h16M4 18h16",
    plus: "M12 5v14M5 12h14",
    send: "M12 19V5M6 11l6-6 6 6",
    stop: "M7 7h10v10H7z",
    copy: "M9 9h10v11H9zM5 15V4h10",
    edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
    again: "M4 12a8 8 0 1 0 3-6.2M4 4v5h5",
    on: "M6 5l12 7-12 7z",
    left: "M14 6l-6 6 6 6",
    right: "M10 6l6 6-6 6",
    close: "M6 6l12 12M18 6L6 18",
    trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
    sliders: "M4 7h10M18 7h2M4 17h2M10 17h10M14 5v4M6 15v4",
    grid: "M4 4h6v6H4zM14 4h6v6h-6zM4 14h6v6H4zM14 14h6v6h-6z",
    theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
    save: "M12 4v11M7 11l5 5 5-5M5 20h14",
    chip: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
    keys: "M3 7h18v11H3zM7 11h.01M11 11h.01M15 11h.01M8 15h8",
};

export function svg(tag, attributes) {
    const e = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
    return e;
}

export function icon(name) {
    const e = svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true", focusable: "false" });
    e.append(svg("path", { d: ICONS[name] }));
    return e;
}

// Makes an element. Attributes: on... is a listener, true is an attribute without a value, false and null are left out.
// Children that are null are left out, too.
export function h(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (name.startsWith("on")) e.addEventListener(name.slice(2), value);
        else if (value === true) e.setAttribute(name, "");
        else if (value !== false && value !== null && value !== undefined) e.setAttribute(name, String(value));
    }
    e.append(...children.flat().filter((c) => c !== null && c !== undefined));
    return e;
}

// A button with an icon. Screen readers and the tooltip say its label.
export function iconButton(name, label, onclick, attributes = {}) {
    return h(
        "button",
        { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...attributes },
        icon(name),
    );
}

export const byId = (id) => document.getElementById(id);

// Has screen readers say a text. Old texts are removed.
export function announce(text) {
    const region = byId("announcer");
    while (region.childElementCount > 30) region.firstElementChild.remove();
    region.append(h("p", {}, text));
}

// Shows a line at the bottom that disappears by itself, with a button for an action if there is one.
export function toast(text, action, act) {
    const gone = () => line.remove();
    const line = h(
        "div",
        { class: "toast" },
        h("span", {}, text),
        action
            ? h(
                  "button",
                  {
                      type: "button",
                      onclick: () => {
                          gone();
                          act();
                      },
                  },
                  action,
              )
            : null,
    );
    byId("toasts").append(line);
    setTimeout(gone, 8000);
}

export async function copyText(text) {
    try {
        await navigator.clipboard.writeText(text);
        toast("Copied");
    } catch {
        // the context is not secure, or it is not allowed
        const area = h("textarea", { class: "hidden-text", "aria-hidden": "true" });
        area.value = text;
        document.body.append(area);
        area.select();
        toast(document.execCommand("copy") ? "Copied" : "The browser did not allow copying");
        area.remove();
    }
}

export function formatBytes(n) {
    const units = ["B", "KB", "MB", "GB", "TB"];
    let i = 0;
    for (; n >= 999.5 && i < units.length - 1; i++) n /= 1000;
    return `${i === 0 || n >= 99.5 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}
