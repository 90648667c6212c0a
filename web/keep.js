// Small values that the browser keeps for the tab (sessionStorage) or permanently (localStorage). Values that it does
// not keep, because that is forbidden or there is no room, last as long as the page.

const here = new Map(); // what the browser did not keep

// The value; null: there is none.
export function kept(where, name) {
    if (here.has(name)) return here.get(name);
    try {
        return globalThis[where].getItem(name);
    } catch {
        return null;
    }
}

// Keeps a value; null: removes it.
export function keep(where, name, text) {
    try {
        if (text === null) globalThis[where].removeItem(name);
        else globalThis[where].setItem(name, text);
        here.delete(name);
    } catch {
        here.set(name, text);
    }
}
