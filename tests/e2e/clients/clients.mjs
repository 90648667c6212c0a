// Official clients, unmodified, against a server. usage: node clients.mjs URL answers|reasoning [NAME]
// Each function of `groups` is one test; a failed assertion names itself. The model may say what it likes; in the tests
// of reasoning its template begins an answer with <think>, and the budget ends that.
import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const url = process.argv[2];
const options = { apiKey: "not-wanted", maxRetries: 0 };
const openai = new OpenAI({ baseURL: url + "/v1", ...options });
const anthropic = new Anthropic({ baseURL: url, ...options });
const messages = [{ role: "user", content: "Once upon a time" }];
const model = "any";
const tools = [
    {
        type: "function",
        function: {
            name: "look_up",
            description: "looks a word up",
            parameters: { type: "object", properties: { word: { type: "string" } }, required: ["word"] },
        },
    },
];
const history = [
    ...messages,
    {
        role: "assistant",
        content: null,
        tool_calls: [{ id: "call_1", type: "function", function: { name: "look_up", arguments: '{"word":"time"}' } }],
    },
    { role: "tool", tool_call_id: "call_1", content: "what clocks show" },
];

// What the model may answer is bounded, so that a small one gets to an end.
const weather = z.object({ city: z.enum(["Rome", "Oslo"]), day: z.enum(["today", "tomorrow"]) });
const schema = z.toJSONSchema(weather);
const weatherTool = { type: "function", function: { name: "weather", description: "tells it", parameters: schema, strict: true } };

async function metric(name) {
    const text = await (await fetch(url + "/metrics")).text();
    return Number(text.split("\n").find((line) => line.startsWith(name + " ")).split(" ")[1]);
}

async function until(condition, what) {
    for (let i = 0; i < 200; i++) {
        if (await condition()) return;
        await new Promise((resolve) => setTimeout(resolve, 50));
    }
    assert.fail(what);
}

const cancelled = () => metric('moebius_texts_ended_total{end="cancelled"}');

const answers = {
    // ---- openai

    async "openai: models"() {
        const list = (await openai.models.list()).data;
        assert.equal(list.length, 1);
        assert.ok(list[0].context_length > 0);
        assert.equal((await openai.models.retrieve(list[0].id)).id, list[0].id);
    },

    async "openai: chat, whole and streamed, say the same"() {
        const ask = { model, messages, max_completion_tokens: 30, temperature: 0 };
        const whole = await openai.chat.completions.create(ask);
        assert.equal(whole.choices[0].finish_reason, "length");
        assert.equal(whole.usage.completion_tokens, 30);
        const stream = await openai.chat.completions.create({
            ...ask,
            stream: true,
            stream_options: { include_usage: true },
        });
        let text = "", usage, finish;
        for await (const chunk of stream) {
            text += chunk.choices[0]?.delta.content ?? "";
            finish ??= chunk.choices[0]?.finish_reason;
            usage = chunk.usage ?? usage;
        }
        assert.equal(text, whole.choices[0].message.content);
        assert.equal(finish, "length");
        assert.equal(usage.completion_tokens, 30);
    },

    async "openai: chat's helper gathers a stream"() {
        const runner = openai.chat.completions.stream({ model, messages, max_tokens: 20, temperature: 0, n: 2 });
        const done = await runner.finalChatCompletion();
        assert.equal(done.choices.length, 2);
        assert.equal(done.choices[0].message.content, done.choices[1].message.content);
    },

    async "openai: log-probabilities, stops, seeds"() {
        const ask = { model, messages, max_tokens: 10, temperature: 1, seed: 5, logprobs: true, top_logprobs: 2 };
        const one = await openai.chat.completions.create(ask), two = await openai.chat.completions.create(ask);
        assert.equal(one.choices[0].message.content, two.choices[0].message.content);
        assert.equal(one.choices[0].logprobs.content.length, 10);
        assert.equal(one.choices[0].logprobs.content[0].top_logprobs.length, 2);
        const stopped = await openai.chat.completions.create({ model, messages, max_tokens: 200, temperature: 0, stop: [" "] });
        assert.equal(stopped.choices[0].finish_reason, "stop");
        assert.ok(!stopped.choices[0].message.content.includes(" "));
    },

    async "openai: tools and their results are understood"() {
        const whole = await openai.chat.completions.create({ model, messages: history, tools, max_tokens: 10 });
        assert.ok(["length", "stop", "tool_calls"].includes(whole.choices[0].finish_reason));
        const none = await openai.chat.completions.create({ model, messages, tools, tool_choice: "none", max_tokens: 5 });
        assert.ok(none.choices[0].message.content.length > 0);
    },

    async "openai: calls are forced, whole and streamed, and answered"() {
        const ask = { model, messages, tools: [weatherTool], tool_choice: "required", parallel_tool_calls: false, max_tokens: 100, temperature: 0 };
        const whole = (await openai.chat.completions.create(ask)).choices[0];
        assert.equal(whole.finish_reason, "tool_calls");
        weather.parse(JSON.parse(whole.message.tool_calls[0].function.arguments));
        const streamed = (await openai.chat.completions.stream(ask).finalChatCompletion()).choices[0];
        assert.deepEqual(streamed.message.tool_calls[0].function.arguments, whole.message.tool_calls[0].function.arguments);
        const named = await openai.chat.completions.create({ ...ask, tools: [...tools, weatherTool], tool_choice: { type: "function", function: { name: "weather" } } });
        assert.equal(named.choices[0].message.tool_calls[0].function.name, "weather");
        const next = [...messages, whole.message, { role: "tool", tool_call_id: whole.message.tool_calls[0].id, content: "rain" }];
        const second = await openai.chat.completions.create({ ...ask, messages: next });
        assert.equal(second.choices[0].finish_reason, "tool_calls");
        assert.ok(second.usage.prompt_tokens_details.cached_tokens > 0);
        let calls = 0;
        const run = openai.chat.completions.runTools({
            ...ask, tool_choice: { type: "function", function: { name: "weather" } },
            tools: [{ type: "function", function: { name: "weather", parameters: schema, parse: (s) => weather.parse(JSON.parse(s)), function: () => (calls++, "sun") } }],
        }, { maxChatCompletions: 2 });
        await run.done().catch(() => {}); // ends after the calls that it may make
        assert.ok(calls >= 1);
    },

    async "openai: answers have the form of a schema"() {
        const format = { type: "json_schema", json_schema: { name: "weather", schema, strict: true } };
        const chat = await openai.chat.completions.create({ model, messages, response_format: format, max_tokens: 100, temperature: 0 });
        weather.parse(JSON.parse(chat.choices[0].message.content));
        const responses = await openai.responses.create({
            model, input: "Once", max_output_tokens: 100, temperature: 0,
            text: { format: { type: "json_schema", name: "weather", schema, strict: true } },
        });
        weather.parse(JSON.parse(responses.output_text));
        const called = await openai.responses.create({
            model, input: "Once", max_output_tokens: 100, temperature: 0, tool_choice: "required", parallel_tool_calls: false,
            tools: [{ type: "function", name: "weather", parameters: schema, strict: true }],
        });
        const call = called.output.find((item) => item.type === "function_call");
        weather.parse(JSON.parse(call.arguments));
    },

    async "openai: completions"() {
        const ask = { model, prompt: "Once upon a time", max_tokens: 20, temperature: 0 };
        const whole = await openai.completions.create(ask);
        let text = "";
        for await (const chunk of await openai.completions.create({ ...ask, stream: true })) text += chunk.choices[0].text;
        assert.equal(text, whole.choices[0].text);
    },

    async "openai: responses, whole and streamed, say the same"() {
        const ask = { model, input: "Once upon a time", instructions: "Tell.", max_output_tokens: 20, temperature: 0 };
        const whole = await openai.responses.create(ask);
        assert.equal(whole.status, "incomplete");
        assert.equal(whole.incomplete_details.reason, "max_output_tokens");
        const types = [];
        let last;
        for await (const event of await openai.responses.create({ ...ask, stream: true })) {
            assert.equal(event.sequence_number, types.length);
            types.push(event.type);
            last = event;
        }
        assert.equal(types[0], "response.created");
        assert.equal(last.type, "response.incomplete");
        assert.equal(last.response.output[0].content[0].text, whole.output_text);
        const helper = openai.responses.stream(ask);
        assert.equal((await helper.finalResponse()).output_text, whole.output_text);
    },

    async "openai: responses' tools and their results are understood"() {
        const whole = await openai.responses.create({
            model,
            input: [
                { role: "user", content: "x" },
                { type: "function_call", call_id: "c1", name: "look_up", arguments: '{"word":"x"}' },
                { type: "function_call_output", call_id: "c1", output: "y" },
            ],
            tools: [{ type: "function", name: "look_up", parameters: tools[0].function.parameters, strict: false }],
            max_output_tokens: 5,
        });
        assert.equal(whole.object, "response");
    },

    async "openai: errors have the client's classes"() {
        const ask = { model, messages, max_tokens: 5 };
        await assert.rejects(openai.chat.completions.create({ ...ask, temperature: "hot" }), (e) => {
            assert.ok(e instanceof OpenAI.BadRequestError);
            return e.param === "temperature" && e.message.includes("hot");
        });
        const long = [{ role: "user", content: "word ".repeat(5000) }];
        await assert.rejects(openai.chat.completions.create({ ...ask, messages: long }), { code: "context_length_exceeded" });
        await assert.rejects(openai.embeddings.create({ model, input: "x" }), { status: 501 });
        await assert.rejects(openai.models.retrieve("nothing"), OpenAI.NotFoundError);
    },

    async "openai: an aborted stream ends the text"() {
        const before = await cancelled();
        const stream = await openai.chat.completions.create({ model, messages, max_tokens: 400, stream: true, ignore_eos: true });
        for await (const chunk of stream) {
            assert.ok(chunk);
            stream.controller.abort();
            break;
        }
        await until(async () => (await cancelled()) > before, "the text goes on");
    },

    // ---- anthropic

    async "anthropic: messages, whole and streamed, say the same"() {
        const ask = { model, messages, max_tokens: 30, temperature: 0 };
        const whole = await anthropic.messages.create(ask);
        assert.equal(whole.stop_reason, "max_tokens");
        assert.equal(whole.usage.output_tokens, 30);
        const stream = anthropic.messages.stream(ask);
        let text = "";
        stream.on("text", (piece) => (text += piece));
        const done = await stream.finalMessage();
        assert.equal(text, whole.content[0].text);
        assert.deepEqual(done.content, whole.content);
        assert.equal(done.usage.output_tokens, 30);
    },

    async "anthropic: the beta's path, counting, system and tools"() {
        const ask = {
            model,
            max_tokens: 5,
            system: [{ type: "text", text: "Tell.", cache_control: { type: "ephemeral" } }],
            tools: [{ name: "look_up", description: "d", input_schema: tools[0].function.parameters }],
            messages: [
                ...messages,
                { role: "assistant", content: [{ type: "tool_use", id: "toolu_1", name: "look_up", input: { word: "time" } }] },
                { role: "user", content: [{ type: "tool_result", tool_use_id: "toolu_1", content: "what clocks show" }] },
            ],
        };
        const { max_tokens, ...counted } = ask;
        const { input_tokens } = await anthropic.messages.countTokens(counted);
        const whole = await anthropic.beta.messages.create({ ...ask, betas: ["made-up-2026"] });
        const usage = whole.usage;
        assert.equal(usage.input_tokens + (usage.cache_read_input_tokens ?? 0), input_tokens);
        assert.equal(max_tokens, 5);
    },

    async "anthropic: calls are forced, whole and streamed"() {
        const long = [{ role: "user", content: "Once upon a time there was a little girl. ".repeat(8) }];
        const ask = {
            model, messages: long, max_tokens: 100, temperature: 0, tool_choice: { type: "any", disable_parallel_tool_use: true },
            tools: [{ name: "weather", description: "d", input_schema: schema }],
        };
        const whole = await anthropic.messages.create(ask);
        assert.equal(whole.stop_reason, "tool_use");
        const call = whole.content.find((block) => block.type === "tool_use");
        weather.parse(call.input);
        const streamed = await anthropic.messages.stream(ask).finalMessage();
        assert.deepEqual(streamed.content.find((block) => block.type === "tool_use").input, call.input);
        const next = await anthropic.messages.create({
            ...ask,
            messages: [...long, { role: "assistant", content: whole.content },
                { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "rain" }] }],
        });
        assert.equal(next.stop_reason, "tool_use");
        assert.ok(next.usage.cache_read_input_tokens > 0);
    },

    async "anthropic: the runner of tools goes on, though the server keeps no thread"() {
        let calls = 0;
        const run = anthropic.beta.messages.toolRunner({
            model, messages, max_tokens: 100, max_iterations: 2, tool_choice: { type: "any", disable_parallel_tool_use: true },
            tools: [betaZodTool({ name: "weather", description: "d", inputSchema: weather, run: () => (calls++, "rain") })],
        });
        assert.equal((await run).stop_reason, "tool_use");
        assert.ok(calls >= 1);
    },

    async "anthropic: errors have the client's classes"() {
        await assert.rejects(anthropic.messages.create({ model, messages, max_tokens: "many" }), Anthropic.BadRequestError);
        const long = [{ role: "user", content: "word ".repeat(5000) }];
        await assert.rejects(anthropic.messages.create({ model, messages: long, max_tokens: 5 }), /prompt is too long/);
        await assert.rejects(anthropic.models.retrieve("nothing"), Anthropic.NotFoundError);
        assert.ok((await anthropic.models.list()).data[0].display_name);
    },

    async "anthropic: an aborted stream ends the text"() {
        const before = await cancelled();
        const stream = anthropic.messages.stream({ model, messages, max_tokens: 400 });
        stream.on("text", () => stream.abort());
        await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
        await until(async () => (await cancelled()) > before, "the text goes on");
    },

    // ---- ai

    async "ai: a conversation goes on by references to what was said"() {
        const ask = { model: createOpenAI({ baseURL: url + "/v1", apiKey: "x" }).responses(model), maxOutputTokens: 20, temperature: 0, maxRetries: 0 };
        const first = await generateText({ ...ask, messages });
        const next = await generateText({ ...ask, messages: [...messages, ...first.response.messages, ...messages] });
        assert.ok(next.text.length > 0);
    },

    async "ai: text, streams and tools by each provider"() {
        const providers = {
            compatible: createOpenAICompatible({ name: "local", baseURL: url + "/v1", supportsStructuredOutputs: true })(model),
            chat: createOpenAI({ baseURL: url + "/v1", apiKey: "x" }).chat(model),
            responses: createOpenAI({ baseURL: url + "/v1", apiKey: "x" }).responses(model),
            anthropic: createAnthropic({ baseURL: url + "/v1", apiKey: "x" })(model),
        };
        for (const [name, provider] of Object.entries(providers)) {
            const ask = { model: provider, prompt: "Once upon a time", maxOutputTokens: 20, temperature: 0, maxRetries: 0 };
            const whole = await generateText(ask);
            assert.ok(whole.text.length > 0, name);
            let text = "";
            for await (const piece of streamText(ask).textStream) text += piece;
            assert.equal(text, whole.text, name);
            const called = await generateText({
                ...ask,
                tools: { look_up: tool({ inputSchema: z.object({ word: z.string() }), execute: async () => "y" }) },
            });
            assert.ok(called.finishReason, name);
            const form = await generateText({ ...ask, maxOutputTokens: 100, output: Output.object({ schema: weather }) });
            weather.parse(form.output);
            if (name === "compatible") continue; // it can't ask for one call at a time, and a small model would go on and on
            const agent = await generateText({
                ...ask, maxOutputTokens: 100, toolChoice: "required", stopWhen: stepCountIs(2),
                providerOptions: { openai: { parallelToolCalls: false }, anthropic: { disableParallelToolUse: true } },
                tools: { weather: tool({ inputSchema: weather, execute: async ({ city }) => city + ": rain" }) },
            });
            assert.equal(agent.steps.length, 2, name);
            assert.ok(agent.steps.every((step) => step.toolCalls.length > 0), name);
        }
    },
};

const reasoning = {
    async "openai: reasoning of a chat, whole, streamed and left out"() {
        const ask = { model, messages, max_tokens: 40, temperature: 0, reasoning_budget: 12 };
        const whole = await openai.chat.completions.create(ask);
        const message = whole.choices[0].message;
        assert.ok(message.reasoning_content.length > 0 && message.content.length > 0);
        assert.ok(whole.usage.completion_tokens_details.reasoning_tokens >= 12);
        let thought = "", text = "";
        for await (const chunk of await openai.chat.completions.create({ ...ask, stream: true })) {
            const delta = chunk.choices[0]?.delta ?? {};
            assert.ok(!(text && delta.reasoning_content), "reasoning after content");
            thought += delta.reasoning_content ?? "";
            text += delta.content ?? "";
        }
        assert.deepEqual([thought, text], [message.reasoning_content, message.content]);
        const next = await openai.chat.completions.create({ ...ask, messages: [...messages, message, ...messages] });
        assert.ok(next.choices[0].message.content.length > 0);
        const without = await openai.chat.completions.create({ ...ask, reasoning_effort: "none" });
        assert.ok(!without.choices[0].message.reasoning_content);
    },

    async "openai: reasoning of responses"() {
        const ask = { model, input: "Once upon a time", max_output_tokens: 40, temperature: 0, reasoning: { effort: "low", max_tokens: 12 } };
        const whole = await openai.responses.create(ask);
        assert.deepEqual(whole.output.map((item) => item.type), ["reasoning", "message"]);
        const thought = (item) => item.content.map((part) => part.text).join("");
        assert.ok(thought(whole.output[0]).length > 0 && whole.output_text.length > 0);
        const streamed = await openai.responses.stream(ask).finalResponse();
        assert.equal(thought(streamed.output[0]), thought(whole.output[0]));
        assert.equal(streamed.output_text, whole.output_text);
        const next = await openai.responses.create({ ...ask, input: [{ role: "user", content: "Once" }, ...whole.output, { role: "user", content: "Go on" }] });
        assert.equal(next.output[0].type, "reasoning");
    },

    async "anthropic: thinking, whole, streamed, given back and left out"() {
        const ask = { model, messages, max_tokens: 40, temperature: 0, thinking: { type: "enabled", budget_tokens: 12 } };
        const whole = await anthropic.messages.create(ask);
        assert.deepEqual(whole.content.map((block) => block.type), ["thinking", "text"]);
        const stream = anthropic.messages.stream(ask);
        let thought = "";
        stream.on("thinking", (piece) => (thought += piece));
        assert.deepEqual((await stream.finalMessage()).content, whole.content);
        assert.equal(thought, whole.content[0].thinking);
        const next = await anthropic.messages.create({ ...ask, messages: [...messages, { role: "assistant", content: whole.content }, ...messages] });
        assert.equal(next.content[0].type, "thinking");
        const without = await anthropic.messages.create({ ...ask, thinking: { type: "disabled" } });
        assert.deepEqual(without.content.map((block) => block.type), ["text"]);
    },

    async "ai: reasoning by each provider"() {
        const providers = {
            compatible: createOpenAICompatible({ name: "local", baseURL: url + "/v1", transformRequestBody: (body) => ({ ...body, reasoning_budget: 12 }) })(model),
            anthropic: createAnthropic({ baseURL: url + "/v1", apiKey: "x" })(model),
        };
        for (const [name, provider] of Object.entries(providers)) {
            const ask = {
                model: provider, prompt: "Once upon a time", maxOutputTokens: 40, maxRetries: 0,
                providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 12 } } },
            };
            const whole = await generateText(ask);
            assert.ok(whole.reasoningText.length > 0 && whole.text.length > 0, name);
            let thought = "";
            for await (const part of streamText(ask).fullStream) if (part.type === "reasoning-delta") thought += part.text;
            assert.ok(thought.length > 0, name);
        }
    },
};

let failed = 0;
const tests = { answers, reasoning }[process.argv[3]];
const names = Object.keys(tests).filter((name) => name.includes(process.argv[4] ?? ""));
for (const name of names)
    try {
        await tests[name]();
    } catch (e) {
        failed++;
        console.log(`FAIL ${name}\n${e.stack}${e.cause ? "\n" + e.cause.stack : ""}`);
    }
console.log(`${names.length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
