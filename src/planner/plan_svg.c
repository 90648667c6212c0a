/* A plan as a picture: a bar for each tier, as long as the tier is large, and the names and sizes of what lies in it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/printable.h"
#include "base/units_text.h"
#include "base/utf8.h"
#include "planner/plan.h"

enum {
    WIDTH = 900,
    LEFT = 20,
    BAR_WIDTH = WIDTH - 2 * LEFT,
    BAR_HEIGHT = 34,
    LINE = 20,        /* from one line of text to the next */
    TITLE_COLUMN = 84 /* letters in a line of the title; each takes at most 9 units */
};

static const char *const tiers[] = {"vram", "ram", "drive"};
static const char *const tier_names[] = {"VRAM", "memory", "drive"};
enum { N_TIER = sizeof tiers / sizeof *tiers };

/* Each class of bytes has the same colour in all tiers. */
static const struct {
    const char *what, *colour;
} colours[] = {{"weights", "#4878a8"},     {"experts", "#e49444"},     {"expert copies", "#f0b87c"},
               {"texts", "#6a9f58"},       {"checkpoints", "#97c286"}, {"prompt cache", "#bcdcae"},
               {"activations", "#a87c9f"}, {"program", "#967662"},     {"driver", "#b8b0ac"}};

static const char *colour_of(const char *what)
{
    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++)
        if (!strcmp(colours[i].what, what))
            return colours[i].colour;
    return "#888888";
}

/* A picture in the making; y is where the next line goes. */
struct drawing {
    struct bytes b;
    struct err *e;
    err_code code;
    int y;
};

#define DRAW(d, ...)                                                                                                   \
    do {                                                                                                               \
        if ((d)->code == ERR_OK)                                                                                       \
            (d)->code = bytes_print(&(d)->b, (d)->e, __VA_ARGS__);                                                     \
    } while (0)

/* Text, escaped for XML. */
static void draw_letters(struct drawing *d, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        switch (s[i]) {
        case '&': DRAW(d, "&amp;"); break;
        case '<': DRAW(d, "&lt;"); break;
        case '>': DRAW(d, "&gt;"); break;
        default: DRAW(d, "%c", s[i]);
        }
}

static void draw_line(struct drawing *d, const char *weight, const char *s, size_t n)
{
    d->y += LINE;
    DRAW(d, "<text x=\"%d\" y=\"%d\" font-weight=\"%s\">", LEFT, d->y, weight);
    draw_letters(d, s, n);
    DRAW(d, "</text>\n");
}

/* How many bytes of a title fit into a line. It is cut at a blank if there is one, and never within a character. */
static size_t line_length(const char *s)
{
    size_t n = strlen(s), at = TITLE_COLUMN;
    if (n <= TITLE_COLUMN)
        return n;
    while (at > TITLE_COLUMN / 2 && s[at] != ' ')
        at--;
    if (s[at] == ' ')
        return at;
    for (at = TITLE_COLUMN; utf8_is_tail(s[at]);)
        at--;
    return at;
}

/* Draws a text in as many lines as it needs. */
static void draw_title(struct drawing *d, const char *title)
{
    while (*title) {
        size_t n = line_length(title);
        draw_line(d, "bold", title, n);
        title += n;
        title += strspn(title, " ");
    }
}

static void draw_rows(struct drawing *d, const struct plan *p, const char *tier, double scale)
{
    double x = LEFT;
    for (int i = 0; i < p->n_row; i++) {
        const struct plan_row *r = &p->rows[i];
        if (strcmp(r->tier, tier) != 0)
            continue;
        DRAW(d, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", x, d->y + 8,
             (double)r->n_bytes * scale, BAR_HEIGHT, colour_of(r->what));
        x += (double)r->n_bytes * scale;
    }
    d->y += BAR_HEIGHT + 8;
    for (int i = 0; i < p->n_row; i++) {
        const struct plan_row *r = &p->rows[i];
        if (strcmp(r->tier, tier) != 0)
            continue;
        d->y += LINE;
        DRAW(d, "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", LEFT, d->y - 11,
             colour_of(r->what));
        DRAW(d, "<text x=\"%d\" y=\"%d\">%s %s</text>\n", LEFT + 20, d->y, r->what, units_size(r->n_bytes).s);
    }
}

static void draw_tier(struct drawing *d, const struct plan *p, int tier)
{
    uint64_t n_bytes = 0, limit = tier == 0 ? p->vram_limit : tier == 1 ? p->ram_limit : 0;
    char head[128];
    for (int i = 0; i < p->n_row; i++)
        n_bytes += strcmp(p->rows[i].tier, tiers[tier]) ? 0 : p->rows[i].n_bytes;
    if (!n_bytes)
        return;
    snprintf(head, sizeof head, "%s: %s%s%s", tier_names[tier], units_size(n_bytes).s, limit ? " of " : "",
             limit ? units_size(limit).s : "");
    d->y += LINE / 2;
    draw_line(d, "bold", head, strlen(head));
    DRAW(d, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#eeeeee\" stroke=\"#999999\"/>\n", LEFT,
         d->y + 8, BAR_WIDTH, BAR_HEIGHT);
    draw_rows(d, p, tiers[tier], BAR_WIDTH / (double)(n_bytes > limit ? n_bytes : limit));
}

static void draw_speed(struct drawing *d, const struct plan *p)
{
    char text[PLAN_LINE_BYTES] = "decode: how fast is not known";
    if (p->decode.is_forecast)
        snprintf(text, sizeof text, "decode: %s to %s tokens/s, %s at most", units_figure(p->decode.low).s,
                 units_figure(p->decode.high).s, units_figure(p->decode.ceiling).s);
    else if (p->decode.ceiling > 0)
        snprintf(text, sizeof text, "decode: up to %s tokens/s", units_figure(p->decode.ceiling).s);
    draw_line(d, "normal", text, strlen(text));
}

static void draw_all(struct drawing *d, const struct plan *p, const struct plan_inputs *in)
{
    const struct plan_settings *s = &p->settings;
    char name[2 * FACTS_NAME_BYTES], machine[2 * MACHINE_NAME_BYTES], text[sizeof name + sizeof machine + 8];
    printable_line(in->facts->name, strlen(in->facts->name), name, sizeof name);
    printable_line(in->machine->name, strlen(in->machine->name), machine, sizeof machine);
    snprintf(text, sizeof text, "%s on %s", name, *machine ? machine : "a machine without a name");
    draw_title(d, text);
    snprintf(text, sizeof text, "%" PRId64 " text%s of %" PRId64 " tokens, %s KV cache, %d threads", s->n_texts,
             s->n_texts == 1 ? "" : "s", s->n_ctx, in->facts->kv[s->kv].name, s->n_threads);
    draw_line(d, "normal", text, strlen(text));
    if (p->is_refused)
        draw_title(d, p->refusal);
    else
        draw_speed(d, p);
    for (int i = 0; i < N_TIER; i++)
        draw_tier(d, p, i);
}

err_code plan_svg(const struct plan *p, const struct plan_inputs *in, char **text, struct err *e)
{
    struct drawing body = {.e = e, .y = LINE / 2}, all = {.e = e};
    *text = NULL;
    draw_all(&body, p, in);
    DRAW(&all,
         "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
         "font-family=\"sans-serif\" font-size=\"14\">\n<rect width=\"100%%\" height=\"100%%\" "
         "fill=\"white\"/>\n%s</svg>\n",
         WIDTH, body.y + LINE, WIDTH, body.y + LINE, body.b.s ? body.b.s : "");
    bytes_close(&body.b);
    err_code code = body.code != ERR_OK ? body.code : all.code;
    if (code != ERR_OK)
        bytes_close(&all.b);
    *text = all.b.s;
    return code;
}
