// The panel of experts: a grid of layers and experts, drawn from the server's events while it is visible. A cell's
// colour shows where the expert is, and its brightness how often it was chosen lately.

import { byId, formatBytes, h } from "./dom.js";
import { events, GoneError, KeyError } from "./api.js";
import { isDark } from "./settings.js";

const HALF_LIFE_S = 4; // of an expert's heat
const SPAN_S = 60; // time that the line of tokens a second shows
const FRAME_MS = 50;
const QUIET_MS = 1500; // if no picture comes for so long, nothing is being computed
const HUES = [168, 32, 262, 205, 340, 95, 290, 15]; // by place

// Heat as brightness, 0 to 1; 1 for an expert that every token chose.
export const brightness = (heat, full) =>
    heat <= 0 ? 0 : Math.min(1, Math.log1p(9 * Math.min(heat / full, 1)) / Math.log(10));

// The place of a mark, "0" for place 0; null: the expert is in no memory.
const PLACES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+";
export const placeOf = (mark) => (mark === "-" ? null : PLACES.indexOf(mark));

export function cellColour(place, bright, dark) {
    const hue = place === null ? 220 : HUES[place % HUES.length];
    const saturation = place === null ? 8 : 45 + 40 * bright;
    const light = dark ? (place === null ? 15 : 21) + 50 * bright : (place === null ? 93 : 86) - 46 * bright;
    return `hsl(${hue} ${saturation}% ${light}%)`;
}

export class Experts {
    constructor(connection) {
        this.connection = connection;
        this.canvas = byId("grid");
        this.frameBox = byId("grid-frame");
        this.line = byId("speed-line");
        this.isOpen = false;
        this.frameBox.addEventListener("keydown", (event) => this.onKey(event));
        this.frameBox.addEventListener("pointermove", (event) => this.onPointer(event));
        this.frameBox.addEventListener("pointerleave", () => this.point(null));
        new ResizeObserver(() => this.layout()).observe(this.frameBox);
        document.addEventListener("visibilitychange", () => this.follow());
        this.reset(null);
    }

    // ---- events --------------------------------------------------------------------------------------------------

    setOpen(isOpen) {
        this.isOpen = isOpen;
        this.follow();
    }

    // Listens while the panel is visible.
    follow() {
        const wanted = this.isOpen && document.visibilityState === "visible";
        if (wanted && !this.abort) {
            this.abort = new AbortController();
            this.listen(this.abort.signal);
        } else if (!wanted && this.abort) {
            this.abort.abort();
            this.abort = null;
        }
    }

    async listen(signal) {
        while (!signal.aborted) {
            try {
                for await (const { event, data } of events("/experts", { signal })) this.take(event, JSON.parse(data));
            } catch (e) {
                if (signal.aborted) return;
                if (!(e instanceof GoneError)) {
                    this.note(e instanceof KeyError ? "The server requires a key." : e.message);
                    return;
                }
            }
            this.note("The server does not respond.");
            await this.connection.back(signal).catch(() => {});
        }
    }

    take(event, data) {
        if (event === "model") this.reset(data);
        else if (event === "experts") this.addPicture(data);
        else if (event === "state")
            this.note(
                { ready: "", loading: "The model is being loaded.", unloading: "The model is being unloaded." }[
                    data.state
                ] ?? "No model is loaded: the first message loads one.",
            );
    }

    reset(model) {
        this.model = model;
        this.layers = model ? model.layers : [];
        this.n = this.layers.reduce((most, l) => Math.max(most, l.n_expert), 0);
        this.heat = this.layers.map((l) => new Float64Array(l.n_expert));
        this.total = this.layers.map((l) => new Float64Array(l.n_expert));
        this.where = this.layers.map(() => "");
        this.full = 1;
        clearTimeout(this.quiet);
        this.picture = null;
        this.speeds = [];
        this.cell = null;
        byId("experts-model").textContent = model ? model.model : "";
        byId("experts-none").hidden = !model || this.layers.length > 0;
        this.frameBox.hidden = this.layers.length === 0;
        this.renderLegend();
        this.layout();
    }

    note(text) {
        byId("experts-note").textContent = text;
    }

    // Adds a picture: earlier heat fades, and choices since the previous picture are added to it.
    addPicture(p) {
        const before = this.picture;
        clearTimeout(this.quiet);
        const seconds = before ? Math.max((p.ms - before.ms) / 1000, 0.001) : 0;
        const fade = 0.5 ** (seconds / HALF_LIFE_S);
        const isFirst = before === null; // with all choices since the model was loaded
        const tokens = isFirst ? 0 : p.answer_tokens - before.answer_tokens + p.prompt_tokens - before.prompt_tokens;
        this.full = Math.max(isFirst ? 1 : this.full * fade + tokens, 1);
        p.chosen.forEach((counts, i) =>
            counts.forEach((count, j) => {
                this.total[i][j] += count;
                this.heat[i][j] = isFirst ? 0 : this.heat[i][j] * fade + count;
            }),
        );
        this.where = p.where;
        this.picture = p;
        if (!isFirst) this.addSpeed(p, before, seconds);
        this.renderFigures(p, before, seconds);
        this.draw();
        if (this.cell) this.tell();
        this.quiet = setTimeout(() => this.rest(), QUIET_MS);
    }

    // Called while nothing is computed, so that heat fades without pictures, too.
    rest() {
        const now = this.picture.ms / 1000;
        const hottest = Math.max(...this.heat.map((row) => row.reduce((most, x) => Math.max(most, x), 0)));
        this.speeds.push([now + 0.1, 0]);
        this.showRates(0, 0, 0);
        for (const row of this.heat)
            row.forEach((x, j) => {
                row[j] = x * 0.5 ** (QUIET_MS / 1000 / HALF_LIFE_S);
            });
        this.draw();
        if (hottest > this.full / 100) this.quiet = setTimeout(() => this.rest(), QUIET_MS);
    }

    // ---- figures -------------------------------------------------------------------------------------------------

    addSpeed(p, before, seconds) {
        const now = p.ms / 1000;
        if (seconds > 2)
            // there was no picture for a while, so nothing was computed
            this.speeds.push([before.ms / 1000 + 0.1, 0], [now - 0.5, 0]);
        this.speeds.push([now, (p.answer_tokens - before.answer_tokens) / Math.min(seconds, 2)]);
        while (this.speeds.length && this.speeds[0][0] < now - SPAN_S) this.speeds.shift();
        this.drawSpeed(now);
    }

    renderFigures(p, before, seconds) {
        const isAll = p.expert_bytes >= p.expert_all_bytes;
        const since = (name) => (before ? p[name] - before[name] : 0);
        const asked = since("hits") + since("misses");
        const show = (id, text) => {
            byId(id).textContent = text;
        };
        const speed = this.speeds.length
            ? this.speeds.slice(-4).reduce((sum, s) => sum + s[1], 0) / Math.min(this.speeds.length, 4)
            : 0;
        this.showRates(
            speed,
            seconds ? since("read_bytes") / seconds : 0,
            seconds ? since("stall_ms") / seconds / 10 : 0,
        );
        if (asked > 0) this.hitRate = since("hits") / asked;
        show("figure-hits", isAll ? "all" : this.hitRate === undefined ? "–" : `${Math.round(100 * this.hitRate)}%`);
        show("figure-memory", `${formatBytes(p.expert_bytes)} of ${formatBytes(p.expert_all_bytes)}`);
        show("figure-texts", p.waiting ? `${p.running}, ${p.waiting} wait` : p.running);
        show(
            "figure-total",
            `${formatBytes(p.read_bytes)} read, ${p.answer_tokens} tokens answered, ${p.cached_tokens} of ` +
                `${p.cached_tokens + p.prompt_tokens} prompt tokens cached`,
        );
    }

    showRates(speed, readBytes, stallPercent) {
        byId("figure-speed").textContent = speed < 10 ? speed.toFixed(1) : Math.round(speed);
        byId("figure-read").textContent = `${formatBytes(readBytes)}/s`;
        byId("figure-stall").textContent = `${Math.round(Math.min(100, stallPercent))}%`;
    }

    renderLegend() {
        const places = this.model ? this.model.places : [];
        const key = (place, bright, text) => {
            const swatch = h("span", { class: "swatch" });
            swatch.style.background = cellColour(place, bright, isDark());
            return h("li", {}, swatch, text);
        };
        byId("legend").replaceChildren(
            ...places.slice(0, 12).map((name, i) => key(i, 0.7, places.length > 1 ? `at ${name}` : "in memory")),
            ...(places.length ? [key(null, 0.15, "read when needed")] : []),
        );
    }

    // ---- drawing -------------------------------------------------------------------------------------------------

    layout() {
        if (!this.layers.length) return;
        const width = this.frameBox.clientWidth;
        const pitch = Math.max(2, Math.min(14, Math.floor(width / this.n)));
        const height = Math.max(pitch, Math.min(20, Math.floor(420 / this.layers.length)));
        const scale = devicePixelRatio || 1;
        this.pitch = { x: width / this.n, y: height, gap: pitch >= 4 ? 1 : 0 };
        this.canvas.style.height = `${height * this.layers.length}px`;
        this.canvas.width = Math.round(width * scale);
        this.canvas.height = Math.round(height * this.layers.length * scale);
        this.canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
        this.draw();
    }

    draw() {
        if (this.frame || !this.layers.length || !this.pitch) return;
        this.frame = setTimeout(
            () =>
                requestAnimationFrame(() => {
                    this.frame = 0;
                    this.drawNow();
                }),
            FRAME_MS,
        );
    }

    drawNow() {
        const context = this.canvas.getContext("2d");
        const { x, y, gap } = this.pitch;
        const dark = isDark();
        context.clearRect(0, 0, this.canvas.width, this.canvas.height);
        this.layers.forEach((layer, i) => {
            for (let j = 0; j < layer.n_expert; j++) {
                const place = placeOf(this.where[i]?.[j] ?? "-");
                context.fillStyle = cellColour(place, brightness(this.heat[i][j], this.full), dark);
                context.fillRect(j * x, i * y, x - gap, y - gap);
            }
        });
        if (this.cell) {
            context.strokeStyle = dark ? "#fff" : "#000";
            context.lineWidth = 2;
            context.strokeRect(this.cell.expert * x - 1, this.cell.layer * y - 1, x + 1, y + 1);
        }
    }

    drawSpeed(now) {
        const scale = devicePixelRatio || 1;
        const [width, height] = [this.line.clientWidth, this.line.clientHeight];
        const context = this.line.getContext("2d");
        const most = Math.max(...this.speeds.map((s) => s[1]), 1);
        this.line.width = width * scale;
        this.line.height = height * scale;
        context.setTransform(scale, 0, 0, scale, 0, 0);
        context.strokeStyle = getComputedStyle(this.line).color;
        context.lineWidth = 1.5;
        context.beginPath();
        for (const [at, speed] of this.speeds)
            context.lineTo(width * (1 - (now - at) / SPAN_S), height - 2 - ((height - 4) * speed) / most);
        context.stroke();
    }

    // ---- one cell ------------------------------------------------------------------------------------------------

    point(cell) {
        this.cell = cell;
        byId("cell").textContent = "";
        if (cell) this.tell();
        this.draw();
    }

    onPointer(event) {
        const box = this.canvas.getBoundingClientRect();
        const layer = Math.floor((event.clientY - box.top) / this.pitch.y);
        const expert = Math.floor((event.clientX - box.left) / this.pitch.x);
        this.point(
            expert >= 0 && layer >= 0 && expert < (this.layers[layer]?.n_expert ?? 0) ? { layer, expert } : null,
        );
    }

    onKey(event) {
        const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
        const move = moves[event.key];
        if (!move || !this.layers.length) return;
        event.preventDefault();
        const at = this.cell || { layer: 0, expert: 0 };
        const layer = Math.min(Math.max(at.layer + (this.cell ? move[0] : 0), 0), this.layers.length - 1);
        const expert = Math.min(Math.max(at.expert + (this.cell ? move[1] : 0), 0), this.layers[layer].n_expert - 1);
        this.point({ layer, expert });
    }

    tell() {
        const { layer, expert } = this.cell;
        const place = placeOf(this.where[layer]?.[expert] ?? "-");
        const where = place === null ? "read when needed" : `at ${this.model.places[place] ?? "a place"}`;
        const total = this.total[layer].reduce((sum, n) => sum + n, 0);
        const share = total ? (100 * this.total[layer][expert]) / total : 0;
        byId("cell").textContent =
            `Layer ${layer}, expert ${expert}: chosen ${this.total[layer][expert]} times ` +
            `(${share.toFixed(1)}% of the layer's), ${where}`;
    }
}
