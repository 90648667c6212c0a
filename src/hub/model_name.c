#include "hub/model_name.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/printable.h"

bool hub_is_hex(const char *text, size_t n)
{
    return strspn(text, "0123456789abcdef") >= n;
}

bool hub_path_is_safe(const char *path)
{
    enum { PART_BYTES = 255 };
    char shown[HUB_PATH_BYTES];
    size_t n_path = strlen(path);
    if (n_path == 0 || n_path >= HUB_PATH_BYTES || strchr(path, '\\') ||
        !printable_line(path, n_path, shown, sizeof shown) || strcmp(shown, path) != 0)
        return false;
    for (const char *part = path;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || n > PART_BYTES || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part += n;
        if (!*part)
            return true;
    }
}

/* A name of an owner or a repository: letters, digits, '-', '_' and '.', no "--" or "..", as the Hub has them. */
static bool is_word(const char *s, size_t n)
{
    enum { WORD_BYTES = 96 };
    if (n == 0 || n > WORD_BYTES || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++) {
        bool is_letter = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9');
        if (!is_letter && (!s[i] || !strchr("-_.", s[i])))
            return false;
        if (i > 0 && s[i] == s[i - 1] && (s[i] == '-' || s[i] == '.'))
            return false;
    }
    return true;
}

static bool copy(char *out, size_t n_out, const char *s, size_t n)
{
    if (n >= n_out)
        return false;
    memcpy(out, s, n);
    out[n] = '\0';
    return true;
}

/* "OWNER/REPO" in the first n bytes. */
static bool set_repo(struct model_name *out, const char *s, size_t n)
{
    const char *slash = memchr(s, '/', n);
    size_t n_owner = slash ? (size_t)(slash - s) : 0;
    return slash && is_word(s, n_owner) && is_word(slash + 1, n - n_owner - 1) &&
           copy(out->repo, sizeof out->repo, s, n);
}

/* What is behind "hf:", or behind what else the Hub's programs and ollama write there; NULL: it is no such name. */
static const char *hub_part(const char *text)
{
    static const char *const begins[] = {"hf:", "hf.co/", "huggingface.co/"};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(text, begins[i], strlen(begins[i])) == 0)
            return text + strlen(begins[i]);
    return NULL;
}

static err_code parse_hub(struct model_name *out, const char *text, const char *name, struct err *e)
{
    const char *what = strchr(name, ':');
    size_t n = what ? (size_t)(what - name) : strlen(name);
    const char *at = memchr(name, '@', n);
    size_t n_repo = at ? (size_t)(at - name) : n;
    out->kind = MODEL_NAME_HUB;
    snprintf(out->revision, sizeof out->revision, "main");
    if (!set_repo(out, name, n_repo))
        return err_set(e, ERR_USAGE, "%s: expected hf:OWNER/REPO, or hf:OWNER/REPO:WHAT with a quantisation or a file",
                       text);
    if (at && (!copy(out->revision, sizeof out->revision, at + 1, n - n_repo - 1) || !hub_path_is_safe(out->revision)))
        return err_set(e, ERR_USAGE, "%s: expected the name of a revision after @", text);
    if (what && (!copy(out->what, sizeof out->what, what + 1, strlen(what + 1)) || !hub_path_is_safe(out->what)))
        return err_set(e, ERR_USAGE, "%s: expected a quantisation or the path of a file after :", text);
    return ERR_OK;
}

/* The Hub's own page of a file: ENDPOINT/OWNER/REPO/resolve/REVISION/PATH, or blob in place of resolve. */
static bool parse_hub_address(struct model_name *out, const char *endpoint)
{
    size_t n = strlen(endpoint);
    const char *p = out->url + n + 1;
    if (strncmp(out->url, endpoint, n) != 0 || out->url[n] != '/' || strpbrk(p, "%?"))
        return false;
    const char *slash = strchr(p, '/'), *end = slash ? strchr(slash + 1, '/') : NULL;
    if (!end || !set_repo(out, p, (size_t)(end - p)))
        return false;
    const char *revision = strncmp(end, "/resolve/", 9) == 0 ? end + 9
                           : strncmp(end, "/blob/", 6) == 0  ? end + 6
                                                             : NULL;
    const char *path = revision ? strchr(revision, '/') : NULL;
    return path && copy(out->revision, sizeof out->revision, revision, (size_t)(path - revision)) &&
           hub_path_is_safe(out->revision) && copy(out->what, sizeof out->what, path + 1, strlen(path + 1)) &&
           hub_path_is_safe(out->what);
}

static bool is_address(const char *text)
{
    return strncasecmp(text, "https://", 8) == 0 || strncasecmp(text, "http://", 7) == 0;
}

static err_code parse_url(struct model_name *out, const char *text, const char *endpoint, struct err *e)
{
    char shown[HUB_URL_BYTES];
    size_t n = strcspn(text, "#");
    if (n >= sizeof out->url || !printable_line(text, n, shown, sizeof shown) || strncmp(shown, text, n) != 0)
        return err_set(e, ERR_USAGE, "%.200s: expected an address of printable characters, less than %zu bytes", text,
                       sizeof out->url);
    copy(out->url, sizeof out->url, text, n);
    out->kind = MODEL_NAME_URL;
    if (parse_hub_address(out, endpoint)) {
        out->kind = MODEL_NAME_HUB;
        out->url[0] = '\0';
    }
    return ERR_OK;
}

bool model_name_is_remote(const char *text)
{
    return hub_part(text) || is_address(text);
}

err_code model_name_parse(struct model_name *out, const char *text, const char *endpoint, struct err *e)
{
    *out = (struct model_name){.kind = MODEL_NAME_FILE};
    const char *name = hub_part(text);
    if (name)
        return parse_hub(out, text, name, e);
    return is_address(text) ? parse_url(out, text, endpoint, e) : ERR_OK;
}
