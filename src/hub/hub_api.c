#include "hub/hub_api.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Appends text to a URL; characters that a URL can't contain are escaped, "/" is not. */
static void put_escaped(struct bytes *b, const char *text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    for (const char *p = text; *p; p++) {
        char escaped[4];
        snprintf(escaped, sizeof escaped, "%%%02X", (unsigned char)*p);
        bytes_put_text(b, strchr(plain, *p) ? (char[]){*p, '\0'} : escaped);
    }
}

/* Appends a revision, which is one segment of the URL's path, so that its slashes are escaped, too. */
static void put_revision(struct bytes *b, const char *revision)
{
    for (const char *p = revision; *p; p++)
        if (*p == '/')
            bytes_put_text(b, "%2F");
        else
            put_escaped(b, (char[]){*p, '\0'});
}

char *hub_api_file_url(const char *endpoint, const char *repo, const char *commit, const char *path)
{
    struct bytes b = {0};
    bytes_put_text(&b, endpoint);
    bytes_put_char(&b, '/');
    bytes_put_text(&b, repo);
    bytes_put_text(&b, "/resolve/");
    bytes_put_text(&b, commit);
    bytes_put_char(&b, '/');
    put_escaped(&b, path);
    char *url = b.is_short ? NULL : mem_strdup(bytes_text(&b));
    bytes_close(&b);
    return url;
}

/* ENDPOINT/api/models/OWNER/REPO/KIND/REVISION and what follows. */
static char *api_url(const char *endpoint, const char *repo, const char *kind, const char *revision, const char *rest)
{
    struct bytes b = {0};
    bytes_put_text(&b, endpoint);
    bytes_put_text(&b, "/api/models/");
    bytes_put_text(&b, repo);
    bytes_put_char(&b, '/');
    bytes_put_text(&b, kind);
    bytes_put_char(&b, '/');
    put_revision(&b, revision);
    bytes_put_text(&b, rest);
    char *url = b.is_short ? NULL : mem_strdup(bytes_text(&b));
    bytes_close(&b);
    return url;
}

enum { MOST_ANSWER_BYTES = 32 << 20, MOST_PAGES = 50, NEXT_BYTES = 1024 };

static err_code ask_commit(struct http_client *c, const char *endpoint, const struct model_name *name,
                           struct bytes *text, char commit[HUB_COMMIT_BYTES], struct err *e)
{
    char *url = api_url(endpoint, name->repo, "revision", name->revision, "");
    if (!url)
        return err_nomem(e, HUB_URL_BYTES, "an address");
    err_code code = http_client_text(c, url, MOST_ANSWER_BYTES, text, NULL, e);
    if (code == ERR_OK)
        code = hub_api_read_commit(bytes_text(text), text->n, url, commit, e);
    mem_free(url);
    return code;
}

/* Reads all pages of the list of files. */
static err_code ask_tree(struct http_client *c, const char *endpoint, const struct model_name *name, const char *commit,
                         struct bytes *text, struct model_sets *out, struct err *e)
{
    char next[NEXT_BYTES];
    char *url = api_url(endpoint, name->repo, "tree", commit, "?recursive=1");
    err_code code = url ? ERR_OK : err_nomem(e, HUB_URL_BYTES, "an address");
    for (int i = 0; code == ERR_OK && url; i++) {
        code = http_client_text(c, url, MOST_ANSWER_BYTES, text, next, e);
        if (code == ERR_OK)
            code = hub_api_read_tree(bytes_text(text), text->n, url, out, e);
        mem_free(url);
        url = NULL;
        if (code == ERR_OK && *next && i + 1 == MOST_PAGES)
            code = err_set(e, ERR_LIMIT, "%s: its list of files has more than %d pages", name->repo, MOST_PAGES);
        else if (code == ERR_OK && *next && !(url = mem_strdup(next)))
            code = err_nomem(e, sizeof next, "an address");
    }
    mem_free(url);
    return code;
}

err_code hub_api_models(struct http_client *c, const char *endpoint, const struct model_name *name,
                        char commit[HUB_COMMIT_BYTES], struct model_sets *out, struct err *e)
{
    struct bytes text = {0};
    err_code code = ask_commit(c, endpoint, name, &text, commit, e);
    if (code == ERR_OK)
        code = ask_tree(c, endpoint, name, commit, &text, out, e);
    if (code == ERR_OK)
        code = model_sets_group(out, e);
    bytes_close(&text);
    return code;
}
