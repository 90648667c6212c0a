/* Which family a template belongs to, and how it marks reasoning. */
#include <string.h>

#include "reply/reply_internal.h"

static const struct reply_marks all_marks[] = {
    /* Channels are read from their headers (family_gpt_oss.c); what is here is what follows them. */
    {"<|channel|>analysis", "<|channel|>analysis<|message|>", "<|end|>", {"<|end|>", "<|return|>", "<|call|>"}},
    {"<|channel>thought", "<|channel>thought", "<channel|>", {0}},
    {"<|START_THINKING|>",
     "<|START_THINKING|>",
     "<|END_THINKING|>",
     {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"}},
    {"[THINK]", "[THINK]", "[/THINK]", {0}},
    {"<seed:think>", "<seed:think>", "</seed:think>", {0}},
    {"<mm:think>", "<mm:think>", "</mm:think>", {0}},
    {"<|open|>",
     "<|open|>think<|sep|>",
     "<|close|>think<|sep|>",
     {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"}},
    {"':opensource'", "<think:opensource>", "</think:opensource>", {0}},
    {"<|begin|>assistant<|think|>", "<|think|>", "<|end|>", {"<|begin|>assistant", "<|content|>", "<|end|>"}},
    {"<global_setting>", "<think>", "</think>", {0}, "<response>", "</response>"},      /* ERNIE 4.5 Thinking */
    {"<response></response>", "<think>", "</think>", {0}, "<response>", "</response>"}, /* Granite 3.3 */
    {"<answer>", "<think>", "</think>", {0}, "<answer>", "</answer>"},                  /* Hunyuan-A13B */
    {"<|inner_prefix|>", "<|inner_prefix|>", "<|inner_suffix|>", {0}},
    {"\342\227\201think\342\226\267", "\342\227\201think\342\226\267", "\342\227\201/think\342\226\267", {0}},
    {"<think>", "<think>", "</think>", {0}}, /* by far the commonest, and the one that others are taken for */
};

#define FAMILY(name) extern const struct reply_family reply_family_##name;
#include "reply/family_list.def"
#undef FAMILY

static const struct reply_family *const families[] = {
#define FAMILY(name) &reply_family_##name,
#include "reply/family_list.def"
#undef FAMILY
};

static bool has_sign(const struct reply_family *f, const char *source)
{
    bool has = false;
    for (size_t i = 0; i < sizeof f->signs / sizeof *f->signs && f->signs[i]; i++)
        has = has || strstr(source, f->signs[i]);
    return has;
}

struct reply_style reply_style_of(const char *source)
{
    size_t n_marks = sizeof all_marks / sizeof *all_marks, n_families = sizeof families / sizeof *families;
    size_t m = 0, f = 0, s = 0;
    while (m < n_marks - 1 && !strstr(source, all_marks[m].sign))
        m++;
    while (f < n_families - 1 && !has_sign(families[f], source))
        f++;
    while (families[f]->shapes[s].sign && !strstr(source, families[f]->shapes[s].sign))
        s++;
    return (struct reply_style){families[f], &families[f]->shapes[s], &all_marks[m],
                                strstr(source, all_marks[m].sign) != NULL};
}

const char *reply_style_name(const struct reply_style *s)
{
    return s->family->name;
}

static bool holds(const char *mark, const char *token)
{
    return mark && strstr(mark, token);
}

bool reply_style_has(const struct reply_style *s, const char *token, bool has_tools)
{
    bool has = holds(s->marks->open, token) || holds(s->marks->close, token) || holds(s->marks->begin, token) ||
               holds(s->marks->end, token);
    for (int i = 0; i < REPLY_MAX_SKIP; i++)
        has = has || holds(s->marks->skip[i], token);
    for (int i = 0; i < REPLY_MAX_TRIGGERS; i++) {
        const struct reply_trigger *t = &s->family->triggers[i];
        has = has || ((has_tools || t->flags & TRIGGER_ALWAYS) && holds(t->text, token));
    }
    for (int i = 0; i < REPLY_MAX_STATES && has_tools; i++)
        for (int w = 0; w < REPLY_MAX_WAYS; w++)
            has = has || holds(s->family->states[i].ways[w].text, token);
    return has;
}
