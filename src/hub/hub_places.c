#include "hub/hub_places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A variable that is set to something. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static err_code join(char *out, const char *name, const char *folder, const char *below, struct err *e)
{
    if (*folder != '/')
        return err_set(e, ERR_USAGE, "%s is %s: expected a path that begins with /", name, folder);
    if ((size_t)snprintf(out, HUB_PLACE_BYTES, "%s%s", folder, below) >= HUB_PLACE_BYTES)
        return err_set(e, ERR_USAGE, "%s is longer than paths may be", name);
    return ERR_OK;
}

/* Below the variable's folder, or else below `hidden` in HOME. */
static err_code place(char *out, const char *name, const char *below, const char *hidden, struct err *e)
{
    const char *folder = variable(name), *home = variable("HOME");
    char at_home[HUB_PLACE_BYTES];
    *out = '\0';
    if (folder && *folder == '/') /* the specification of these variables says that relative ones don't count */
        return join(out, name, folder, below, e);
    if (!home || *home != '/')
        return ERR_OK;
    TRY(join(at_home, "HOME", home, hidden, e));
    return join(out, "HOME", at_home, below, e);
}

/* Of the Hub: HF_HOME, which has a default. */
static err_code hub_place(char *out, const char *below, struct err *e)
{
    char huggingface[64];
    const char *home = variable("HF_HOME");
    if (home)
        return join(out, "HF_HOME", home, below, e);
    snprintf(huggingface, sizeof huggingface, "/huggingface%s", below);
    return place(out, "XDG_CACHE_HOME", huggingface, "/.cache", e);
}

static err_code find_cache(struct hub_places *p, struct err *e)
{
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"};
    for (int i = 0; i < 2; i++)
        if (variable(names[i]))
            return join(p->cache, names[i], variable(names[i]), "", e);
    return hub_place(p->cache, "/hub", e);
}

static err_code find_endpoint(struct hub_places *p, struct err *e)
{
    const char *address = variable("HF_ENDPOINT");
    address = address ? address : "https://huggingface.co";
    size_t n = strlen(address);
    while (n > 0 && address[n - 1] == '/')
        n--;
    bool is_address = strncmp(address, "https://", 8) == 0 || strncmp(address, "http://", 7) == 0;
    if (!is_address || n >= sizeof p->endpoint || strpbrk(address, "?#@ \t\r\n"))
        return err_set(e, ERR_USAGE, "HF_ENDPOINT is %s: expected an address such as https://huggingface.co", address);
    snprintf(p->endpoint, sizeof p->endpoint, "%.*s", (int)n, address);
    return ERR_OK;
}

/* Reads the first line of a file, cut to n bytes with its NUL; "": there is no file. */
static void read_line(const char *path, char *line, size_t n)
{
    FILE *f = *path ? fopen(path, "re") : NULL;
    if (!f || !fgets(line, (int)n, f))
        line[0] = '\0';
    if (f)
        fclose(f);
}

static err_code find_token(struct hub_places *p, struct err *e)
{
    char path[HUB_PLACE_BYTES], line[sizeof p->token + 2]; /* with a line end */
    const char *token = variable("HF_TOKEN"), *from = "HF_TOKEN";
    if (!token)
        token = variable("HUGGING_FACE_HUB_TOKEN");
    TRY(variable("HF_TOKEN_PATH") ? join(path, "HF_TOKEN_PATH", variable("HF_TOKEN_PATH"), "", e)
                                  : hub_place(path, "/token", e));
    if (!token) {
        read_line(from = path, line, sizeof line);
        token = line;
    }
    size_t n = strcspn(token, "\r\n");
    if (n >= sizeof p->token)
        return err_set(e, ERR_USAGE, "%s: expected a token of at most %zu bytes", from, sizeof p->token - 1);
    snprintf(p->token, sizeof p->token, "%.*s", (int)n, token);
    for (const char *c = p->token; *c; c++)
        if (*c <= ' ' || *c > '~')
            return err_set(e, ERR_USAGE, "%s: expected a token of letters, digits and the like", from);
    return ERR_OK;
}

err_code hub_places_find(struct hub_places *p, struct err *e)
{
    static const char *const yes[] = {"1", "true", "yes", "on"};
    const char *offline = variable("HF_HUB_OFFLINE");
    *p = (struct hub_places){0};
    for (int i = 0; offline && i < 4; i++)
        p->is_offline |= strcasecmp(offline, yes[i]) == 0;
    TRY(find_cache(p, e));
    TRY(place(p->downloads, "XDG_CACHE_HOME", "/moebius/downloads", "/.cache", e));
    TRY(place(p->aliases, "XDG_CONFIG_HOME", "/moebius/aliases", "/.config", e));
    TRY(find_endpoint(p, e));
    return find_token(p, e);
}
