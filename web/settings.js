// The user's settings, which the browser keeps, and their dialog.

import { byId } from "./dom.js";
import { keep, kept } from "./keep.js";

const KEY = "moebius.settings";
const DEFAULTS = {
    model: "",
    system: "",
    temperature: "",
    topP: "",
    maxTokens: "",
    effort: "",
    tools: "",
    theme: "auto",
    experts: false,
};

export const settings = { ...DEFAULTS };

export function loadSettings() {
    try {
        const before = JSON.parse(kept("localStorage", KEY)) || {};
        for (const name of Object.keys(DEFAULTS))
            if (typeof before[name] === typeof DEFAULTS[name]) settings[name] = before[name];
    } catch {
        // the stored text is not ours
    }
}

export function saveSettings() {
    keep("localStorage", KEY, JSON.stringify(settings));
}

// The settings as fields of a request. Empty ones are left out, so that the server chooses.
export function requestFields() {
    const fields = {};
    const number = (name, value) => {
        if (value !== "" && Number.isFinite(Number(value))) fields[name] = Number(value);
    };
    number("temperature", settings.temperature);
    number("top_p", settings.topP);
    number("max_tokens", settings.maxTokens);
    if (settings.model) fields.model = settings.model;
    if (settings.effort) fields.reasoning_effort = settings.effort;
    if (settings.tools.trim()) fields.tools = JSON.parse(settings.tools);
    return fields;
}

// What is wrong with the text of the tools; "": nothing.
export function checkTools(text) {
    if (!text.trim()) return "";
    try {
        const tools = JSON.parse(text);
        const isGood = Array.isArray(tools) && tools.every((t) => t?.type === "function" && t.function?.name);
        return isGood ? "" : 'Expected a list of {"type": "function", "function": {"name": …}}';
    } catch (e) {
        return `Not valid JSON: ${e.message}`;
    }
}

export function applyTheme() {
    const root = document.documentElement;
    if (settings.theme === "auto") root.removeAttribute("data-theme");
    else root.dataset.theme = settings.theme;
}

export const isDark = () =>
    settings.theme === "dark" || (settings.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);

// Sets up the dialog, whose fields have the settings' names; changes take effect at once. Returns the function that
// opens it.
export function initSettings(onchange) {
    const form = byId("settings-form");
    const fields = () => [...form.elements].filter((e) => e.name in settings);
    form.addEventListener("input", () => {
        const wrong = checkTools(form.elements.tools.value);
        byId("tools-error").textContent = wrong;
        form.elements.tools.setAttribute("aria-invalid", String(wrong !== ""));
        for (const e of fields()) if (e.validity.valid && !(e.name === "tools" && wrong)) settings[e.name] = e.value;
        saveSettings();
        applyTheme();
        onchange();
    });
    return () => {
        for (const e of fields()) e.value = settings[e.name];
        byId("settings").showModal();
    };
}
