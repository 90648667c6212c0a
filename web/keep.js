// Small things that the browser keeps for us, for the tab (sessionStorage) or for good (localStorage). What it does not
// keep, because it forbids that or has no room, lasts as long as the page.

const here = new Map(); // what the browser did not keep

// null: nothing is kept.
export function kept(where, name) {
    if (here.has(name)) return here.get(name);
    try {
        return globalThis[where].getItem(name);
    } catch {
        return null;
    }
}

// null: keep nothing any more.
export function keep(where, name, text) {
    try {
        if (text === null) globalThis[where].removeItem(name);
        else globalThis[where].setItem(name, text);
        here.delete(name);
    } catch {
        here.set(name, text);
    }
}
