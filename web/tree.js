// A conversation is a tree of messages. Editing a message or asking again adds a branch and changes nothing that is
// there. One path through the tree is shown.
//
// conversation: {id, title, created, changed, nodes: {ID: node}, chosen: {ID or "": ID of the child that is shown}}
// node: {id, parent ("": none), role, content, created, changed}; an answer also has {reasoning, calls, model, state,
//   stats, error, finish, writer}, and a tool's result {callId}

export const newId = () =>
    Array.from(crypto.getRandomValues(new Uint8Array(9)), (b) => b.toString(36).padStart(2, "0")).join("");

export function newConversation() {
    const now = Date.now();
    return { id: newId(), title: "", created: now, changed: now, nodes: {}, chosen: {} };
}

// Adds a message after `parent` and shows it.
export function addNode(c, parent, fields) {
    const now = Date.now();
    const node = { id: newId(), parent, content: "", created: now, changed: now, ...fields };
    c.nodes[node.id] = node;
    c.chosen[parent] = node.id;
    c.changed = now;
    if (!c.title && node.role === "user") c.title = titleOf(node.content);
    return node;
}

export function titleOf(text) {
    const line = text.trim().split("\n", 1)[0].slice(0, 80).trim();
    return line.length < 60 ? line : `${line.slice(0, 57)}…`;
}

// The messages after `parent`, oldest first.
export function childrenOf(c, parent) {
    return Object.values(c.nodes)
        .filter((n) => n.parent === parent)
        .sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

// The messages that are shown, first to last.
export function pathOf(c) {
    const behind = new Map(); // the children of each message
    for (const n of Object.values(c.nodes)) behind.set(n.parent, [...(behind.get(n.parent) || []), n]);
    const path = [];
    for (let at = ""; behind.has(at);) {
        const all = behind.get(at);
        behind.delete(at); // a damaged tree may have cycles
        const node = all.find((n) => n.id === c.chosen[at]) || all.reduce((a, b) => (b.created >= a.created ? b : a));
        path.push(node);
        at = node.id;
    }
    return path;
}

// The messages from the first one to this one.
export function pathTo(c, id) {
    const path = [];
    const seen = new Set();
    for (let n = c.nodes[id]; n && !seen.has(n.id); n = c.nodes[n.parent]) {
        seen.add(n.id);
        path.unshift(n);
    }
    return path;
}

// Merges what two tabs have of a conversation: all messages, the newer version of each, and all else from `mine`.
export function merge(mine, theirs) {
    const nodes = { ...theirs.nodes };
    for (const [id, n] of Object.entries(mine.nodes)) if (!nodes[id] || n.changed >= nodes[id].changed) nodes[id] = n;
    return {
        ...mine,
        nodes,
        chosen: { ...theirs.chosen, ...mine.chosen },
        changed: Math.max(mine.changed, theirs.changed),
    };
}

// The messages in the form of OpenAI's chat completions.
export function toMessages(path, system) {
    const messages = system ? [{ role: "system", content: system }] : [];
    for (const n of path) {
        const m = { role: n.role, content: n.content };
        if (n.reasoning) m.reasoning_content = n.reasoning;
        if (n.calls?.length)
            m.tool_calls = n.calls.map((call) => ({
                id: call.id,
                type: "function",
                function: { name: call.name, arguments: call.arguments },
            }));
        if (n.role === "tool") m.tool_call_id = n.callId;
        messages.push(m);
    }
    return messages;
}
