// Conversations, kept by this browser in IndexedDB. There is a bound: the oldest go first. Tabs tell each other of what
// they write.

import { merge } from "./tree.js";

const MAX_CONVERSATIONS = 300;
const MAX_CHARACTERS = 50e6; // of all conversations as JSON

const done = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
});

export class Store {
    constructor() {
        this.memory = new Map(); // where there is no database
        this.channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("moebius") : null;
        this.onchange = () => {}; // another tab wrote (id) or removed (id, true) a conversation
        if (this.channel)
            this.channel.onmessage = (m) => this.onchange(m.data.id, m.data.removed);
    }

    // False: the browser keeps nothing, and what is said is gone with the tab.
    async open() {
        try {
            const request = indexedDB.open("moebius", 1);
            request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
            this.db = await done(request);
        } catch {
            this.db = null;
        }
        return this.db !== null;
    }

    transaction(mode) {
        return this.db.transaction("conversations", mode).objectStore("conversations");
    }

    async get(id) {
        return this.db ? done(this.transaction("readonly").get(id)) : this.memory.get(id);
    }

    // {id, title, changed, size}, the newest first.
    async list() {
        const all = this.db ? await done(this.transaction("readonly").getAll()) : [...this.memory.values()];
        return all.map((c) => ({ id: c.id, title: c.title, changed: c.changed, size: c.size || 0 }))
            .sort((a, b) => b.changed - a.changed);
    }

    // Writes a conversation, with what other tabs have added to it; returns it whole.
    async put(c) {
        if (!this.db) {
            this.memory.set(c.id, c);
            return c;
        }
        const store = this.transaction("readwrite");
        const there = await done(store.get(c.id));
        const whole = there ? merge(c, there) : { ...c };
        whole.size = JSON.stringify(whole.nodes).length;
        await done(store.put(whole));
        this.channel?.postMessage({ id: c.id });
        return whole;
    }

    async remove(id) {
        this.memory.delete(id);
        if (this.db)
            await done(this.transaction("readwrite").delete(id));
        this.channel?.postMessage({ id, removed: true });
    }

    // Removes what is beyond the bound, but never `keep`; returns how many went.
    async trim(keep) {
        let size = 0;
        let n = 0;
        for (const [i, c] of (await this.list()).entries()) {
            size += c.size;
            if ((i >= MAX_CONVERSATIONS || size > MAX_CHARACTERS) && c.id !== keep) {
                await this.remove(c.id);
                n++;
            }
        }
        return n;
    }
}
