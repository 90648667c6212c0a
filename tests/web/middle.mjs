// A proxy between browser and server: it counts and slows streams down, answers some requests as a test says, and notes
// what was asked.

import http from "node:http";

const sse = (data) => `data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`;
const chunk = (delta, finish = null) => ({
    id: "1",
    model: "scripted",
    choices: [{ index: 0, delta, finish_reason: finish }],
});

export class Middle {
    constructor(upstreamPort) {
        this.upstreamPort = upstreamPort;
        this.eventMs = 0; // between two events of an answer
        // The next answer, in place of the server's: {deltas, pauseMs, finish, cut}; cut: it breaks off. {refusal}: status 503.
        this.script = null;
        this.bodies = []; // of the answers that were asked for
        this.paths = []; // all that was asked
        this.watchers = 0; // open streams of experts
        this.slow = new Set(); // answers that are passed on slowly
        this.server = http.createServer((request, response) => this.handle(request, response));
    }

    async open() {
        await new Promise((resolve) => this.server.listen(0, "127.0.0.1", resolve));
        this.url = `http://127.0.0.1:${this.server.address().port}`;
        return this;
    }

    close() {
        this.server.closeAllConnections();
        this.server.close();
    }

    async handle(request, response) {
        const parts = [];
        for await (const part of request) parts.push(part);
        this.paths.push(request.url);
        const isAnswer = request.url === "/v1/chat/completions";
        if (isAnswer) this.bodies.push(JSON.parse(Buffer.concat(parts)));
        if (isAnswer && this.script) await this.answer(response);
        else this.forward(request, response, Buffer.concat(parts));
    }

    async answer(response) {
        const { deltas, pauseMs = 0, finish = "stop", cut = false, refusal } = this.script;
        this.script = null;
        if (refusal) {
            response.writeHead(503, { "Content-Type": "application/json", "Retry-After": "1" });
            return response.end(JSON.stringify({ error: { message: refusal } }));
        }
        response.writeHead(200, { "Content-Type": "text/event-stream" });
        for (const delta of deltas) {
            response.write(sse(chunk(delta)));
            if (pauseMs) await new Promise((resolve) => setTimeout(resolve, pauseMs));
        }
        if (cut) return response.destroy();
        response.end(sse(chunk({}, finish)) + sse("[DONE]"));
    }

    forward(request, response, body) {
        const isWatcher = request.url === "/experts";
        const headers = { ...request.headers };
        const up = http.request({
            port: this.upstreamPort,
            host: "127.0.0.1",
            method: request.method,
            path: request.url,
            headers,
        });
        this.watchers += isWatcher;
        response.on("close", () => {
            up.destroy();
            this.watchers -= isWatcher;
        });
        up.on("error", () => response.destroy());
        up.on("response", (answer) => {
            response.writeHead(answer.statusCode, answer.headers);
            answer.on("error", () => response.destroy());
            if (request.url === "/v1/chat/completions" && this.eventMs) this.passSlowly(answer, response);
            else answer.on("close", () => answer.complete || response.destroy()).pipe(response);
        });
        up.end(body);
    }

    async passSlowly(answer, response) {
        let rest = "";
        this.slow.add(response);
        try {
            for await (const piece of answer.setEncoding("utf8")) {
                const events = (rest + piece).split("\n\n");
                rest = events.pop();
                for (const event of events) {
                    response.write(`${event}\n\n`);
                    await new Promise((resolve) => setTimeout(resolve, this.eventMs));
                }
            }
            response.end();
        } catch {
            response.destroy();
        }
        this.slow.delete(response);
    }

    // The connections of answers that are passed on slowly break.
    cut() {
        for (const response of this.slow) response.destroy();
    }
}
