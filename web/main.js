// The page's entry point: connects the parts, and has what belongs to none of them.

import { byId, h, icon, toast } from "./dom.js";
import { Connection, getJson, GoneError, hasKey, KeyError, setKey } from "./api.js";
import { Chat, renderHistory } from "./chat.js";
import { Experts } from "./experts.js";
import { Models } from "./models.js";
import { download, fileName, toJson, toMarkdown } from "./export.js";
import { keep, kept } from "./keep.js";
import { applyTheme, initSettings, loadSettings, saveSettings, settings } from "./settings.js";
import { Store } from "./store.js";
import { newConversation, titleOf } from "./tree.js";

const store = new Store();
let chat;
let experts;
let models;
let openSettings;

// ---- the server ----------------------------------------------------------------------------------------------------

const connection = new Connection((seconds) => {
    byId("gone").hidden = seconds === 0;
    byId("gone-text").textContent = seconds
        ? `The server does not respond. Trying again in ${seconds} s; nothing is lost.`
        : "";
    if (seconds === 0) loadModels();
});

async function loadModels() {
    try {
        const [list, props] = await Promise.all([getJson("/v1/models"), getJson("/props")]);
        renderModels(list.data, props.model_alias);
    } catch (e) {
        if (e instanceof KeyError) askForKey();
        else if (e instanceof GoneError) await connection.back();
        else toast(e.message);
    }
}

// Fills the list of models. If there are several, the user chooses one, and the server loads it with the next request.
function renderModels(list, current) {
    const select = byId("model");
    const describe = (m) => (list.length > 1 && m.state !== "unloaded" ? `${m.id} · ${m.state}` : m.id);
    select.replaceChildren(...list.map((m) => h("option", { value: m.id }, describe(m))));
    if (!list.some((m) => m.id === settings.model)) settings.model = "";
    select.value = settings.model || current;
    select.disabled = list.length < 2;
    const shown = list.find((m) => m.id === select.value);
    select.title = shown?.context_length ? `${shown.id}: texts of up to ${shown.context_length} tokens` : select.value;
}

function chooseModel(id) {
    settings.model = id;
    saveSettings();
    byId("model").value = id;
}

// ---- keys ----------------------------------------------------------------------------------------------------------

function askForKey() {
    byId("key-error").textContent = hasKey() ? "The server does not accept this key." : "";
    if (!byId("key").open) byId("key").showModal();
}

byId("key-form").addEventListener("submit", () => {
    setKey(byId("key-input").value.trim());
    byId("key-input").value = "";
    loadModels();
    experts.setOpen(false);
    experts.setOpen(settings.experts);
});

// ---- conversations -------------------------------------------------------------------------------------------------

let refreshing = 0;

// Updates the list of conversations soon, once for all changes until then.
function refreshHistory() {
    refreshing ||= setTimeout(async () => {
        refreshing = 0;
        const all = await store.list();
        renderHistory(all, chat.conversation.id, { choose, remove });
    }, 20);
}

async function choose(id) {
    const c = await store.get(id);
    if (c) chat.show(c);
    setDrawer(false);
    refreshHistory();
    chat.input.focus();
}

async function remove(id) {
    const c = chat.open.get(id) || (await store.get(id));
    if (!c) return;
    chat.removed.add(id);
    for (const node of chat.answersOf(c)) chat.answers.get(node).stop();
    await store.remove(id);
    if (id === chat.conversation.id) chat.show(newConversation());
    refreshHistory();
    toast(`“${c.title || "Untitled"}” was deleted`, "Undo", async () => {
        chat.removed.delete(id);
        await store.put(c);
        choose(id);
    });
}

function startNew() {
    chat.show(newConversation());
    setDrawer(false);
    refreshHistory();
    chat.input.focus();
}

function exportAs(suffix) {
    const c = chat.conversation;
    byId("export-menu").open = false;
    if (suffix === "json") download(fileName(c, "json"), "application/json", toJson(c));
    else download(fileName(c, "md"), "text/markdown", toMarkdown(c));
}

// ---- the frame -----------------------------------------------------------------------------------------------------

const isNarrow = matchMedia("(max-width: 800px)");

function setDrawer(isOpen) {
    const wasOpen = document.body.classList.contains("drawer");
    document.body.classList.toggle("drawer", isOpen);
    byId("menu").setAttribute("aria-expanded", String(isOpen));
    byId("sidebar").inert = isNarrow.matches && !isOpen;
    byId("main").inert = isNarrow.matches && isOpen;
    if (isOpen) byId("new").focus();
    else if (wasOpen && isNarrow.matches) byId("menu").focus();
}

function setExperts(isOpen) {
    settings.experts = isOpen;
    saveSettings();
    byId("experts").hidden = !isOpen;
    byId("experts-button").setAttribute("aria-pressed", String(isOpen));
    document.body.classList.toggle("with-experts", isOpen);
    experts.setOpen(isOpen);
}

// Moves the focus into the panel if the screen is narrow, where the panel covers everything else.
function focusPanel() {
    if (settings.experts && isNarrow.matches) byId("experts-close").focus();
}

function closePanel() {
    setExperts(false);
    byId("experts-button").focus();
}

function nextTheme() {
    const all = ["auto", "light", "dark"];
    settings.theme = all[(all.indexOf(settings.theme) + 1) % all.length];
    saveSettings();
    showTheme();
    toast(`Theme: ${{ auto: "follow the system", light: "light", dark: "dark" }[settings.theme]}`);
}

function showTheme() {
    applyTheme();
    experts.renderLegend();
    experts.draw();
}

// Keyboard shortcuts: Alt with a letter, so that they don't collide with those of browsers and text fields.
const KEYS = {
    KeyN: startNew,
    KeyE: () => {
        setExperts(!settings.experts);
        focusPanel();
    },
    KeyR: () => chat.again(),
    KeyU: () => chat.editLast(),
    KeyT: nextTheme,
    KeyI: () => chat.input.focus(),
    KeyM: () => models.open(),
    KeyS: () => openSettings(),
    KeyK: () => byId("keys").showModal(),
};

function onKey(event) {
    const isFree = !document.querySelector("dialog[open]");
    if (event.altKey && !event.ctrlKey && !event.metaKey && KEYS[event.code] && isFree) {
        event.preventDefault();
        KEYS[event.code]();
    } else if (event.key === "Escape" && isFree) {
        if (document.body.classList.contains("drawer")) setDrawer(false);
        else if (chat.isBusy()) chat.stop();
        else if (isNarrow.matches && settings.experts) closePanel();
    }
}

function connectButtons() {
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("new", startNew);
    on("menu", () => setDrawer(!document.body.classList.contains("drawer")));
    on("shade", () => setDrawer(false));
    on("experts-button", () => {
        setExperts(!settings.experts);
        focusPanel();
    });
    on("experts-close", closePanel);
    on("models-button", () => models.open());
    on("settings-button", () => openSettings());
    on("theme-button", nextTheme);
    on("keys-button", () => byId("keys").showModal());
    on("retry", () => connection.hurry());
    on("export-markdown", () => exportAs("md"));
    on("export-json", () => exportAs("json"));
    byId("model").addEventListener("change", () => chooseModel(byId("model").value));
    byId("title").addEventListener("change", () => {
        chat.conversation.title = titleOf(byId("title").value);
        chat.conversation.changed = Date.now();
        chat.save(chat.conversation);
    });
    for (const button of document.querySelectorAll("[data-icon]")) button.prepend(icon(button.dataset.icon));
    for (const button of document.querySelectorAll("[data-prompt]"))
        button.addEventListener("click", () => {
            chat.input.value = button.textContent;
            chat.inputChanged();
            chat.input.focus();
        });
    document.addEventListener("keydown", onKey);
    isNarrow.addEventListener("change", () => setDrawer(false));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
}

async function begin() {
    loadSettings();
    applyTheme();
    const isKept = await store.open();
    chat = new Chat(store, connection, {
        changed: async (c) => {
            const n = await store.trim(c.id);
            if (n > 0) toast(`${n} of the oldest conversations were removed to make room`);
            refreshHistory();
        },
        wantsKey: askForKey,
    });
    experts = new Experts(connection);
    models = new Models({
        changed: loadModels,
        asks: chooseModel,
        wantsKey: askForKey,
        current: () => byId("model").value,
    });
    openSettings = initSettings(showTheme);
    connectButtons();
    setDrawer(false);
    setExperts(settings.experts && !isNarrow.matches);
    store.onchange = (id, removed) => {
        if (removed && id === chat.conversation.id && !chat.isBusy()) chat.show(newConversation());
        else if (!removed) chat.reload(id);
        refreshHistory();
    };
    if (!isKept) toast("This browser does not allow storage: conversations are lost when the tab is closed.");
    const [latest] = await store.list();
    if (latest && performance.getEntriesByType("navigation")[0]?.type === "reload")
        await choose(kept("sessionStorage", "moebius.shown") || latest.id);
    refreshHistory();
    addEventListener("pagehide", () => keep("sessionStorage", "moebius.shown", chat.conversation.id));
    document.body.dataset.ready = "";
    chat.input.focus();
    await loadModels();
}

begin();
