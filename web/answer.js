// An answer that is streamed from the server into a message. If the server goes away, the text so far is kept, and the
// answer is continued when the server is back.

import { events, GoneError, KeyError, ServerError } from "./api.js";
import { requestFields, settings } from "./settings.js";
import { pathTo, toMessages } from "./tree.js";

// States of an answer's message.
export const WRITING = "writing"; // it is arriving, or waits for the server
export const DONE = "done";
export const STOPPED = "stopped"; // by the user
export const FAILED = "failed"; // node.error says why
export const CUT = "cut"; // its tab was closed before it had ended

export class Answer {
    // changed(node): called when something has arrived; progress(text): called with what the answer waits for, "" if
    // nothing.
    constructor(conversation, node, connection, { changed, progress }) {
        this.conversation = conversation;
        this.node = node;
        this.connection = connection;
        this.changed = changed;
        this.progress = progress;
        this.abort = new AbortController();
    }

    stop() {
        this.abort.abort(new DOMException("stopped", "AbortError"));
    }

    // Resolves when the answer has ended, however it did.
    async run() {
        const node = this.node;
        node.state = WRITING;
        node.error = "";
        try {
            while (!(await this.tryOnce()));
        } catch (e) {
            node.state = this.abort.signal.aborted ? STOPPED : FAILED;
            node.error = this.abort.signal.aborted ? "" : e.message;
            if (e instanceof KeyError) this.wantsKey = true;
        }
        this.progress("");
        this.touch();
    }

    touch() {
        this.node.changed = Date.now();
        this.conversation.changed = this.node.changed;
        this.changed(this.node);
    }

    // True: the answer has ended; false: try again.
    async tryOnce() {
        try {
            await this.stream();
            return true;
        } catch (e) {
            const isFull = e instanceof ServerError && (e.status === 503 || e.status === 429);
            if (this.abort.signal.aborted || !(e instanceof GoneError || isFull)) throw e;
            this.progress(isFull ? `The server is busy: ${e.message}` : "Waiting for the server…");
            if (isFull) await this.sleep((e.retryAfter || 2) * 1000);
            else await this.connection.back(this.abort.signal);
            return false;
        }
    }

    sleep(ms) {
        return new Promise((resolve, reject) => {
            setTimeout(resolve, ms);
            this.abort.signal.addEventListener("abort", () => reject(this.abort.signal.reason), { once: true });
        });
    }

    // The request. The answer so far is continued, unless it has calls, or reasoning only: then it begins anew.
    body() {
        const node = this.node;
        node.finish = "";
        const body = {
            ...requestFields(),
            stream: true,
            stream_options: { include_usage: true },
            return_progress: true,
            messages: toMessages(pathTo(this.conversation, node.parent), settings.system),
        };
        if (node.content && !node.calls.length) {
            body.messages.push(...toMessages([node], ""));
            body.continue_final_message = true;
        } else {
            Object.assign(node, { content: "", reasoning: "", calls: [] });
        }
        return body;
    }

    async stream() {
        let isWhole = false;
        this.progress("Waiting for the first token…");
        for await (const { data } of events("/v1/chat/completions", { body: this.body(), signal: this.abort.signal })) {
            isWhole = data === "[DONE]";
            if (!isWhole) this.take(JSON.parse(data));
        }
        if (!isWhole && !this.node.finish) throw new GoneError("the answer was cut off");
        this.node.state = DONE;
    }

    take(chunk) {
        const node = this.node;
        if (chunk.error)
            throw chunk.error.code === "server_is_overloaded"
                ? new GoneError(chunk.error.message)
                : new ServerError(500, chunk.error.message, 0);
        if (chunk.prompt_progress) this.showProgress(chunk.prompt_progress);
        if (chunk.model) node.model = chunk.model;
        for (const choice of chunk.choices || []) {
            this.add(choice.delta || {});
            node.finish = choice.finish_reason || node.finish;
        }
        if (chunk.usage || chunk.timings) node.stats = { ...node.stats, ...statsOf(chunk) };
        this.touch();
    }

    showProgress(p) {
        const left = p.total - p.processed;
        this.progress(left > 0 ? `Reading the prompt: ${p.processed} of ${p.total} tokens` : "");
    }

    add(delta) {
        const node = this.node;
        if (delta.content || delta.reasoning_content || delta.tool_calls) this.progress("");
        node.content += delta.content || "";
        node.reasoning += delta.reasoning_content || "";
        for (const part of delta.tool_calls || []) {
            const call = (node.calls[part.index] ||= { id: "", name: "", arguments: "" });
            call.id = part.id || call.id;
            call.name += part.function?.name || "";
            call.arguments += part.function?.arguments || "";
        }
    }
}

// Usage and timings arrive in separate chunks.
function statsOf({ usage, timings }) {
    const stats = {};
    if (usage)
        Object.assign(stats, {
            prompt: usage.prompt_tokens,
            answer: usage.completion_tokens,
            cached: usage.prompt_tokens_details?.cached_tokens || 0,
        });
    if (timings) stats.perSecond = timings.predicted_per_second;
    return stats;
}
