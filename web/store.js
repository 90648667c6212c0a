// Keeps conversations in the browser's IndexedDB. Beyond a bound the oldest are removed. Tabs notify each other of what
// they write.

import { merge } from "./tree.js";

const MAX_CONVERSATIONS = 300;
const MAX_CHARACTERS = 50e6; // of all conversations as JSON

const STORES = ["conversations", "entries"]; // an entry is {id, title, changed, size} of a conversation

const entryOf = (c) => ({ id: c.id, title: c.title, changed: c.changed, size: JSON.stringify(c.nodes).length });

const done = (request) =>
    new Promise((resolve, reject) => {
        request.onsuccess = () => resolve(request.result);
        request.onerror = () => reject(request.error);
    });

export class Store {
    constructor() {
        this.memory = new Map(); // used if there is no database
        this.channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("moebius") : null;
        this.onchange = () => {}; // another tab wrote (id) or removed (id, true) a conversation
        if (this.channel) this.channel.onmessage = (m) => this.onchange(m.data.id, m.data.removed);
    }

    // False: the browser has no database, and conversations are lost when the tab is closed.
    async open() {
        try {
            const request = indexedDB.open("moebius", 1);
            request.onupgradeneeded = () => {
                for (const name of STORES) request.result.createObjectStore(name, { keyPath: "id" });
            };
            this.db = await done(request);
        } catch {
            this.db = null;
        }
        return this.db !== null;
    }

    // The object stores, within one transaction.
    stores(mode) {
        const transaction = this.db.transaction(STORES, mode);
        return STORES.map((name) => transaction.objectStore(name));
    }

    async get(id) {
        return this.db ? done(this.stores("readonly")[0].get(id)) : this.memory.get(id);
    }

    // All entries, the newest first.
    async list() {
        const all = this.db
            ? await done(this.stores("readonly")[1].getAll())
            : Array.from(this.memory.values(), entryOf);
        return all.sort((a, b) => b.changed - a.changed);
    }

    // Merges a conversation with what other tabs have added to it, and writes it. Returns the merged one.
    async put(c) {
        if (!this.db) {
            this.memory.set(c.id, c);
            return c;
        }
        const [conversations, entries] = this.stores("readwrite");
        const there = await done(conversations.get(c.id));
        const whole = there ? merge(c, there) : c;
        entries.put(entryOf(whole));
        await done(conversations.put(whole));
        this.channel?.postMessage({ id: c.id });
        return whole;
    }

    async remove(id) {
        this.memory.delete(id);
        if (this.db) await Promise.all(this.stores("readwrite").map((store) => done(store.delete(id))));
        this.channel?.postMessage({ id, removed: true });
    }

    // Removes conversations beyond the bound, but never `keep`. Returns how many were removed.
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
