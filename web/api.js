// Requests to the server. There are three kinds of errors: the server refuses (ServerError), it does not answer
// (GoneError), or it wants a key (KeyError).

import { keep, kept } from "./keep.js";

export class ServerError extends Error {
    constructor(status, message, retryAfter) {
        super(message);
        this.status = status;
        this.retryAfter = retryAfter; // seconds; 0: the server did not say
    }
}
export class GoneError extends Error {}
export class KeyError extends Error {}

const KEY = "moebius.key";

export const setKey = (key) => keep("sessionStorage", KEY, key || null);

export const hasKey = () => kept("sessionStorage", KEY) !== null;

async function messageOf(response) {
    const text = await response.text().catch(() => "");
    try {
        const body = JSON.parse(text);
        return body.error.message || body.error;
    } catch {
        return text.slice(0, 300) || `the server answered with status ${response.status}`;
    }
}

async function ask(path, { body, signal } = {}) {
    const headers = {};
    let response;
    if (hasKey()) headers.Authorization = `Bearer ${kept("sessionStorage", KEY)}`;
    if (body) headers["Content-Type"] = "application/json";
    try {
        response = await fetch(path, {
            method: body ? "POST" : "GET",
            headers,
            signal,
            cache: "no-store",
            body: body ? JSON.stringify(body) : undefined,
        });
    } catch (e) {
        throw signal?.aborted ? e : new GoneError("the server does not answer");
    }
    if (response.ok) return response;
    const message = await messageOf(response);
    throw response.status === 401
        ? new KeyError(message)
        : new ServerError(response.status, message, Number(response.headers.get("Retry-After")) || 0);
}

export async function getJson(path, options) {
    const response = await ask(path, options);
    try {
        return await response.json();
    } catch (e) {
        throw options?.signal?.aborted ? e : new GoneError("the server's answer was cut off");
    }
}

// Parses server-sent events from pieces of text. An incomplete event is kept until the rest of it comes.
export class EventParser {
    constructor() {
        this.rest = "";
        this.event = "message";
        this.data = [];
    }

    // The events that a piece of text completes, as [{event, data}].
    push(text) {
        const found = [];
        const lines = (this.rest + text).split(/\r?\n/);
        this.rest = lines.pop();
        for (const line of lines) {
            if (line.startsWith("data:")) this.data.push(line.slice(line[5] === " " ? 6 : 5));
            else if (line.startsWith("event:")) this.event = line.slice(6).trim();
            else if (line === "" && this.data.length) found.push({ event: this.event, data: this.data.join("\n") });
            if (line === "") {
                this.event = "message";
                this.data = [];
            }
        }
        return found;
    }
}

// Yields the events of a stream as they arrive.
export async function* events(path, options) {
    const response = await ask(path, options);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new EventParser();
    try {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return;
            yield* parser.push(value);
        }
    } catch (e) {
        throw options?.signal?.aborted ? e : new GoneError("the connection was lost");
    } finally {
        reader.cancel().catch(() => {});
    }
}

// Waits for a server that does not answer. `tell` is called with the seconds of each wait, and with 0 when the server
// is back.
export class Connection {
    constructor(tell) {
        this.tell = tell;
        this.waiting = null; // a promise that all callers share
        this.hurry = () => {}; // ends the current wait, so that the server is asked at once
    }

    // Resolves when the server answers; rejects when the signal is aborted.
    back(signal) {
        this.waiting ||= this.poll().finally(() => {
            this.waiting = null;
        });
        return new Promise((resolve, reject) => {
            signal?.addEventListener("abort", () => reject(signal.reason), { once: true });
            this.waiting.then(resolve, reject);
        });
    }

    async poll() {
        for (let wait = 1; ; wait = Math.min(wait * 2, 10)) {
            this.tell(wait);
            await new Promise((resolve) => {
                const timer = setTimeout(resolve, wait * 1000);
                this.hurry = () => {
                    clearTimeout(timer);
                    resolve();
                };
            });
            try {
                await getJson("/health");
                this.tell(0);
                return;
            } catch {
                // not yet
            }
        }
    }
}
