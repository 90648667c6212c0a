// Small things that the browser keeps for us, for the tab (sessionStorage) or for good (localStorage). Where it forbids
// that, even to ask, they last as long as the page.

const here = new Map();

// null: nothing is kept.
export function kept(where, name) {
    try {
        return globalThis[where].getItem(name);
    } catch {
        return here.get(name) ?? null;
    }
}

// null: keep nothing any more.
export function keep(where, name, text) {
    try {
        if (text === null) globalThis[where].removeItem(name);
        else globalThis[where].setItem(name, text);
    } catch {
        here.set(name, text);
    }
}
