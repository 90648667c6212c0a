#include "cli/chat_prompt.h"

#include "base/json_text.h"
#include "base/mem.h"

void chat_prompt_close(struct chat_prompt *p)
{
    moebius_prompt_close(&p->rendered);
    moebius_free(p->ids);
    *p = (struct chat_prompt){0};
}

err_code chat_prompt_render(struct chat_prompt *p, const moebius_template *tmpl, const moebius_vocab *vocab,
                            const json_t *messages, const moebius_template_var *vars, size_t n_vars, struct err *e)
{
    moebius_error error;
    char *text = json_write(messages, JSON_COMPACT, NULL);
    if (!text)
        return err_nomem(e, 0, "the messages");
    const moebius_template_input input = {.messages = text, .vars = vars, .n_vars = n_vars};
    chat_prompt_close(p);
    moebius_status status = moebius_template_render(tmpl, &input, &p->rendered, &error);
    mem_free(text);
    if (status == MOEBIUS_OK)
        status = moebius_prompt_tokenize(p->rendered, vocab, &p->ids, &p->n, &error);
    if (status == MOEBIUS_OK)
        return ERR_OK;
    chat_prompt_close(p);
    return err_adopt(e, &error);
}

bool chat_prompt_is_messages(const json_t *messages)
{
    bool good = json_is_array(messages);
    for (size_t i = 0; good && i < json_array_size(messages); i++)
        good = json_is_string(json_object_get(json_array_get(messages, i), "role"));
    return good;
}
